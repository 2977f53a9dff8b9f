"""Observers of a limiter: they receive its events, and the outcome of each request.

An observer is called in the thread of the event, after the answer was sent and all locks and transactions have ended. A
slow one can have its own thread: a `ThreadedSubscription`. Every limiter also has an `EventLog`, which writes the log.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from datetime import date
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from queue import Empty, Queue
from threading import Lock, Thread, current_thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import anyio.to_thread

from ..core.arguments import check_list, check_takes
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import Throttle, escaped, logger
from ..core.store import Clock, Event
from ..stores.forks import begin_anew_in_child, hold_over_fork
from .aio import on_loop

CLOSE_S: Final = 5.0
"""How long `Limiter.close` waits for observers with a thread."""
FAILURE_EVERY_S: Final = 10.0
"""The least time between two tracebacks of a failing observer, which may fail at every refusal of a flood."""
LINE_EVERY_S: Final = 1.0
"""The least time between two log lines of the same kind and rule."""
MAX_QUEUED: Final = 4_096
"""An event takes about a kilobyte: a few megabytes while an observer lags behind."""
IDLE_S: Final = 5.0
END_S: Final = 2.0
"""How long queues are drained when the interpreter exits."""
REPORT_EVERY_S: Final = 1.0
"""How often dropped events are reported."""

KINDS: Final = (
    *("refused", "shadow_refused", "banned", "unbanned", "shadow_banned", "bans_full", "strikes_dropped"),
    *("bans_unread", "bans_rescued", "limit_overridden", "limit_restored"),
    *("store_failed", "store_recovered", "store_reset", "store_evicts", "store_set_aside", "store_doubtful"),
    *("keys_shared", "clock_stepped", "permits_lost", "map_grown", "map_full", "reader_stopped"),
    *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted"),
    *("pause_ignored", "pause_unshared", "series_full", "events_dropped"),
)
"""All kinds of events; docs/guides/metrics.md describes when each is emitted, and its details."""
LOGGED_WHERE_MADE: Final = frozenset(
    {
        *("store_failed", "store_recovered"),
        *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted"),
    }
)
"""Kinds that are logged where they are emitted, with their own levels and rates."""
_INFORMATION: Final = frozenset({"refused", "shadow_refused", "pause_ignored", "pause_unshared"})
"""Kinds that are logged as INFO; all others are warnings."""
_MAX_VALUE: Final = 256
SHUT_OUT: Final = frozenset({Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE})
"""The reasons of refusals that are not by a limit."""

T = TypeVar("T")
Ended: TypeAlias = Literal["refused", "success", "exception", "cancelled"]


class Outcome(NamedTuple):
    """The outcome of one request, or of one call of the limiter without HTTP.

    Attributes:
        allowed: Whether it was admitted.
        reason: Why it was admitted or refused: the reason of its most significant decision.
        rules: The names of the rules that counted it; for a refusal, of those that refused it.
        shadow_rules: The names of the shadow rules that would have refused it.
        route: The methods and the template of the route, for example ``GET /items/{id}``; ``(no route)`` if no route
            was found, None without HTTP.
        status: The status code of the response; 0 if none was sent, or without HTTP.
        ended: ``refused``; or, if admitted, ``success``, ``exception`` or ``cancelled``. A client that disconnects
            while it waits for room is ``cancelled``, and not allowed.
        began_us: When it arrived, in microseconds of Unix time.
        duration_us: The time until the last byte of its response was sent, in microseconds.
        waited_us: How long it waited for room, in microseconds; None if it did not wait.
        decisions: Its decisions, those of outer middlewares first.
    """

    allowed: bool
    reason: Reason
    rules: tuple[str, ...]
    shadow_rules: tuple[str, ...]
    route: str | None
    status: int
    ended: Ended
    began_us: int
    duration_us: int
    waited_us: int | None
    decisions: Sequence[Decision]


def outcome_of_question(decision: Decision, now_us: int) -> Outcome:
    """Return the outcome of a call of the limiter without HTTP, made at `now_us`."""
    ended: Ended = "success" if decision.allowed else "refused"
    waited_us = 0 if decision.reason is Reason.WAITED else None
    rules = tuple([bucket.label for bucket, _, _ in decision.checks]) if decision.allowed else refusing_rules(decision)
    return Outcome(decision.allowed, decision.reason, rules, (), None, 0, ended, now_us, 0, waited_us, (decision,))


def refusing_rules(refusal: Decision) -> tuple[str, ...]:
    """Return the names of the rules that had no room; empty for a refusal for another reason."""
    if not refusal.readings:
        return ()
    if len(refusal.checks) == 1:
        return (refusal.checks[0][0].label,)
    violated = {state.rule for state in refusal.violated}
    return tuple([bucket.label for bucket, _, _ in refusal.checks if bucket.name in violated])


class Observer:
    """Receives events and outcomes of requests: derive from it, or write an object with one of its methods.

    Its exceptions are logged and dropped. The methods are called in the thread of the event, and delay it, unless the
    observer has its own thread.
    """

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
        kinds: The kinds of events that it receives; None for all.
        event: Its method for events; None if it has none.
        request: Its method for outcomes; None if it has none.
        finish: Awaits its method `end`, and logs exceptions; None if it has none.
        forget: Its method `forget`; None if it has none.
        dropped: The number of events and outcomes that were dropped because the observer was too slow.

    Raises:
        ConfigurationError: The observer has neither method, one of them is a coroutine function, or a kind is unknown.
    """

    def __init__(self, observer: AnyObserver, kinds: Iterable[str] | None, hub: ObserverHub) -> None:
        self.observer: Final = observer
        self.event, self.request = _methods(observer)
        self.finish: Callable[[], Awaitable[None]] | None = None
        self.forget: Callable[[], object] | None = None
        if isinstance(observer, Observer):
            self.finish = self._end if type(observer).end is not Observer.end else None
            self.forget = observer.forget if type(observer).forget is not Observer.forget else None
        self.kinds: Final[Set[str] | None] = frozenset() if self.event is None else _known(kinds)
        self.dropped = 0
        self._hub = hub
        self._over = False
        self._throttle = Throttle(FAILURE_EVERY_S)

    def __repr__(self) -> str:
        return f"<Subscription {self.observer!r}>"

    def remove(self) -> None:
        """Stop calling the observer, even for queued events. A second call does nothing."""
        self._over = True
        self._hub.leave(self)

    def wants(self, kind: str) -> bool:
        """Return whether the observer receives events of a kind."""
        return self.kinds is None or kind in self.kinds

    def call(self, method: Callable[[T], object], what: T) -> None:
        """Call a method of the observer in this thread, and log its exceptions."""
        if self._over:
            return
        try:
            answer = method(what)
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError(f"it returned {type(answer).__name__!r}, never awaited; observers are not async")
        except Exception as error:
            self._log(error)

    async def _end(self) -> None:
        try:
            await self.observer.end()  # type: ignore[union-attr]
        except Exception as error:
            self._log(error)

    pass_on = call
    """Calls a method of the observer, in the observer's own thread if it has one."""

    def _log(self, error: BaseException) -> None:
        left_out = self._throttle.left_out(None, monotonic())
        if left_out is not None:
            more = f", {left_out} times more since the last report" if left_out else ""
            logger.error("observer %r failed%s", self.observer, more, exc_info=error)


class ThreadedSubscription(Subscription):
    """Calls a slow observer in its own thread, one event after another, in order.

    * The thread starts with the first event, and ends after `IDLE_S` without one, so an unclosed limiter leaves none.
    * If `MAX_QUEUED` events are queued, further ones are dropped, counted, and reported when there is room again.
    * `fork` copies no threads: a child starts with an empty queue, and the parent handles the queued events.
    * When the interpreter exits, the queued events are handled, for at most `END_S`.

    Attributes:
        max_queued: The capacity of the queue.
    """

    def __init__(self, observer: AnyObserver, kinds: Iterable[str] | None, hub: ObserverHub) -> None:
        super().__init__(observer, kinds, hub)
        self.max_queued = MAX_QUEUED
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)
        _threaded.add(self)

    def begin_anew(self) -> None:
        """Reset the queue and the thread, which belong to the parent process after `fork`."""
        self.dropped = self._reported = 0
        self._lock = Lock()
        self._calls: Queue[tuple[Callable[[Any], object], Any]] = Queue()
        self._thread: Thread | None = None
        self._report_again_s = 0.0

    def pass_on(self, method: Callable[[T], object], what: T) -> None:
        """Queue a call for the thread, or count it as dropped."""
        with self._lock:
            if self._calls.qsize() >= self.max_queued:
                self.dropped += 1
            else:
                self._calls.put((method, what))
            if self._thread is None:
                self._start()

    def call(self, method: Callable[[T], object], what: T) -> None:
        """Call a method in this thread, the observer's own, and log even SystemExit."""
        try:
            super().call(method, what)
        except BaseException as error:
            self._log(error)

    def flush(self, max_s: float) -> bool:
        """Wait until all queued calls were made, for at most `max_s` seconds; return whether they were.

        In the observer's own thread it does not wait, because that would be a deadlock.
        """
        calls = self._calls
        waits = self._thread is not None and self._thread is not current_thread()
        with calls.all_tasks_done:
            return calls.all_tasks_done.wait_for(lambda: not calls.unfinished_tasks, max_s if waits else 0)

    def _start(self) -> None:
        self._thread = Thread(target=self._serve, name="slidegate-observer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # out of threads, or the interpreter is exiting; the next event tries again
            self._thread = None
            logger.error("events stay queued, because no thread can be started for an observer: %s", error)

    def _serve(self) -> None:
        calls = self._calls
        while self._calls is calls:  # it differs in a child, if the observer itself forks
            try:
                method, what = calls.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if calls.empty():
                        self._thread = None
                        return
                continue
            self.call(method, what)
            if self._calls is calls:
                self._report_dropped(idle=calls.empty())
                calls.task_done()

    def _report_dropped(self, *, idle: bool) -> None:
        dropped = self.dropped - self._reported
        if dropped and (idle or monotonic() >= self._report_again_s):
            self._report_again_s = monotonic() + REPORT_EVERY_S
            message = f"{dropped} events were dropped, because the observer {self.observer!r} is too slow"
            self._hub.emit(Event("events_dropped", message, {"dropped": dropped}), past=self)
            self._reported += dropped


_threaded: Final[WeakSet[ThreadedSubscription]] = WeakSet()
atexit.register(lambda: _flush(list(_threaded), END_S))


def _methods(observer: AnyObserver) -> tuple[Callable[[Event], object] | None, Callable[[Outcome], object] | None]:
    """Return the methods `event` and `request` that an observer defines itself; None for each that it does not."""
    found: dict[str, Any] = {}
    for name in ("event", "request"):
        method = getattr(observer, name, None)
        if callable(method) and getattr(method, "__func__", method) is not getattr(Observer, name):
            found[name] = method
    if not found and callable(observer):
        found["event"] = observer
    if not found or isinstance(observer, type):
        raise ConfigurationError(
            "observers: expected functions of an event, or objects with a method event(event) or request(outcome), not "
            + quoted(observer)
        )
    for name, method in found.items():
        if iscoroutinefunction(method) or iscoroutinefunction(getattr(method, "__call__", None)):  # noqa: B004
            raise ConfigurationError(
                f"observers: expected a plain function, not the coroutine function {method!r}; to run one in an event "
                "loop, write lambda event: asyncio.run_coroutine_threadsafe(work(event), loop)"
            )
        check_takes("observers", method, "event" if name == "event" else "outcome")
    return found.get("event"), found.get("request")


def _known(kinds: Iterable[str] | None) -> Set[str] | None:
    if kinds is None:
        return None
    named = frozenset(check_list("kinds", kinds, 'a list of kinds such as ["refused", "banned"]', str))
    for kind in named:
        if kind not in KINDS:
            raise ConfigurationError(
                f'kinds: expected kinds of events such as "refused", not {quoted(kind)}{closest(str(kind), KINDS)}'
            )
    return named


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
        self._subscriptions: tuple[Subscription, ...] = ()
        self._refused = False
        self._log = EventLog()
        self._requests: list[tuple[Callable[..., None], Callable[[Outcome], object]]] = []
        self.requests = False

    def subscribe(
        self, observer: AnyObserver, kinds: Iterable[str] | None = None, *, thread: bool = False
    ) -> Subscription:
        """Subscribe an observer; see `Limiter.observe`."""
        subscription = (ThreadedSubscription if thread else Subscription)(observer, kinds, self)
        with self._lock:
            self._set((*self._subscriptions, subscription))
            if subscription.finish is not None:
                self._ending.append(subscription.finish)
            if subscription.forget is not None:
                self._forgetting.append(subscription.forget)
        return subscription

    def find(self, kind: type[T]) -> T | None:
        """Return the first observer of a class; None if there is none."""
        observers = (subscription.observer for subscription in self._subscriptions)
        return next((observer for observer in observers if isinstance(observer, kind)), None)

    def wants_refusals(self) -> bool:
        """Return whether events of refused requests are needed, by an observer or the log."""
        return self._refused or logger.isEnabledFor(logging.INFO)

    def emit(self, event: Event, past: Subscription | None = None) -> None:
        """Log an event, and pass it to the observers of its kind, with the time added.

        Args:
            event: The event.
            past: A subscription to call directly, bypassing its queue.
        """
        event = Event(event.kind, event.message, event.details, self._unix_us())
        self._log.event(event)
        for subscription in self._subscriptions:
            if subscription.event is not None and subscription.wants(event.kind):
                (subscription.call if subscription is past else subscription.pass_on)(subscription.event, event)

    def request(self, outcome: Outcome) -> None:
        """Pass an outcome to the observers of requests."""
        for pass_on, method in self._requests:
            pass_on(method, outcome)

    async def close(self) -> None:
        """Wait until all queues are empty, for at most `CLOSE_S`. Later events are still delivered."""
        threaded = [one for one in self._subscriptions if isinstance(one, ThreadedSubscription)]
        left = sum([not one.flush(0) for one in threaded])
        if left and on_loop():
            left = await anyio.to_thread.run_sync(_flush, threaded, CLOSE_S, abandon_on_cancel=True)
        elif left:
            left = _flush(threaded, CLOSE_S)
        if left:
            logger.warning("the limiter is closed, and %d observers still have queued events", left)
        self._log.rest()

    def leave(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self._lock:
            self._set(tuple(other for other in self._subscriptions if other is not subscription))
            if subscription.finish in self._ending:
                self._ending.remove(subscription.finish)
            if subscription.forget in self._forgetting:
                self._forgetting.remove(subscription.forget)

    def _set(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self._refused = any(subscription.wants("refused") for subscription in subscriptions)
        self._requests = [(one.pass_on, one.request) for one in subscriptions if one.request is not None]
        self.requests = bool(self._requests)


def _flush(threaded: Iterable[ThreadedSubscription], max_s: float) -> int:
    """Drain all queues, for at most `max_s` seconds in total; return how many are not empty afterwards."""
    ends_s = monotonic() + max_s
    return sum([not one.flush(max(ends_s - monotonic(), 0.0)) for one in threaded])


class EventLog:
    """Writes events to the log: at most one line a second for each kind and rule, with the number of omitted events.

    A record has the fields `kind` and `details`, for structlog and JSON formatters.
    """

    def __init__(self) -> None:
        self._throttle = Throttle(LINE_EVERY_S)

    def event(self, event: Event) -> None:
        """Log an event, or count it as omitted."""
        level = _level(event.kind)
        if event.kind in LOGGED_WHERE_MADE or not logger.isEnabledFor(level):
            return
        rule = event.details.get("rule") or event.details.get("by")
        left_out = self._throttle.left_out(f"{event.kind} under {rule}" if rule else event.kind, monotonic())
        if left_out is None:
            return
        more = f" (and {left_out} more since the last such line)" if left_out else ""
        fields = {"kind": event.kind, "details": {name: _shown(value) for name, value in event.details.items()}}
        logger.log(level, "%s: %s%s", event.kind, event.message, more, extra=fields)

    def rest(self) -> None:
        """Log the number of events omitted since the last line of each kind and rule."""
        for subject, left_out in self._throttle.rest():
            kind, _, rule = str(subject).partition(" under ")
            message = f"{left_out} more{f' under {rule}' if rule else ''} since the last such line"
            logger.log(_level(kind), "%s: %s", kind, message, extra={"kind": kind, "details": {}})


def _level(kind: str) -> int:
    return logging.INFO if kind in _INFORMATION else logging.WARNING


def _shown(value: object) -> object:
    """Return a value as a field of a log record: a number, or printable text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.isoformat() if isinstance(value, date) else escaped(str(value), _MAX_VALUE)
