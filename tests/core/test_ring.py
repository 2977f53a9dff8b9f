"""The ring, as bytes: golden rows, units that are handed back, and units that are kept for those who wait.

What it decides is compared with the reference by the contract of stores, and held to the promises in `test_promises`.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate import Limit, MemoryStore
from slidegate.core import NEVER, Bucket, Concurrency, Decision
from slidegate.core.ring import GRACE_US, KEPT_US, MAX_UNITS, entries, reserve
from slidegate.testing import FakeClock

SECOND_US = 1_000_000
EXACT = Limit(3, "10s")
SLICED = Limit(100, "10s", resolution=10)


def spent(limit: Limit, *charges: tuple[int, int], ring: bytes = b"") -> bytes:
    """Return a ring after some (moment, units)."""
    for now_us, units in charges:
        ring, state = limit.spend(ring, now_us, units)
        assert state[3] == 0
    return ring


def head(units: int, newest: int, newest_us: int, oldest_us: int, floor_us: int = -1, reserved_us: int = 0) -> bytes:
    return pack("<IIqqqq", units, newest, newest_us, oldest_us, floor_us, reserved_us)


# -- golden rows: what every store writes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ring", "row"),
    [
        (spent(EXACT, (5, 1)), head(1, 1, 5, 5)),
        (spent(EXACT, (5, 1), (5, 1)), head(2, 2, 5, 5)),
        (spent(EXACT, (5, 1), (7, 2)), head(3, 2, 7, 5) + pack("<qI", 5, 1)),
        (spent(EXACT, (5, 1), (7, 1), (8, 1)), head(3, 1, 8, 5) + pack("<qIqI", 5, 1, 7, 1)),
        (spent(SLICED, (0, 4), (999_999, 3)), head(7, 7, 999_999, 999_999)),
        (spent(SLICED, (12_345, 4), (2_000_000, 3)), head(7, 3, 2_999_999, 999_999) + pack("<qI", 999_999, 4)),
        (EXACT.settle(spent(EXACT, (5, 1), (9, 2)), 10 * SECOND_US + 5), head(2, 2, 9, 9)),
        (EXACT.settle(spent(EXACT, (5, 1), (9, 2)), 10 * SECOND_US + 9), b""),
        (EXACT.settle(spent(EXACT, (5, 1), (9, 2)), 7), head(3, 2, 7, 5, floor_us=9) + pack("<qI", 5, 1)),
        (
            SLICED.settle(spent(SLICED, (5_000_000, 1), (7_000_000, 2)), 4_100_000),
            head(3, 3, 4_999_999, 4_999_999, 7_999_999),
        ),
        (EXACT.reset(spent(EXACT, (5, 3)), 6), head(0, 0, 0, 0, floor_us=6)),
        (reserve(spent(EXACT, (5, 1)), 77), head(1, 1, 5, 5, reserved_us=77)),
        (EXACT.charge(b"", 5, 2**40)[0], head(MAX_UNITS, MAX_UNITS, 5, 5)),
    ],
)
def test_golden_rows(ring: bytes, row: bytes) -> None:
    assert ring == row


def test_one_hit_takes_little_and_many_take_what_the_resolution_allows() -> None:
    assert len(spent(SLICED, (5, 1))) == 40
    ring = b""
    for step in range(10_000):
        ring, _ = SLICED.charge(ring, step * 100_000, 1)
    assert len(ring) <= 40 + 12 * 11
    for step in range(10_000):  # debts of an exact limit are moments without end
        ring, _ = EXACT.charge(ring, 10**9 + step, 1)
    assert len(ring) <= 40 + 12 * 2 * EXACT.resolution
    assert EXACT.spend(ring, 10**9 + 10_000, 1)[1][3] == 10 * SECOND_US - 3


# -- amounts that cross the resolution -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND_US), st.integers(1, 20), st.integers(0, 4)), max_size=60))
def test_whatever_the_amount_was_before_no_window_holds_more_than_that_of_now(
    moves: list[tuple[int, int, int]],
) -> None:
    ring, now_us, admitted = b"", 10**9, list[tuple[int, int]]()
    for step_us, amount, cost in moves:
        now_us += step_us
        limit = Limit(amount, "10s", resolution=10)
        ring, state = limit.spend(ring, now_us, cost)
        if state[3] == 0 and cost:
            admitted.append((now_us, cost))
            assert sum(units for at_us, units in admitted if at_us > now_us - limit.window_us) <= amount
        assert state[0] == sum(units for _, units in entries(ring))


def test_a_clock_that_steps_back_behind_a_key_that_keeps_asking_does_not_freeze_it() -> None:
    """The store keeps a ring that was moved although nothing was spent in it."""
    for limits in (EXACT, SLICED):
        clock = FakeClock(10**12)
        store, asked = MemoryStore(clock=clock), (Bucket("rule", (limits,)), "ann", limits.amount)
        assert store.hit((asked,))
        clock.advance(us=-3_600 * SECOND_US)
        first = store.hit((asked,))
        waits_us = first.retry_after_us
        assert waits_us is not None
        assert waits_us <= 11 * SECOND_US
        for _ in range(5):  # asking again and again does not move it on
            clock.advance(us=waits_us // 6)
            last = store.hit((asked,))
        clock.advance(us=last.retry_after_us or 0)
        assert store.hit((asked,))


# -- handing back ----------------------------------------------------------------------------------------------------


def test_units_are_handed_back_by_moment_and_number() -> None:
    for limit in (EXACT, SLICED):
        ring = spent(limit, (0, 1), (3_000_000, 2))
        newest_us = limit.mark(ring)
        assert limit.remove(ring, 3_000_000, 3_000_000, newest_us, 3) is None
        assert limit.remove(ring, 3_000_000, 3_000_000, newest_us + 1, 1) is None
        left = limit.remove(ring, 3_000_000, 3_000_000, newest_us, 2)
        assert left == spent(limit, (0, 1))
        assert limit.remove(left, 3_000_000, 3_000_000, newest_us, 2) is None
        assert limit.remove(left, 3_000_000, 0, limit.mark(left), 1) == head(0, 0, 0, 0)


class Trace:
    """A store, and a plain list of (decision, key, units) that count: admitted, and not handed back or forgotten."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.clock = FakeClock(10**12)
        self.store = MemoryStore(clock=self.clock)
        self.bucket = Bucket("rule", (limit,))
        self.made: list[Decision] = []
        self.counting: list[tuple[Decision, str, int]] = []

    def hit(self, key: str, cost: int) -> None:
        decision = self.store.hit(((self.bucket, key, cost),))
        if decision:
            self.made.append(decision)
            self.counting.append((decision, key, cost))
            since_us = self.clock() - self.limit.window_us
            recent = [units for made, of, units in self.counting if of == key and made.now_us > since_us]
            assert sum(recent) <= self.limit.amount

    def refund(self, decision: Decision, copied: Callable[[Decision], Decision]) -> None:
        assert not self.store.refund(pickle.loads(pickle.dumps(decision)))
        if self.store.refund(copied(decision)):
            before = len(self.counting)
            self.counting = [one for one in self.counting if one[0] is not decision]
            assert len(self.counting) == before - 1, "it was handed back before, or forgotten"

    def reset(self, key: str) -> None:
        self.store.reset(key)
        self.counting = [one for one in self.counting if one[1] != key]

    def step_back(self, step_us: int) -> None:
        """Nothing that was admitted before is in a window of now; everything is forgotten, so that nothing is left."""
        self.clock.advance(us=-step_us)
        self.store.reset_all()
        self.counting = []


@pytest.mark.parametrize("limit", [Limit(4, "1s"), Limit(4, "1s", resolution=2), Limit(12, "1s", resolution=5)])
def test_handing_back_never_lets_more_through_than_the_limit(limit: Limit, rng: random.Random) -> None:
    """Whatever is handed back, reset and copied: what was let through and not handed back keeps to the bound."""
    for _ in range(60):
        trace = Trace(limit)
        for _ in range(80):
            what, key = rng.random(), rng.choice(("ann", "bob"))
            if what < 0.5:
                trace.hit(key, rng.randint(1, 3))
            elif what < 0.72 and trace.made:
                trace.refund(rng.choice(trace.made), rng.choice((lambda one: one, copy.copy, copy.deepcopy)))
            elif what < 0.76:
                trace.reset(key)
            elif what < 0.78:
                trace.step_back(rng.randrange(3 * limit.window_us))
            else:
                trace.clock.advance(us=rng.choice((0, 1, 99_999, 100_000, 250_000, limit.window_us)))


def test_a_permit_is_given_back_whatever_time_it_is() -> None:
    clock = FakeClock(10**12)
    store, bucket = MemoryStore(clock=clock), Bucket("rule", (Concurrency(1),))
    first = store.hit(((bucket, "ann", 1),))
    store.reset_all()
    store.reset("ann")
    clock.advance(us=-3_600 * SECOND_US)
    assert not store.hit(((bucket, "ann", 1),))
    assert store.refund(first)
    assert store.hit(((bucket, "ann", 1),))


# -- units that are kept for those who wait --------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [Limit(2, "1s"), Limit(20, "1s", resolution=5)])
def test_a_stream_of_others_does_not_starve_who_waits(limit: Limit) -> None:
    clock = FakeClock(10**12)
    store, bucket = MemoryStore(clock=clock), Bucket("rule", (limit,))
    one = ((bucket, "ann", 1),)
    for _ in range(limit.amount):
        assert store.hit(one)
    while (waits_us := store.hit(one, first_in_line=True).retry_after_us) and waits_us > KEPT_US:
        clock.advance(us=KEPT_US)  # who stands first asks again, or nothing is kept any more
    assert waits_us
    clock.advance(us=waits_us)
    for _ in range(5):
        refused = store.hit(one)  # the others come first, and find that nothing is theirs
        assert not refused
        assert refused.retry_after_us == GRACE_US
    assert store.hit(one, first_in_line=True)
    clock.advance(us=GRACE_US)
    assert store.hit(one), "and there was more than the first of them needed"


def test_nothing_is_kept_where_there_is_room_for_who_waits() -> None:
    clock = FakeClock(10**12)
    store, full, free = MemoryStore(clock=clock), Bucket("full", (Limit(1, "10s"),)), Bucket("free", (Limit(9, "10s"),))
    both = ((full, "ann", 1), (free, "ann", 1))
    assert store.hit(both)
    assert not store.hit(both, first_in_line=True)
    assert not store.hit(((full, "ann", 1),))
    assert store.hit(((free, "ann", 1),)), "others may have what the first of the line does not lack"


def test_what_is_kept_and_not_fetched_is_everybodys_after_the_moment_that_refusals_say() -> None:
    limit = Limit(2, "1s")
    ring = spent(limit, (10, 2))
    ring = reserve(ring, SECOND_US + 10 + GRACE_US)  # by the first of a line, which asked at 10
    assert limit.spend(ring, SECOND_US + 10, 1)[1][3] == GRACE_US
    assert limit.spend(ring, SECOND_US + 10, 3)[1][3] == NEVER
    assert limit.spend(ring, SECOND_US + 10, 1, 0, True)[1][3] == 0
    assert limit.spend(ring, SECOND_US + 10 + GRACE_US, 1)[1][3] == 0
    assert limit.spend(ring, 0, 1)[1][3] <= limit.window_us + GRACE_US
    assert limit.expires_us(reserve(b"", 77)) >= 77


def test_a_clock_that_steps_back_frees_what_was_kept() -> None:
    limit = Limit(2, "1s")
    ring = reserve(spent(limit, (10**12, 1)), 10**12 + SECOND_US)
    assert limit.spend(ring, 10**11, 1)[1][3] == 0
