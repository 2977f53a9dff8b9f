"""What a window of slices holds, as a list of everything that was accepted; and times at which clocks step."""

from typing import Generic, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

SPANS = st.one_of(st.floats(0, 1), st.just(1.0), st.floats(0, 24), st.floats(-3, 0), st.floats(-24, 0))
"""How far a clock goes on, or steps back, between two events, in slices: often beyond all that are kept."""


class Plain(Generic[T]):
    """Everything that was accepted, with the number of its slice; `kept` slices are held."""

    def __init__(self, slice_us: int, kept: int) -> None:
        self.slice_us = slice_us
        self.kept = kept
        self.newest: int | None = None
        self.dropped = 0
        self.held: list[tuple[int, T]] = []

    def add(self, now_us: int, what: T) -> bool:
        """Return whether it was accepted."""
        number = now_us // self.slice_us
        if self.newest is not None and number <= self.newest - self.kept:
            self.dropped += 1
            return False
        self.newest = number if self.newest is None else max(number, self.newest)
        self.held.append((number, what))
        return True

    def within(self, first: int, end: int) -> list[T]:
        """Return what lies in the slices from `first` to `end`, without those that were let go of."""
        oldest = first if self.newest is None else max(first, self.newest - self.kept + 1)
        return [what for number, what in self.held if oldest <= number < end]
