"""Observers: who hears the events of a limiter, and what became of each request.

An observer is called in the thread where something happens, when the answer is out and every lock and transaction has
ended. One that takes long has a thread of its own, behind an `EventQueue`. The log is written by an observer that every
limiter has, `EventLog`.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable, Sequence, Set
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
"""An observer that fails with every refusal of a flood writes no more than one traceback in this time."""
LINE_EVERY_S: Final = 1.0
"""The log has one line in this time for each kind and rule."""
MAX_QUEUED: Final = 4_096
"""About a kilobyte each: a few megabytes while an observer lags behind."""
IDLE_S: Final = 5.0
END_S: Final = 2.0
"""How long queues are emptied at the end of the interpreter."""
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
"""All kinds of events; docs/guides/metrics.md says when each comes and with what details."""
LOGGED_WHERE_MADE: Final = frozenset(
    {
        *("store_failed", "store_recovered"),
        *("list_reloaded", "list_rejected", "config_reloaded", "config_rejected", "windows_restarted"),
    }
)
"""Kinds whose lines have levels and rates of their own."""
_INFORMATION: Final = frozenset({"refused", "shadow_refused", "pause_ignored", "pause_unshared"})
"""Kinds that are logged with the level INFO; all others are warnings."""
_MAX_VALUE: Final = 256
SHUT_OUT: Final = frozenset({Reason.BANNED, Reason.BLOCKED, Reason.UNAVAILABLE})
"""Why requests are refused where it is not by a limit."""

T = TypeVar("T")
Ended: TypeAlias = Literal["refused", "success", "exception", "cancelled"]


class Outcome(NamedTuple):
    """What became of one request, or of one question that was put to the limiter without HTTP.

    Attributes:
        allowed: Whether it was let through.
        reason: Why it was let through or refused: that of the decision that matters most.
        rules: The names of the rules that counted it; of a refused request, of the rules that refused it.
        shadow_rules: The names of the shadow rules that would have refused it.
        route: The template of the route and its methods, for example ``GET /items/{id}``; ``(no route)`` where no
            route was found, None of a question without HTTP.
        status: The status of the answer; 0 where none was sent, or there is no HTTP.
        ended: ``refused``; or, of what was let through, ``success``, ``exception`` or ``cancelled``. A client that
            leaves while it waits for room is ``cancelled``, and was not allowed.
        began_us: When it came, in microseconds of Unix time.
        duration_us: The time until the last byte of its answer was sent.
        waited_us: How long it has waited for room; None if it did not wait.
        decisions: The decisions about it, those of outer middlewares first.
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
    """Return what became of a question that was put to the limiter without HTTP."""
    ended: Ended = "success" if decision.allowed else "refused"
    waited_us = 0 if decision.reason is Reason.WAITED else None
    rules = (
        refusing_rules(decision) if not decision.allowed else tuple([asked.label for asked, _, _ in decision.checks])
    )
    return Outcome(decision.allowed, decision.reason, rules, (), None, 0, ended, now_us, 0, waited_us, (decision,))


def refusing_rules(refusal: Decision) -> tuple[str, ...]:
    """Return the names of the rules that had no room; of a refusal for another reason, of none."""
    if not refusal.readings:
        return ()
    if len(refusal.checks) == 1:
        return (refusal.checks[0][0].label,)
    violated = {state.rule for state in refusal.violated}
    return tuple([asked.label for asked, _, _ in refusal.checks if asked.rule in violated])


class Observer:
    """Hears events, and what became of requests: derive from it, or write an object with one of its methods.

    Its exceptions are logged and dropped. Methods are called in the thread where something happens, and hold up
    whatever goes on there, unless the observer was given a thread.
    """

    def event(self, event: Event, /) -> None:
        """Hear of an event."""

    def request(self, outcome: Outcome, /) -> None:
        """Hear what became of a request."""


AnyObserver: TypeAlias = Observer | Callable[[Event], object] | Any
"""An object with the method `event` or `request`, or a function of an event."""


class Subscription:
    """One observer of a limiter, until `remove` is called.

    Attributes:
        observer: The observer.
        kinds: The kinds of events that it hears; None for all.
        event: Its method for events; None if it has none.
        request: Its method for what becomes of requests; None if it has none.

    Raises:
        ConfigurationError: The observer has neither method, one of them is a coroutine function, or a kind is unknown.
    """

    def __init__(
        self,
        observer: AnyObserver,
        kinds: Iterable[str] | None,
        thread: bool,
        leave: Callable[[Subscription], None],
        report: Callable[[Subscription, int], None],
    ) -> None:
        self.observer: Final = observer
        self.event, self.request = _methods(observer)
        self.kinds: Final[Set[str] | None] = frozenset() if self.event is None else _known(kinds)
        self.queue: Final = EventQueue(lambda dropped: report(self, dropped)) if thread else None
        self._over = False
        self._leave = leave
        self._throttle = Throttle(FAILURE_EVERY_S)

    def __repr__(self) -> str:
        return f"<Subscription {self.observer!r}>"

    @property
    def dropped(self) -> int:
        """How many events and outcomes the observer has not heard, because it was too slow."""
        return 0 if self.queue is None else self.queue.dropped

    def remove(self) -> None:
        """Call the observer no more, also with what is on its way. A second call does nothing."""
        self._over = True
        self._leave(self)

    def wants(self, kind: str) -> bool:
        """Return whether the observer hears events of a kind."""
        return self.kinds is None or kind in self.kinds

    def pass_on(self, method: Callable[[T], object], what: T) -> None:
        """Call a method of the observer, in its thread if it has one."""
        if self.queue is None:
            self.call(method, what)
        else:
            self.queue.put(lambda: self.call(method, what))

    def call(self, method: Callable[[T], object], what: T) -> None:
        """Call a method of the observer here, and outlive its exceptions: in its thread even that of sys.exit()."""
        if self._over:
            return
        try:
            answer = method(what)
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError(f"it returned {type(answer).__name__!r}, which nobody awaits; observers are not async")
        except BaseException as error:
            if self.queue is None and not isinstance(error, Exception):
                raise
            left_out = self._throttle.left_out(None, monotonic())
            if left_out is not None:
                more = f", {left_out} times more since the last report" if left_out else ""
                logger.error("observer %r failed%s", self.observer, more, exc_info=error)


def _methods(observer: AnyObserver) -> tuple[Callable[[Event], object] | None, Callable[[Outcome], object] | None]:
    """Return the methods of an observer that are its own: None for each that it does not have."""
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
                f"observers: expected a plain function, not the coroutine function {method!r}; to go on in an event "
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
    """Return the observers of a limiter, which may be given as an iterator.

    Raises:
        ConfigurationError: They are no list.
    """
    return tuple(check_list("observers", observers, "a list of functions that take an Event"))


class ObserverHub:
    """The observers of one limiter.

    Args:
        unix_us: Returns Unix time in microseconds, for the time of events.

    Attributes:
        requests: Whether anybody hears what becomes of requests; else nobody makes an `Outcome`.
    """

    def __init__(self, unix_us: Clock) -> None:
        self._unix_us = unix_us
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
        """Have an observer hear what happens from now on; see `Limiter.observe`."""
        subscription = Subscription(observer, kinds, thread, self._leave, self._report_dropped)
        with self._lock:
            self._set((*self._subscriptions, subscription))
        return subscription

    def find(self, kind: type[T]) -> T | None:
        """Return the first observer of a class, if there is one."""
        observers = (subscription.observer for subscription in self._subscriptions)
        return next((observer for observer in observers if isinstance(observer, kind)), None)

    def wants_refusals(self) -> bool:
        """Return whether anybody hears of refused requests; else nobody makes such events."""
        return self._refused or logger.isEnabledFor(logging.INFO)

    def emit(self, event: Event, past: Subscription | None = None) -> None:
        """Log an event, and pass it to those who hear its kind, with the time at which it happened.

        Args:
            event: The event.
            past: One that hears it here, past its queue.
        """
        event = Event(event.kind, event.message, event.details, self._unix_us())
        self._log.event(event)
        for subscription in self._subscriptions:
            if subscription.event is not None and subscription.wants(event.kind):
                (subscription.call if subscription is past else subscription.pass_on)(subscription.event, event)

    def request(self, outcome: Outcome) -> None:
        """Pass on what became of a request."""
        for pass_on, method in self._requests:
            pass_on(method, outcome)

    async def close(self) -> None:
        """Wait until all queues are empty, for at most `CLOSE_S`. What comes later is heard as well."""
        queues = [subscription.queue for subscription in self._subscriptions if subscription.queue is not None]
        left = sum([not queue.flush(0) for queue in queues])
        if left and on_loop():
            left = await anyio.to_thread.run_sync(_flush, queues, CLOSE_S, abandon_on_cancel=True)
        elif left:
            left = _flush(queues, CLOSE_S)
        if left:
            logger.warning("the limiter is closed, and %d observers have not heard everything yet", left)
        self._log.rest()

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._set(tuple(other for other in self._subscriptions if other is not subscription))

    def _set(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        self._refused = any(subscription.wants("refused") for subscription in subscriptions)
        self._requests = [
            (one.call if one.queue is None else one.pass_on, one.request)
            for one in subscriptions
            if one.request is not None
        ]
        self.requests = bool(self._requests)

    def _report_dropped(self, slow: Subscription, dropped: int) -> None:
        """Report that a queue was full, in its own thread."""
        message = f"{dropped} events were dropped, because {slow.observer!r} takes longer than they come"
        self.emit(Event("events_dropped", message, {"dropped": dropped}), past=slow)


def _flush(queues: Iterable[EventQueue], max_s: float) -> int:
    """Empty all queues within a total time in seconds; return how many are not empty then."""
    ends_s = monotonic() + max_s
    return sum([not queue.flush(max(ends_s - monotonic(), 0.0)) for queue in queues])


class EventLog:
    """Writes events to the log: for each kind and rule a line a second, which says how many others were left out.

    A record has the fields `kind` and `details`, which structlog and JSON formatters pick up.
    """

    def __init__(self) -> None:
        self._throttle = Throttle(LINE_EVERY_S)

    def event(self, event: Event) -> None:
        """Write a line about an event, or count that it was left out."""
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
        """Write how many events were left out since the last line about each kind and rule."""
        for subject, left_out in self._throttle.rest():
            kind, _, rule = str(subject).partition(" under ")
            message = f"{left_out} more{f' under {rule}' if rule else ''} since the last such line"
            logger.log(_level(kind), "%s: %s", kind, message, extra={"kind": kind, "details": {}})


def _level(kind: str) -> int:
    return logging.INFO if kind in _INFORMATION else logging.WARNING


def _shown(value: object) -> object:
    """Return a value as a field of a record: a number, or printable text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.isoformat() if isinstance(value, date) else escaped(str(value), _MAX_VALUE)


class EventQueue:
    """Calls a slow observer in a thread of its own, one event after the other, in the order in which they came.

    * The thread starts with the first event and ends when none has come for a while, so a limiter that nobody closes
      keeps none.
    * Beyond `MAX_QUEUED` events further ones are dropped, counted, and reported when there is room again.
    * `fork` copies no threads: a child begins with an empty queue, since its parent handles the events in its own.
    * At the end of the interpreter the events in the queue are handled, for no longer than `END_S`.

    Args:
        report: Called in the thread with how many events were dropped since the last report.

    Attributes:
        max_queued: How many events the queue holds.
        dropped: How many did not fit into it so far.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self.max_queued = MAX_QUEUED
        self._report = report
        self.begin_anew()
        begin_anew_in_child(self.begin_anew)
        _queues.add(self)

    def begin_anew(self) -> None:
        """Forget the queue and the thread, which belong to the process that has forked."""
        self.dropped = self._reported = 0
        self._lock = Lock()
        self._calls: Queue[Callable[[], object]] = Queue()
        self._thread: Thread | None = None
        self._report_again_s = 0.0

    def put(self, call: Callable[[], object]) -> None:
        """Have a call made in the thread, or count that it was dropped. The call never raises."""
        with self._lock:
            if self._calls.qsize() >= self.max_queued:
                self.dropped += 1
            else:
                self._calls.put(call)
            if self._thread is None:
                self._start()

    def flush(self, max_s: float) -> bool:
        """Wait until all calls were made, for at most so many seconds; return whether they were.

        An observer cannot wait for itself: in the thread that calls it this returns at once.
        """
        calls = self._calls
        waits = self._thread is not None and self._thread is not current_thread()
        with calls.all_tasks_done:
            return calls.all_tasks_done.wait_for(lambda: not calls.unfinished_tasks, max_s if waits else 0)

    def _start(self) -> None:
        self._thread = Thread(target=self._serve, name="slidegate-observer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has no more threads, or is at its end; the next event tries again
            self._thread = None
            logger.error("events wait, because no thread can be started for an observer: %s", error)

    def _serve(self) -> None:
        calls = self._calls
        while self._calls is calls:  # until an observer forks, in the child
            try:
                call = calls.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if calls.empty():
                        self._thread = None
                        return
                continue
            call()
            if self._calls is calls:
                self._report_dropped(idle=calls.empty())
                calls.task_done()

    def _report_dropped(self, *, idle: bool) -> None:
        dropped = self.dropped
        if dropped > self._reported and (idle or monotonic() >= self._report_again_s):
            self._report_again_s = monotonic() + REPORT_EVERY_S
            self._report(dropped - self._reported)
            self._reported = dropped


_queues: Final[WeakSet[EventQueue]] = WeakSet()
atexit.register(lambda: _flush(list(_queues), END_S))
