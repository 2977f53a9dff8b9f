"""What a window of slices holds, as a list of everything that was accepted; and times at which clocks step."""

from typing import Generic, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def spans_us(slice_us: int, ring_us: int) -> st.SearchStrategy[int]:
    """Draw short steps, gaps, jumps longer than the ring, and steps back."""
    short = st.integers(0, slice_us)
    return st.one_of(short, st.just(slice_us), st.integers(0, 2 * ring_us), st.integers(-2 * ring_us, 0))


class Plain(Generic[T]):
    """Everything that was accepted, with the number of its slice; `kept` slices are held."""

    def __init__(self, slice_us: int, kept: int) -> None:
        self.slice_us = slice_us
        self.kept = kept
        self.newest: int | None = None
        self.dropped = 0
        self.held: list[tuple[int, T]] = []

    def add(self, now_us: int, what: T) -> None:
        number = now_us // self.slice_us
        if self.newest is not None and number <= self.newest - self.kept:
            self.dropped += 1
            return
        self.newest = number if self.newest is None else max(number, self.newest)
        self.held.append((number, what))

    def within(self, first: int, end: int) -> list[T]:
        """Return what lies in the slices from `first` to `end`, without those that were let go of."""
        oldest = first if self.newest is None else max(first, self.newest - self.kept + 1)
        return [what for number, what in self.held if oldest <= number < end]
