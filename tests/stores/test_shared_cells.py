"""Shared cells: what a flood leaves behind, and that nobody passes a bound on the way from a cell to a window."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from heapq import heapify, heappop, heappush
from typing import Any

import pytest

import slidegate.stores.lmdb.windows
import slidegate.stores.memory.shard
from slidegate.core import Bucket, Check, Decision, Limit
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.programs import Choices
from .conftest import Opened

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOLD_US = 10 * SECOND_US
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
def test_what_a_flood_leaves_behind_is_gone_after_two_windows(
    small: Small, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    cells(monkeypatch, 3)
    clock, start_us = FakeClock(), 10**12
    store, asked = small(clock, 120), bucket("10/minute")
    # Everybody comes back after 20 to 80 seconds, often with no window left; those of the flood never come again.
    coming = [(start_us + rng.randrange(MINUTE_US), f"honest-{number}") for number in range(100)]
    coming += [(start_us + 2 * MINUTE_US + rng.randrange(MINUTE_US), f"fresh-{number}") for number in range(1_000)]
    heapify(coming)
    refused = [0] * 15
    while coming[0][0] < start_us + len(refused) * MINUTE_US:
        at_us, key = heappop(coming)
        clock.set(at_us)
        passes = hit(store, (asked, key, 1))
        if key.startswith("honest"):
            refused[(at_us - start_us) // MINUTE_US] += not passes
            heappush(coming, (at_us + rng.randrange(20 * SECOND_US, 80 * SECOND_US), key))
    assert refused[:2] == [0, 0]
    assert refused[2] + refused[3] > 0, "the flood did nothing, so this shows nothing"
    assert refused[5:] == [0] * 10, refused


@dataclass(eq=False)
class Admitted:
    """What one key was let through with, by one decision."""

    place: tuple[str, str]
    at_us: int
    units: int
    amount: int
    decision: Decision


class Traffic:
    """A few keys in a store with room for fewer, and a list of what each of them was let through with."""

    def __init__(self, store: Any, clock: FakeClock, dice: Choices) -> None:
        self.store, self.clock, self.dice = store, clock, dice
        self.amounts = {"times": 4, "counts": 9}
        self.admitted: list[Admitted] = []
        self.decisions: list[Decision] = []

    def bucket(self, rule: str) -> Bucket:
        limit = Limit(self.amounts[rule], timedelta(microseconds=HOLD_US), resolution=4)
        return Bucket(rule, [limit])

    def run(self) -> None:
        while self.dice:
            self.clock.advance(us=self.dice.pick((0, self.dice.below(3 * SECOND_US), self.dice.below(2 * HOLD_US))))
            match self.dice.below(16):
                case 0:
                    self.amounts[self.rule()] = self.dice.pick((1, 3, 4, 5, 9, 20))
                case 1:
                    key = self.key()
                    self.store.reset(key)
                    self.admitted = [one for one in self.admitted if one.place[1] != key]
                case 2 | 3 | 4 if self.decisions:
                    self.refund(self.dice.pick(self.decisions))
                case 5:
                    for _ in range(8):
                        hit(self.store)  # so that what is empty goes
                case kind:
                    self.ask(patient=kind > 12)

    def rule(self) -> str:
        return self.dice.pick(list(self.amounts))

    def key(self) -> str:
        return f"client-{self.dice.below(5)}"

    def ask(self, *, patient: bool) -> None:
        rules = {self.rule() for _ in range(self.dice.pick((1, 1, 2, 3)))}
        checks = tuple((self.bucket(rule), self.key(), self.dice.pick((1, 1, 2, 3, 0))) for rule in sorted(rules))
        decision = self.hit(*checks)
        wait_us = decision.retry_after_us
        if patient and wait_us:
            self.clock.advance(us=wait_us - 1)
            assert not hit(self.store, *checks)
            self.clock.advance(us=1)
            assert self.hit(*checks), f"refused after {wait_us} us, which were to be enough"

    def hit(self, *checks: Check) -> Decision:
        peeked = self.store.peek(checks)
        decision = hit(self.store, *checks)
        assert (peeked.reason, peeked.states) == (decision.reason, decision.states)
        if decision:
            self.decisions.append(decision)
            for bucket, key, cost in checks:
                one = Admitted((bucket.name, key), self.clock.now_us, cost, bucket.limits[0].amount, decision)
                self.admitted.append(one)
                self.check(one)
        return decision

    def refund(self, decision: Decision) -> None:
        mine = [one for one in self.admitted if one.decision is decision]
        if self.store.refund(decision.take_back()):
            assert self.store.refund(decision.take_back()) is False
            self.admitted = [one for one in self.admitted if one not in mine]

    def check(self, new: Admitted) -> None:
        """No window of any length W holds more than the amount, wherever it ends."""
        others = [one for one in self.admitted if one.place == new.place]
        for last in others:
            held = [one for one in others if last.at_us - HOLD_US < one.at_us <= last.at_us]
            units = sum(one.units for one in held)
            assert units <= max(one.amount for one in held), (new.place, units)


@pytest.mark.parametrize("programs", [250, pytest.param(4_000, marks=pytest.mark.deep)])
def test_nobody_passes_a_bound_whatever_happens_between_cells_and_windows(
    small: Small, programs: int, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    cells(monkeypatch, 2)
    for _ in range(programs):
        clock = FakeClock(10**12)
        store = small(clock, rng.choice((1, 1, 2, 3, 8)))
        Traffic(store, clock, Choices(rng.randbytes(rng.choice((60, 300, 600))))).run()
        store.close()
