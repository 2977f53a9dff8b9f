"""An observer that keeps every event."""

from __future__ import annotations

from ..core.protocols import Event


class RecordingObserver:
    """Keeps every event it hears, oldest first, in `events`.

    A limiter calls it in the thread where an event happens, so it has heard an event as soon as the call returns.
    """

    inline = True

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events heard so far."""
        return [event.kind for event in self.events]
