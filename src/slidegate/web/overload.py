"""Sheds load: while the event loop lags or answers come late, a share of the requests is refused with 503.

A lag says that the loop has more to do than it can: a timer comes late by as much as everything before it took. The
latency says the same of a database behind the application.

What is shed follows a level that is adjusted every `TICK_S`. It rises while a measure is beyond its bound, and falls
step by step afterwards. At 0 nothing is shed. Requests with n priorities below theirs among those that were seen are
shed in a share of ``level - n``, so those of the next priority are touched only when nearly all below are shed. The few
that always pass show when the overload is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from math import inf
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.arguments import check_flag, check_takes, expect, names_checked
from ..core.durations import format_duration
from ..core.errors import ConfigurationError
from ..core.limits import check_whole, parse_span_us
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.aio import on_asyncio
from .broken import Breakable, end_start
from .callbacks import UserCallbacks, request_of
from .checks import switched_off
from .request import RECORD
from .responses import reduced_capacity, refuse_websocket
from .routes import RouteIndex
from .rule_set import RuleSet
from .rules import Rule, checked_methods
from .stats import outcome

PriorityFunction: TypeAlias = Callable[[HTTPConnection], int | Awaitable[int | None] | None]

TICK_S: Final = 0.05
"""How often the level is adjusted."""
RISE: Final = 0.03
"""How much the level rises in a tick of overload at the bound itself; beyond it, up to three times as much."""
MAX_TICKS: Final = 6.0
"""The largest number of ticks for which one counts."""
SUDDEN: Final = 4.0
"""A load of so many times its bound is overload at once; a smaller one has to last for two ticks."""
FALL: Final = 0.01
"""How much the level falls in a tick without overload: from 1 to 0 takes five seconds."""
MAX_SHARE: Final = 0.98
"""The largest share of the highest priority that is shed."""
HIGHEST: Final = 9
"""The highest priority."""
LABEL: Final = "load-shedding"
"""The name under which stats show what was shed."""
_RETRY_AFTER_US: Final = 1_000_000
_SMOOTHING: Final = 0.1
"""The weight of one more answer in the mean latency."""
_IDLE_TICKS: Final = 20
_SHED: Final = outcome("block", "shed", "5xx")


class LoadSheddingMiddleware(Breakable):
    """Refuses a share of the requests with 503 and `Retry-After` while the service is overloaded.

    Add it after `RateLimitMiddleware`, so that it stands further out and a shed request costs and counts nothing. The
    share grows while a bound is passed, and goes back within five seconds for each priority when it is not.

    Args:
        app: The application to guard.
        lag: How late the event loop may be: ``"50ms"``, 1 ms to a minute; None for any.
        latency: How long requests may take to their first byte on average: ``"2s"``, 1 ms to an hour; None for any.
            What a rate limiter further in refuses is not measured.
        priority: How important a request is, 0 to 9, or a function of the request (which has no body here), sync or
            async. The least important requests are shed first, and those for which the function returns None never.
        exempt: A path in Starlette's syntax, or a list of them, whose requests are never shed.
        methods: The HTTP methods that may be shed, by default all; GET includes HEAD. A websocket handshake is a GET.
        limiter: The limiter whose observers hear of `shedding_started` and `shedding_ended`, and whose statistics count
            what is shed.
        statistics: Whether they do.
        enabled: False lets everything pass, and so does ``SLIDEGATE_ENABLED=0`` in the environment.

    Raises:
        ConfigurationError: No bound is given, or a value cannot work.
    """

    @names_checked
    def __init__(
        self,
        app: ASGIApp,
        *,
        lag: str | float | timedelta | None = None,
        latency: str | float | timedelta | None = None,
        priority: int | PriorityFunction = 0,
        exempt: str | Iterable[str] = (),
        methods: Iterable[str] | None = None,
        limiter: Limiter | None = None,
        statistics: bool = True,
        enabled: bool = True,
    ) -> None:
        if lag is None and latency is None:
            raise ConfigurationError('LoadSheddingMiddleware: expected a bound, for example lag="50ms"')
        self.app = app
        self._lag_us = _duration("lag", lag, 60_000_000)
        self._latency_us = _duration("latency", latency, 3_600_000_000)
        self._priority = check_takes("priority", priority, "request") if callable(priority) else _checked(priority)
        self._exempt = _exemptions(exempt, app)
        self._methods = checked_methods(methods)
        expect("limiter", limiter, Limiter, "Limiter(MemoryStore())")
        counted = check_flag("statistics", statistics)
        self._emit = None if limiter is None else limiter.engine.emit
        self._statistics = None if limiter is None or not counted else limiter.engine.statistics
        self._routes = RouteIndex()
        self._calls = UserCallbacks()
        self._meters: WeakKeyDictionary[asyncio.AbstractEventLoop, _Meter] = WeakKeyDictionary()
        self._enabled = not switched_off(enabled)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        if self.error is not None:
            await end_start(self.error, scope, receive, send)
        priority = await self._priority_of(scope) if self._enabled and scope["type"] in ("http", "websocket") else None
        if priority is None or not on_asyncio():  # other event loops are not measured
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        meter = self._meters.get(loop)
        if meter is None:
            meter = self._meters[loop] = _Meter(self._lag_us, self._latency_us, self._report)
        meter.wake(loop)
        if meter.level.sheds(priority):
            await self._refuse(scope, send)
        else:
            await self.app(scope, receive, _timed(scope, send, meter, loop) if self._latency_us else send)

    async def _priority_of(self, scope: Scope) -> int | None:
        """Return how important a request is; None where it is never shed, 0 where the user's function fails."""
        if self._methods is not None and scope.get("method", "GET").upper() not in self._methods:
            return None
        if self._exempt.match(scope).exempt:
            return None
        if not callable(self._priority):
            return self._priority
        return await self._calls.ask("priority", LABEL, self._priority, (request_of(scope),), _checked_or_none, 0)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        if self._statistics is not None:
            now = self._statistics.ticks()
            self._statistics.series((LABEL,), self._routes.label(scope)).note(_SHED, now, now)
        status, body, fields = reduced_capacity("has more to do than it can", _RETRY_AFTER_US)
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send, status, body, fields)
            return
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _report(self, starts: bool, message: str) -> None:
        if self._emit is not None:
            bounds = {"lag": self._lag_us, "latency": self._latency_us}
            shown = ", ".join(f"{name}={format_duration(bound_us)}" for name, bound_us in bounds.items() if bound_us)
            self._emit(Event("shedding_started" if starts else "shedding_ended", message, {"shed": shown}))


class Level:
    """The level of shedding of one event loop.

    Attributes:
        value: From 0, where nothing is shed, to the number of priorities below the highest one, and `MAX_SHARE`.
    """

    def __init__(self) -> None:
        self.value = 0.0
        self._seen: set[int] = set()
        self._owed = [0.0] * (HIGHEST + 1)
        self._lasting = False

    def tick(self, load: float, ticks: float = 1.0) -> None:
        """Adjust the level.

        Args:
            load: The lag or the latency as a part of its bound, whichever is larger; above 1 is overload.
            ticks: How many ticks this one stands for: a loop that is held up for long has none meanwhile.
        """
        if load <= 1:
            self._lasting = False
            self.value = max(self.value - FALL, 0.0)
            return
        if self._lasting or load > SUDDEN:
            highest = self._below(max(self._seen, default=0)) + MAX_SHARE
            self.value = min(self.value + RISE * min(load, 3.0) * min(ticks, MAX_TICKS), highest)
        self._lasting = True

    def sheds(self, priority: int) -> bool:
        """Tell whether the next request of a priority, 0 to 9, is shed: evenly, so that the share holds exactly."""
        self._seen.add(priority)
        share = self.value - self._below(priority)
        if share <= 0:
            return False
        owed = self._owed[priority] + min(share, 1.0)
        shed = owed >= 1
        self._owed[priority] = owed - shed
        return shed

    def _below(self, priority: int) -> int:
        return sum(other < priority for other in self._seen)


class _Meter:
    """Measures one event loop, as long as requests come.

    Args:
        lag_us: The bound of its lag, or 0 for any.
        latency_us: The bound of the mean latency, or 0 for any.
        report: Called when shedding starts and ends, each at most once a second.
    """

    def __init__(self, lag_us: int, latency_us: int, report: Callable[[bool, str], None]) -> None:
        self.level = Level()
        self._max_lag_s = lag_us / 1_000_000 or inf
        self._max_latency_s = latency_us / 1_000_000 or inf
        self._report = report
        self._latency_s = 0.0
        self._answers = 0
        self._due_s = 0.0
        self._awake = False
        self._idle_ticks = 0
        self._sheds = False
        self._reported_s = -inf

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on, until no request has come for a while and nothing is shed."""
        self._idle_ticks = 0
        if not self._awake:
            self._awake = True
            self._plan(loop)

    def answered(self, taken_s: float) -> None:
        """Note how long a request took to its first byte."""
        self._answers += 1
        self._latency_s += _SMOOTHING * (taken_s - self._latency_s)

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = loop.time() + TICK_S
        loop.call_at(self._due_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        lag_s = loop.time() - self._due_s
        if not self._answers:
            self._latency_s *= 1 - _SMOOTHING  # old answers say nothing about now
        self._answers = 0
        load = max(lag_s / self._max_lag_s, self._latency_s / self._max_latency_s)
        self.level.tick(load, 1 + max(lag_s, 0.0) / TICK_S)
        self._report_change(lag_s, loop.time())
        self._idle_ticks += 1
        if self._idle_ticks > _IDLE_TICKS and not self.level.value and self._latency_s < 1e-6 and not self._sheds:
            self._awake = False
        else:
            self._plan(loop)

    def _report_change(self, lag_s: float, now_s: float) -> None:
        sheds = self.level.value > 0
        if sheds == self._sheds or now_s - self._reported_s < 1:
            return
        self._sheds, self._reported_s = sheds, now_s
        if sheds:
            message = f"load is shed: the loop lags {lag_s * 1000:.0f} ms, answers take {self._latency_s:.3f} s"
        else:
            message = "no load is shed any more"
        self._report(sheds, message)


def _timed(scope: Scope, send: Send, meter: _Meter, loop: asyncio.AbstractEventLoop) -> Send:
    """Return `send`, made to measure the time to the first byte of an answer that no rate limiter gives."""
    start_s = loop.time()
    measured = False

    async def send_timed(message: Message) -> None:
        nonlocal measured
        if not measured:
            measured = True
            record = scope.get(RECORD)
            if record is None or record.decision.allowed:
                meter.answered(loop.time() - start_s)
        await send(message)

    return send_timed


def _exemptions(exempt: str | Iterable[str], app: ASGIApp) -> RuleSet:
    """Return what finds the requests that are never shed: as strictly as a rule with ``exempt=True`` does."""
    paths = exempt if isinstance(exempt, str) or not isinstance(exempt, Iterable) else tuple(exempt)
    try:
        return RuleSet([] if paths == () else [Rule(paths, exempt=True)], str, app)
    except ConfigurationError as error:
        raise ConfigurationError(f"exempt: {str(error).removeprefix('path: ')}") from None


def _checked(priority: object) -> int:
    return check_whole(priority, 0, HIGHEST, "priority", "for example 5")


def _checked_or_none(priority: object) -> int | None:
    return None if priority is None else _checked(priority)


def _duration(what: str, value: str | float | timedelta | None, max_us: int) -> int:
    return 0 if value is None else parse_span_us(value, what, 1_000, max_us, "50ms")
