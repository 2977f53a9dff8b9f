"""The window theorem, proofs/window.v, is about the rings of this package: both count the same, on random traces.

The names are those of the proof. A ring knows nothing of uses: when a request or a lease uses its units is up to them.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import Limit, Quota
from slidegate.core.counters import QuotaCounter

Step: TypeAlias = tuple[Literal["admit", "debt", "return", "amount"], int | Literal["leaves", "before"], int]
"""What happens, after how many thousandths of a window (or when the oldest charge leaves, or a microsecond before), and
how many units."""

LIMITS = st.builds(
    lambda amount, window_ms, resolution: Limit(amount, f"{window_ms}ms", resolution=resolution),
    st.integers(1, 12),
    st.integers(1, 90),
    st.integers(1, 10),
)
TIMES = st.one_of(st.integers(0, 400), st.sampled_from(("leaves", "before")))
STEPS = st.lists(
    st.tuples(st.sampled_from(("admit", "admit", "debt", "return", "amount")), TIMES, st.integers(1, 5)), min_size=20
)


@dataclass
class Charge:
    """As in the proof."""

    at_us: int
    units: int
    returns: list[int] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return self.units - len(self.returns)


class Traced:
    """A ring, and beside it the history of the proof: `s_us` and `span_us` are those of the theorems."""

    def __init__(self, limit: Limit, now_us: int) -> None:
        self.limit = limit
        self.now_us = now_us
        self.window = b""
        self.history: list[Charge] = []
        self.debts = 0
        self.s_us, self.span_us = 1, limit.window_us
        if not limit.exact:
            self.s_us = limit.slice_us
            k = (limit.window_us + self.s_us - 1) // self.s_us
            self.span_us = k * self.s_us + 1

    def moment(self, t_us: int) -> int:
        return t_us - t_us % self.s_us + self.s_us - 1

    def counting(self) -> list[Charge]:
        return [charge for charge in self.history if self.now_us < self.moment(charge.at_us) + self.span_us]

    def spent(self) -> int:
        return sum(charge.kept for charge in self.counting())

    @property
    def is_merged(self) -> bool:
        """Whether the ring may count the oldest debts for longer than the proof says: an exact limit has a place for
        twice its resolution, and merges what is older."""
        return self.limit.exact and self.debts > 2 * self.limit.resolution

    def wait(self, until: int | str) -> None:
        if isinstance(until, int):
            self.now_us += self.limit.window_us * until // 1000
        elif counting := self.counting():
            leaves_us = self.moment(counting[0].at_us) + self.span_us
            self.now_us = max(self.now_us, leaves_us - (until == "before"))

    def admit(self, units: int) -> None:
        fits = units + self.spent() <= self.limit.amount
        self.window, (_, _, mark, wait_us) = self.limit.counter.spend(self.window, self.now_us, units)
        assert (wait_us == 0) is fits or (self.is_merged and fits)
        if wait_us == 0:
            assert mark == self.moment(self.now_us)
            self.history.append(Charge(self.now_us, units))

    def debt(self, units: int) -> None:
        self.window, charged = self.limit.counter.charge(self.window, self.now_us, units)
        assert charged == units
        self.history.append(Charge(self.now_us, units))
        self.debts += 1

    def give_back(self, units: int) -> None:
        """Hand back units of any charge that has some: a refund, or what is left over of a lease."""
        charges = [charge for charge in self.counting() if charge.kept]
        if not charges:
            return
        charge = charges[units % len(charges)]
        returned = min(units, charge.kept)
        window = self.limit.counter.remove(self.window, self.now_us, self.moment(charge.at_us), returned)
        if window is None:
            assert self.is_merged
            return
        self.window = window
        charge.returns += [self.now_us] * returned

    def change(self, units: int) -> None:
        """Change the amount, on the same side of the resolution."""
        least, most = (1, self.limit.resolution) if self.limit.exact else (self.limit.resolution + 1, 20)
        self.limit.become(min(most, least + units))


@given(LIMITS, st.integers(0, 10**15), STEPS)
def test_the_ring_counts_as_the_proof_says(limit: Limit, now_us: int, steps: list[Step]) -> None:
    traced = Traced(limit, now_us)
    assert limit.counter.terms == (limit.amount, traced.s_us, traced.span_us)
    does = {"admit": traced.admit, "debt": traced.debt, "return": traced.give_back, "amount": traced.change}
    for what, until, units in steps:
        traced.wait(until)
        does[what](units)
        traced.window = limit.counter.settle(traced.window, traced.now_us)
        counted, *_ = limit.counter.state(traced.window, traced.now_us)
        assert counted == traced.spent() or (traced.is_merged and counted > traced.spent())


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 9 * 3_600_000_000), st.integers(1, 7))))
def test_a_quota_counts_as_the_proof_says(amount: int, steps: list[tuple[bool, int, int]]) -> None:
    """All charges of a period count until it ends, less what is handed back."""
    now_us = 0
    quota = Quota(f"{amount}/day")
    counter = QuotaCounter(quota, lambda: now_us)
    window, history, period = b"", list[Charge](), quota.period_at(0)
    for returns, later_us, units in steps:
        now_us += later_us
        if now_us >= period.end_us:
            history, period = [], quota.period_at(now_us)
        spent_in_period = sum(charge.kept for charge in history)
        if returns and spent_in_period:
            found = counter.remove(window, 0, period.end_us, 1)
            assert found is not None
            window = found
            next(charge for charge in history if charge.kept).returns.append(now_us)
            continue
        window, (_, _, mark, wait_us) = counter.spend(window, 0, units)
        assert (wait_us == 0) is (units + spent_in_period <= amount)
        if wait_us == 0:
            assert mark == period.end_us
            history.append(Charge(now_us, units))
