"""The commands about events."""

from __future__ import annotations

from collections.abc import Iterable
from logging import WARNING
from typing import TYPE_CHECKING

from ...core.protocols import Observer
from .hub import EventStats
from .subscription import Subscription

if TYPE_CHECKING:
    from ..engine import Engine
    from .log_events import AnyLogger


class EventCommands:
    """The part of a `Limiter` that deals with events."""

    engine: Engine

    def observe(self, observer: Observer, *, kinds: Iterable[str] | None = None, inline: bool = False) -> Subscription:
        """Tell a function about events from now on.

        Observers are called in a thread of their own, one event after the other, behind a queue that has an end: where
        they are too slow, events are dropped, counted in `event_stats`, and reported as ``events_dropped``.

        Args:
            observer: Called with each `Event`. Its exceptions are logged and dropped.
            kinds: The kinds of events that it hears, for example ``["refused"]``; None for all.
            inline: Call it in the thread where the event happens, before the request goes on. It must not block then.
                An observer whose own attribute `inline` is true is called in this way everywhere.

        Returns:
            The subscription: `remove()` ends it.

        Raises:
            ConfigurationError: `observer` cannot be called or is a coroutine function, or a kind is unknown.
        """
        return self.engine.events.subscribe(observer, kinds, inline=inline)

    def log_events(
        self,
        *,
        kinds: Iterable[str] | None = None,
        logger: AnyLogger | None = None,
        level: int = WARNING,
        most: str = "10/second",
        each: str = "1/second",
    ) -> Subscription:
        """Write events to a log, no more of them than somebody can read.

        A line says how many others of its kind and rule were left out since the last one. The record has the details
        of the event, `kind`, `time_us` and `suppressed` as fields, which structlog and JSON formatters pick up.

        Args:
            kinds: The kinds of events; None for those that the package does not log by itself, ``refused`` among them.
            logger: The logger; by default ``"slidegate.events"``.
            level: The level of the lines.
            most: The limit of all lines.
            each: The limit of the lines of one kind and rule.

        Returns:
            The subscription: `remove()` ends it.

        Raises:
            ConfigurationError: A value cannot work.
        """
        # Most limiters write no log.
        from .log_events import log_events

        return log_events(self.engine, kinds, logger, level, most, each)

    def event_stats(self) -> EventStats:
        """Return how many events were delivered to observers in this process, how many wait, and how many were lost."""
        return self.engine.event_stats()
