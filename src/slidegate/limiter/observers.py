"""Observers of a limiter: they receive its events, and the outcome of each request.

An observer is called in the thread of the event, after all locks and transactions have ended, and so must not block.
Every limiter also has an `EventLog`, which writes the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutine, iscoroutinefunction
from threading import Lock
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

from ..core.arguments import check_list, check_takes
from ..core.errors import ConfigurationError, quoted
from ..core.logs import Throttle, logger
from ..core.store import Clock, Event
from ..stores.forks import hold_over_fork
from .event_log import EventLog
from .outcome import Outcome

FAILURE_EVERY_S: Final = 10.0
"""The least time between two tracebacks of a failing observer, which may fail at every refusal of a flood."""

KINDS: Final = (
    *("refused", "exceeded", "shadow_refused", "banned", "unbanned", "shadow_banned", "bans_full", "strikes_dropped"),
    *("bans_unread", "bans_rescued", "limit_overridden", "limit_restored"),
    *("switched_off", "switched_on", "secret_differs"),
    *("store_failed", "store_recovered", "store_late", "store_error", "store_reset", "store_evicts"),
    *("store_set_aside", "store_doubtful"),
    *("keys_shared", "clock_stepped", "permits_lost", "map_grown", "map_full", "reader_stopped"),
    *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted"),
    *("pause_ignored", "pause_unshared", "series_full"),
)
"""All kinds of events; docs/guides/metrics.md describes when each is emitted, and its details."""

T = TypeVar("T")


class Observer:
    """Receives events and outcomes of requests: derive from it, or write an object with one of its methods.

    The methods are called in the thread of the event, which they delay: they must not block. Exceptions are logged.

    Attributes:
        refused_events: Whether `event` receives events of kind ``refused``. Set it to False if `request` is enough:
            making this event takes longer than refusing the request, and it is made only if an observer wants it.
    """

    refused_events: bool = True

    def event(self, event: Event, /) -> None:
        """Receive an event."""

    def request(self, outcome: Outcome, /) -> None:
        """Receive the outcome of a request."""

    async def end(self) -> None:
        """Finish: the application ends, or the limiter is being closed and its store is still open."""

    def forget(self) -> None:
        """Begin anew, with nothing counted: a test resets all limiters."""


AnyObserver: TypeAlias = Observer | Callable[[Event], object] | Any
"""An object with the method `event` or `request`, or a function of an event."""


class Subscription:
    """One observer of a limiter, until `remove` is called.

    Attributes:
        observer: The observer.
        event: Its method for events; None if it has none.
        request: Its method for outcomes; None if it has none.
        ends: Contains the function that awaits its method `end` and logs exceptions, if it has one.
        forgets: Contains its method `forget`, if it has one.

    Raises:
        ConfigurationError: The observer has neither method for events nor for outcomes, or one is a coroutine function.
    """

    def __init__(self, observer: AnyObserver, hub: ObserverHub) -> None:
        self.observer: Final[Any] = observer
        event, self.request = _own(observer, "event"), _own(observer, "request")
        if event is None and self.request is None and callable(observer):
            event = observer
        self.event: Final = event
        if isinstance(observer, type) or (self.event is None and self.request is None):
            raise ConfigurationError(
                "observers: expected functions of an event, or objects with a method event(event) or request(outcome), "
                f"not {quoted(observer)}"
            )
        _check_method(self.event, "event")
        _check_method(self.request, "outcome")
        forget = _own(observer, "forget") if isinstance(observer, Observer) else None
        self.forgets: Final = () if forget is None else (forget,)
        self.ends: Final = (self._end,) if isinstance(observer, Observer) and _own(observer, "end") else ()
        self._hub = hub
        self._throttle = Throttle(FAILURE_EVERY_S)

    def remove(self) -> None:
        """Stop calling the observer. A second call does nothing."""
        self._hub.leave(self)

    def call(self, method: Callable[[T], object], what: T) -> None:
        """Call a method of the observer, and log its exceptions."""
        try:
            answer = method(what)
            if iscoroutine(answer):
                answer.close()
                raise TypeError("it returned a coroutine, which nothing awaits; observers are not async")
        except Exception as error:
            self._log(error)

    async def _end(self) -> None:
        try:
            await self.observer.end()
        except Exception as error:
            self._log(error)

    def _log(self, error: Exception) -> None:
        left_out = self._throttle.left_out(None, monotonic())
        if left_out is not None:
            more = f", {left_out} times more since the last report" if left_out else ""
            logger.error("observer %r failed%s", self.observer, more, exc_info=error)


def _own(observer: AnyObserver, name: str) -> Callable[..., Any] | None:
    """Return a method that an observer defines itself; None if it does not."""
    method = getattr(observer, name, None)
    is_own = callable(method) and getattr(method, "__func__", method) is not getattr(Observer, name)
    return method if is_own else None


def _check_method(method: Callable[..., object] | None, takes: str) -> None:
    if method is None:
        return
    if iscoroutinefunction(method) or iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004
        raise ConfigurationError(
            f"observers: expected a plain function, not the coroutine function {method!r}; to run one in an event "
            "loop, write lambda event: asyncio.run_coroutine_threadsafe(work(event), loop)"
        )
    check_takes("observers", method, takes)


def listed_observers(observers: Iterable[AnyObserver]) -> tuple[AnyObserver, ...]:
    """Return the observers of a limiter as a tuple; any iterable is accepted.

    Raises:
        ConfigurationError: The value is not iterable.
    """
    return tuple(check_list("observers", observers, "a list of functions that take an Event"))


class ObserverHub:
    """The observers of one limiter.

    Args:
        unix_us: Returns Unix time in microseconds, for the time of events.
        ending: Receives the methods `end` of observers.
        forgetting: Receives their methods `forget`.

    Attributes:
        subscriptions: Those in force, oldest first.
        log: Writes all events to the log.
        requests: Whether any observer receives outcomes; if not, no `Outcome` is created.
    """

    def __init__(
        self, unix_us: Clock, ending: list[Callable[[], Awaitable[None]]], forgetting: list[Callable[[], object]]
    ) -> None:
        self._unix_us = unix_us
        self._ending = ending
        self._forgetting = forgetting
        self._lock = Lock()
        hold_over_fork(self._lock)
        self.log = EventLog()
        self._set(())

    def subscribe(self, observer: AnyObserver) -> Subscription:
        """Subscribe an observer; see `Limiter.observe`."""
        subscription = Subscription(observer, self)
        with self._lock:
            self._set((*self.subscriptions, subscription))
            self._ending.extend(subscription.ends)
            self._forgetting.extend(subscription.forgets)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            if subscription in self.subscriptions:
                self._set(tuple(other for other in self.subscriptions if other is not subscription))
                for end in subscription.ends:
                    self._ending.remove(end)
                for forget in subscription.forgets:
                    self._forgetting.remove(forget)

    def wants_refusals(self) -> bool:
        """Return whether events of refused requests are needed, by an observer or the log."""
        return bool(self._refusals) or logger.isEnabledFor(logging.INFO)

    def wants_information(self) -> bool:
        """Return whether events that are logged as information are needed, by an observer or the log."""
        return bool(self._events) or logger.isEnabledFor(logging.INFO)

    def emit(self, event: Event) -> None:
        """Log an event, and pass it to the observers of its kind, with the time added."""
        event = Event(event.kind, event.message, event.details, self._unix_us())
        self.log.event(event)
        for subscription, method in self._refusals if event.kind == "refused" else self._events:
            subscription.call(method, event)

    def request(self, outcome: Outcome) -> None:
        """Pass an outcome to the observers of requests."""
        for subscription, method in self._requests:
            subscription.call(method, outcome)

    def _set(self, subscriptions: tuple[Subscription, ...]) -> None:
        self.subscriptions = subscriptions
        self._events = [(one, one.event) for one in subscriptions if one.event is not None]
        self._refusals = [one for one in self._events if getattr(one[0].observer, "refused_events", True)]
        self._requests = [(one, one.request) for one in subscriptions if one.request is not None]
        self.requests = bool(self._requests)
