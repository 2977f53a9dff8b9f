"""Tells observers of events, and outlives their exceptions."""

from __future__ import annotations

from collections.abc import Iterable

from .logs import logger
from .protocols import Event, Observer


class Observers:
    """Those who hear a store's events. One that raises is logged, and changes nothing for the others."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def __contains__(self, observer: Observer) -> bool:
        return observer in self._observers

    def add(self, observer: Observer) -> None:
        """Tell `observer` about further events."""
        self._observers.append(observer)

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                logger.exception("observer %r failed", observer)

    def tell_all(self, events: Iterable[Event]) -> None:
        """Log events of a store, and pass them on."""
        for event in events:
            logger.warning("%s: %s", event.kind, event.message)
            self.tell(event)
