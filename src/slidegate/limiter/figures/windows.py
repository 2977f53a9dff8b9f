"""The windows that figures can be read over, and their steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from ...core.errors import ConfigurationError, quoted
from ...core.limits import parse_duration_us
from ...core.statistics.shelves import FIVE_MINUTES_US, FIVES, MINUTE_US, MINUTES

SLICES: Final = 60
SLICE_US: Final = 5_000_000
STEPS_US: Final = (SLICE_US, MINUTE_US, FIVE_MINUTES_US)
"""The lengths of slices that are kept."""
KEPT: Final = {SLICE_US: SLICES, MINUTE_US: MINUTES, FIVE_MINUTES_US: FIVES}
"""How many slices of each length are kept."""


class Span(NamedTuple):
    """The steps of a window.

    Attributes:
        step_us: The length of a step.
        steps: How many there are, the running one included.
    """

    step_us: int
    steps: int

    def first(self, now_us: int) -> int:
        """Return the number of the first step."""
        return now_us // self.step_us - self.steps + 1


def span_of(window: str | float | timedelta) -> Span:
    """Return the steps of a window: 5 seconds up to five minutes, a minute up to an hour, else five minutes.

    Raises:
        ConfigurationError: The window cannot be read, or is longer than is remembered.
    """
    window_us = parse_duration_us(window, "window")
    for step_us, kept in KEPT.items():
        if window_us <= step_us * kept:
            return Span(step_us, -(-window_us // step_us))
    raise ConfigurationError(
        f'window: {quoted(window)} is longer than is remembered; expected at most 24h, for example "6h"'
    )
