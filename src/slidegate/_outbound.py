"""The work of the transports of `slidegate.httpx` and `slidegate.httpx2`.

A request waits until the limits of its key have room, is charged one unit, and is sent. A response with one of
`statuses` that says how long to wait, in one of the fields that `read_pause_us` lists, pauses the key::

    request --> pause ended? --> limits have room? --> charged and sent --> response
                   ^                                                          | one of `statuses`, with a duration
                   '------- sent again, `retries` times <---------------------'

Nothing waits with a connection: a response whose request will be sent again is closed first.

The modules of the two libraries bind this to the classes by which their clients know transports and errors.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import timedelta
from inspect import isawaitable, iscoroutinefunction
from math import ceil
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import anyio

from ._pauses import read_pause_us
from .core import AnyLimit, ConfigurationError, Event, Reason, SlidegateError, parse_duration_us, parse_limits
from .core.arguments import check_name, check_whole
from .core.errors import quoted
from .core.exceeded import RateLimitExceeded
from .core.options import options_checked
from .limiter import Limiter

GITHUB_STATUSES: Final = (403, 429, 503)
"""The `statuses` for GitHub, whose secondary limits answer 403 with `Retry-After`; other 403 responses do not pause."""
LONGEST_PAUSE_US: Final = 3_600_000_000
LOOK_EVERY_S: Final = 1.0
"""How often a request checks whether its pause is over: an operator may end it."""

T = TypeVar("T")
Request = TypeVar("Request")
Response = TypeVar("Response")


class NotSent(SlidegateError):
    """A request was not sent, or not again; see `slidegate.httpx.TurnTimeout`."""

    # With defaults, because copies and pickles are made with the message alone, and get the rest afterwards.
    def __init__(self, message: str, *, key: str = "", retry_after_us: int | None = None) -> None:
        super().__init__(message)
        self.key = key
        self.retry_after_us = retry_after_us


class Client(NamedTuple):
    """What transports need of a library of clients, and the `NotSent` that is one of its errors."""

    library: Any
    turn_timeout: Callable[..., NotSent]


class _Steps(NamedTuple):
    """What one transport awaits, and the other blocks for.

    Attributes:
        close: Closes a response, which frees its connection.
        charge: Charges limits when they have room, by entering a limited block, whose end does nothing.
    """

    send: Callable[..., Any]
    close: Callable[..., Any]
    charge: Callable[..., Any]
    pause: Callable[..., Any]
    sleep: Callable[..., Any]


class _Outbound(Generic[Request, Response]):
    """What both transports do, in coroutines. Those of the sync one never suspend, because its steps block."""

    _client: ClassVar[Client]
    """The client that they are for."""

    @options_checked
    def __init__(
        self,
        *,
        limits: str | AnyLimit | Sequence[str | AnyLimit],
        key: Callable[[Request], str | None] | None = None,
        limiter: Limiter | None = None,
        transport: Any = None,
        wait: str | timedelta = "30s",
        retries: int = 1,
        statuses: Collection[int] = (429, 503),
        name: str = "outbound",
    ) -> None:
        if iscoroutinefunction(key):
            raise ConfigurationError(f"expected a plain function of request, not {quoted(key)}, which is async", "key")
        self._key: Callable[[Request], str | None] = attrgetter("url.host")
        if key is not None:
            self._key = key
        self._owns_limiter = limiter is None
        self._limiter = limiter or Limiter()
        self._wait_us = parse_duration_us(wait, "wait")
        self._retries = check_whole(retries, 0, 10, "retries", "for example 1")
        self._statuses = {check_whole(code, 400, 599, "statuses", "for example 429") for code in statuses}
        self._rule = check_name(name, "name")
        self._limits = parse_limits(limits)
        self._steps = self._use(transport)
        # Operators see and change the limits of functions that exist; those of a block go with each request.
        self._listed = self._limiter.limited(self._limits, key="to:", rule=name)(lambda: None)

    @abstractmethod
    def _use(self, transport: Any) -> _Steps:
        """Use a transport, by default one of the client; return the steps of a request."""

    async def _handle(self, request: Request) -> Any:
        """Send a request when its key has room, and again after a pause; return the response after its head."""
        name = self._key(request)
        if name is None:  # it has no limit
            return await _awaited(self._steps.send(request))
        key = self._limiter.key_for(f"to:{name}")  # never an address: bans of addresses refuse inbound requests
        until_s = time.monotonic() + self._wait_us / 1_000_000
        retries = self._retries
        while True:
            await self._wait_for_room(key, until_s)
            response = await _awaited(self._steps.send(request))
            pause_us = None
            if response.status_code in self._statuses:
                pause_us = read_pause_us(response.status_code, response.headers, time.time())
            if pause_us is None:
                return response
            try:
                is_paused = await self._pause(key, response.status_code, pause_us)
                await _awaited(self._steps.sleep(0))  # what was cancelled meanwhile ends here
            except BaseException:
                await _awaited(self._steps.close(response))
                raise
            is_in_time = time.monotonic() + pause_us / 1_000_000 <= until_s
            if not retries or not is_paused or not is_in_time or not self._may_repeat(request, response):
                return response
            await _awaited(self._steps.close(response))
            retries -= 1

    def _may_repeat(self, request: Any, response: Any) -> bool:
        """Return whether a request can be sent again."""
        if response.status_code >= 500:  # the server may have done a part of the work
            return False
        return isinstance(request.stream, self._client.library.ByteStream)  # any other stream is sent only once

    async def _wait_for_room(self, key: str, until_s: float) -> None:
        """Wait for the end of a pause and for room in the limits, and charge a unit.

        Raises:
            NotSent: There is no room in time, or too many requests are queued.
        """
        while True:
            remaining = timedelta(seconds=max(until_s - time.monotonic(), 1e-6))
            try:
                block = self._limiter.limited(self._limits, key=key, wait=remaining, rule=self._rule)
                await _awaited(self._steps.charge(block))
                return
            except RateLimitExceeded as refused:
                decision = refused.decision
                wait_s = refused.retry_after_s
            # The queue of the limits has waited already; only the end of a pause is waited for here.
            if decision.reason is not Reason.BANNED or wait_s is None:
                break
            if time.monotonic() + wait_s > until_s:
                break
            await _awaited(self._steps.sleep(min(wait_s, LOOK_EVERY_S)))
        advice = ""
        if wait_s is not None:
            advice = f"; retry after {ceil(wait_s)} s at the earliest"
        message = f"{key!r} has no room for a request within {self._wait_us / 1_000_000:g} s: {decision.reason}{advice}"
        raise self._client.turn_timeout(message, key=key, retry_after_us=decision.retry_after_us)

    async def _pause(self, key: str, status: int, pause_us: int) -> bool:
        """Pause a key for as long as a response requests; return False if that is too long, or fails."""
        if pause_us == 0:  # it may be sent again at once
            return True
        if pause_us > LONGEST_PAUSE_US:
            self._report("pause_ignored", key, pause_us, "it is longer than an hour")
            return False
        try:
            block = self._limiter.limited(self._limits, key=key, rule=self._rule)
            await _awaited(self._steps.pause(block, pause_us, f"it answered {status}"))
        except SlidegateError as error:
            self._report("pause_unshared", key, pause_us, repr(error))
            return False
        return True

    def _report(self, kind: str, key: str, pause_us: int, failure: str) -> None:
        message = f"{key!r} requested a pause of {pause_us / 1_000_000:g} s, which is not observed: {failure}"
        self._limiter.store.observers.tell(Event(kind, message, {"key": key, "pause_us": pause_us}))

    async def _end(self, close: Callable[[], Any]) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        try:
            await _awaited(close())
        finally:
            if self._owns_limiter:
                await self._limiter.close()  # in memory, so that it never suspends


class AsyncOutbound(_Outbound[Request, Response]):
    """What a transport for async clients does."""

    def _use(self, transport: Any) -> _Steps:
        self._transport = transport or self._client.library.AsyncHTTPTransport()
        return _Steps(
            send=self._transport.handle_async_request,
            close=_close,
            charge=lambda block: block.__aenter__(),
            pause=lambda block, *pause: block.pause(*pause),
            sleep=anyio.sleep,
        )

    async def handle_async_request(self, request: Request) -> Response:
        """Send a request when its key has room, and return the response after its head."""
        response: Response = await self._handle(request)
        return response

    async def aclose(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        await self._end(self._transport.aclose)


class SyncOutbound(_Outbound[Request, Response]):
    """What a transport for sync clients does."""

    def _use(self, transport: Any) -> _Steps:
        self._transport = transport or self._client.library.HTTPTransport()
        return _Steps(
            send=self._transport.handle_request,
            close=lambda response: response.close(),
            charge=lambda block: block.__enter__(),
            pause=lambda block, *pause: block.pause_here(*pause),
            sleep=lambda span_s: time.sleep(span_s),
        )

    def handle_request(self, request: Request) -> Response:
        """Send a request when its key has room, and return the response after its head."""
        response: Response = _completed(self._handle(request))
        return response

    def close(self) -> None:
        """Close the wrapped transport, and the limiter if it was created by this one."""
        _completed(self._end(self._transport.close))


async def _close(response: Any) -> None:
    """Close a response, though the caller is cancelled."""
    with anyio.CancelScope(shield=True):
        await response.aclose()


async def _awaited(answer: Any) -> Any:
    """Return the result of a step, which is awaited if it does not block."""
    if isawaitable(answer):
        return await answer
    return answer


def _completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose steps block and never suspend, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a step of a sync transport has suspended")  # none does
