"""A rule that sheds load, and its two measures: the lag of the event loop, and the time to the first byte.

A lag says that the loop has more to do than it can: a timer comes late by as much as everything before it took. The
latency of admitted requests says the same of a database behind the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from starlette.requests import HTTPConnection
from starlette.types import Message, Send

from ...core.durations import format_duration
from ...core.errors import ConfigurationError, quoted
from ...core.limits import parse_duration_us
from ...core.store import Event
from ..options import check_takes
from .controller import HIGHEST, TICK_S, Controller

PriorityFunction: TypeAlias = Callable[[HTTPConnection], int | Awaitable[int]]

_SMOOTHING: Final = 0.1
"""The weight of one more answer in the mean latency."""


class Shed:
    """Sheds load: ``Rule("*", shed=Shed(lag="50ms"))`` refuses a share of requests while the service is overloaded.

    The answer is 503. The share grows while a limit is passed, and goes back step by step, within five seconds, when it
    is not.

    Args:
        lag: How late the event loop may be, 1 ms to a minute; None for any.
        latency: How long admitted requests of the rule may take to their first byte on average, 1 ms to an hour; None
            for any.
        priority: How important a request is, 0 to 9, or a function of the request, sync or async. The least important
            requests are shed first, among those of all rules of the gate that shed.

    Raises:
        ConfigurationError: Neither limit is given, or a value cannot work.
    """

    def __init__(
        self,
        *,
        lag: str | float | timedelta | None = None,
        latency: str | float | timedelta | None = None,
        priority: int | PriorityFunction = 0,
    ) -> None:
        if lag is None and latency is None:
            raise ConfigurationError('Shed: expected a limit, for example Shed(lag="50ms")')
        self.lag_us = _span("lag", lag, 60_000_000)
        self.latency_us = _span("latency", latency, 3_600_000_000)
        if callable(priority):
            check_takes("priority", priority, "request")
        else:
            check_priority(priority)
        self.priority = priority
        self._meters: WeakKeyDictionary[asyncio.AbstractEventLoop, _Meter] = WeakKeyDictionary()
        self._tell: list[Callable[[Event], None]] = []
        self._seen: set[int] = set()

    def __repr__(self) -> str:
        limits = (("lag", self.lag_us), ("latency", self.latency_us))
        return f"<Shed {', '.join(f'{name}={format_duration(span_us)}' for name, span_us in limits if span_us)}>"

    def join(self, tell: Callable[[Event], None], seen: set[int]) -> None:
        """Tell of the beginning and the end of shedding from now on, and share the priorities seen with other rules."""
        if not self._tell:
            self._seen = seen
        if tell not in self._tell:
            self._tell.append(tell)

    def refuses(self, priority: int) -> bool:
        """Tell whether a request of a priority is shed. Only loops of asyncio are measured; others shed nothing."""
        meter = self._meter()
        return meter is not None and meter.controller.sheds(priority)

    def timed(self, send: Send) -> Send:
        """Wrap the `send` of an admitted request, so that the time to its first byte is measured."""
        meter = self._meter()
        if meter is None or not self.latency_us:
            return send
        began_s = meter.loop.time()
        measured = False

        async def send_timed(message: Message) -> None:
            nonlocal measured
            if not measured:
                measured = True
                meter.answered(meter.loop.time() - began_s)
            await send(message)

        return send_timed

    def _meter(self) -> _Meter | None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        meter = self._meters.get(loop)
        if meter is None:
            meter = self._meters[loop] = _Meter(loop, self.lag_us, self.latency_us, self._say, self._seen)
        meter.wake()
        return meter

    def _say(self, begins: bool, message: str) -> None:
        event = Event("shedding_started" if begins else "shedding_ended", message, {"shed": repr(self)})
        for tell in self._tell:
            tell(event)


class _Meter:
    """Measures one event loop, as long as requests come.

    Args:
        loop: The loop.
        lag_us: The limit of its lag, or 0.
        latency_us: The limit of the mean latency, or 0.
        say: Called when shedding begins and ends, each at most once a second.
        seen: The priorities that were seen.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lag_us: int,
        latency_us: int,
        say: Callable[[bool, str], None],
        seen: set[int],
    ) -> None:
        self.loop = loop
        self.controller = Controller(seen)
        self._lag_us = lag_us
        self._latency_us = latency_us
        self._say = say
        self._latency_s = 0.0
        self._answers = 0
        self._due_s = 0.0
        self._awake = False
        self._idle_ticks = 0
        self._sheds = False
        self._said_s = float("-inf")

    def wake(self) -> None:
        """Measure from now on, until no request has come for a while and nothing is shed."""
        self._idle_ticks = 0
        if not self._awake:
            self._awake = True
            self._plan()

    def answered(self, taken_s: float) -> None:
        """Note how long an admitted request took to its first byte."""
        self._answers += 1
        self._latency_s += _SMOOTHING * (taken_s - self._latency_s)

    def _plan(self) -> None:
        self._due_s = self.loop.time() + TICK_S
        self.loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        lag_s = self.loop.time() - self._due_s
        lag = lag_s * 1_000_000 / self._lag_us if self._lag_us else 0.0
        if not self._answers:
            self._latency_s *= 1 - _SMOOTHING  # old answers say nothing about now
        self._answers = 0
        latency = self._latency_s * 1_000_000 / self._latency_us if self._latency_us else 0.0
        self.controller.tick(max(lag, latency), 1 + max(lag_s, 0.0) / TICK_S)
        self._report(lag_s)
        self._idle_ticks += 1
        if self._idle_ticks > 20 and not self.controller.level and self._latency_s < 1e-6 and not self._sheds:
            self._awake = False
        else:
            self._plan()

    def _report(self, lag_s: float) -> None:
        sheds = self.controller.level > 0
        now_s = self.loop.time()
        if sheds == self._sheds or now_s - self._said_s < 1:
            return
        self._sheds, self._said_s = sheds, now_s
        if sheds:
            self._say(True, f"load is shed: the loop lags {lag_s * 1000:.0f} ms, answers take {self._latency_s:.3f} s")
        else:
            self._say(False, "no load is shed any more")


def check_priority(priority: object) -> int:
    """Return a priority.

    Raises:
        ConfigurationError: It is no whole number from 0 to 9.
    """
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= HIGHEST:
        raise ConfigurationError(
            f"priority: expected a whole number from 0 to {HIGHEST}, for example 5, not {quoted(priority)}"
        )
    return priority


def _span(what: str, value: str | float | timedelta | None, most_us: int) -> int:
    if value is None:
        return 0
    span_us = parse_duration_us(value, what)
    if not 1_000 <= span_us <= most_us:
        raise ConfigurationError(
            f'{what}: expected 1 ms to {format_duration(most_us)}, for example "50ms", not {value!r}'
        )
    return span_us
