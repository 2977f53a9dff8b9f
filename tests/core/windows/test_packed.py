"""Spending in packed windows: the same answers and the same units as in the rings."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from slidegate.core import Limit, new_window
from slidegate.core.windows.codec import pack_window
from slidegate.core.windows.packed import Row, load_row, newest_of, row_of, spend_counts, spend_times


@pytest.mark.parametrize("amount", [1, 3, 8, 9, 40])
def test_a_packed_window_is_spent_like_its_ring(amount: int, rng: random.Random) -> None:
    limit = Limit(amount, timedelta(microseconds=1_600), resolution=8)
    ring, read, now_us, spent_packed = new_window(limit), new_window(limit), 10_000, 0
    row: Row = 0
    kinds: set[type[Row]] = set()
    spend = spend_times if limit.exact else spend_counts
    for _ in range(5_000):
        now_us = max(now_us + rng.choice((0, 1, 60, 200, 300, 1_000, 1_800, 4_000, -1, -600)), 0)
        asked, cost = rng.choice((amount, amount, amount + 1, max(amount - 1, 1))), rng.choice((1, 1, 1, 0, 2, 5))
        changed = spend(row, limit, now_us, asked, cost)
        reading = ring.spend(now_us, asked, cost)
        if changed is None:
            row = row_of(ring)
        else:
            spent_packed += 1
            assert changed[0] == reading
            row = changed[1]
        kinds.add(type(row))
        load_row(read, row)  # into a ring that holds something else
        assert bool(row) is bool(read.spent) is bool(ring.spent)
        if row:
            assert (pack_window(read), read.leaves_us) == (pack_window(ring), ring.leaves_us)
            assert newest_of(row) == ring.newest_us
    assert spent_packed > 500
    assert kinds == {int, bytes}
