"""The window of one series, in a file of its own: a compiled wheel compiles it, because its base is compiled there."""

from __future__ import annotations

from ...core.statistics.buffered import BufferedWindow
from .windows import SLICE_US, SLICES


class Series(BufferedWindow):
    """The window of one series."""

    __slots__ = ("costs", "route", "rules")

    def __init__(
        self, rules: tuple[str, ...], route: str, costs: tuple[int, ...], ticks_per_us: int, ahead_us: int
    ) -> None:
        super().__init__(SLICES, SLICE_US, ticks_per_us, ahead_us)
        self.rules = rules
        self.route = route
        self.costs = costs
