"""An observer that keeps every event."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.store import Event
from ..limiter.observers import Observer


class RecordingObserver(Observer):
    """Keeps every event that it hears, oldest first, in `events`.

    Args:
        without: Kinds of events that it does not keep, for example ``["refused"]``.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.events: list[Event] = []
        self._without = frozenset(without)

    def event(self, event: Event, /) -> None:
        """Keep an event."""
        if event.kind not in self._without:
            self.events.append(event)

    def __call__(self, event: Event, /) -> None:
        """Keep an event, for `Store.observe`, which takes a function."""
        self.event(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events heard so far."""
        return [event.kind for event in self.events]
