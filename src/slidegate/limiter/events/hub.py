"""Hands events to the observers of a limiter: to some at once, to the others by way of the courier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

import anyio

from ...core.logs import logger
from ...core.protocols import Clock, Event, Observer
from ...stores.forks import hold_over_fork
from ..aio import on_loop
from .courier import Courier
from .subscription import Subscription

CLOSE_S: Final = 5.0
"""How long `Limiter.close` waits for observers."""
_LOOK_S: Final = 0.005


class EventStats(NamedTuple):
    """The numbers of events for the observers of a limiter in this process.

    Only events for observers that are not inline are counted.
    """

    queued: int
    """Events that wait for delivery now."""
    delivered: int
    """Events delivered so far."""
    dropped: int
    """Events dropped so far, because observers were too slow and the queue was full."""
    unsaid: int = 0
    """Keys near a limit so far of which nothing was told, because 10,000 others were near one."""


class EventHub:
    """The observers of one limiter.

    Args:
        unix_us: Returns Unix time in microseconds, for the time of events.

    Attributes:
        refused: Whether anybody hears `refused`; else nobody makes such events.
        near_limit: Whether anybody hears `near_limit`.
    """

    def __init__(self, unix_us: Clock) -> None:
        self._unix_us = unix_us
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._courier = Courier(self._tell_dropped, self._rest)
        self.refused = self.near_limit = False
        self._changed: Callable[[], None] = _nothing

    def on_change(self, call: Callable[[], None]) -> None:
        """Have a function called whenever observers come or go."""
        self._changed = call

    def subscribe(
        self,
        observer: Observer,
        kinds: Iterable[str] | None = None,
        *,
        inline: bool = False,
        rest: Callable[[bool], None] | None = None,
    ) -> Subscription:
        """Tell an observer about further events; see `Limiter.observe`.

        Args:
            observer: The observer.
            kinds: The kinds that it hears; None for all.
            inline: Call it in the thread where an event happens.
            rest: Called when no event has come for a while, and with True when the limiter is closed.

        Raises:
            ConfigurationError: The observer cannot be called or is a coroutine function, or a kind is unknown.
        """
        subscription = Subscription(observer, kinds, inline, self._leave, rest)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
            self._look()
        return subscription

    def hears(self, kind: str) -> bool:
        """Return whether anybody hears events of a kind."""
        return any(subscription.wants(kind) for subscription in self._subscriptions)

    def tell(self, event: Event) -> None:
        """Hand an event to those who hear its kind, with the time at which it happened."""
        wanted = [subscription for subscription in self._subscriptions if subscription.wants(event.kind)]
        if not wanted:
            return
        event = Event(event.kind, event.message, event.details, self._unix_us())
        queued = [subscription for subscription in wanted if not subscription.inline]
        if queued:
            self._courier.put(event, queued)
        for subscription in wanted:
            if subscription.inline:
                subscription.hear(event)

    def stats(self) -> EventStats:
        """Return how many events were delivered and dropped."""
        courier = self._courier
        return EventStats(courier.queued, courier.delivered, courier.dropped)

    def flush(self, most_s: float) -> bool:
        """Wait in this thread until all events that are queued were delivered; return whether they were in time."""
        return self._courier.flush(most_s)

    async def close(self) -> None:
        """Wait until all queued events were delivered, for at most `CLOSE_S`. Later events are delivered as well."""
        if not on_loop():
            self.flush(CLOSE_S)
        elif not self.flush(0):
            ends_s = monotonic() + CLOSE_S
            # The courier knows no event loops, and closing is rare: to look again is simpler than to be woken.
            while not self.flush(0) and monotonic() < ends_s:  # noqa: ASYNC110
                await anyio.sleep(_LOOK_S)
        self._rest(True)
        if left := self._courier.queued:
            logger.warning("the limiter is closed, and observers have not heard %d events yet", left)

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)
            self._look()

    def _look(self) -> None:
        """Note for which kinds events have to be made."""
        self.refused = self.hears("refused")
        self.near_limit = self.hears("near_limit")
        self._changed()

    def _rest(self, last: bool) -> None:
        for subscription in self._subscriptions:
            subscription.rest(last)

    def _tell_dropped(self, dropped: int) -> None:
        """Report in the courier's thread that its queue was full: to everybody at once, past the queue."""
        message = f"{dropped} events were dropped, because observers take longer than events come"
        logger.warning("events_dropped: %s", message)
        event = Event("events_dropped", message, {"dropped": dropped}, self._unix_us())
        for subscription in self._subscriptions:
            if subscription.wants(event.kind):
                self._courier.call(subscription, event)


def _nothing() -> None:
    """Do nothing: nobody wants to know yet."""
