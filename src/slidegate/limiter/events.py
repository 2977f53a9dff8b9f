"""Events on their way to those who observe a limiter.

An event goes to inline observers in the thread in which it happens, and to the others by way of a queue. That thread
goes on, however slow the observers are:

* one thread calls all observers of one limiter, so each hears its events in the order in which they were queued;
* it starts with the first event and ends when none has come for a while, so a limiter that nobody closes keeps none;
* beyond `MAX_QUEUED` events further ones are dropped, counted, and reported when there is room again;
* `fork` copies no threads: a child begins with an empty queue, since the parent delivers the events in its own;
* at the end of the interpreter the events in the queue are delivered, for no longer than `END_S`.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from inspect import isawaitable, iscoroutine, iscoroutinefunction
from threading import Condition, Lock, Thread, current_thread
from time import monotonic
from typing import Final, NamedTuple
from weakref import WeakSet

import anyio

from ..core.arguments import check_takes
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import logger
from ..core.store import Clock, Event, Observer
from ..stores.forks import hold_over_fork
from .aio import on_loop

MAX_QUEUED: Final = 4_096
"""About a kilobyte each: a few megabytes while observers lag behind."""
IDLE_S: Final = 5.0
END_S: Final = 2.0
CLOSE_S: Final = 5.0
"""How long `Limiter.close` waits for observers."""
SAY_EVERY_S: Final = 1.0
"""How often dropped events are reported."""
LOG_EVERY_S: Final = 10.0
"""An observer that fails with every refusal of a flood writes no more than one traceback in this time."""
_LOOK_S: Final = 0.005

_REQUEST: Final = "each such request"
_KEY: Final = "once a key and window"
_MINUTE: Final = "once a minute for each cause"
_CHANGE: Final = "each change"
_FAULT: Final = "each time"
_WINDOW: Final = "once a window"
_SECOND: Final = "once a second"


class Kind(NamedTuple):
    """One kind of events.

    Attributes:
        fields: The names of the details.
        often: How often such an event can come at most.
        logged: Whether the package itself also writes such an event to its log.
    """

    fields: frozenset[str]
    often: str
    logged: bool


def _kind(fields: str, often: str, *, logged: bool = True) -> Kind:
    return Kind(frozenset(fields.split()), often, logged)


KINDS: Final[Mapping[str, Kind]] = {
    "refused": _kind("key client rule limit reason by route method retry_after_s status", _REQUEST, logged=False),
    "near_limit": _kind("key rule limit spent amount", _KEY, logged=False),
    "shadow_refused": _kind("rule key", _REQUEST, logged=False),
    "banned": _kind("key by reason rung until", _CHANGE),
    "unbanned": _kind("key by was_by", _CHANGE),
    "shadow_banned": _kind("policy key rung reason", _CHANGE),
    "bans_capped": _kind("policy key", "once a minute for each policy"),
    "bans_full": _kind("max_bans key", "once a minute"),
    "strikes_dropped": _kind("max_bans", "once a minute"),
    "bans_unread": _kind("error", "once until they can be read again"),
    "bans_rescued": _kind("bans", "once an opening"),
    "keys_shared": _kind("max_keys", _WINDOW),
    "series_full": _kind("max_series", "once", logged=False),
    "shedding_started": _kind("shed", _SECOND, logged=False),
    "shedding_ended": _kind("shed", _SECOND, logged=False),
    "store_failed": _kind("on_error error", _MINUTE),
    "store_recovered": _kind("failures", "once after each `store_failed`"),
    "store_reset": _kind("bans", _FAULT),
    "store_evicts": _kind("server policy", "once a connection"),
    "store_set_aside": _kind("path damage", "once an opening"),
    "store_doubtful": _kind("", "once an opening"),
    "clock_stepped": _kind("server step_us", _FAULT),
    "places_lost": _kind("lost back", _FAULT),
    "map_grown": _kind("bytes", _FAULT),
    "map_full": _kind("gone", _FAULT),
    "reader_stopped": _kind("pid transactions", "once for each process"),
    "list_reloaded": _kind("list path count", _CHANGE),
    "list_rejected": _kind("list path", _CHANGE),
    "config_reloaded": _kind("path", _CHANGE),
    "config_rejected": _kind("path", _CHANGE),
    "windows_restarted": _kind("path", _CHANGE),
    "pause_ignored": _kind("key pause_us", _FAULT, logged=False),
    "pause_unshared": _kind("key pause_us", _FAULT, logged=False),
    "events_dropped": _kind("dropped", _SECOND),
}
"""The kinds of events; docs/guides/events.md shows them."""


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

    __slots__ = ("_leave", "_left_out", "_rest", "_say_again_s", "inline", "kinds", "observer", "over")

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
        self._left_out = 0
        self._say_again_s = 0.0

    def __repr__(self) -> str:
        return f"<Subscription {self.observer!r}>"

    def remove(self) -> None:
        """Call the observer no more, also with events that are on their way. A second call does nothing."""
        self.over = True
        self._leave(self)

    def wants(self, kind: str) -> bool:
        """Return whether the observer hears events of a kind."""
        return self.kinds is None or kind in self.kinds

    def hear(self, event: Event) -> None:
        """Call the observer, and outlive its exceptions."""
        if self.over:
            return
        try:
            answer: object = self.observer(event)  # type: ignore[func-returns-value]
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                raise TypeError(f"it returned {type(answer).__name__!r}, which nobody awaits; observers are not async")
        except Exception as error:
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
        now_s = monotonic()
        if now_s < self._say_again_s:
            self._left_out += 1
            return
        more = f", {self._left_out} times more since the last report" if self._left_out else ""
        self._say_again_s, self._left_out = now_s + LOG_EVERY_S, 0
        logger.error("observer %r failed%s", self.observer, more, exc_info=error)


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
    """The observers of one limiter, and the queue and the thread for those that are not inline.

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
        self._changed: Callable[[], object] | None = None
        self.refused = self.near_limit = False
        self._max_queued = MAX_QUEUED
        self.begin_anew()
        _hubs.add(self)

    def begin_anew(self) -> None:
        """Forget the queue and the thread, which belong to the process that has forked."""
        self._work = Condition()
        self._queue: deque[tuple[Event, Sequence[Subscription]]] = deque()
        self._thread: Thread | None = None
        self._put = self._delivered = self._dropped = self._flushing = 0
        self._reported, self._report_again_s = 0, 0.0

    # -- observers ---------------------------------------------------------------------------------------------------

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
        return bool(self._wanting(kind))

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

    # -- events ------------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Hand an event to those who hear its kind, with the time at which it happened."""
        wanted = self._wanting(event.kind)
        if not wanted:
            return
        event = Event(event.kind, event.message, event.details, self._unix_us())
        queued = [subscription for subscription in wanted if not subscription.inline]
        if queued:
            self._enqueue(event, queued)
        for subscription in wanted:
            if subscription.inline:
                subscription.hear(event)

    def stats(self) -> EventStats:
        """Return how many events wait or are being delivered, were delivered, and were dropped."""
        return EventStats(self._put - self._delivered, self._delivered, self._dropped)

    def flush(self, most_s: float) -> bool:
        """Wait until all events queued now were delivered, for at most so many seconds; return whether they were.

        An observer cannot wait for itself: in the thread that calls it this returns at once.
        """
        ends_s = monotonic() + most_s
        with self._work:
            until, dropped = self._put, self._dropped
            while self._delivered < until or self._reported < dropped:
                left_s = ends_s - monotonic()
                if left_s <= 0 or self._thread is None or self._thread is current_thread():
                    return False
                self._flushing += 1
                try:
                    self._work.wait(left_s)
                finally:
                    self._flushing -= 1
            return True

    async def close(self) -> None:
        """Wait until all queued events were delivered, for at most `CLOSE_S`. Later events are delivered as well."""
        if not on_loop():
            self.flush(CLOSE_S)
        else:
            ends_s = monotonic() + CLOSE_S
            # The thread knows no event loops, and closing is rare: to look again is simpler than to be woken.
            while not self.flush(0) and monotonic() < ends_s:  # noqa: ASYNC110
                await anyio.sleep(_LOOK_S)
        self.rest(True)
        if left := self.stats().queued:
            logger.warning("the limiter is closed, and observers have not heard %d events yet", left)

    def rest(self, last: bool) -> None:
        """Let observers do the work that they have put off; `last` says that they may not be called again."""
        for subscription in self._subscriptions:
            subscription.rest(last)

    # -- the queue and its thread ------------------------------------------------------------------------------------

    def _enqueue(self, event: Event, to: Sequence[Subscription]) -> None:
        with self._work:
            if len(self._queue) >= self._max_queued:
                self._dropped += 1
            else:
                self._queue.append((event, to))
                self._put += 1
            if self._thread is None:
                self._start()
            elif len(self._queue) == 1:
                self._work.notify_all()

    def _start(self) -> None:
        self._thread = Thread(target=self._serve, name="slidegate-events", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has no more threads, or is at its end; the next event tries again
            self._thread = None
            logger.error("events wait, because no thread can be started for observers: %s", error)

    def _serve(self) -> None:
        queue = self._queue
        while self._queue is queue:  # until an observer forks, in the child
            with self._work:
                if self._flushing:
                    self._work.notify_all()
                if not self._has_work():
                    self._work.wait(IDLE_S)
                idle = not self._has_work()
                item = queue.popleft() if queue else None
            if self._dropped > self._reported and (item is None or monotonic() >= self._report_again_s):
                self._report_dropped()
            if item is not None:
                event, subscriptions = item
                for subscription in subscriptions:
                    _call(subscription, event)
                if self._queue is queue:
                    self._delivered += 1
            elif idle:
                self.rest(False)
                with self._work:
                    if not self._has_work():  # else it has come meanwhile
                        self._thread = None
                        return

    def _has_work(self) -> bool:
        return bool(self._queue) or self._dropped > self._reported

    def _report_dropped(self) -> None:
        """Report that the queue was full: to everybody at once, past the queue."""
        self._report_again_s = monotonic() + SAY_EVERY_S
        until = self._dropped
        dropped = until - self._reported
        message = f"{dropped} events were dropped, because observers take longer than events come"
        logger.warning("events_dropped: %s", message)
        event = Event("events_dropped", message, {"dropped": dropped}, self._unix_us())
        for subscription in self._wanting(event.kind):
            _call(subscription, event)
        self._reported = until


def _call(subscription: Subscription, event: Event) -> None:
    """Call an observer in the thread for them, and outlive everything that it may raise."""
    try:
        subscription.hear(event)
    except BaseException as error:  # even sys.exit() ends no more than the one call
        subscription.failed(error)


_hubs: Final[WeakSet[EventHub]] = WeakSet()


def _begin_anew() -> None:
    for hub in list(_hubs):
        hub.begin_anew()


def _flush_all() -> None:
    ends_s = monotonic() + END_S
    for hub in list(_hubs):
        hub.flush(max(ends_s - monotonic(), 0.0))
        hub.rest(True)


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=_begin_anew)
atexit.register(_flush_all)
