"""Transports for httpx and httpx2 that keep the rate limits of other services. Requires the extra `slidegate[httpx]`.

A request waits until the limits of its key have room, is charged one unit, and is sent. A response with one of
`statuses` that says how long to wait, in one of the fields that `read_pause_us` lists, pauses the key::

    request --> pause ended? --> limits have room? --> charged and sent --> response
                   ^                                                          | one of `statuses`, with a duration
                   '------- sent again, `retries` times <---------------------'

A pause is a temporary ban of the key in the limiter's store: workers that share a store pause together, and operators
list pauses with `Limiter.bans` and end them with `Limiter.unban`.

A unit counts from the time the request is sent. A server counts a request when it arrives, so a slow request and a
later, fast one may fall into one of its windows. To avoid every 429, set limits below those of the server.

A client of httpx that has a transport ignores its own `verify=`, `proxy=`, `http2=`, `cert=` and `limits=`: they belong
to the inner transport::

    LimitedTransport(limits="10/second", transport=httpx.AsyncHTTPTransport(http2=True, verify=context, proxy=url))
"""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime
from functools import cache, partial
from importlib import import_module
from inspect import iscoroutinefunction
from math import ceil, inf
from typing import Any, Final, Self

import anyio

from .core import AnyLimit, ConfigurationError, Event, Reason, SlidegateError, parse_duration_us, parse_limits
from .core.arguments import check_list, check_name, check_takes, check_whole, expect
from .core.errors import quoted
from .core.exceeded import RateLimitExceeded
from .limiter import Limiter

try:
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.httpx needs the package {error.name}: pip install "slidegate[httpx]"') from error

__all__ = ["GITHUB_STATUSES", "LimitedTransport", "SyncLimitedTransport", "TurnTimeout"]

GITHUB_STATUSES: Final = (403, 429, 503)
"""The `statuses` for GitHub, whose secondary limits answer 403 with `Retry-After`; other 403 responses do not pause."""


class TurnTimeout(SlidegateError, httpx.PoolTimeout):
    """A request was not sent: its key had no room within `wait`, or too many requests are already queued.

    It is also a `PoolTimeout` of the client's library: nothing was sent, and a later request may succeed.

    Args:
        message: The reason.
        key: The key without room, as stores use it.
        retry_after_us: The time until there may be room, in microseconds; None if it is unknown.
    """

    def __init__(self, message: str, *, key: str, retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us

    def __reduce__(self) -> tuple[Any, ...]:
        libraries = [kind.__module__ for kind in type(self).__mro__ if kind.__name__ == "PoolTimeout"]
        return _timed_out, (libraries[-1], *self.args), vars(self)


class _Limited:
    """Both transports: as it stands the async one; the sync one replaces the names, and `_call` by one that blocks."""

    _kind = "AsyncHTTPTransport"
    _method = "handle_async_request"
    _close = "aclose"
    _enter = "__aenter__"
    _sleep: Any = staticmethod(anyio.sleep)
    _methods: Any = property(lambda self: self._limiter)
    _transport: Any = None

    def __init__(
        self,
        *,
        limits: str | AnyLimit | Sequence[str | AnyLimit],
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: Limiter | None = None,
        transport: Any = None,
        wait: str | timedelta = "30s",
        retries: int = 1,
        statuses: Collection[int] = (429, 503),
        name: str = "outbound",
    ) -> None:
        if transport is not None and not hasattr(transport, self._method):
            raise ConfigurationError(f"transport: expected one with {self._method}, not {quoted(transport)}")
        if transport is not None:
            self._transport = transport
        if iscoroutinefunction(key):
            raise ConfigurationError(f"expected a plain function of request, not {quoted(key)}, which is async", "key")
        self._key = (lambda request: request.url.host) if key is None else check_takes("key", key, "request")
        self._own_limiter = limiter is None
        self._limiter = expect("limiter", limiter, Limiter, "Limiter()") or Limiter()
        self._wait_s = parse_duration_us(wait, "wait") / 1_000_000
        self._retries = check_whole(retries, 0, 10, "retries", "for example 1")
        codes = check_list("statuses", statuses, "a list of status codes such as (429, 503)")
        self._statuses = {check_whole(code, 400, 599, "statuses", "for example 429") for code in codes}
        self._rule, self._limits = check_name(name, "name"), parse_limits(limits)
        # Operators see and change the limits of functions that exist; those of a block go with each request.
        self._listed = self._limiter.limited(self._limits, key="to:", rule=name)(lambda: None)

    async def _handle(self, request: Any) -> Any:
        """Send a request when its key has room, and again after a pause; return the response after its head."""
        library, name = self._library_of(request), self._key(request)
        send = partial(self._call, getattr(self._transport, self._method), request)
        if name is None:
            return await send()
        key = self._limiter.key_for(f"to:{name}")  # never an address: bans of addresses refuse inbound requests
        until_s, retries = time.monotonic() + self._wait_s, self._retries
        await self._wait_for_room(key, until_s, library)
        while True:
            response = await send()
            try:
                paused = await self._pause(key, response)
                # A server that answers 5xx may have done a part of the work. A stream can be sent only once.
                repeats = response.status_code < 500 and isinstance(request.stream, library.ByteStream)
                if not (retries and paused and repeats):
                    return response
                await self._wait_for_room(key, until_s, library)
            except TurnTimeout:
                return response
            except BaseException:
                await self._call(getattr(response, self._close), within_s=inf)
                raise
            retries -= 1
            await self._call(getattr(response, self._close), within_s=inf)

    def _library_of(self, request: Any) -> Any:
        """Return the client's library, httpx or httpx2, and create its default transport if none was given.

        Raises:
            ConfigurationError: The transport belongs to the other library.
        """
        name = type(request).__mro__[-2].__module__.partition(".")[0]
        if self._transport is None:  # threads may create several at once; all use the first one stored
            vars(self).setdefault("_transport", getattr(sys.modules[name], self._kind)())
        if type(self._transport).__module__.partition(".")[0] in {"httpx", "httpx2"} - {name}:
            raise ConfigurationError(f"transport: expected {name}.{self._kind}(), not {quoted(self._transport)}")
        return sys.modules[name]

    async def _wait_for_room(self, key: str, until_s: float, library: Any) -> None:
        """Wait for the end of a pause and for room in the limits, and charge a unit.

        Raises:
            TurnTimeout: There is no room in time, or too many requests are queued.
        """
        while True:
            left = timedelta(seconds=max(until_s - time.monotonic(), 1e-6))
            limited = self._limiter.limited(self._limits, key=key, wait=left, rule=self._rule)
            try:
                await self._call(getattr(limited, self._enter))
                return
            except RateLimitExceeded as refused:
                decision, wait_s = refused.decision, refused.retry_after_s
            if decision.reason is not Reason.BANNED or wait_s is None or time.monotonic() + wait_s > until_s:
                break
            await self._call(self._sleep, min(wait_s, 1))  # an operator may end the pause
        after = "" if wait_s is None else f"; retry after {ceil(wait_s)} s at the earliest"
        message = f"{key!r} has no room for a request within {self._wait_s:g} s: {decision.reason}{after}"
        raise _timeout_of(library)(message, key=key, retry_after_us=decision.retry_after_us)

    async def _pause(self, key: str, response: Any) -> bool:
        """Pause a key for as long as a response requests; return False if it requests none, or the pause failed."""
        status = response.status_code
        pause_us = read_pause_us(status, response.headers, time.time()) if status in self._statuses else None
        if not pause_us:
            return pause_us is not None
        kind, failure = "pause_ignored", "it is longer than an hour"
        if pause_us <= 3_600_000_000:
            try:
                seen = await self._call(self._methods.peek, key, self._limits, rule=self._rule)
                left_us = seen.retry_after_us if seen.reason is Reason.BANNED else 0
                # Concurrent responses request the same pause a moment apart. A longer ban is never shortened.
                if left_us is not None and left_us + min(pause_us // 10, 100_000) < pause_us:
                    span, reason = timedelta(microseconds=pause_us), f"it answered {status}"
                    await self._call(self._methods.ban, key, span, reason=reason, by="outbound", within_s=1)
                return True
            except (SlidegateError, TimeoutError) as error:  # also of a key that nobody can ban, such as a blank
                kind, failure = "pause_unshared", repr(error)
        message = f"{key!r} requested a pause of {pause_us / 1_000_000:g} s, which is not observed: {failure}"
        self._limiter.store.observers.tell(Event(kind, message, {"key": key, "pause_us": pause_us}))
        return False

    async def _call(self, function: Any, *arguments: Any, within_s: float | None = None, **options: Any) -> Any:
        """Call a function of the client's library or of the limiter; with `within_s`, shielded until then."""
        with anyio.fail_after(within_s, shield=within_s is not None):
            return await function(*arguments, **options)

    async def _begin(self) -> None:
        """Enter the wrapped transport, as a client does with its own."""
        if self._transport is not None:
            await self._call(getattr(self._transport, self._enter))

    async def _end(self, method: str, *error: object) -> None:
        """Close or leave the wrapped transport by a method, and close the limiter if it was created by this one."""
        try:
            if self._transport is not None:
                await self._call(getattr(self._transport, method), *error)
        finally:
            if self._own_limiter:
                await self._limiter.close()  # in memory, so that it never suspends


class LimitedTransport(_Limited, httpx.AsyncBaseTransport):
    """Sends requests through another transport as fast as limits allow; further requests wait.

    ``httpx.AsyncClient(transport=LimitedTransport(limits="10/second"))``

    The client's own `verify=`, `proxy=` and `http2=` have no effect beside a transport. Give them to the inner one:
    ``LimitedTransport(limits=..., transport=httpx.AsyncHTTPTransport(http2=True, verify=..., proxy=...))``

    Args:
        limits: The limits of each key, as for `Limiter.hit`: ``"10/second; 1000/hour"``.
        key: Returns the key that a request is counted by, or None for no limit; by default its host.
        limiter: The limiter, for limits that several workers share; by default a new one in memory.
        transport: The transport that sends, of the client's library; by default its `AsyncHTTPTransport`.
        wait: How long a request may wait in total, including pauses and retries.
        retries: How often a request is sent again after a pause, if the status is below 500 and its body can be sent
            again. 0 to 10.
        statuses: The statuses, from 400 to 599, of responses that pause the key if they contain a duration;
            `GITHUB_STATUSES` for GitHub.
        name: The rule under which requests are counted in the limiter's store.

    Raises:
        ConfigurationError: An argument is invalid.
        TurnTimeout: By a request, if there is no room in time. Nothing was sent.
    """

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the response after its head."""
        return await self._handle(request)

    async def aclose(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        await self._end(self._close)

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._end("__aexit__", *error)


class SyncLimitedTransport(_Limited, httpx.BaseTransport):
    """A `LimitedTransport` for sync clients: ``httpx.Client(transport=SyncLimitedTransport(limits="10/second"))``.

    It takes the arguments of `LimitedTransport`; `transport` is by default the `HTTPTransport` of the client's library.
    Requests of all threads wait in one queue. They block their threads, so a thread with a running event loop must not
    send any.
    """

    _kind = "HTTPTransport"
    _method = "handle_request"
    _close = "close"
    _enter = "__enter__"
    _sleep = staticmethod(lambda span_s: time.sleep(span_s))
    _methods = property(lambda self: self._limiter.sync)

    def handle_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the response after its head."""
        with suppress(RuntimeError):  # no event loop runs
            anyio.current_time()
            raise ConfigurationError("SyncLimitedTransport: expected a thread without event loop; use LimitedTransport")
        return _completed(self._handle(request))

    def close(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        _completed(self._end(self._close))

    def __enter__(self) -> Self:
        _completed(self._begin())
        return self

    def __exit__(self, *error: object) -> None:
        _completed(self._end("__exit__", *error))

    async def _call(self, function: Any, *arguments: Any, within_s: float | None = None, **options: Any) -> Any:
        return function(*arguments, **options)


def _completed(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine whose calls block and never suspend, and return its result."""
    try:
        return work.send(None)
    except StopIteration as done:
        return done.value


@cache
def _timeout_of(library: Any) -> type[TurnTimeout]:
    """Return a `TurnTimeout` that is also the `PoolTimeout` of the client's library."""
    is_own = issubclass(TurnTimeout, library.PoolTimeout)
    return TurnTimeout if is_own else type("TurnTimeout", (TurnTimeout, library.PoolTimeout), {})


def _timed_out(library: str, message: str) -> TurnTimeout:
    """Make a copy of an error, whose attributes follow."""
    return _timeout_of(import_module(library))(message, key="")


# -- responses ---------------------------------------------------------------------------------------------------------

_SEPARATE: Final = ("ratelimit-{}", "x-ratelimit-{}", "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens")
_PART: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?)(h|ms|m|s|(?![0-9.]))")  # 12 digits are 31,000 years
_PAIR: Final = re.compile(r"(?<![\w.*-])([a-z]+)=([0-9]+)(?![0-9.])")  # not within another name or a decimal
_UNIT_S: Final = {"h": 3_600, "m": 60, "s": 1, "": 1, "ms": 0.001}


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return the pause that a response requests, in microseconds; None if it requests none.

    It is the first valid one of:

    1. `retry-after-ms` in milliseconds.
    2. `Retry-After` (RFC 9110, 10.2.3) in seconds, also with a fraction, or as a date.
    3. With a status below 500, in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-07 to -11) the longest time to the
       reset of a quota of which 0 remains.
    4. With a status below 500, the same in `RateLimit-Reset` (-03 to -06), `X-RateLimit-Reset`, and
       `X-RateLimit-Reset-Requests` and `-Tokens`. With 429, a reset field without a remaining field is valid, too.

    Args:
        status: The status of the response.
        headers: The header fields of the response, with names in lower case.
        unix_s: The current time, for absolute times in a response without `Date`.
    """
    fields = defaultdict(str, {name: text.strip() for name, text in headers.items() if len(text) <= 4_096})
    now_s = _span_s(fields["date"], 0) or unix_s
    sources = [[("0", f"{fields['retry-after-ms']}ms")], [("0", fields["retry-after"])]]
    if status < 500:
        separate = [(fields[name.format("remaining")], fields[name.format("reset")]) for name in _SEPARATE]
        sources += [_quotas(fields["ratelimit"]), separate]
    spent = ("0", "") if status == 429 else ("0",)
    for source in sources:
        spans_s = [_span_s(text, now_s) for remaining, text in source if remaining in spent]
        if valid := [span_s for span_s in spans_s if span_s is not None]:
            return round(max(*valid, 0) * 1_000_000)
    return None


def _quotas(value: str) -> list[tuple[str, str]]:
    """Return what remains and when it resets, of each quota in a `RateLimit` field of any draft."""
    unnamed = re.sub(r'"(?:[^"\\]|\\.?)*"?', "", value)
    pairs = [dict(_PAIR.findall(part)) for part in (unnamed, *unnamed.split(","))]
    draft_7 = (pairs[0].get("remaining", "?"), pairs[0].get("reset", ""))
    return [draft_7, *((pair.get("r", "?"), pair.get("t", "")) for pair in pairs[1:])]


def _span_s(text: str, now_s: float) -> float | None:
    """Return the seconds until a duration in seconds or like ``1m2.5s``, a Unix time or an HTTP-date has passed."""
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text:
        span_s = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        return span_s - now_s if span_s >= 1e9 else span_s  # a Unix time from 2001 on, or less than 32 years
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now_s
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
