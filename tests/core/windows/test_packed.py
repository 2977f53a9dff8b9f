"""Spending in packed windows: the same answers and the same units as in the rings."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from slidegate.core import Limit, new_window
from slidegate.core.windows.codec import load_ring, newest_us, pack_window
from slidegate.core.windows.packed import spend_counts, spend_times


@pytest.mark.parametrize("amount", [1, 3, 8, 9, 40])
def test_a_packed_window_is_spent_like_its_ring(amount: int, rng: random.Random) -> None:
    limit = Limit(amount, timedelta(microseconds=1_600), resolution=8)
    ring, row, now_us, spent_packed = new_window(limit), b"", 10_000, 0
    spend = spend_times if limit.exact else spend_counts
    for _ in range(5_000):
        now_us = max(now_us + rng.choice((0, 1, 60, 200, 300, 1_000, 1_800, 4_000, -1, -600)), 0)
        asked, cost = rng.choice((amount, amount, amount + 1, max(amount - 1, 1))), rng.choice((1, 1, 1, 0, 2, 5))
        changed = spend(row, limit, now_us, asked, cost)
        reading = ring.spend(now_us, asked, cost)
        if changed is None:
            row = pack_window(ring)
            continue
        spent_packed += 1
        assert changed[0] == reading
        row = changed[1]
        read = new_window(limit)
        load_ring(read, row)
        assert pack_window(read) == pack_window(ring) == row
        assert newest_us(row) == ring.newest_us
    assert spent_packed > 500
