"""The ring, as bytes: golden rows, units that are handed back, and units that are kept for those who wait.

What it decides is compared with the reference by the contract of stores, and held to the promises in `test_promises`.
"""

from slidegate import Limit
from slidegate.core.ring import expires_us

SECOND_US = 1_000_000
EXACT = Limit(3, "10s")
SLICED = Limit(100, "10s", resolution=10)


def spent(limit: Limit, *charges: tuple[int, int], ring: bytes = b"") -> bytes:
    for now_us, units in charges:
        ring, state = limit.counter.spend(ring, now_us, units)
        assert state[3] == 0
    return ring


def test_one_hit_takes_little_and_many_take_what_the_resolution_allows() -> None:
    assert len(spent(SLICED, (5, 1))) == 24
    ring = b""
    for step in range(10_000):
        ring, _ = SLICED.counter.charge(ring, step * 100_000, 1)
    assert len(ring) <= 24 + 12 * 11
    for step in range(10_000):  # debts of an exact limit are moments without end
        ring, _ = EXACT.counter.charge(ring, 10**9 + step, 1)
    assert len(ring) <= 24 + 12 * 2 * EXACT.resolution
    assert EXACT.counter.spend(ring, 10**9 + 10_000, 1)[1][3] == 10 * SECOND_US - 3


def test_units_are_handed_back_by_moment_and_number() -> None:
    assert expires_us(b"", 60_000_000) == 0, "there is nothing in it"
    for limit in (EXACT, SLICED):
        ring = spent(limit, (0, 1), (3_000_000, 2))
        newest_us = limit.counter.state(ring, 0)[2]
        for elsewhere_us in (newest_us - 1, newest_us + 1):
            assert limit.counter.remove(ring, 3_000_000, elsewhere_us, 1) is None
        assert limit.counter.remove(ring, 3_000_000, newest_us, 0) is None
        for units in (2, 3):  # at most what is there
            left = limit.counter.remove(ring, 3_000_000, newest_us, units)
            assert left == spent(limit, (0, 1))
        assert limit.counter.remove(left, 3_000_000, newest_us, 2) is None
        assert limit.counter.remove(left, 3_000_000, limit.counter.state(left, 0)[2], 1) == b""
