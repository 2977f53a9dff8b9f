"""A request that may wait stands in line instead of being refused."""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.testing import FakeClock
from slidegate.web.waiting import Peeked

from ..asgi import PEER, Slow, call, hello, scope_of, statuses
from ..remote_stores import RemoteStore, SickStore, SlowStore
from ..virtual_time import VirtualTime, turns
from .limited import AT, limited, middleware_of
from .middlewares import Listener


@pytest.fixture
async def virtual() -> VirtualTime:
    return VirtualTime()


def channel(*messages: Message, last: asyncio.Event | None = None) -> Receive:
    """Return a channel that has some messages, and a disconnect at last, when an event is set."""
    queue = list(messages)

    async def receive() -> Message:
        if not queue:
            await (last or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        return queue.pop(0)

    return receive


async def send_nothing(message: Message) -> None:
    raise AssertionError(f"nothing should be sent, but {message}")


class Losing:
    """A server that hands a message out slowly, and has lost it where its reader is cancelled meanwhile."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.heard = b""
        self.lost = 0

    async def receive(self) -> Message:
        taken = self.messages.pop(0) if self.messages else None
        try:
            await asyncio.sleep(0.05 if taken else 3_600)
        except asyncio.CancelledError:
            self.lost += taken is not None
            raise
        assert taken is not None
        return taken

    async def send(self, message: Message) -> None:
        self.heard += message.get("body") or message.get("text", "").encode()


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("at", ["window", "place", "endpoint"])
async def test_a_server_that_loses_messages_when_a_read_is_cancelled_loses_none(at: str, kind: str) -> None:
    async def read(request: Any) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    async def talk(socket: WebSocket) -> None:
        await limit.check(socket)
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    options: Any = {"concurrency": 1} if at == "place" else {"limits": "1/20ms"}
    limit = RateLimit(**options, wait="10s") if at == "endpoint" else RateLimit("99/s")
    rules = [] if at == "endpoint" else [Rule("*", **options, wait="10s")]
    app = Starlette(routes=[Route("/", limit(read), methods=["POST"]), WebSocketRoute("/", talk)])
    middleware = RateLimitMiddleware(app, rules=rules)
    come: dict[str, list[Message]] = {
        "http": _body(b"a", b"b"),
        "websocket": [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "ab"}],
    }
    servers = [Losing(*come[kind]) for _ in range(4)]
    async with asyncio.timeout(30):
        await asyncio.gather(
            *(middleware(scope_of("/", "POST", type=kind), server.receive, server.send) for server in servers)
        )
    assert [(server.heard, server.lost) for server in servers] == [(b"ab", 0)] * 4


async def test_a_clock_that_steps_back_while_a_request_waits_lets_nobody_in_too_early() -> None:
    ahead_us = 0
    virtual = VirtualTime()
    limiter = Limiter(MemoryStore(clock=lambda: virtual.clock() + ahead_us))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "2/100s", wait="200s", name="slow")])
    assert await statuses(app, 2) == [200, 200]
    ahead_us = 99_800_000
    waiting = asyncio.create_task(call(app))
    await turns()
    ahead_us = 10_000_000  # by the store's time the first two leave in 90 s
    done, _ = await asyncio.wait([waiting], timeout=5)
    waiting.cancel()
    assert not done, "three within 100 s of the store's time"


@pytest.mark.parametrize("at", ["rule", "decorator"])
async def test_an_exception_of_the_store_while_a_request_waits_comes_as_it_is(at: str, virtual: VirtualTime) -> None:
    store = SickStore(virtual.clock, inline=True)
    app = limited(at, "1/10s", limiter=Limiter(store), wait="1m")
    assert await statuses(app, 1) == [200]
    waiting = asyncio.create_task(call(app))
    await turns()
    store.error = ConfigurationError("no such store")
    with pytest.raises(ConfigurationError, match="no such store"):
        await waiting


async def test_a_client_that_leaves_in_the_middle_of_its_body_stands_in_line_no_more(virtual: VirtualTime) -> None:
    rule = Rule("*", "1/10s", wait="1h", wait_max=1)
    app = RateLimitMiddleware(hello, limiter=Limiter(MemoryStore(clock=virtual.clock)), rules=[rule])
    assert await statuses(app, 1) == [200]
    messages = channel({"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.disconnect"})
    waiting = asyncio.create_task(app(scope_of("/", "POST"), messages, send_nothing))
    await turns()
    assert await statuses(app, 1) == [200]
    assert waiting.done()


async def test_a_client_that_leaves_while_the_store_admits_its_request_is_charged_nothing(virtual: VirtualTime) -> None:
    store, answers, gone = RemoteStore(virtual.clock), asyncio.Event(), asyncio.Event()

    async def later(question: Any, *arguments: Any) -> Any:
        await answers.wait()
        return question(*arguments)

    store.answer = later  # type: ignore[method-assign]
    limiter = Limiter(store, deadline="60s")
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "1/10s", wait="1h", name="slow")])
    answers.set()
    assert await statuses(app, 1) == [200]
    waiting = asyncio.create_task(app(scope_of(), channel(*_body(b""), last=gone), send_nothing))
    await asyncio.sleep(1)
    answers.clear()
    await asyncio.sleep(10)
    gone.set()
    await turns()
    answers.set()
    await waiting
    assert (await limiter.peek(PEER, "1/10s", rule="slow")).allowed


class Underway:
    """An application that never answers, and says when it has begun."""

    begun = False

    def __await__(self) -> Generator[None, None, None]:
        self.begun = True
        while True:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self


async def test_a_request_that_is_closed_awaits_nothing_and_gives_its_permit_back() -> None:
    """As a server does that ends its event loop with requests under way."""
    store, app = SlowStore(FakeClock()), Underway()
    limiter = Limiter(store)  # type: ignore[arg-type]
    request: Any = RateLimitMiddleware(app, limiter=limiter, rules=[Rule("*", concurrency=1)])(
        scope_of(), channel(), send_nothing
    )

    async def go_on() -> None:
        answer = request.send(None)
        if answer is not None:  # a future; the request goes on when it is done
            answer._asyncio_future_blocking = False
            await asyncio.wait([answer])

    while not app.begun:
        await go_on()
    assert store.permits_held() == 1
    try:
        request.close()
    except RuntimeError:
        with suppress(StopIteration, GeneratorExit):  # nothing of it is left to the garbage collector
            while True:
                await go_on()
        raise
    await turns()
    assert store.permits_held() == 0


async def test_a_request_that_waits_for_a_permit_goes_on_as_soon_as_one_is_returned(virtual: VirtualTime) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.05)
        await hello(scope, receive, send)

    limiter = Limiter(MemoryStore(clock=virtual.clock))
    middleware = RateLimitMiddleware(app, limiter=limiter, rules=[Rule("*", concurrency=1, wait="5s")])
    assert [one.status for one in await asyncio.gather(*(call(middleware) for _ in range(3)))] == [200] * 3
    assert virtual.passed_s == pytest.approx(0.15)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("at", AT)
async def test_a_client_that_leaves_while_it_waits_is_charged_nothing(
    virtual: VirtualTime, at: str, cancelled: bool
) -> None:
    ear = Listener()
    limiter = Limiter(MemoryStore(clock=virtual.clock), observers=[ear])
    middleware = limited(at, "1/10s", limiter=limiter, wait="1h", name="slow")
    assert await statuses(middleware, 1) == [200]
    gone = asyncio.Event()
    waiting = asyncio.ensure_future(middleware(scope_of(), channel(*_body(b""), last=gone), send_nothing))
    await asyncio.sleep(1)
    assert not waiting.done()
    _ = waiting.cancel() if cancelled else gone.set()
    (ended,) = await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 60)
    assert isinstance(ended, asyncio.CancelledError) if cancelled else ended is None
    if at == "rule":
        assert [(one.allowed, one.ended) for one in ear.outcomes] == [(True, "success"), (False, "cancelled")]
    await asyncio.sleep(9)
    assert (await limiter.peek(PEER, "1/10s", 0, rule="slow")).remaining == 1


@pytest.mark.parametrize("again", [False, True])
async def test_a_body_is_there_after_two_limits_waited_at_once(again: bool) -> None:
    """Also where one of them was given a request of its own, made of the same channel."""
    one, other = RateLimit("1/50ms", wait="10s", name="one"), RateLimit("1/60ms", wait="10s", name="other")

    async def page(request: Any) -> Response:
        asked = Request(request.scope, request.receive) if again else request
        await asyncio.gather(one.check(request), other.check(asked))
        return PlainTextResponse(await asked.body())

    middleware = middleware_of(Starlette(routes=[Route("/", page, methods=["POST"])]), Limiter())
    servers = [Losing(*_body(b"a", b"b")) for _ in range(2)]
    posts = (middleware(scope_of(method="POST"), server.receive, server.send) for server in servers)
    await asyncio.wait_for(asyncio.gather(*posts), 60)
    assert [server.heard for server in servers] == [b"ab", b"ab"]


async def test_connections_that_were_opened_and_dropped_keep_nobody_out(virtual: VirtualTime) -> None:
    slow = Slow()
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    app = RateLimitMiddleware(slow, limiter=limiter, rules=[Rule("*", concurrency=1, key=everyone, wait="30s")])
    first = asyncio.create_task(call(app))
    await turns()
    dropped = asyncio.Event()
    attack = [
        asyncio.create_task(app(scope_of(), channel(*_body(b""), last=dropped), lambda message: asyncio.sleep(0)))
        for _ in range(100)
    ]
    await turns()
    dropped.set()
    await turns()
    second = asyncio.create_task(call(app))
    await turns()
    assert not second.done(), "it waits"
    slow.goes_on.set()
    assert [(await one).status for one in (first, second)] == [200, 200]
    await asyncio.gather(*attack)
    assert limiter.store.permits_held() == 0


def _body(*pieces: bytes) -> list[Message]:
    return [{"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]} for piece in pieces]


async def test_a_channel_that_fails_while_a_request_waits_fails_for_the_application() -> None:
    async def broken() -> Message:
        raise OSError("the connection is gone")

    ahead = Peeked(broken)
    ahead.begin()
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(ahead(), 60)


@pytest.mark.parametrize(("kind", "most"), [("http.request", 64), ("websocket.receive", 1)])
async def test_little_is_read_while_a_request_waits_and_the_application_gets_it(kind: str, most: int) -> None:
    read = 0

    async def endless() -> Message:
        nonlocal read
        read += 1
        return {"type": kind, "number": read, "body": b"x" * 1_024, "more_body": True}

    ahead = Peeked(endless)
    ahead.begin()
    await turns(200)
    assert 1 <= read <= most
    assert [(await ahead())["number"] for _ in range(100)] == [*range(1, 101)]
