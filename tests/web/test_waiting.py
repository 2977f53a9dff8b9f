"""A request that may wait stands in line instead of being refused."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, everyone, header
from slidegate.events import Observer, Outcome
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, Slow, call, hello, scope_of, statuses
from ..remote_stores import RemoteStore, SickStore, SlowStore
from ..virtual_time import VirtualTime, turns
from .limited import AT, limited, middleware_of


@pytest.fixture
async def virtual() -> VirtualTime:
    return VirtualTime()


def middleware(app: Any, virtual: VirtualTime, limits: str = "2/s", wait: str = "600ms", **options: Any) -> Any:
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    rule = Rule("*", limits, wait=wait, name="slow", **options)
    return RateLimitMiddleware(app, limiter=limiter, rules=[rule])


class Crowd:
    """Requests that come in an order, and what became of each, with the second."""

    def __init__(self, app: Any, virtual: VirtualTime) -> None:
        self.app = app
        self.virtual = virtual
        self.ended: list[tuple[int, int, float]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int = 1, **more: Any) -> None:
        for _ in range(count):
            self._tasks.append(asyncio.create_task(self._one(len(self._tasks), more)))
            await turns()

    async def _one(self, number: int, more: dict[str, Any]) -> None:
        answer = await call(self.app, **more)
        self.ended.append((number, answer.status, self.virtual.passed_s))

    async def all(self) -> list[tuple[int, int, float]]:
        await asyncio.gather(*self._tasks)
        return self.ended


async def test_a_rule_looks_on_at_requests_that_have_waited_as_at_others(virtual: VirtualTime) -> None:
    watched: list[int] = []

    def key(request: Request) -> str:
        watched.append(1)
        return "all"

    heard = RecordingObserver()
    limiter = Limiter(MemoryStore(clock=virtual.clock), observers=[heard])
    rules = [Rule("*", "2/s", wait="600ms", name="slow"), Rule("*", "3/hour", shadow=True, key=key, name="watched")]
    crowd = Crowd(RateLimitMiddleware(hello, limiter=limiter, rules=rules, headers=None), virtual)
    await crowd.come(2)
    virtual.clock.advance("500ms")
    await crowd.come(3)
    assert [status for _, status, _ in await crowd.all()].count(200) == 4
    assert len(watched) == 4, "who is refused is not looked at"
    assert heard.kinds.count("shadow_refused") == 1


@pytest.mark.parametrize("how", ["refund", "reset"])
async def test_units_that_are_handed_back_let_the_first_in_at_once(virtual: VirtualTime, how: str) -> None:
    app = middleware(hello, virtual, "1/h", wait="2h")
    held = await app.limiter.hit(PEER, "1/h", rule="slow")
    crowd = Crowd(app, virtual)
    await crowd.come()
    assert crowd.ended == []
    assert await (app.limiter.refund(held) if how == "refund" else app.limiter.reset(PEER))
    assert await crowd.all() == [(0, 200, 0.0)]


async def test_who_lacks_what_nobody_waits_for_is_refused_at_once(virtual: VirtualTime) -> None:
    rules = [Rule("*", "1/s", wait="5s", name="waits"), Rule("*", "1/h", name="hard", key=header("X-Key"))]
    app = RateLimitMiddleware(hello, limiter=Limiter(MemoryStore(clock=virtual.clock)), rules=rules)
    crowd = Crowd(app, virtual)
    await crowd.come(2, headers={"X-Key": "a"})
    await crowd.come(1, headers={"X-Key": "b"})
    assert sorted(await crowd.all()) == [(0, 200, 0.0), (1, 429, 0.0), (2, 200, 1.0)]


async def test_a_request_waits_in_the_queue_of_its_first_rule_alone_until_all_its_limits_have_room(
    virtual: VirtualTime,
) -> None:
    rules = [
        Rule("*", "2/s", wait="60s", name="all", key=everyone),
        Rule("*", "1/30s", wait="60s", name="own", key=header("X-Key")),
    ]
    app = RateLimitMiddleware(hello, limiter=Limiter(MemoryStore(clock=virtual.clock)), rules=rules)
    crowd = Crowd(app, virtual)
    for key in "abac":
        await crowd.come(headers={"X-Key": key})
    assert await crowd.all() == [(0, 200, 0.0), (1, 200, 0.0), (2, 200, 30.0), (3, 200, 30.0)]


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
    app = middleware(hello, virtual, "1/10s", wait="1h", wait_max=1)
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


everywhere = pytest.mark.parametrize("at", AT)


async def status_of(middleware: ASGIApp) -> int:
    return (await call(middleware)).status


@everywhere
async def test_a_request_waits_for_its_turn(at: str) -> None:
    middleware = limited(at, "2/50ms", limiter=Limiter(MemoryStore(clock=VirtualTime().clock)), wait="10s")
    assert await asyncio.gather(*(status_of(middleware) for _ in range(4))) == [200] * 4


@everywhere
async def test_no_more_wait_than_may_and_none_longer_than_it_may(at: str) -> None:
    middleware = limited(at, "1/hour", wait="10s")
    assert await statuses(middleware, 2) == [200, 429]
    short = limited(at, "1/100ms", limiter=Limiter(MemoryStore(clock=VirtualTime().clock)), wait="10s", wait_max=1)
    assert sorted(await asyncio.gather(*(status_of(short) for _ in range(3)))) == [200, 200, 429]


@pytest.mark.parametrize("cancelled", [False, True])
@everywhere
async def test_a_client_that_leaves_while_it_waits_is_charged_nothing(
    virtual: VirtualTime, at: str, cancelled: bool
) -> None:
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    middleware = limited(at, "1/10s", limiter=limiter, wait="1h", name="slow")
    assert await statuses(middleware, 1) == [200]
    gone = asyncio.Event()
    waiting = asyncio.ensure_future(middleware(scope_of(), channel(*_body(b""), last=gone), send_nothing))
    await asyncio.sleep(1)
    assert not waiting.done()
    _ = waiting.cancel() if cancelled else gone.set()
    (ended,) = await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 60)
    assert isinstance(ended, asyncio.CancelledError) if cancelled else ended is None
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
    crowd = Crowd(app, virtual)
    await crowd.come()
    dropped = asyncio.Event()
    attack = [
        asyncio.create_task(app(scope_of(), channel(*_body(b""), last=dropped), lambda message: asyncio.sleep(0)))
        for _ in range(100)
    ]
    await turns()
    dropped.set()
    await turns()
    await crowd.come()
    assert crowd.ended == [], "it waits"
    slow.goes_on.set()
    assert [ended[:2] for ended in await crowd.all()] == [(0, 200), (1, 200)]
    await asyncio.gather(*attack)
    assert limiter.store.permits_held() == 0


def _body(*pieces: bytes) -> list[Message]:
    return [{"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]} for piece in pieces]


async def test_a_wait_is_counted(virtual: VirtualTime) -> None:
    class Waits(Observer):
        def request(self, outcome: Outcome, /) -> None:
            heard.append((outcome.allowed, outcome.waited_us))

    heard: list[tuple[bool, int | None]] = []
    app = middleware(hello, virtual)
    app.limiter.observe(Waits())
    assert await statuses(app, 3) == [200, 200, 429]
    virtual.clock.advance("500ms")
    crowd = Crowd(app, virtual)
    await crowd.come()
    assert app.limiter.engine.queues.waiting == 1
    assert await crowd.all() == [(0, 200, 0.5)]
    assert app.limiter.engine.queues.waiting == 0
    assert heard == [(True, None), (True, None), (False, None), (True, 500_000)]


@pytest.mark.parametrize("at", AT)
async def test_who_waits_is_let_in_by_the_amount_that_is_changed_meanwhile(virtual: VirtualTime, at: str) -> None:
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    app = limited(at, "2/10s", limiter=limiter, wait="1h", name="slow")
    crowd = Crowd(app, virtual)
    await crowd.come()
    await asyncio.sleep(4)
    await crowd.come(3)
    await asyncio.sleep(1)
    await limiter.override("slow", "1/10s", duration="12s")  # until the 17th second
    await asyncio.sleep(2)
    assert [number for number, *_ in crowd.ended] == [0, 1]
    assert await crowd.all() == [(0, 200, 0.0), (1, 200, 4.0), (2, 200, 14.0), (3, 200, 17.0)]
    await limiter.override("slow", "4/10s", duration="12s")
    answer = await call(app)
    assert (answer.status, answer.headers["ratelimit-policy"]) == (200, '"slow";q=4;w=10')


async def test_a_wait_ends_as_soon_as_an_override_lets_a_request_in_or_leaves_it_no_hope(virtual: VirtualTime) -> None:
    app = middleware(hello, virtual, "2/10s", wait="8s")
    crowd = Crowd(app, virtual)
    await crowd.come()
    await asyncio.sleep(4)
    await crowd.come(3)
    await asyncio.sleep(1)
    await app.limiter.override("slow", "3/10s", duration="1h")
    await turns()
    assert crowd.ended == [(0, 200, 0.0), (1, 200, 4.0), (2, 200, 5.0)]
    await app.limiter.override("slow", "1/10s", duration="1s")
    assert (await crowd.all())[3:] == [(3, 429, 5.0)], "with the refusal, four units have to leave until there is room"


@pytest.mark.parametrize("fair", [None, header("X-Tenant")])
async def test_who_waits_for_a_permit_gets_one_that_an_override_adds(virtual: VirtualTime, fair: Any) -> None:
    slow = Slow()
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    rule = Rule("*", concurrency=2, wait="1h", fair=fair, name="held")
    crowd = Crowd(RateLimitMiddleware(slow, limiter=limiter, rules=[rule]), virtual)
    await crowd.come(5, headers={"X-Tenant": "ann"})
    await limiter.override("held", "3", duration="1h")
    await turns()
    assert limiter.store.permits_held() == 3
    await limiter.restore("held")
    await asyncio.sleep(1)
    assert limiter.store.permits_held() == 3
    slow.goes_on.set()
    assert {status for _, status, _ in await crowd.all()} == {200}
    assert limiter.store.permits_held() == 0


async def test_a_plan_that_a_function_returned_stays_whatever_is_changed_meanwhile(virtual: VirtualTime) -> None:
    limiter = Limiter(MemoryStore(clock=virtual.clock))
    plans = Rule("*", lambda request: "1/10s", fallback_limits="9/10s", wait="1h", name="plan")
    rules = [plans, Rule("*", "9/10s", name="other")]
    crowd = Crowd(RateLimitMiddleware(hello, limiter=limiter, rules=rules), virtual)
    await crowd.come(2)
    await limiter.override("other", "5/10s", duration="1h")
    assert await crowd.all() == [(0, 200, 0.0), (1, 200, 10.0)]
