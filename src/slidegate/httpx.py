"""Outbound rate limiting: transports for httpx and httpx2. They need the extra `slidegate[httpx]`.

A request waits until the limits of its key have room, is charged one unit, and is sent. A 429 or 503 that states a
delay (`Retry-After`, and on 429 `RateLimit` or `X-RateLimit-Reset`) pauses the key::

    request --> pause over? --> limits have room? --> charged and sent --> answer
                   ^                                                         | 429 or 503 with a delay
                   '------- sent again, `retries` times <--------------------'

A pause is a temporary ban of the key in the limiter's store: workers that share a store pause together, and operators
list pauses with `Limiter.bans` and end them with `Limiter.unban`.

A unit counts from the moment of its sending. A server counts a request when it arrives, so a slow request and a later,
fast one may arrive within one of its windows. Clients that must never see a 429 take limits below the server's.
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
"""The longest pause that is obeyed, an hour."""
ASK_AGAIN_S: Final = 1.0
"""The longest sleep in a pause, and so the delay with which an operator's `unban` takes effect."""
SAME_US: Final = 100_000
"""A pause that ends at most this much later than the current one is not recorded: many answers arrive together."""
MAX_CHARACTERS: Final = 4_096
"""The most characters of a header field that are read."""
UNIX_FROM: Final = 1_000_000_000
"""From this number of seconds on, a value is a Unix time (2001), not a delay (31 years)."""


class TurnTimeout(SlidegateError, httpx.PoolTimeout):
    """A request was not sent, because the limits of its key have no room in time, or too many requests already wait.

    It is also a `PoolTimeout` of the client's library: nothing was sent, and a later request may succeed.

    Args:
        message: The error message.
        key: The key that has no room.
        retry_after_us: After how many microseconds there may be room; None if unknown.
    """

    def __init__(self, message: str, *, key: str, retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us


class _Limited:
    """The common part of both transports. A subclass names the methods of the client's library, and calls them."""

    _kind: str
    _method: str
    _close: str
    _call: Callable[..., Awaitable[Any]]
    """Calls a function of the inner transport or of a response."""

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
        """Send a request when its key has room, and retry after a pause; return the response when its head arrived."""
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
        """Return the key, with a prefix so that it is never an address: those bans concern inbound clients."""
        key = request.url.host if self._key is None else self._key(request)
        return None if key is None else f"{PAUSED_KEYS}{key}"

    def _library_of(self, request: Any) -> str:
        """Return the name of the client's library, httpx or httpx2, and create its transport if none was given."""
        name = type(request).__mro__[-2].__module__.partition(".")[0]
        if self._transport is None:
            self._transport = getattr(sys.modules[name], self._kind)()
        if type(self._transport).__module__.partition(".")[0] in {"httpx", "httpx2"} - {name}:
            raise ConfigurationError(f"transport: expected {name}.{self._kind}(), not {self._transport!r}")
        return name

    async def _wait_for_room(self, key: str, until_s: float, library: str) -> None:
        """Wait for the end of a pause and for room in the limits, and charge a unit.

        Raises:
            TurnTimeout: They do not come in time, or too many requests already wait.
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
        after = "" if wait_us is None else f", but after {ceil(wait_s)} s at the earliest"
        message = f"{key!r} has no room for a request within {self._wait_s:g} s{after}"
        raise _timeout_of(library)(message, key=key, retry_after_us=wait_us)

    async def _pause_as_asked(self, key: str, answer: Any) -> bool:
        """Pause a key for as long as a response asks; return False if it does not, or the pause is not recorded."""
        pause_us = read_pause_us(answer.status_code, answer.headers, time())
        if not pause_us:
            return pause_us is not None
        kind, failure = "pause_ignored", "it is longer than an hour"
        if pause_us <= LONGEST_US:
            try:
                with anyio.fail_after(1):
                    seen = await self._limiter.peek(key, self._limits, rule=self._rule)
                    left_us = seen.retry_after_us if seen.reason is Reason.BANNED else 0
                    if left_us is not None and left_us + SAME_US < pause_us:  # any longer ban is kept
                        span, reason = timedelta(microseconds=pause_us), f"it answered {answer.status_code}"
                        # key_for, because a ban's key must be valid UTF-8, and a caller's need not be.
                        await self._limiter.ban(self._limiter.key_for(key), span, reason=reason, by=PAUSED_BY)
                return True
            except (StoreError, TimeoutError) as error:
                kind, failure = "pause_unshared", repr(error)
        message = f"{key!r} asks for a pause of {pause_us / 1_000_000:g} s, which is ignored: {failure}"
        self._limiter.engine.emit(Event(kind, message, {"key": key, "pause_us": pause_us}))
        return False


class LimitedTransport(_Limited, httpx.AsyncBaseTransport):
    """Sends requests through another transport, at the rate that limits allow; excess requests wait.

    ``httpx.AsyncClient(transport=LimitedTransport(limits="10/second"))``

    Args:
        limits: The limits of each key, as for `Limiter.hit`: ``"10/second; 1000/hour"``.
        key: Returns the key of a request, or None if it is not limited; by default its host.
        limiter: The limiter that counts, to share limits between workers; by default a new one in memory.
        transport: The inner transport, of the client's library; by default its `AsyncHTTPTransport`.
        wait: How long a request may wait, including pauses and retries.
        retries: How often a request is sent again after a 429 that states a delay, if its body can be repeated. 0 to
            10.
        name: The rule under which requests are counted in the limiter's store.

    Raises:
        ConfigurationError: A value is invalid.
        TurnTimeout: In a request, if there is no room in time. Nothing was sent.
    """

    _kind = "AsyncHTTPTransport"
    _method = "handle_async_request"
    _close = "aclose"

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the answer when its head has arrived."""
        return await self._handle(request)

    async def aclose(self) -> None:
        """Close the transport that sends, and the limiter if it is this one's own."""
        if self._transport is not None:
            await self._transport.aclose()
        if self._own_limiter:
            await self._limiter.close()

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await function(*arguments)


class SyncLimitedTransport(_Limited, httpx.BaseTransport):
    """`LimitedTransport` for blocking clients: ``httpx.Client(transport=SyncLimitedTransport(limits="10/second"))``.

    The arguments are the same, but the default inner transport is the `HTTPTransport` of the client's library. Requests
    of all threads wait in one queue, on the event loop that `Limiter.sync` uses, so a thread with a running event loop
    must not send any.
    """

    _kind = "HTTPTransport"
    _method = "handle_request"
    _close = "close"

    def handle_request(self, request: Any) -> Any:
        """Send a request when its key has room, and return the answer when its head has arrived."""
        if on_loop():
            raise ConfigurationError("SyncLimitedTransport: expected a thread without event loop; use LimitedTransport")
        return PORTAL.run(self, self._handle(request), TIMEOUT_MAX)

    def close(self) -> None:
        """Close the transport that sends, and the limiter if it is this one's own."""
        if self._transport is not None:
            self._transport.close()
        if self._own_limiter:
            self._limiter.sync.close()
        PORTAL.release(self)

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        # No shared limit on threads: each call blocks one thread of the client, which bounds their number.
        return await anyio.to_thread.run_sync(function, *arguments, limiter=anyio.CapacityLimiter(1))


async def _charged(key: str) -> None:
    """Do nothing; `Limiter.limited` waits and charges before the call."""


@cache
def _timeout_of(library: str) -> type[TurnTimeout]:
    """Return the subclass of `TurnTimeout` that is also the library's own `PoolTimeout`."""
    return type("TurnTimeout", (TurnTimeout, sys.modules[library].PoolTimeout), {})


def _can_be_repeated(request: Any) -> bool:
    """Return whether the body is in memory; a stream can be sent only once."""
    try:
        return request.content is not None
    except RuntimeError:  # RequestNotRead of either library
        return False


# -- delays in responses -----------------------------------------------------------------------------------------------


def read_pause_us(status: int, headers: Mapping[str, str], unix_s: float) -> int | None:
    """Return the delay that a refusing server asks for, in microseconds; None if it states none.

    The first valid one of: `Retry-After` (RFC 9110, 10.2.3) on 429 and 503; on 429 `RateLimit` with nothing left
    (draft-ietf-httpapi-ratelimit-headers-11), and the older `X-RateLimit-Reset`.

    Args:
        status: The status code of the response.
        headers: Its header fields; names are looked up in lower case.
        unix_s: The current Unix time, for dates in a response without a `Date` field.
    """
    if status not in (429, 503):
        return None
    now_s = _moment_s(headers.get("date", "")) or unix_s
    pause_s = _span_s(headers.get("retry-after", ""), now_s)
    if pause_s is None and status == 429:
        pause_s = _rate_limit_s(headers.get("ratelimit", ""))
    if pause_s is None and status == 429:
        pause_s = _span_s(headers.get("x-ratelimit-reset", ""), now_s)
    return None if pause_s is None else round(max(pause_s, 0) * 1_000_000)


def _rate_limit_s(value: str) -> int | None:
    """Return the longest delay among the items with nothing left."""
    try:
        items: Any = http_sf.parse(value[:MAX_CHARACTERS].encode("latin-1"), tltype="list")
    except Exception:  # not ASCII, or not a list; old versions of the parser also raise IndexError
        return None
    spans = [given.get(MORE_AFTER_S) for _, given in items if given.get(REMAINING) == 0]
    return max((span for span in spans if type(span) is int and span >= 0), default=None)


def _span_s(value: str, now_s: float) -> float | None:
    """Return the seconds until a delay, a Unix time or an HTTP-date."""
    text = value.strip()
    if len(text) <= 12 and text.isascii() and text.isdigit():  # more digits are more than 31,000 years
        return int(text) if int(text) < UNIX_FROM else int(text) - now_s
    moment_s = _moment_s(text)
    return None if moment_s is None else moment_s - now_s


def _moment_s(value: str) -> float | None:
    """Return an HTTP-date in Unix seconds."""
    try:
        return parsedate_to_datetime(value[:MAX_CHARACTERS]).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
