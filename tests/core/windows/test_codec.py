"""Windows as bytes: what is read again is what was written, whatever happens to it next."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.core import Limit, new_window
from slidegate.core.windows.codec import expires_us, keeps_times, pack_window, unpack_window
from slidegate.core.windows.rings import Resting

WINDOW = "1m"
EXACT, COUNTED = Limit(5, WINDOW, resolution=8), Limit(9, WINDOW, resolution=8)
SECOND_US = 1_000_000

steps = st.lists(
    st.tuples(
        st.sampled_from(["spend", "charge", "remove", "back", "switch"]),
        st.integers(0, 20 * SECOND_US),
        st.integers(0, 12),
    ),
    max_size=30,
)


class Life:
    """A window, what is spent in it, and the limit that it is under now."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.window: Resting = new_window(limit)
        self.now_us = 10**9
        self.spent_us: list[int] = []

    def step(self, kind: str, span_us: int, units: int) -> None:
        """Do one thing to the window."""
        self.now_us += -span_us if kind == "back" else span_us
        window, now_us = self.window, self.now_us
        match kind:
            case "spend":
                window.spend(now_us, self.limit.amount, units)
                self.spent_us.append(now_us)
            case "charge":
                window.charge(now_us, units, self.limit.resolution)
            case "remove" if self.spent_us:
                window.remove(now_us, self.spent_us.pop(), units)
            case "switch":
                # What a store does when an amount crosses the resolution.
                self.limit = COUNTED if self.limit is EXACT else EXACT
                self.window = unpack_window(pack_window(window), self.limit, now_us)

    def answers(self) -> list[object]:
        """Ask everything that there is to ask, now and later."""
        seen: list[object] = []
        for later_us in (0, 1, SECOND_US, 30 * SECOND_US, 61 * SECOND_US, 130 * SECOND_US):
            window = copy(self.window)
            now_us = self.now_us + later_us
            seen += [window.wait_us(now_us, room) for room in range(-1, 12)]
            seen += [window.spent, window.newest_us, window.leaves_us if window.spent else 0]
        return seen


@given(st.sampled_from([EXACT, COUNTED]), steps)
def test_a_window_that_was_written_and_read_answers_as_before(limit: Limit, moves: list[tuple[str, int, int]]) -> None:
    life = Life(limit)
    for move in moves:
        life.step(*move)
        packed = pack_window(life.window)
        expected = life.answers()
        life.window = unpack_window(b"head" + packed, life.limit, life.now_us, 4)
        assert life.answers() == expected
        assert pack_window(life.window) == packed
        assert keeps_times(b"head" + packed, 4) is life.limit.exact


@pytest.mark.parametrize("limit", [EXACT, COUNTED])
def test_an_empty_window_and_one_with_a_unit_at_the_beginning_of_time_are_told_apart(limit: Limit) -> None:
    empty, first = new_window(limit), new_window(limit)
    first.add(0)
    assert [unpack_window(pack_window(window), limit, 0).spent for window in (empty, first)] == [0, 1]


@pytest.mark.parametrize(("limit", "held_us"), [(EXACT, 60 * SECOND_US), (COUNTED, 67_500_000)])
def test_a_window_expires_when_all_has_left(limit: Limit, held_us: int) -> None:
    ring = new_window(limit)
    ring.add(10**9)
    slice_start_us = 10**9 if limit.exact else 10**9 // limit.slice_us * limit.slice_us
    assert expires_us(ring, limit) == slice_start_us + held_us
