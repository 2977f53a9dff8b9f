"""Transports for httpx and httpx2 that keep the rate limits of other services. Requires the extra `slidegate[httpx]`.

A request waits until the limits of its key have room, is charged one unit, and is sent. A 429 or 503 response with a
duration (`Retry-After`, and on 429 `RateLimit` or `X-RateLimit-Reset`) pauses the key::

    request --> pause ended? --> limits have room? --> charged and sent --> response
                   ^                                                          | 429 or 503 with a duration
                   '------- sent again, `retries` times <---------------------'

A pause is a temporary ban of the key in the limiter's store: workers that share a store pause together, and operators
list pauses with `Limiter.bans` and end them with `Limiter.unban`.

A unit counts from the time the request is sent. A server counts a request when it arrives, so a slow request and a
later, fast one may fall into one of its windows. To avoid every 429, set limits below those of the server.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache, partial
from math import ceil, inf
from threading import TIMEOUT_MAX
from time import time
from typing import Any, Final

import anyio

from .core.arguments import check_takes
from .core.bans.rules import PAUSED_BY, PAUSED_KEYS
from .core.decision import Reason
from .core.draft_parameters import MORE_AFTER_S, REMAINING
from .core.errors import ConfigurationError, RateLimitExceeded, SlidegateError, StoreError
from .core.limits import check_name, check_whole, parse_duration_us
from .core.store import Event
from .limiter import Limiter
from .limiter.aio import on_loop, to_the_end
from .limiter.keys import Limits
from .limiter.portal import PORTAL

try:
    import http_sf
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(f'slidegate.httpx needs the package {error.name}: pip install "slidegate[httpx]"') from error

__all__ = ["LimitedTransport", "SyncLimitedTransport", "TurnTimeout"]

LONGEST_US: Final = 3_600_000_000
"""The longest pause that is observed, an hour."""
ASK_AGAIN_S: Final = 1.0
"""The longest sleep during a pause, so that the end of a pause by an operator takes effect within this time."""
SAME_US: Final = 100_000
"""A pause that ends at most this much later than the current one is ignored: concurrent responses request the same."""
MAX_CHARACTERS: Final = 4_096
"""Longer header fields are truncated to this length."""
UNIX_FROM: Final = 1_000_000_000
"""Numbers from this one on are Unix times (2001), smaller ones are durations in seconds (up to 31 years)."""


class TurnTimeout(SlidegateError, httpx.PoolTimeout):
    """A request was not sent: its key had no room within `wait`, or too many requests are already queued.

    It is also a `PoolTimeout` of the client's library: nothing was sent, and a later request may succeed.

    Args:
        message: The reason.
        key: The key without room.
        retry_after_us: The time until there may be room, in microseconds; None if it is unknown.
    """

    def __init__(self, message: str, *, key: str, retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us


class _Limited:
    """The base of both transports. A subclass names the classes and methods of the client's library, and calls them."""

    _kind: str
    _method: str
    _close: str
    _call: Callable[..., Awaitable[Any]]
    """Calls a method of the wrapped transport or of a response."""

    def __init__(
        self,
        *,
        limits: Limits,
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: Limiter | None = None,
        transport: Any = None,
        wait: str | float | timedelta = "30s",
        retries: int = 1,
        name: str = "outbound",
    ) -> None:
        if key is not None:
            check_takes("key", key, "request")
        if limiter is not None and not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {limiter!r}")
        if transport is not None and not hasattr(transport, self._method):
            raise ConfigurationError(f"transport: expected one with {self._method}, not {transport!r}")
        self._key = key
        self._own_limiter = limiter is None
        self._limiter = Limiter() if limiter is None else limiter
        self._transport = transport
        self._wait_s = parse_duration_us(wait, "wait") / 1_000_000
        self._retries = check_whole(retries, 0, 10, "retries", "for example 1")
        self._limits, self._rule = limits, check_name(name, "name")
        self._charge = self._limiter.limited(limits, key=lambda key: key, wait=wait, rule=self._rule)(_charged)

    async def _handle(self, request: Any) -> Any:
        """Send a request when its key has room, and again after a pause; return the response after its head."""
        library, key = self._library_of(request), self._key_of(request)
        send = partial(self._call, getattr(self._transport, self._method), request)
        if key is None:
            return await send()
        until_s, retries = anyio.current_time() + self._wait_s, self._retries
        await self._wait_for_room(key, until_s, library)
        while True:
            answer = await send()
            try:
                paused = await self._pause_as_asked(key, answer)
                if not retries or not paused or answer.status_code != 429 or not _can_be_repeated(request):
                    return answer
                await self._wait_for_room(key, until_s, library)
            except TurnTimeout:
                return answer
            except BaseException:
                await to_the_end(self._call(getattr(answer, self._close)))
                raise
            retries -= 1
            await self._call(getattr(answer, self._close))

    def _key_of(self, request: Any) -> str | None:
        """Return the key, with a prefix so that it is never an address: bans of addresses refuse inbound requests."""
        key = request.url.host if self._key is None else self._key(request)
        return None if key is None else f"{PAUSED_KEYS}{key}"

    def _library_of(self, request: Any) -> str:
        """Return the name of the client's library, httpx or httpx2, and create its default transport if none was given.

        Raises:
            ConfigurationError: The transport belongs to the other library.
        """
        name = type(request).__mro__[-2].__module__.partition(".")[0]
        if self._transport is None:
            self._transport = getattr(sys.modules[name], self._kind)()
        if type(self._transport).__module__.partition(".")[0] in {"httpx", "httpx2"} - {name}:
            raise ConfigurationError(f"transport: expected {name}.{self._kind}(), not {self._transport!r}")
        return name

    async def _wait_for_room(self, key: str, until_s: float, library: str) -> None:
        """Wait for the end of a pause and for room in the limits, and charge a unit.

        Raises:
            TurnTimeout: There is no room in time, or too many requests are queued.
        """
        wait_us, wait_s = None, inf
        with anyio.CancelScope(deadline=until_s):
            while True:
                try:
                    return await self._charge(key)
                except RateLimitExceeded as refused:
                    decision = refused.decision
                wait_us = decision.retry_after_us
                wait_s = inf if wait_us is None else wait_us / 1_000_000
                if decision.reason is not Reason.BANNED or anyio.current_time() + wait_s > until_s:
                    break
                await anyio.sleep(min(wait_s, ASK_AGAIN_S))
        after = "" if wait_us is None else f"; retry after {ceil(wait_s)} s at the earliest"
        message = f"{key!r} has no room for a request within {self._wait_s:g} s{after}"
        raise _timeout_of(library)(message, key=key, retry_after_us=wait_us)

    async def _pause_as_asked(self, key: str, answer: Any) -> bool:
        """Pause a key for as long as a response requests; return False if it requests none, or the pause failed."""
        pause_us = read_pause_us(answer.status_code, answer.headers, time())
        if not pause_us:
            return pause_us is not None
        kind, failure = "pause_ignored", "it is longer than an hour"
        if pause_us <= LONGEST_US:
            try:
                with anyio.fail_after(1):
                    seen = await self._limiter.peek(key, self._limits, rule=self._rule)
                    left_us = seen.retry_after_us if seen.reason is Reason.BANNED else 0
                    if left_us is not None and left_us + SAME_US < pause_us:  # never shorten a ban
                        span, reason = timedelta(microseconds=pause_us), f"it answered {answer.status_code}"
                        # `key_for` escapes keys that cannot be encoded as JSON.
                        await self._limiter.ban(self._limiter.key_for(key), span, reason=reason, by=PAUSED_BY)
                return True
            except (StoreError, TimeoutError) as error:
                kind, failure = "pause_unshared", repr(error)
        message = f"{key!r} requested a pause of {pause_us / 1_000_000:g} s, which is not observed: {failure}"
        self._limiter.engine.emit(Event(kind, message, {"key": key, "pause_us": pause_us}))
        return False


class LimitedTransport(_Limited, httpx.AsyncBaseTransport):
    """Sends requests through another transport as fast as limits allow; further requests wait.

    ``httpx.AsyncClient(transport=LimitedTransport(limits="10/second"))``

    Args:
        limits: The limits of each key, as for `Limiter.hit`: ``"10/second; 1000/hour"``.
        key: Returns the key that a request is counted by, or None for no limit; by default its host.
        limiter: The limiter, for limits that several workers share; by default a new one in memory.
        transport: The transport that sends, of the client's library; by default its `AsyncHTTPTransport`.
        wait: How long a request may wait in total, including pauses and retries.
        retries: How often a request is sent again after a 429 with a duration, if its body can be sent again. 0 to 10.
        name: The rule under which requests are counted in the limiter's store.

    Raises:
        ConfigurationError: An argument is invalid.
        TurnTimeout: By a request, if there is no room in time. Nothing was sent.
    """

    _kind = "AsyncHTTPTransport"
    _method = "handle_async_request"
    _close = "aclose"

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the response after its head."""
        return await self._handle(request)

    async def aclose(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        if self._transport is not None:
            await self._transport.aclose()
        if self._own_limiter:
            await self._limiter.close()

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await function(*arguments)


class SyncLimitedTransport(_Limited, httpx.BaseTransport):
    """A `LimitedTransport` for sync clients: ``httpx.Client(transport=SyncLimitedTransport(limits="10/second"))``.

    It takes the arguments of `LimitedTransport`; `transport` is by default the `HTTPTransport` of the client's library.
    Requests of all threads wait in one queue, on the event loop of `Limiter.sync`, so a thread with a running event
    loop must not send requests.
    """

    _kind = "HTTPTransport"
    _method = "handle_request"
    _close = "close"

    def handle_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the response after its head."""
        if on_loop():
            raise ConfigurationError(
                "SyncLimitedTransport: expected a thread without event loop; in async code, use LimitedTransport"
            )
        return PORTAL.run(self, self._handle(request), TIMEOUT_MAX)

    def close(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        if self._transport is not None:
            self._transport.close()
        if self._own_limiter:
            self._limiter.sync.close()
        PORTAL.release(self)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # One capacity limiter per call: each call blocks a thread of the client, which bounds their number.
        return await anyio.to_thread.run_sync(function, *arguments, limiter=anyio.CapacityLimiter(1))


async def _charged(key: str) -> None:
    """Do nothing; `Limiter.limited` wraps it to wait and charge."""


@cache
def _timeout_of(library: str) -> type[TurnTimeout]:
    """Return a `TurnTimeout` that is also the `PoolTimeout` of the client's library."""
    return type("TurnTimeout", (TurnTimeout, sys.modules[library].PoolTimeout), {})


def _can_be_repeated(request: Any) -> bool:
    """Return whether the body is in memory; a stream can be sent only once."""
    try:
        return request.content is not None
    except RuntimeError:  # RequestNotRead of either library
        return False


# -- responses ---------------------------------------------------------------------------------------------------------


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return the pause that a response requests, in microseconds; None if it requests none.

    It is the first valid one of: `Retry-After` (RFC 9110, 10.2.3) on 429 and 503; on 429 `RateLimit` with a remaining
    quota of 0 (draft-ietf-httpapi-ratelimit-headers-11), and the older `X-RateLimit-Reset`.

    Args:
        status: The status of the response.
        headers: The header fields of the response; names are looked up in lower case.
        unix_s: The current time, for absolute times in a response without `Date`.
    """
    if status not in (429, 503):
        return None
    now_s = _moment_s(headers.get("date", "")) or unix_s
    spans_s = [_span_s(headers.get("retry-after", ""), now_s)]
    if status == 429:
        spans_s += [_rate_limit_s(headers.get("ratelimit", "")), _span_s(headers.get("x-ratelimit-reset", ""), now_s)]
    pause_s = next((span_s for span_s in spans_s if span_s is not None), None)
    return None if pause_s is None else round(max(pause_s, 0) * 1_000_000)


def _rate_limit_s(value: str) -> int | None:
    """Return the longest reset time of the items with a remaining quota of 0."""
    try:
        items: Any = http_sf.parse(value[:MAX_CHARACTERS].encode("latin-1"), tltype="list")
    except Exception:  # not ASCII, or not a list; old versions of the parser raise IndexError for some input
        return None
    spans = [given.get(MORE_AFTER_S) for _, given in items if given.get(REMAINING) == 0]
    return max((span for span in spans if type(span) is int and span >= 0), default=None)


def _span_s(value: str, now_s: float) -> float | None:
    """Return the seconds until a duration in seconds, a Unix time or an HTTP-date has passed."""
    text = value.strip()
    if len(text) <= 12 and text.isascii() and text.isdigit():  # more digits are more than 31,000 years
        return int(text) if int(text) < UNIX_FROM else int(text) - now_s
    moment_s = _moment_s(text)
    return None if moment_s is None else moment_s - now_s


def _moment_s(value: str) -> float | None:
    """Return an HTTP-date as Unix time in seconds."""
    try:
        return parsedate_to_datetime(value[:MAX_CHARACTERS]).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
