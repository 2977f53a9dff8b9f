"""Keeps limits towards other people's APIs: transports for httpx. They need the extra `slidegate[httpx]`.

One request's way: a turn, for which a unit is charged; the sending, while which the unit is held; the answer, at whose
arrival the unit is moved to that moment, and which may ask for a pause. A request whose answer is 429 or 503 and names
a pause is sent again after it.

A server counts a request at some moment between its sending and its answer; nobody here knows when. So a unit is
charged before the request is sent, and moved to the moment of the answer when that has come. Moving charges the new
moment first and hands the old one back then, so that no other worker finds the place empty in between. A request whose
answer takes longer than half a window is moved now and then while it is under way: a unit that is held never ages out,
as long as the store takes no more than a quarter of a window to answer. (Half a window is slept through; then a charge
has to arrive there, and the answers to it and to the refund before it have to arrive here.)

At every sending, therefore, the requests under way and those answered within the last window are at most N. If a server
counted N + 1 requests within one window, the one that was sent last among them was sent at a moment when all the others
were under way or had been answered less than a window ago: N + 1 in all.

A server that asks for a pause gets a ban of its key in the store, which ends by itself: so all workers pause, and
operators see it with `Limiter.bans` and end it with `Limiter.unban`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from email.utils import parsedate_to_datetime
from math import ceil
from threading import TIMEOUT_MAX
from time import time
from typing import Any, Final, NoReturn, Self

import anyio

from .core.arguments import check_takes
from .core.bans.rules import PAUSED_BY, PAUSED_KEYS
from .core.decision import Decision, LimitSet, ceil_s
from .core.draft_parameters import MORE_AFTER_S, REMAINING, WINDOW_S
from .core.durations import format_duration
from .core.errors import ConfigurationError, SlidegateError, StoreError
from .core.limits import Limit, check_name, check_whole, parse_duration_us, parse_limits
from .core.memo import remember
from .core.store import Event
from .limiter import Limiter
from .limiter.aio import on_loop, to_the_end
from .limiter.inspect import BucketCaller
from .limiter.portal import PORTAL
from .limiter.waiting import Waiter

try:
    import http_sf
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.httpx needs the package {error.name}: pip install "slidegate[httpx]"') from error

__all__ = ["LimitedTransport", "SyncLimitedTransport", "TurnTimeout"]

MAX_RETRIES: Final = 10
MAX_EXACT: Final = 256
"""The largest amount whose units are all kept with their times; beyond it they are counted in so many slices."""
LOOK_AGAIN_S: Final = 1.0
"""The longest sleep between two questions: so a ban that is lifted by hand is noticed."""
SHARE_S: Final = 1.0
"""How long a store may take to learn of a pause."""
REFUSALS: Final = (429, 503)
SAFE_TO_REPEAT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that are asked for again after a 503, of which nobody knows how much was done."""
MAX_CHARACTERS: Final = 4_096
MAX_PAUSE_S: Final = 10**12
"""The largest number of seconds that is told from a larger one: 31,000 years."""
UNIX_FROM: Final = 1_000_000_000
"""`X-RateLimit-Reset` is a Unix time from this number of seconds on: 2001 as a moment, 31 years as a span."""

_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)


class TurnTimeout(SlidegateError, httpx.PoolTimeout):
    """A request was not sent, because its turn would not have come in time, or too many stood in line.

    It is an `httpx.PoolTimeout` too: for httpx as well as for this, nothing was sent, and a later request may succeed.

    Args:
        message: The reason, in words.
        key: The key whose turn did not come.
        retry_after_us: After how many microseconds there may be room; None if nobody knows.
    """

    def __init__(self, message: str, *, key: str, retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us


class _Limited:
    """What both transports do; a request is sent by `_send` of a subclass."""

    _method: str
    """The method of the transport that sends."""
    _kind: str
    """The name of such a transport, in every library with the interface of httpx."""
    _stream: str
    """The name of what a request has as its stream there."""

    def __init__(
        self,
        *,
        limits: str | Limit | Sequence[Limit],
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: Limiter | None = None,
        transport: Any = None,
        wait: str | float | timedelta = "30s",
        wait_max: int = 1_000,
        retries: int = 1,
        longest: str | float | timedelta = "1h",
        name: str = "outbound",
    ) -> None:
        if key is not None:
            check_takes("key", key, "request")
        if limiter is not None and not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {limiter!r}")
        if transport is not None and not hasattr(transport, self._method):
            raise ConfigurationError(
                f"transport: expected one with {self._method}, for example httpx.{self._kind}(), not {transport!r}"
            )
        self._wait_max = check_whole(wait_max, 1, 1_000_000, "wait_max", "for example 1000")
        self._retries = check_whole(retries, 0, MAX_RETRIES, "retries", "for example 1")
        self._wait_s = parse_duration_us(wait, "wait") / 1_000_000
        self._longest_us = parse_duration_us(longest, "longest")
        self._limits = parse_limits(map(_held_limit, parse_limits(limits)))
        self._bucket = LimitSet(check_name(name, "name"), self._limits)
        self._key = key
        self._own_limiter = limiter is None
        self._limiter = Limiter() if limiter is None else limiter
        self._caller = BucketCaller(self._bucket)
        self._limiter.engine.callers.add(self._caller)
        self._transport = getattr(httpx, self._kind)() if transport is None else transport
        self._paused_here: dict[str, float] = {}
        self._move_after_s = min(limit.window_us for limit in self._limits) / 2_000_000

    async def _send(self, request: Any) -> Any:
        """Send a request by the transport inside, and return its answer."""
        raise NotImplementedError

    async def _close(self, answer: Any) -> None:
        """Close an answer that nobody gets."""
        raise NotImplementedError

    async def _handle(self, request: Any) -> Any:
        """Wait for the turn of a request, send it, and return the answer as soon as its head has arrived."""
        self._check_library(request)
        key = self._key_of(request)
        if key is None:
            return await self._send(request)
        until_s = anyio.current_time() + self._wait_s
        answer, again = await self._send_limited(key, request, await self._take_turn(key, until_s))
        for _ in range(self._retries if again else 0):
            try:
                unit = await self._take_turn(key, until_s)
            except TurnTimeout:
                break  # the caller gets what the server said
            except BaseException:
                await to_the_end(self._close(answer))
                raise
            try:
                await self._close(answer)
            except BaseException:
                await unit.hand_back()
                raise
            answer, again = await self._send_limited(key, request, unit)
            if not again:
                break
        return answer

    def _key_of(self, request: Any) -> str | None:
        """Return the key, spelled so that it is no address: bans of addresses are about those who ask us."""
        key = request.url.host if self._key is None else self._key(request)
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(
                f'key: expected the function to return text or None, for example "api", not {key!r}'
            )
        return None if key is None else f"{PAUSED_KEYS}{key}"

    def _check_library(self, request: Any) -> None:
        """Check that a request can be sent: a transport of the network takes streams of its own library."""
        for kind in type(self._transport).__mro__:
            library = sys.modules.get(kind.__module__.partition(".")[0])
            if kind is getattr(library, self._kind, None):
                if not isinstance(request.stream, getattr(library, self._stream)):
                    other = type(request).__module__.partition(".")[0]
                    raise ConfigurationError(
                        f"transport: expected one of {other}, as the client is, for example "
                        f"{type(self).__name__}(..., transport={other}.{self._kind}()), not {self._transport!r}"
                    )
                return

    async def _take_turn(self, key: str, until_s: float) -> _Unit:
        """Wait in the limiter's line of a key, first come, first served; return the unit that was charged.

        Only the first in line asks the limiter. If that refuses, the first sleeps until the moment that the refusal
        names, and asks again: units of requests under way stay longer than a refusal can know, and other workers take
        units too.

        Raises:
            TurnTimeout: The turn would not come in time, or too many stand in line.
        """
        queues, waiter = self._limiter.engine.queues, Waiter()
        name = self._bucket.rule, self._limiter.key_for(key)
        queue = queues.join(name, waiter, self._wait_max)
        if queue is None:
            raise TurnTimeout(f"{self._wait_max} requests stand in line for {key!r} already", key=key)
        try:
            with anyio.CancelScope(deadline=until_s):
                if await queue.turn(waiter, until_s):
                    return await self._take_first(key, until_s, waiter)
        finally:
            queues.leave(name, waiter)
        raise TurnTimeout(f"the turn of a request for {key!r} did not come in time", key=key)

    async def _take_first(self, key: str, until_s: float, waiter: Waiter) -> _Unit:
        engine = self._limiter.engine
        known, subjects = engine.keys.learn(key)
        while True:
            wait_us: int | None = ceil(max(self._paused_here.get(key, 0.0) - anyio.current_time(), 0.0) * 1_000_000)
            if wait_us == 0:
                decision = await engine.queues.ask(((self._bucket, known, 1),), subjects)
                engine.tell_outcome(decision)
                if decision:
                    return _Unit(self._limiter, key, self._limits, decision)
                wait_us = decision.retry_after_us
            if wait_us is None or anyio.current_time() + wait_us / 1_000_000 > until_s:
                when = "never" if wait_us is None else f"in {ceil_s(wait_us)} s at the earliest"
                raise TurnTimeout(f"the next turn for {key!r} comes {when}", key=key, retry_after_us=wait_us)
            await waiter.wait(min(wait_us / 1_000_000, LOOK_AGAIN_S))

    async def _send_limited(self, key: str, request: Any, unit: _Unit) -> tuple[Any, bool]:
        """Send a request while its unit is held; return the answer, and whether to send it again."""
        answer, failure = None, None
        try:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(unit.keep, self._move_after_s)
                    try:
                        answer = await self._send(request)
                    except Exception as error:  # leaving the group it would become a group itself
                        failure = error
                    tasks.cancel_scope.cancel()
            finally:
                charged = await unit.move()
            if failure is not None:
                raise failure
            return answer, await self._heed(key, request, answer, charged)
        except BaseException:
            if answer is not None:
                await to_the_end(self._close(answer))
            raise

    async def _heed(self, key: str, request: Any, answer: Any, charged: Decision) -> bool:
        """Pause as an answer asks; return whether to send the request again."""
        pause_us = read_pause_us(answer.status_code, answer.headers, time())
        if pause_us is None:
            return False
        if pause_us > self._longest_us:
            message = f"{key!r} asks for a pause longer than {format_duration(self._longest_us)}, which is not heeded"
            self._limiter.engine.emit(Event("pause_ignored", message, {"key": key, "pause_us": pause_us}))
            return False
        refused = answer.status_code in REFUSALS
        # Where all own units are spent, the server's count is explained by them, and they know the moment better:
        # fields have whole seconds. A unit that was just moved counts twice.
        spent = any(state[0] > limit.amount for limit, state in zip(self._limits, charged.readings, strict=False))
        if pause_us and (refused or not spent):
            await self._pause(key, pause_us, charged.now_us, f"it answered {answer.status_code}")
        return refused and _can_be_sent_again(request, answer.status_code)

    async def _pause(self, key: str, pause_us: int, now_us: int, reason: str) -> None:
        """Send nothing under `key` for a while; a ban that ends later stays.

        Args:
            key: The key.
            pause_us: The length of the pause.
            now_us: The time of the store.
            reason: For the operator.
        """
        known = self._limiter.key_for(key)  # a ban's key is text that JSON can hold; a caller's need not be
        failure = f"no answer within {SHARE_S:g} s"
        try:
            with anyio.move_on_after(SHARE_S):
                ban = await self._limiter.banned(known)
                if ban is None or (ban.ends_us is not None and ban.ends_us < now_us + pause_us):
                    await self._limiter.ban(known, timedelta(microseconds=pause_us), reason=reason, by=PAUSED_BY)
                return
        except StoreError as error:
            failure = str(error)
        remember(self._paused_here, key, anyio.current_time() + pause_us / 1_000_000)
        message = f"only this process pauses requests to {key!r} for {format_duration(pause_us)}: {failure}"
        self._limiter.engine.emit(Event("pause_unshared", message, {"key": key, "pause_us": pause_us}))


class _Unit:
    """The unit of one request, from its sending until its answer has arrived. Nobody's cancellation loses it.

    Args:
        limiter: The limiter that counts it.
        key: The key under which it is counted.
        limits: The limits, as `_held_limit` returns them.
        charged: Its charge.
    """

    def __init__(self, limiter: Limiter, key: str, limits: tuple[Limit, ...], charged: Decision) -> None:
        self._limiter = limiter
        self._key = key
        self._limits = limits
        self._charged = charged

    async def keep(self, every_s: float) -> None:
        """Keep the unit from ageing out, until this is cancelled."""
        while True:
            await anyio.sleep(every_s)
            # Where the answer comes in the middle of this, the unit may count twice for one window.
            await self.move()

    async def move(self) -> Decision:
        """Count the unit from now on; return its charge, in whose readings it counts twice."""
        self._charged = await to_the_end(self._charge_and_refund(self._charged))
        return self._charged

    async def hand_back(self) -> None:
        """Hand the unit back: its request was not sent."""
        await to_the_end(self._limiter.refund(self._charged))

    async def _charge_and_refund(self, before: Decision) -> Decision:
        moved = await self._limiter.charge(self._key, self._limits, 1, rule=before.checks[0][0].rule)
        await self._limiter.refund(before)
        return moved


class LimitedTransport(_Limited, httpx.AsyncBaseTransport):
    """Sends requests through another transport, no more of them than the limits of their servers allow.

    ``httpx.AsyncClient(transport=LimitedTransport(limits="10/second"))``

    Args:
        limits: The limits of the servers, ``"10/second; 1000/hour"``, a `Limit` or several. Each key has its own count.
        key: Returns the name under which a request is counted, or None if it is not limited; by default its host.
        limiter: The limiter that counts, for limits that several workers share; by default a new one in memory.
        transport: The transport that sends; by default an `httpx.AsyncHTTPTransport`. A client of another library needs
            one of its own library here.
        wait: How long a request may wait for its turns, that of a retry included, after it was handed in.
        wait_max: How many requests of one key may stand in line.
        retries: How often a request is sent again, after the pause that an answer of 429 names, or of 503 to a method
            that can be repeated; only where the body of the request can be sent again. 0 to 10.
        longest: The longest pause that a server may ask for. A longer one is not heeded, its answer is returned.
        name: The name under which the requests are counted in the limiter's store.

    Raises:
        ConfigurationError: A value cannot be used.
        TurnTimeout: In a request, if its turn would not come in time. Nothing was sent.
    """

    _method = "handle_async_request"
    _kind = "AsyncHTTPTransport"
    _stream = "AsyncByteStream"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the turn of a request, send it, and return the answer as soon as its head has arrived."""
        answer: httpx.Response = await self._handle(request)
        return answer

    def handle_request(self, request: object) -> NoReturn:
        """Refuse a client that does not await.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "LimitedTransport: expected a client that awaits, httpx.AsyncClient; httpx.Client takes "
            "SyncLimitedTransport(...)"
        )

    def __enter__(self) -> NoReturn:
        self.handle_request(None)

    async def aclose(self) -> None:
        """Close the transport that sends, and the limiter if it is this one's own."""
        await self._transport.aclose()
        if self._own_limiter:
            await self._limiter.close()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def _send(self, request: Any) -> Any:
        return await self._transport.handle_async_request(request)

    async def _close(self, answer: Any) -> None:
        await answer.aclose()


class SyncLimitedTransport(_Limited, httpx.BaseTransport):
    """The same for clients that do not await: ``httpx.Client(transport=SyncLimitedTransport(limits="10/second"))``.

    The arguments are those of `LimitedTransport`; the transport that sends is by default an `httpx.HTTPTransport`. A
    request waits in the line of all threads, on the event loop that `Limiter.sync` uses; so a thread in which an event
    loop runs must not send one.
    """

    _method = "handle_request"
    _kind = "HTTPTransport"
    _stream = "SyncByteStream"

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the turn of a request, send it, and return the answer as soon as its head has arrived."""
        if on_loop():
            raise ConfigurationError(
                "SyncLimitedTransport waits for its turn, and the event loop of this thread would stand still; "
                "write httpx.AsyncClient(transport=LimitedTransport(...)), or call it in a thread, as with "
                "asyncio.to_thread"
            )
        answer: httpx.Response = PORTAL.run(self, self._handle(request), TIMEOUT_MAX)
        return answer

    async def handle_async_request(self, request: object) -> NoReturn:
        """Refuse a client that awaits.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            "SyncLimitedTransport: expected a client that does not await, httpx.Client; httpx.AsyncClient takes "
            "LimitedTransport(...)"
        )

    def close(self) -> None:
        """Close the transport that sends, and the limiter if it is this one's own."""
        self._transport.close()
        if self._own_limiter:
            self._limiter.sync.close()
        PORTAL.release(self)

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    async def _send(self, request: Any) -> Any:
        # A limiter of its own for each call: a thread of the client's waits meanwhile, so these are not too many.
        one = anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(self._transport.handle_request, request, limiter=one)

    async def _close(self, answer: Any) -> None:
        await anyio.to_thread.run_sync(answer.close)


def _held_limit(limit: Limit) -> Limit:
    """Return the limit that holds units long enough for a server with the given limit.

    A server that counts in slices, as ours does above the resolution, lets go of a unit up to one slice later than
    after a window. While a unit is moved it counts twice, so an exact window needs room for twice the amount.

    Raises:
        ConfigurationError: The limit has no window.
    """
    if type(limit) is not Limit:
        raise ConfigurationError(f'limits: expected limits with a window, for example "10/second", not {limit}')
    window_us = limit.window_us if limit.exact else limit.span_us + limit.slice_us
    finest = window_us // 10
    if limit.amount <= MAX_EXACT and 2 * limit.amount <= finest:
        resolution = 2 * limit.amount
    else:
        resolution = min(MAX_EXACT, finest, limit.amount - 1)
    return Limit(limit.amount, timedelta(microseconds=window_us), resolution=resolution, name=limit.name)


def _can_be_sent_again(request: Any, status: int) -> bool:
    if status == 503 and request.method not in SAFE_TO_REPEAT:
        return False
    try:
        return request.content is not None
    except RuntimeError:  # the body is a stream that nobody has read: it may be gone; httpx has an error of this kind
        return False


# -- what servers say --------------------------------------------------------------------------------------------------


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return how long a server wants no request, in microseconds; None where it does not say.

    In this order, the first that can be read: `Retry-After` (RFC 9110, 10.2.3) on 429 and 503; `RateLimit` with nothing
    left (draft-ietf-httpapi-ratelimit-headers-11), which says when there is more, or else the window of its policy; the
    older `X-RateLimit-Remaining: 0` with `X-RateLimit-Reset`. Fields are somebody else's text: one that is longer than
    `MAX_CHARACTERS`, or cannot be read, is as good as none. The caller bounds the pause.

    Args:
        status: The status of the answer.
        headers: Its fields; names are looked up in lower case.
        unix_s: The time now, for moments in an answer without a `Date`.
    """
    sent_s = _moment_s(headers.get("date"))
    now_s = unix_s if sent_s is None else sent_s
    refused = status in REFUSALS
    span_s = _retry_after_s(headers, now_s) if refused else None
    if span_s is None:
        span_s = _rate_limit_s(headers)
    if span_s is None:
        span_s = _older_s(headers, now_s, refused)
    return None if span_s is None else ceil(span_s * 1_000_000)


def _retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    value = headers.get("retry-after")
    span_s = _number(value)
    if span_s is not None:
        return span_s
    moment_s = _moment_s(value)
    return None if moment_s is None else max(moment_s - now_s, 0)


def _rate_limit_s(headers: Mapping[str, str]) -> int | None:
    """Return the longest time until more becomes available, out of the items where nothing is left."""
    windows = {name: _whole(given, WINDOW_S) for name, given in _items(headers.get("ratelimit-policy"))}
    spans = []
    for name, given in _items(headers.get("ratelimit")):
        span_s = _whole(given, MORE_AFTER_S) if MORE_AFTER_S in given else windows.get(name)
        if _whole(given, REMAINING) == 0 and span_s is not None:
            spans.append(span_s)
    return max(spans, default=None)


def _older_s(headers: Mapping[str, str], now_s: float, refused: bool) -> float | None:
    remaining = headers.get("x-ratelimit-remaining")
    if _number(remaining) != 0 and not (refused and remaining is None):
        return None
    reset_s = _number(headers.get("x-ratelimit-reset"))
    if reset_s is None or reset_s < UNIX_FROM:
        return reset_s
    return max(reset_s - now_s, 0)


def _items(value: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the names of a list of structured fields, each with its parameters; nothing if it cannot be read."""
    if value is None or len(value) > MAX_CHARACTERS:
        return []
    try:
        parsed: Any = http_sf.parse(value.encode("latin-1"), tltype="list")
    except Exception:  # no ASCII, or no list; old versions of the parser raise an IndexError for some of it
        return []
    # An inner list has a list in place of its name.
    return [(str(name), given) for name, given in parsed if isinstance(name, str)]


def _number(value: str | None) -> int | None:
    text = "" if value is None else value.strip()
    return min(int(text), MAX_PAUSE_S) if len(text) <= MAX_CHARACTERS and _DIGITS.fullmatch(text) else None


def _moment_s(value: str | None) -> float | None:
    """Return an HTTP-date in Unix seconds."""
    if value is None or len(value) > MAX_CHARACTERS:
        return None
    try:
        return parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _whole(given: Mapping[str, object], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
