"""A request that may wait stands in line instead of being refused; permits are shared fairly among tenants."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

from slidegate import ConfigurationError, Limiter, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import Bucket, Concurrency
from slidegate.testing import FakeClock
from slidegate.web.waiting import Peeked

from ..asgi import Slow, call, scope_of, statuses
from ..questions import hit_all
from ..redis_servers import AT_REDIS, BOUND_S
from ..remote_stores import SickStore, SlowStore
from ..virtual_time import VirtualTime, turns
from .limited import limited, starlette
from .stage import Stage

FAIR = 'key=everyone, wait="30s", fair=header("X-Tenant"), name="held"'


@pytest.fixture
async def virtual() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
async def stage(virtual: VirtualTime, tmp_path: Path) -> AsyncIterator[Stage]:
    async with Stage(virtual, tmp_path) as made:
        yield made


class Losing:
    """A server that hands a message out slowly, and has lost it where its reader is cancelled meanwhile."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.received = b""
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
        self.received += message.get("body") or message.get("text", "").encode()


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("at", ["window", "permit", "endpoint"])
async def test_a_server_that_loses_messages_when_a_read_is_cancelled_loses_none(at: str, kind: str) -> None:
    async def read(request: Any) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    async def talk(socket: WebSocket) -> None:
        await limit.check(socket)
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    options: Any = {"concurrency": 1} if at == "permit" else {"limits": "1/20ms"}
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
    assert [(server.received, server.lost) for server in servers] == [(b"ab", 0)] * 4


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


async def test_a_request_that_is_closed_awaits_nothing_and_gives_its_permit_back() -> None:
    """As a server does that ends its event loop with requests under way."""
    store, app = SlowStore(FakeClock()), Slow()
    middleware: Any = RateLimitMiddleware(app, limiter=Limiter(store), rules=[Rule("*", concurrency=1)])  # type: ignore[arg-type]
    request: Any = asyncio.create_task(middleware(scope_of(), anyio.sleep_forever, None))
    await turns()
    assert (app.entered, store.permits_held()) == (1, 1)
    request.get_coro().close()
    await turns()
    assert store.permits_held() == 0
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def test_a_request_that_is_cancelled_as_it_hands_its_permit_back_is_read_no_more(virtual: VirtualTime) -> None:
    store, app, reading = SlowStore(virtual.clock), Slow(), set[int]()
    middleware = RateLimitMiddleware(app, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="10s")])

    async def visit(number: int) -> None:
        async def receive() -> Message:
            reading.add(number)
            try:
                return await anyio.sleep_forever()  # type: ignore[return-value]
            finally:
                reading.remove(number)

        await middleware(scope_of(), receive, anyio.sleep_forever)

    tasks = [asyncio.create_task(visit(number)) for number in range(2)]
    await asyncio.sleep(1)
    assert (app.entered, reading) == (1, {1})
    tasks[0].cancel()
    await asyncio.sleep(1)
    tasks[1].cancel()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await turns()
    assert (app.entered, reading, store.permits_held()) == (2, set(), 0)


@pytest.mark.parametrize("again", [False, True])
async def test_a_body_is_there_after_two_limits_waited_at_once(again: bool) -> None:
    """Also where one of them was given a request of its own, made of the same channel."""
    one, other = RateLimit("1/50ms", wait="10s", name="one"), RateLimit("1/60ms", wait="10s", name="other")

    async def page(request: Any) -> Response:
        own_request = Request(request.scope, request.receive) if again else request
        await asyncio.gather(one.check(request), other.check(own_request))
        return PlainTextResponse(await own_request.body())

    middleware = RateLimitMiddleware(starlette(page), rules=[], limiter=Limiter())
    servers = [Losing(*_body(b"a", b"b")) for _ in range(2)]
    posts = (middleware(scope_of(method="POST"), server.receive, server.send) for server in servers)
    await asyncio.wait_for(asyncio.gather(*posts), 60)
    assert [server.received for server in servers] == [b"ab", b"ab"]


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


# -- permits that are shared fairly ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instant", range(6))
async def test_a_permit_for_a_waiter_that_is_cancelled_in_that_instant_goes_to_the_next(
    stage: Stage, instant: int
) -> None:
    come = [f"come GET / X-Tenant={tenant}" for tenant in "abc"]
    await stage.play(f'rule "/", concurrency=1, {FAIR}', "slow", *come)
    stage.under_way.pop()[1].set()
    await turns(instant)
    assert await stage.play("cancel 1", "inside") == ["", "c"]
    assert await stage.play("end", "ended") == ["", "0: 200 at 0s\n1: cancelled at 0s\n2: 200 at 0s"]
    queues = stage.limiter.engine.queues
    assert (queues._permits, queues.waiting) == ({}, 0)


async def test_who_becomes_first_by_a_permit_of_another_asks_although_nobody_here_hands_one_back(stage: Stage) -> None:
    await stage.play("site remote=True", f'rule "/", concurrency=2, {FAIR}', "slow")
    elsewhere = await hit_all(Limiter(stage.remote.inner), [(Bucket("held", (Concurrency(2),)), "everyone", 1)])
    await stage.play("stalls", "come GET / X-Tenant=big")
    stage.remote.hangs = False  # who comes now is answered first
    await stage.play("come GET / X-Tenant=big", "come GET / X-Tenant=small", "recovers")
    assert await stage.play("inside") == ["big"]
    assert stage.remote.inner.refund(elsewhere.begin_refund()) is True
    assert await stage.play("sleep 1s", "inside") == ["", "big small"]


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_every_store_hands_permits_out_fairly_and_those_that_a_change_adds(url: str, tmp_path: Path) -> None:
    def state() -> tuple[int, list[str]]:
        return stage.limiter.engine.queues.waiting, sorted(tenant for tenant, _ in stage.under_way)

    async def until(waiting: int, *tenants: str) -> None:
        while state() != (waiting, [*tenants]):  # noqa: ASYNC110 - a store answers late
            await asyncio.sleep(0.01)

    in_real_time: Any = SimpleNamespace(passed_s=0.0)
    async with asyncio.timeout(BOUND_S), Stage(in_real_time, tmp_path) as stage:
        stage.limiter = Limiter.from_url(url, deadline="20s")
        await stage.play(f'rule "/", concurrency=2, {FAIR}', "slow", "come GET / X-Tenant=big times=4")
        await until(2, "big", "big")
        await stage.play("come GET / X-Tenant=small")
        await until(3, "big", "big")
        await stage.play("end 0")
        await until(2, "big", "small")
        await stage.play("override held 3")
        await until(1, "big", "big", "small")
        await stage.play("end")
        await asyncio.gather(*stage.tasks)
        assert {status for *_, status in stage.ended} == {"200"}
        await stage.limiter.close()
