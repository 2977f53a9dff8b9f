"""A transport for httpx that keeps the limits of the servers it talks to, and heeds their answers.

One request's way: a turn (`turns`), with a unit charged for it; the sending, while which the unit is held (`units`);
the answer, at whose arrival the unit is moved to that moment, and which may ask for a pause (`pauses`). A request whose
answer is 429 or 503 and names a pause is sent again after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import time
from types import TracebackType
from typing import Final, NoReturn, Self

import anyio
import httpx

from ..core.arguments import check_takes
from ..core.decision import Decision
from ..core.durations import format_duration
from ..core.errors import ConfigurationError
from ..core.limits import Limit, check_name, check_whole, parse_duration_us, parse_limits
from ..core.store import Event
from ..limiter import Limiter
from ..limiter.aio import to_the_end
from .pauses import REFUSALS, read_pause_us
from .turns import Turns, TurnTimeout
from .units import Hold, Units, held_limit

MOST_RETRIES: Final = 10
SAFE_TO_REPEAT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""The methods that are asked for again after a 503, of which nobody knows how much was done."""


class LimitedTransport(httpx.AsyncBaseTransport):
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
    """

    def __init__(
        self,
        *,
        limits: str | Limit | Sequence[Limit],
        key: Callable[[httpx.Request], str | None] | None = None,
        limiter: Limiter | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
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
        if transport is not None and not hasattr(transport, "handle_async_request"):
            raise ConfigurationError(
                f"transport: expected an asynchronous one, for example httpx.AsyncHTTPTransport(), not {transport!r}"
            )
        check_whole(wait_max, 1, 1_000_000, "wait_max", "for example 1000")
        check_whole(retries, 0, MOST_RETRIES, "retries", "for example 1")
        self._wait_s = parse_duration_us(wait, "wait") / 1_000_000
        self._longest_us = parse_duration_us(longest, "longest")
        self._retries = retries
        self._key = key
        self._own_limiter = limiter is None
        self._limiter = Limiter() if limiter is None else limiter
        own_limits = parse_limits(map(held_limit, parse_limits(limits)))
        units = Units(self._limiter, check_name(name, "name"), own_limits)
        self._turns = Turns(self._limiter, units, wait_max)
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport
        self._streams = _streams_of(self._transport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Wait for the turn of a request, send it, and return the answer as soon as its head has arrived.

        Raises:
            TurnTimeout: The turn would not come in time. Nothing was sent.
            ConfigurationError: The transport that sends is of another library than the client.
        """
        if not isinstance(request.stream, self._streams):
            other = type(request).__module__.partition(".")[0]
            raise ConfigurationError(
                f"transport: expected one of {other}, as the client is, for example "
                f"LimitedTransport(..., transport={other}.AsyncHTTPTransport()), not {self._transport!r}"
            )
        key = self._key_of(request)
        if key is None:
            return await self._transport.handle_async_request(request)
        until_s = anyio.current_time() + self._wait_s
        answer, again = await self._send(key, request, await self._turns.take(key, until_s))
        for _ in range(self._retries):
            if not again:
                break
            try:
                hold = await self._turns.take(key, until_s)
            except TurnTimeout:
                break  # the caller gets what the server said
            except BaseException:
                await to_the_end(answer.aclose())
                raise
            await _let_go(answer, hold)
            answer, again = await self._send(key, request, hold)
        return answer

    def handle_request(self, request: object) -> NoReturn:
        """Refuse a client that does not await.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("LimitedTransport: expected a client that awaits, httpx.AsyncClient, not httpx.Client")

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

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)
        if self._own_limiter:
            await self._limiter.close()

    def _key_of(self, request: httpx.Request) -> str | None:
        """Return the key, spelled so that it is no address: bans of addresses are about those who ask us."""
        key = request.url.host if self._key is None else self._key(request)
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(
                f'key: expected the function to return text or None, for example "api", not {key!r}'
            )
        return None if key is None else f"to:{key}"

    async def _send(self, key: str, request: httpx.Request, hold: Hold) -> tuple[httpx.Response, bool]:
        """Send a request; return the answer, and whether to ask again."""
        answer = None
        try:
            try:
                answer = await self._while_held(request, hold)
            finally:
                charged = await hold.settle()
            return answer, await self._heed(key, request, answer, charged)
        except BaseException:
            if answer is not None:
                await to_the_end(answer.aclose())
            raise

    async def _while_held(self, request: httpx.Request, hold: Hold) -> httpx.Response:
        failure: Exception | None = None
        answer: httpx.Response | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hold.keep)
                try:
                    answer = await self._transport.handle_async_request(request)
                except Exception as error:  # leaving the group it would become a group itself
                    failure = error
                tasks.cancel_scope.cancel()
        except BaseException:
            if answer is not None:
                await to_the_end(answer.aclose())
            raise
        if answer is None:
            assert failure is not None
            raise failure
        return answer

    async def _heed(self, key: str, request: httpx.Request, answer: httpx.Response, charged: Decision) -> bool:
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
        # fields have whole seconds.
        if pause_us and (refused or not _all_spent(charged)):
            await self._turns.pause(key, pause_us, charged.now_us, f"it answered {answer.status_code}")
        return refused and _can_be_sent_again(request, answer.status_code)


def _streams_of(transport: object) -> type:
    """Return what a request has to have as its stream: a transport of the network takes those of its own library."""
    for kind in type(transport).__mro__:
        library = sys.modules.get(kind.__module__.partition(".")[0])
        if kind is getattr(library, "AsyncHTTPTransport", None):
            found: type = getattr(library, "AsyncByteStream", object)
            return found
    return object


async def _let_go(answer: httpx.Response, hold: Hold) -> None:
    """Close an answer in whose place another one is asked for."""
    try:
        await answer.aclose()
    except BaseException:
        await hold.hand_back()
        raise


def _all_spent(charged: Decision) -> bool:
    """Return whether a limit has no unit left, going by the charge of a unit that counts twice in it."""
    limits = charged.checks[0][0].limits if charged.checks else ()
    return any(spent > limit.amount for limit, (spent, *_) in zip(limits, charged.readings, strict=False))


def _can_be_sent_again(request: httpx.Request, status: int) -> bool:
    if status == 503 and request.method not in SAFE_TO_REPEAT:
        return False
    try:
        return request.content is not None
    except RuntimeError:  # the body is a stream that nobody has read: it may be gone
        return False
