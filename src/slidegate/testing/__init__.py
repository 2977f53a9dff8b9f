"""What tests of limits need: a clock that stands still until told, and ears for events.

`slidegate.testing.contract` holds the tests that every store has to pass; it needs Hypothesis, the rest does not.
"""

from __future__ import annotations

from datetime import timedelta

from ..core.limits import parse_duration_us
from ..core.protocols import Event

__all__ = ["FakeClock", "RecordingObserver"]


class FakeClock:
    """A clock for stores, in microseconds, that moves only when it is told to.

    Args:
        start_us: The time at first.
    """

    def __init__(self, start_us: int = 0) -> None:
        self.now_us = start_us

    def __call__(self) -> int:
        return self.now_us

    def __repr__(self) -> str:
        return f"<FakeClock {self.now_us}>"

    def advance(self, span: int | str | timedelta) -> None:
        """Move on by `span`: whole microseconds, text such as ``"30s"``, or a `timedelta`.

        Microseconds and a `timedelta` may be negative: the clock then steps back.

        Raises:
            ConfigurationError: The text is not a span of time.
        """
        if isinstance(span, timedelta):
            span = span // timedelta(microseconds=1)
        self.now_us += span if isinstance(span, int) else parse_duration_us(span, "span")

    def set(self, now_us: int) -> None:
        """Move to `now_us`, forwards or backwards."""
        self.now_us = now_us


class RecordingObserver:
    """Keeps every event it hears, oldest first, in `events`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events heard so far."""
        return [event.kind for event in self.events]
