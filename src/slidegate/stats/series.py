"""The counts of the requests to one route that the same rules counted.

New counts accumulate in one slice of five seconds, which is added to three windows when it ends, or before a read::

    add ---> recent ---> 60 slices of five seconds, 60 of a minute, 288 of five minutes
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Final, TypeAlias

from ..core.windows.metric_window import MetricWindow
from ..core.windows.slices import Slice

SLICE_US: Final = 5_000_000
KEPT: Final[Mapping[int, int]] = {SLICE_US: 60, 60_000_000: 60, 300_000_000: 288}
"""The number of slices kept by their length: five minutes, an hour and a day in total."""
SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted the requests of a series, and the route of the requests."""


class Series:
    """Counts requests; thread-safe. A series that is always busy takes about 160 KB.

    Args:
        name: The rules and the route.
    """

    __slots__ = ("_lock", "_number", "_recent", "_windows", "name")

    def __init__(self, name: SeriesName) -> None:
        self.name = name
        self._lock = Lock()
        self._windows = {slice_us: MetricWindow(slices, slice_us) for slice_us, slices in KEPT.items()}
        self._recent = Slice()
        self._number: int | None = None

    def add(self, number: int, counts: Slice) -> None:
        """Add counts to a slice of five seconds.

        Args:
            number: The number of the slice: Unix time divided by its length.
            counts: The counts to add.
        """
        with self._lock:
            if number != self._number:
                self._flush()
                self._number = number
            self._recent.add(counts)

    def read(self, slice_us: int, first: int, slices: int) -> dict[int, Slice]:
        """Return the non-empty slices `first` to `first + slices - 1` of one length, by number."""
        with self._lock:
            self._flush()
            return self._windows[slice_us].by_number(first, slices)

    def take_changed(self, *, every: bool = False) -> set[tuple[int, int]]:
        """Return length and number of the slices that have changed since the last call, or of all slices."""
        with self._lock:
            self._flush()
            windows = self._windows.items()
            return {(slice_us, number) for slice_us, window in windows for number in window.take_changed(every=every)}

    def _flush(self) -> None:
        """Add the recent slice to the windows."""
        if self._number is not None:
            for window in self._windows.values():
                window.add(self._number * SLICE_US, self._recent)
            self._recent, self._number = Slice(), None
