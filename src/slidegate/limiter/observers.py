"""Observers of a limiter: they receive its events, and the outcome of each request. The log is written here, too.

An observer is called in the thread of the event, after all locks and transactions have ended, and so must not block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeAlias

from ..core.buckets import Check
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, quoted
from ..core.events import Event
from ..core.limits import Identity
from ..core.logs import Throttle, logger
from ..core.memo import remember
from ..core.store import Clock
from ..stores.forks import ProcessLock

FAILURE_EVERY_S: Final = 10.0
"""The least time between two tracebacks of a failing observer, which may fail at every refusal of a flood."""
LINE_EVERY_S: Final = 1.0
"""The least time between two log lines of the same kind and rule."""
_MINUTE_US: Final = 60_000_000

_KINDS_BY_LEVEL: Final = {
    logging.INFO: "refused exceeded shadow_refused pause_ignored pause_unshared",
    logging.WARNING: (
        "banned unbanned shadow_banned bans_full strikes_dropped limit_overridden limit_restored switched_off "
        "switched_on store_recovered store_late store_error store_reset store_evicts counts_restarted kept_damaged "
        "secret_differs keys_shared map_full series_full"
    ),
    logging.ERROR: "store_failed",
    # No logger is enabled for this level. They are logged where they are emitted: several limiters may follow one file.
    logging.NOTSET: "list_reloaded list_rejected config_reloaded config_rejected",
}
LEVELS: Final = {kind: level for level, kinds in _KINDS_BY_LEVEL.items() for kind in kinds.split()}
"""The level of each kind in the log."""
KINDS: Final = tuple(LEVELS)
"""All kinds of events; docs/reference/errors.md describes when each is emitted, and its details."""

Passed: TypeAlias = tuple[str, Sequence[Check], str, int, Any]
"""The client, checks, route, microseconds and status of an ordinary request."""


@dataclass(slots=True, eq=False)
class Outcome:
    """The outcome of one request.

    Attributes:
        client: The key of its client, as the outermost middleware of the limiter sees it.
        decisions: Its decisions, those of outer middlewares first.
        refusal: The decision that refused it; None if none did.
        shadow_rules: The names of the shadow rules that would have refused it.
        route: The methods and the template of the route, for example ``GET /items/{id}``; ``(no route)`` if no route
            was found, for example because the request was refused before.
        status: The status code of the response; 0 if none was sent.
        failed: Whether it was admitted, and the application raised an exception.
        began_us: When it arrived, in microseconds of Unix time.
        duration_us: The time until the last byte of its response was sent, in microseconds.
        observing_rules: The names of the shadow rules that have counted it, those of `shadow_rules` among them.
    """

    client: str
    decisions: Sequence[Decision]
    refusal: Decision | None
    shadow_rules: tuple[str, ...]
    route: str
    status: int
    failed: bool
    began_us: int
    duration_us: int
    observing_rules: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether it was admitted."""
        return self.refusal is None

    @property
    def reason(self) -> Reason:
        """Why it was admitted or refused: the reason of its most significant decision."""
        if self.refusal is not None:
            return self.refusal.reason
        return self.decisions[-1].reason

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that counted it; for a refusal, of those that refused it."""
        refusal = self.refusal
        if refusal is None:
            labels: dict[str, None] = {}
            for decision in self.decisions:
                for bucket, _, _ in decision.checks:
                    labels[bucket.label] = None
            return tuple(labels)
        # Only a rule that blocks sets a status.
        if refusal.status:
            return (refusal.by,)
        # Most refusals of an attack are by the only rule, so no states need be made for them.
        if refusal.readings and len(refusal.checks) == 1:
            bucket, _, _ = refusal.checks[0]
            return (bucket.label,)
        return tuple(dict.fromkeys(state.label for state in refusal.violated))


class Observer:
    """Receives events and outcomes of requests; derive from it, or write an object with one of its methods.

    The methods are called in the thread of the event, which they delay: they must not block. Exceptions are logged.

    Attributes:
        refused_events: Whether `event` receives events of kind ``refused``. Set it to False if `request` is enough:
            making this event takes longer than refusing the request, and it is made only if an observer wants it.
        takes_passed: Whether `request` receives a `Passed` in place of the outcome of an ordinary request, which the
            limits of its only decision admitted and which ended well: an outcome takes longer to make, and to keep.
    """

    refused_events: bool = True
    takes_passed: bool = False

    def event(self, event: Event, /) -> None:
        """Receive an event."""

    def request(self, outcome: Outcome, /) -> None:
        """Receive the outcome of a request."""

    async def end(self) -> None:
        """Finish: the application ends, or the limiter is being closed and its store is still open."""

    def forget(self) -> None:
        """Drop what it has counted, because a test resets all limiters."""


AnyObserver: TypeAlias = Observer | Callable[[Event], object] | Any
"""An object with the method `event` or `request`, or a function of an event."""


class Subscription:
    """One observer of a limiter, until `remove` is called.

    Attributes:
        event: Its method for events; None if it has none.
        request: Its method for outcomes; None if it has none.

    Raises:
        ConfigurationError: The observer has neither method for events nor for outcomes.
    """

    def __init__(self, observer: AnyObserver, hub: ObserverHub) -> None:
        self.observer: Final[Any] = observer
        event = _method_of(observer, "event")
        self.request: Final = _method_of(observer, "request")
        if event is None and self.request is None:
            if isinstance(observer, type) or not callable(observer):
                raise ConfigurationError(
                    "observers: expected functions of an event, or objects with a method event(event) or "
                    f"request(outcome), not {quoted(observer)}"
                )
            event = observer
        self.event: Final = event
        self._hub = hub
        self._throttle = Throttle(FAILURE_EVERY_S)

    def remove(self) -> None:
        """Stop calling the observer. A second call does nothing."""
        self._hub.remove(self)

    def log(self, error: Exception) -> None:
        """Log an exception of the observer."""
        left_out = self._throttle.left_out(None, monotonic())
        if left_out is not None:
            logger.error("observer %r failed%s", self.observer, left_out, exc_info=error)


def _method_of(observer: AnyObserver, name: str) -> Callable[..., Any] | None:
    """Return a method that an observer defines itself; None if it does not."""
    if isinstance(observer, type):  # its methods have no object
        return None
    method: Callable[..., Any] | None = getattr(observer, name, None)
    if not callable(method):
        return None
    # The method of `Observer` does nothing, so a call is not needed.
    if getattr(method, "__func__", method) is getattr(Observer, name):
        return None
    return method


class ObserverHub:
    """The observers of one limiter.

    Args:
        unix_us: Returns Unix time in microseconds, for the time of events.

    Attributes:
        subscriptions: Those in force, oldest first.
        requests: The observers of requests.
        passed: Those of them that take an ordinary request as `Passed`.
        outcomes: The others; without any, no `Outcome` of such a request is created.
    """

    def __init__(self, unix_us: Clock, observers: Iterable[AnyObserver]) -> None:
        self._unix_us = unix_us
        self._lock = ProcessLock()
        self._throttle = Throttle(LINE_EVERY_S)
        self._exceeded: dict[tuple[str, str, Identity], int] = {}
        self._set(tuple(Subscription(observer, self) for observer in observers))

    def subscribe(self, observer: AnyObserver) -> Subscription:
        """Subscribe an observer; see `Limiter.observe`."""
        subscription = Subscription(observer, self)
        with self._lock:
            self._set((*self.subscriptions, subscription))
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            self._set(tuple(other for other in self.subscriptions if other is not subscription))

    def wants(self, kind: str) -> bool:
        """Return whether events of a kind that is logged as information are needed, by an observer or the log."""
        receivers = self._events
        if kind == "refused":
            receivers = self._refusals
        return bool(receivers) or logger.logger.isEnabledFor(logging.INFO)

    def emit(self, event: Event) -> None:
        """Log an event, and pass it to the observers of its kind, with the time added."""
        event = Event(event.kind, event.message, event.details, self._unix_us())
        self._log(event)
        receivers = self._events
        if event.kind == "refused":
            receivers = self._refusals
        notify(receivers, event)

    def report_exceeded(self, decision: Decision, now_us: int) -> None:
        """Emit the event ``exceeded`` for each limit that a key has exceeded, unless it did so within the last window.

        A key that goes on exceeding a limit is so reported once. The window of a quota is its period; permits have
        none, so that it is a minute.

        Args:
            decision: The refusal, by rules in shadow mode too.
            now_us: Monotonic time; not that of the decision, which another store makes in an outage, by another clock.
        """
        for state in decision.violated:
            window = state.rule, state.key, state.limit.same_window
            quiet_until_us = self._exceeded.get(window, -1)
            window_us = state.limit.span_us or max(state.reset_after_us, _MINUTE_US)
            remember(self._exceeded, window, now_us + window_us)
            if now_us <= quiet_until_us:
                continue
            label, key, limit = state.label, state.key, str(state.limit)
            message = f"{key} has exceeded {limit} under {label!r}"
            self.emit(Event("exceeded", message, {"key": key, "rule": label, "limit": limit}))

    def _log(self, event: Event) -> None:
        """Log an event: at most one line a second for each kind and rule, with the number of omitted events."""
        level = LEVELS.get(event.kind, logging.WARNING)
        if not logger.isEnabledFor(level):
            return
        about = event.details
        rule = about.get("rule") or about.get("limit") or about.get("by")  # of a ban, the policy or who made it
        left_out = self._throttle.left_out(f"{event.kind} under {rule}", monotonic())
        if left_out is not None:
            logger.log(level, "%s: %s%s", event.kind, event.message, left_out)

    async def end(self) -> None:
        """Await the method `end` of observers, and log its exceptions."""
        for subscription in self.subscriptions:
            if not isinstance(subscription.observer, Observer):
                continue
            try:
                await subscription.observer.end()
            except Exception as error:
                subscription.log(error)

    def forget(self) -> None:
        """Call the method `forget` of observers, and drop the record of exceeded limits."""
        self._exceeded.clear()
        for subscription in self.subscriptions:
            if isinstance(subscription.observer, Observer):
                subscription.observer.forget()

    def _set(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Replace the subscriptions, and sort their methods by what receives them: a request looks only at a list.

        An object with the methods, which need not be an `Observer`, may lack its attributes.
        """
        self.subscriptions = subscriptions
        self._events = [(listener, listener.event) for listener in subscriptions if listener.event is not None]
        self._refusals = [pair for pair in self._events if getattr(pair[0].observer, "refused_events", True)]
        self.requests = [(listener, listener.request) for listener in subscriptions if listener.request is not None]
        self.passed = [pair for pair in self.requests if getattr(pair[0].observer, "takes_passed", False)]
        self.outcomes = [pair for pair in self.requests if pair not in self.passed]


def notify(receivers: Iterable[tuple[Subscription, Callable[[Any], object]]], report: Event | Outcome | Passed) -> None:
    """Call methods of observers, and log their exceptions."""
    for subscription, method in receivers:
        try:
            method(report)
        except Exception as error:
            subscription.log(error)
