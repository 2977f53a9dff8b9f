"""Events, and those who observe a limiter.

An event goes to inline observers in the thread in which it happens, and to the others by way of the queue of the
`EventWorker`. That thread goes on, however slow the observers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

import anyio.to_thread

from ..core.arguments import check_takes
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import Throttle, logger
from ..core.store import Clock, Event, Observer
from ..stores.forks import hold_over_fork
from .aio import on_loop
from .event_worker import EventWorker

CLOSE_S: Final = 5.0
"""How long `Limiter.close` waits for observers."""
LOG_EVERY_S: Final = 10.0
"""An observer that fails with every refusal of a flood writes no more than one traceback in this time."""

UNLOGGED: Final = ("refused", "near_limit", "shadow_refused", "series_full", "pause_ignored", "pause_unshared")
"""The kinds of events that the package does not also write to its log."""
KINDS: Final = (
    *UNLOGGED,
    *("banned", "unbanned", "shadow_banned", "bans_full", "strikes_dropped"),
    *("bans_unread", "bans_rescued"),
    *("store_failed", "store_recovered", "store_reset", "store_evicts", "store_set_aside", "store_doubtful"),
    *("keys_shared", "clock_stepped", "permits_lost", "map_grown", "map_full", "reader_stopped"),
    *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted", "events_dropped"),
)
"""All kinds of events; docs/guides/events.md says when each comes, how often, and with what details."""


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


class Subscription:
    """One observer of a limiter, until `remove` is called.

    Args:
        observer: Called with each event.
        kinds: The kinds that it hears; None for all.
        inline: Whether it is called in the thread where an event happens.
        leave: Called by `remove`.
        rest: Called when no event has come for a while, and with True when the limiter is closed.

    Raises:
        ConfigurationError: `observer` cannot be called or is a coroutine function, or a kind is unknown.
    """

    __slots__ = ("_leave", "_rest", "_throttle", "inline", "kinds", "observer", "over")

    def __init__(
        self,
        observer: Observer,
        kinds: Iterable[str] | None,
        inline: bool,
        leave: Callable[[Subscription], None],
        rest: Callable[[bool], None] | None = None,
    ) -> None:
        self.observer: Final = _checked(observer)
        self.kinds: Final = _known(kinds)
        self.inline: Final = bool(inline or getattr(observer, "inline", False))
        self.over = False
        self._leave = leave
        self._rest = rest
        self._throttle = Throttle(LOG_EVERY_S)

    def __repr__(self) -> str:
        return f"<Subscription {self.observer!r}>"

    def remove(self) -> None:
        """Call the observer no more, also with events that are on their way. A second call does nothing."""
        self.over = True
        self._leave(self)

    def wants(self, kind: str) -> bool:
        """Return whether the observer hears events of a kind."""
        return self.kinds is None or kind in self.kinds

    def handle(self, event: Event) -> None:
        """Call the observer, and outlive its exceptions: in the thread of the worker even that of sys.exit()."""
        if self.over:
            return
        try:
            answer: object = self.observer(event)  # type: ignore[func-returns-value]
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError(f"it returned {type(answer).__name__!r}, which nobody awaits; observers are not async")
        except BaseException as error:
            if self.inline and not isinstance(error, Exception):
                raise
            self.failed(error)

    def rest(self, last: bool) -> None:
        """Let the observer do the work that it has put off; `last` says that it may not be called again."""
        if self._rest is not None and not self.over:
            try:
                self._rest(last)
            except Exception as error:
                self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Log an exception of the observer, now and then."""
        left_out = self._throttle.left_out(None, monotonic())
        if left_out is not None:
            more = f", {left_out} times more since the last report" if left_out else ""
            logger.error("observer %r failed%s", self.observer, more, exc_info=error)


def listed_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return the observers of a limiter, which may be given as an iterator.

    Raises:
        ConfigurationError: They are no list.
    """
    if not isinstance(observers, Iterable):
        raise ConfigurationError(f"observers: expected a list of functions that take an Event, not {quoted(observers)}")
    return tuple(observers)


def _checked(observer: object) -> Observer:
    if not callable(observer):
        raise ConfigurationError(f"observers: expected functions that take an Event, not {quoted(observer)}")
    if iscoroutinefunction(observer) or iscoroutinefunction(getattr(observer, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            f"observers: expected a plain function, not the coroutine function {observer!r}; to go on in an event "
            "loop, write lambda event: asyncio.run_coroutine_threadsafe(work(event), loop)"
        )
    check_takes("observers", observer, "event")
    return observer


def _known(kinds: Iterable[str] | None) -> Set[str] | None:
    if kinds is None:
        return None
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise ConfigurationError(f'kinds: expected a list of kinds such as ["refused", "banned"], not {quoted(kinds)}')
    named = frozenset(kinds)
    for kind in named:
        if kind not in KINDS:
            raise ConfigurationError(
                f'kinds: expected kinds of events such as "refused", not {quoted(kind)}{closest(str(kind), KINDS)}'
            )
    return named


class EventHub:
    """The observers of one limiter.

    Args:
        unix_us: Returns Unix time in microseconds, for the time of events.

    Attributes:
        worker: Calls the observers that are not inline.
        refused: Whether anybody hears `refused`; else nobody makes such events.
        near_limit: Whether anybody hears `near_limit`.
    """

    def __init__(self, unix_us: Clock) -> None:
        self._unix_us = unix_us
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._changed: Callable[[], object] | None = None
        self.refused = self.near_limit = False
        self.worker: Final = EventWorker(self._report_dropped, self.rest)

    def on_change(self, call: Callable[[], object]) -> None:
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
        """Have an observer handle further events; see `Limiter.observe`.

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
        return bool(self._wanting(kind))

    def emit(self, event: Event) -> None:
        """Hand an event to those who hear its kind, with the time at which it happened."""
        wanted = self._wanting(event.kind)
        if not wanted:
            return
        event = Event(event.kind, event.message, event.details, self._unix_us())
        queued = [subscription for subscription in wanted if not subscription.inline]
        if queued:
            self.worker.put(event, [subscription.handle for subscription in queued])
        for subscription in wanted:
            if subscription.inline:
                subscription.handle(event)

    def stats(self) -> EventStats:
        """Return how many events wait or are being delivered, were delivered, and were dropped."""
        return EventStats(self.worker.queued, self.worker.delivered, self.worker.dropped)

    async def close(self) -> None:
        """Wait until all queued events were delivered, for at most `CLOSE_S`. Later events are delivered as well."""
        if not on_loop():
            self.worker.flush(CLOSE_S)
        elif not self.worker.flush(0):
            await anyio.to_thread.run_sync(self.worker.flush, CLOSE_S, abandon_on_cancel=True)
        self.rest(True)
        if left := self.stats().queued:
            logger.warning("the limiter is closed, and observers have not heard %d events yet", left)

    def rest(self, last: bool) -> None:
        """Let observers do the work that they have put off; `last` says that they may not be called again."""
        for subscription in self._subscriptions:
            subscription.rest(last)

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)
            self._look()

    def _look(self) -> None:
        """Note for which kinds events have to be made."""
        self.refused, self.near_limit = self.hears("refused"), self.hears("near_limit")
        if self._changed is not None:
            self._changed()

    def _wanting(self, kind: str) -> list[Subscription]:
        return [subscription for subscription in self._subscriptions if subscription.wants(kind)]

    def _report_dropped(self, dropped: int) -> None:
        """Report that the queue was full: to everybody at once, past the queue."""
        message = f"{dropped} events were dropped, because observers take longer than events come"
        logger.warning("events_dropped: %s", message)
        event = Event("events_dropped", message, {"dropped": dropped}, self._unix_us())
        for subscription in self._wanting(event.kind):
            subscription.handle(event)
