"""Events, which may interest an operator, and the observers that receive them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from .logs import escaped, logger
from .passwords import without_addresses


@dataclass(frozen=True, slots=True)
class Event:
    """An event that may interest an operator. docs/reference/errors.md lists all kinds and their details.

    Attributes:
        kind: The kind of the event, for example ``"banned"``.
        message: One line of printable characters for people.
        details: The subjects of the message by name: the key, the policy, the path.
        time_us: The Unix time in microseconds at which the limiter received the event; 0 before that.
    """

    kind: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)
    time_us: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        # Observers may write the message to other logs; the details are not escaped.
        object.__setattr__(self, "message", escaped(without_addresses(self.message)))


EventListener: TypeAlias = Callable[[Event], object]
"""A function that is called with each event of a store; its exceptions are logged and suppressed."""


class Observers:
    """The observers of a store. An exception in one is logged; the others still run."""

    def __init__(self) -> None:
        self._observers: list[EventListener] = []

    def add(self, observer: EventListener) -> None:
        """Call `observer` with further events; adding it twice has no effect."""
        if observer not in self._observers:
            self._observers.append(observer)

    def tell(self, *events: Event) -> None:
        """Pass events to all observers. The limiters of the store log them."""
        for event, observer in product(events, self._observers):
            try:
                observer(event)
            except Exception:
                logger.exception("observer %r failed", observer)
