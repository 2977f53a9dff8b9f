"""All programs of three steps on small rings: the promises about one window, whatever the clock does.

No window holds more than the amount; only what would break that over k + 1 slices is refused, which costs nothing; no
step back revives units, or freezes a key for longer than k + 1 slices. Each step asks at any of nine times, before or
after the last one. A window that is spent from once more, in the third step, shows what the second one has left behind;
larger rings are drawn at random in the contract of stores.
"""

from itertools import pairwise, product
from typing import NamedTuple

import pytest

from slidegate.core.ring import NEVER, Ring

AMOUNT = 2
STEPS = [*product(range(9), range(AMOUNT + 2))]


class Small(NamedTuple):
    """A ring with the length of its slices, of which `slices` make a window."""

    step_us: int
    slices: int

    def ring(self, amount: int = AMOUNT) -> Ring:
        span_us = self.slices * self.step_us + 1 if self.step_us > 1 else self.slices
        return Ring((amount, self.step_us, span_us), self.slices)

    def start_of(self, at_us: int) -> int:
        return at_us - at_us % self.step_us

    @property
    def kept_us(self) -> int:
        """How long a unit counts from the start of its slice: a slice longer than a window, but where it is exact."""
        return (self.slices + (self.step_us > 1)) * self.step_us


SMALL = [Small(1, 1), Small(1, 2), Small(2, 1), Small(2, 2), Small(3, 2)]


class Model:
    """What is spent, as the start of a slice for each unit: it leaves with the slice that touches no window of now."""

    def __init__(self, small: Small) -> None:
        self.small = small
        self.units: list[int] = []

    def hit(self, now_us: int, cost: int) -> tuple[bool, int]:
        small, start_us = self.small, self.small.start_of(now_us)
        self.units = [min(unit_us, start_us) for unit_us in self.units if now_us < unit_us + small.kept_us]
        is_admitted = len(self.units) + max(cost, 1) <= AMOUNT
        if is_admitted:
            self.units += [start_us] * cost
        return is_admitted, len(self.units)


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_a_small_ring_does_as_its_model_whatever_the_clock_does(small: Small) -> None:
    ring = small.ring()
    for program in product(STEPS, repeat=3):
        model, window, admitted = Model(small), b"", []
        before_us, before = -1, 0
        for now_us, cost in program:
            settled, _ = ring.spend(window, now_us, 0)
            window, (spent, _, mark, wait_us) = ring.spend(window, now_us, cost)
            is_admitted, units = model.hit(now_us, cost)
            undone = ring.remove(window, now_us, mark, cost * is_admitted)
            assert (window if undone is None else undone) == settled, program
            assert (wait_us == 0, spent) == (is_admitted, units), program
            assert now_us >= before_us or spent == before + cost * is_admitted, program  # nothing came back
            assert (wait_us == NEVER) == (cost > AMOUNT), program
            assert wait_us <= small.kept_us, program
            assert is_admitted or window == settled, program
            admitted += [now_us] * (cost * is_admitted)
            before_us, before = now_us, spent
        if all(earlier <= later for earlier, later in pairwise(at_us for at_us, _ in program)):
            window_us = small.slices * small.step_us
            assert all(sum(at_us <= other < at_us + window_us for other in admitted) <= AMOUNT for at_us in admitted)


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_a_refusal_of_a_small_ring_says_to_the_microsecond_when_there_is_room(small: Small) -> None:
    ring = small.ring(amount=3)
    for *earlier, (now_us, cost) in product(product(range(6), range(1, 4)), repeat=3):
        window = b""
        for at_us, units in earlier:
            window, _ = ring.spend(window, at_us, units)
        window, (*_, wait_us) = ring.spend(window, now_us, cost)
        if wait_us > 0:
            assert ring.spend(window, now_us + wait_us, cost)[1][3] == 0
            assert ring.spend(window, now_us + wait_us - 1, cost)[1][3] == 1
