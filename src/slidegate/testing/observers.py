"""An observer that keeps every event."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.store import Event


class RecordingObserver:
    """Keeps every event it hears, oldest first, in `events`.

    A limiter calls it in the thread where an event happens, so it has heard an event as soon as the call returns.

    Args:
        without: Kinds of events that it does not keep, for example ``["refused", "near_limit"]``.
    """

    inline = True

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.events: list[Event] = []
        self._without = frozenset(without)

    def __call__(self, event: Event, /) -> None:
        if event.kind not in self._without:
            self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events heard so far."""
        return [event.kind for event in self.events]
