"""Shared cells: what a flood leaves behind, and that nobody passes a bound on the way from a cell to a window."""

import asyncio
import itertools
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slidegate.stores.lmdb.windows
import slidegate.stores.memory.shard
from slidegate import Decision, MemoryStore
from slidegate.core import Check
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import Player, same, settle, views_of
from ..contract.programs import SECOND_US, Move, Program, Question, Step, programs
from .conftest import Opened

MINUTE_US = 60 * SECOND_US
pytestmark = pytest.mark.parametrize("kind", ["memory", "lmdb"])
Small = Callable[[FakeClock, int], Any]
"""Makes a store of so many windows."""


@pytest.fixture
def small(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Small:
    """Make stores in which all keys without windows of their own meet in one cell."""
    cells(monkeypatch, 1)
    numbers = itertools.count()
    return lambda clock, max_keys: opened(str(next(numbers)), clock=clock, max_keys=max_keys)


def cells(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(slidegate.stores.memory.shard, "SHARED_CELLS", number)
    monkeypatch.setattr(slidegate.stores.lmdb.windows, "SHARED_CELLS", number)


def hit(store: Any, *checks: Check) -> Decision:
    """Charge all checks or none; nobody else is there, so LMDB answers at once as well."""
    decision = store.hit(checks)
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_what_a_flood_leaves_goes_in_two_windows(
    small: Small, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    cells(monkeypatch, 3)
    clock, start_us = FakeClock(), 10**12
    store, limited = small(clock, 120), bucket("10/minute")
    # Everybody comes back after 20 to 80 seconds, often with no window left; those of the flood never come again.
    coming = [(start_us + rng.randrange(MINUTE_US), f"honest-{number}") for number in range(100)]
    coming += [(start_us + 2 * MINUTE_US + rng.randrange(MINUTE_US), f"fresh-{number}") for number in range(1_000)]
    heapify(coming)
    refused = [0] * 15
    while coming[0][0] < start_us + len(refused) * MINUTE_US:
        at_us, key = heappop(coming)
        clock.set(at_us)
        passes = hit(store, (limited, key, 1))
        if key.startswith("honest"):
            refused[(at_us - start_us) // MINUTE_US] += not passes
            heappush(coming, (at_us + rng.randrange(20 * SECOND_US, 80 * SECOND_US), key))
    assert refused[:2] == [0, 0]
    assert refused[2] + refused[3] > 0, "the flood did nothing, so this shows nothing"
    assert refused[5:] == [0] * 10, refused


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
def test_a_key_that_was_reset_has_no_units_of_the_cell_of_other_keys(small: Small) -> None:
    limited = bucket("5/minute")
    store = small(FakeClock(10**12), 1)
    for key in ("user:1", "user:2", "user:3", "user:3"):  # the last two have no window of their own
        hit(store, (limited, key, 1))
    assert store.reset("user:1")
    assert [hit(store, (limited, key, 1)).remaining for key in ("user:3", "user:1")] == [1, 4]


class Crowded(Player):
    """Plays to a store with room for few windows. It may refuse more than the reference, and never less than it has to.

    `Player` checks the bound, that a wait is exact, and that a look says what a hit would.
    """

    def _agree(self, answered: object, expected: object) -> None:
        """Let the store answer by what it counts for several keys together."""

    async def _play(self, move: Move) -> None:
        if isinstance(move, Step):
            for _ in range(8):
                await settle(self.store.hit(()))  # so that what is empty goes
        await super()._play(move)

    async def _reset(self, key: str | None) -> None:
        await super()._reset(key)
        if key is None:
            used = [
                view.used
                for rule, whose in self.named
                if not self.buckets[rule].is_permit
                for view in await views_of(self.store, whose, self.buckets[rule])
            ]
            assert not any(used), "cells are forgotten as well"
            if isinstance(self.store, MemoryStore) and not any(bucket.is_permit for bucket in self.buckets):
                assert self.store.key_count() == 0

    async def _ask(self, question: Question, patient: bool, plain: bool) -> None:
        one_key_a_rule = {check[0]: check for check in question}.values()  # two keys may meet in one cell
        await super()._ask(tuple(one_key_a_rule), patient, plain)

    async def _hit(self, question: Question, plain: bool = False) -> int | None:
        peeked = await settle(self.store.peek(self._checks(question, plain)))
        wait_us = await super()._hit(question, plain)
        decision, _ = self.charged[-1]
        same((peeked.reason, peeked.states), (decision.reason, decision.states))
        return wait_us


def test_nobody_passes_a_bound_between_cells_and_windows(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    cells(monkeypatch, 2)
    with asyncio.Runner() as runner:

        @settings(deadline=None)
        @given(programs(), st.sampled_from((1, 2, 3, 8)))
        def check(program: Program, max_keys: int) -> None:
            clock = FakeClock(program.start_us)
            store = small(clock, max_keys)
            runner.run(Crowded(store, clock, program).play())
            store.reset_all()
            for number in range(max_keys):
                hit(store, (bucket("5/minute"), f"user:{number}", 1))
            assert not isinstance(store, MemoryStore) or store.key_count() == max_keys, "each has a window of its own"
            store.close()

        check()
