"""An observer that records events."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.store import Event
from ..limiter.observers import Observer


class RecordingObserver(Observer):
    """Records events in `events`, oldest first.

    Args:
        without: Kinds of events to ignore, for example ``["refused"]``.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.events: list[Event] = []
        self._without = frozenset(without)

    def event(self, event: Event, /) -> None:
        """Record an event."""
        if event.kind not in self._without:
            self.events.append(event)

    def __call__(self, event: Event, /) -> None:
        """Record an event; for `Store.observe`, which takes a function."""
        self.event(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the recorded events."""
        return [event.kind for event in self.events]
