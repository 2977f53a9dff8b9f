"""Websockets: refused at the handshake, closed at a limit of messages, and closed when their client is banned."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    MessageLimits,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    everyone,
)
from slidegate.core import StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.web import websockets

from ..asgi import PEER, scope_of, send_scope
from ..redis_servers import RedisServer, needs_redis
from ..remote_stores import RemoteStore
from ..virtual_time import turns
from .sockets import BYE, Client, Listener, opened, texts
from .test_servers import BOUND_S, SERVERS, Serve, serving


def around(app: Any, nested: int = 0, **options: Any) -> tuple[Any, Limiter]:
    """Return an application with middlewares around it, the innermost with some options, and the limiter of all."""
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(app, rules=[], limiter=limiter, **options)
    for _ in range(nested):
        app = RateLimitMiddleware(app, rules=[], limiter=limiter)
    return app, limiter


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text.upper())


def test_with_the_denial_extension_the_client_reads_the_whole_answer() -> None:
    app = Starlette(routes=[WebSocketRoute("/ws", echo)])
    app.add_middleware(RateLimitMiddleware, limits="3/hour")
    client = TestClient(app)
    for left in (2, 1, 0):
        with client.websocket_connect("/ws") as socket:
            assert (b"ratelimit", f'"default";r={left};t=3600'.encode()) in (socket.extra_headers or ())
            for _ in range(4):  # messages are not counted
                socket.send_text("hi")
                assert socket.receive_text() == "HI"
    with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/ws"):
        pass
    assert denied.value.status_code == 429
    assert denied.value.headers["retry-after"] == "3600"
    assert denied.value.json()["violated-policies"] == ["default"]


@pytest.mark.parametrize("extensions", [{}, None, {"tls": {}}])
async def test_without_the_extension_it_is_closed_before_accept(extensions: Any) -> None:
    listener = Listener()
    middleware = RateLimitMiddleware(listener, limits="9/hour", blocklist=Networks(["203.0.113.0/24"]))
    answer = await send_scope(middleware, scope_of("/ws", type="websocket", extensions=extensions))
    assert answer.messages == [{"type": "websocket.close", "code": 1008}]
    assert listener.heard == []


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("nested", [0, 1, 2])
async def test_the_eleventh_message_closes_with_1013_and_the_application_is_told(nested: int, strict: bool) -> None:
    """A strict server refuses the close codes of this kind: it is closed with 1000."""
    app, client = Listener(), Client(*texts(12), BYE, strict=strict)
    async with asyncio.timeout(BOUND_S):
        await client.run(around(app, nested, messages=MessageLimits("10/s"))[0])
    assert app.heard[:10] == texts(10)
    assert [message["code"] for message in app.heard[10:]] == [1013]
    assert client.closes == [(1000 if strict else 1013, "message limit exceeded")]
    assert client.coming.get_nowait() == texts(12)[11], "nothing is read after the close"


@pytest.mark.parametrize(("key", "expected"), [("connection", [3, 3, 3]), ("client", [3, 0, 3]), (everyone, [3, 0, 0])])
async def test_each_connection_counts_by_itself_or_all_of_a_client_or_of_a_key_together(
    key: Any, expected: list[int]
) -> None:
    app = Listener()
    middleware, _ = around(app, messages=MessageLimits("3/s", key=key, beyond="drop"))
    heard = []
    for address in ("203.0.113.1", "203.0.113.1", "203.0.113.2"):
        await Client(*texts(5), BYE, address=address).run(middleware)
        heard.append(len(app.heard) - 1)
    assert heard == expected


async def test_after_the_close_a_send_fails_as_on_any_closed_connection_and_a_close_does_nothing() -> None:
    seen: list[str] = []

    async def talkative(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        assert await socket.receive_text() == "m0"
        try:
            await send({"type": "websocket.send", "text": "still there?"})
            await receive()
            await socket.send_text("and now?")
        except WebSocketDisconnect:
            seen.append("disconnected")
        await send({"type": "websocket.close", "code": 1000})

    client = await Client(*texts(2), BYE).run(around(talkative, messages=MessageLimits("1/s"))[0])
    assert seen == ["disconnected"]
    assert client.kinds == ["accept", "send", "close"]


async def test_a_store_that_fails_is_not_held_against_the_client() -> None:
    class Away(RemoteStore):
        def hit(self, checks: Any, keys: Any = (), **line: Any) -> Any:
            if checks:
                raise StoreUnavailable("away")
            return super().hit(checks, keys, **line)

    limiter = Limiter(Away(), on_error="deny")
    limits = MessageLimits("9/hour", key="client", beyond="drop")
    middleware = RateLimitMiddleware(Listener(), rules=[], limiter=limiter, messages=limits, bans=BanPolicy("1/hour"))
    await Client(*texts(5), BYE).run(middleware)
    assert await limiter.banned(PEER) is None


async def test_a_handshake_that_is_refused_is_no_exception_where_a_server_checks_the_code_there_too() -> None:
    class Checking(Client):
        async def send(self, message: Message) -> None:
            if message.get("code") not in (1000, None):
                raise ValueError(f"invalid close code {message['code']}")
            await super().send(message)

    app = FastAPI()
    app.websocket("/", dependencies=[Depends(RateLimit("1/hour"))])(echo)
    for middleware in (around(app)[0], RateLimitMiddleware(app, limits="1/hour")):
        assert [(await Checking(BYE).run(middleware)).kinds for _ in range(2)] == [["accept"], ["close"]]


async def test_a_client_that_has_gone_is_closed_once_and_its_error_is_the_one_of_the_server() -> None:
    tried: list[int] = []

    class Left(Client):
        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.close":
                tried.append(message["code"])
                raise ConnectionResetError("the client has gone")

    with pytest.raises(ConnectionResetError, match="the client has gone"):
        await Left(*texts(3)).run(around(Listener(), messages=MessageLimits("1/hour"))[0])
    assert tried == [1013]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the bans of open websockets asked for again at once; how long two questions are apart is not tested."""
    monkeypatch.setattr(websockets, "EVERY_S", 0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)


def questions(limiter: Limiter) -> list[int]:
    """Return a list to which each question about bans adds about how many keys it was."""
    asked: list[int] = []
    find = limiter.store.bans.find

    def counting(keys: Sequence[Any]) -> Any:
        asked.append(len(keys))
        return find(keys)

    limiter.store.bans.find = counting  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("messages", [None, MessageLimits("9/second", key="client")])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize("idle", [False, True])
async def test_a_websocket_is_closed_with_1008_when_its_client_is_banned(
    idle: bool, nested: int, strict: bool, messages: Any, at_once: None
) -> None:
    middleware, limiter = around(Listener(), nested, messages=messages)
    banned, other = Client(strict=strict), Client(address="198.51.100.1")
    async with asyncio.timeout(BOUND_S):
        ends, stays = await opened(middleware, banned, other)
        await limiter.ban("203.0.113.0/24", "1h")
        if not idle:
            banned.coming.put_nowait({"type": "websocket.receive", "text": "hi"})
        await ends
        assert banned.closes == [(1000 if strict else 1008, "banned")]
        assert banned.scope["state"]["ended"]["code"] == 1008
        assert not stays.done()
        other.coming.put_nowait(BYE)
        await stays
        assert other.closes == []


async def test_messages_ask_no_store_for_bans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "EVERY_S", 3_600)
    app = Listener()
    middleware, limiter = around(app, bans=BanPolicy("3/10m", "1h"))
    asked = questions(limiter)
    await Client(*texts(10), BYE).run(middleware)
    assert (len(app.heard), asked) == (11, [])


@needs_redis
async def test_a_ban_that_another_worker_makes_closes_it(server: RedisServer, at_once: None) -> None:
    server.command("FLUSHALL")
    limiter, other = (Limiter(RedisStore(server.url), deadline="5s") for _ in range(2))
    async with limiter, other:
        idle = Client()
        async with asyncio.timeout(BOUND_S):
            (ends,) = await opened(RateLimitMiddleware(Listener(), rules=[], limiter=limiter), idle)
            await other.ban(PEER, "1h")
            await ends
        assert idle.closes == [(1008, "banned")]


async def test_one_question_is_about_many_and_exactly_the_banned_of_them_are_closed(at_once: None) -> None:
    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        await Listener()(scope, receive, send)

    middleware, limiter = around(listening)
    asked = questions(limiter)
    clients = [Client(address=f"198.51.{number // 250}.{number % 250}") for number in range(600)]
    async with asyncio.timeout(BOUND_S):
        tasks = await opened(middleware, *clients)
        asked.clear()
        await until(lambda: len(asked) >= 6)
        assert max(asked) == 2 * websockets.AT_ONCE, "the key and the address of each client"
        assert sorted(asked[:3]) == sorted(asked[3:6]) == [2 * 88, 2 * 256, 2 * 256]
        banned = clients[7::100]
        for client in banned:
            await limiter.ban(client.scope["client"][0], "1h")
        await until(lambda: sum(task.done() for task in tasks) >= len(banned))
    assert [client for client in clients if client.closes] == banned
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_takes_its_time_over_the_close_holds_nobody_up(at_once: None) -> None:
    middleware, limiter = around(Listener())
    slow, quick = Client(hangs=True), Client(address="192.0.2.1")
    async with asyncio.timeout(BOUND_S):
        (held,) = await opened(middleware, slow)
        (ends,) = await opened(RateLimitMiddleware(Listener(), rules=[], limiter=limiter), quick)
        await limiter.ban(PEER, "1h")
        await until(lambda: slow.closes)
        await limiter.ban("192.0.2.1", "1h")
        await ends
    assert (slow.closes, quick.closes) == ([(1008, "banned")], [(1008, "banned")])
    held.cancel()


async def test_a_question_that_fails_is_logged_and_followed_by_another(
    caplog: pytest.LogCaptureFixture, at_once: None
) -> None:
    middleware, limiter = around(Listener())
    find, failures = limiter.store.bans.find, iter(range(3))

    def failing(keys: Sequence[Any]) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("no")
        return find(keys)

    limiter.store.bans.find = failing  # type: ignore[method-assign]
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(middleware, Client())
        await limiter.ban(PEER, "1h")
        assert (await ends).closes == [(1008, "banned")]
    assert "checking open websockets for bans failed" in caplog.text


@pytest.mark.parametrize("does", [{"type": "websocket.close", "code": 4000}, {"type": "websocket.accept"}])
async def test_a_websocket_that_is_not_accepted_or_has_ended_is_forgotten(does: Message, at_once: None) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(does)

    middleware, limiter = around(app)
    asked = questions(limiter)
    await Client().run(middleware)
    gc.collect()
    for _ in range(2):
        asked.clear()
        await turns(50)
    assert asked == []


async def test_a_websocket_that_only_sends_is_closed_too(at_once: None) -> None:
    seen: list[str] = []

    async def sender(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "text": "more"})
                await asyncio.sleep(0)
        except OSError as error:
            seen.append(str(error))

    middleware, limiter = around(sender)
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(middleware, Client())
        await limiter.ban(PEER, "1h")
        assert (await ends).closes == [(1008, "banned")]
    assert seen == ["banned"]


def test_under_trio_a_ban_closes_nothing_that_is_open_and_all_else_works() -> None:
    async def main() -> list[str]:
        sent: list[Message] = [{"type": "websocket.connect"}, BYE]
        came: list[str] = []

        async def receive() -> Message:
            return sent.pop(0)

        async def send(message: Message) -> None:
            came.append(message["type"])

        await RateLimitMiddleware(Listener(), rules=[])(scope_of(type="websocket"), receive, send)
        return came

    assert anyio.run(main, backend="trio") == ["websocket.accept"]


@pytest.mark.parametrize("serve", SERVERS)
def test_real_servers_close_it_and_tell_the_application(serve: Serve) -> None:
    limiter, ended = Limiter(), threading.Event()
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=[], limiter=limiter)])

    async def idle(socket: WebSocket) -> None:
        await socket.accept()
        async for _ in socket.iter_text():
            pass
        ended.set()

    app.websocket("/")(idle)
    with serving(serve, app) as host, connect(f"ws://{host}/") as client:
        asyncio.run(limiter.ban("127.0.0.1/32", "1h"))
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=BOUND_S)
        assert closed.value.rcvd.code == 1008
        assert ended.wait(BOUND_S)


async def in_a_task(receive: Receive) -> Message:
    return await asyncio.create_task(receive())  # type: ignore[arg-type]


async def beside_a_task_group(receive: Receive) -> Message:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 0)
        return await receive()


WAITS: list[Callable[[Receive], Any]] = [
    in_a_task,
    beside_a_task_group,
    lambda receive: asyncio.wait_for(receive(), BOUND_S),
    lambda receive: receive(),
]


@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize("wait", WAITS)
async def test_whatever_the_application_waits_in_it_gets_a_disconnect_and_is_not_cancelled(
    wait: Callable[[Receive], Any], nested: int, at_once: None
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        message = await wait(receive)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        scope["state"] = {"ended": message, "cancelling": task.cancelling()}

    middleware, limiter = around(app, nested)
    idle = Client()
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(middleware, idle)
        await limiter.ban(PEER, "1h")
        await ends
    assert idle.closes == [(1008, "banned")]
    ended = {"type": "websocket.disconnect", "code": 1008, "reason": "banned"}
    assert idle.scope["state"] == {"ended": ended, "cancelling": 0}


async def test_an_application_that_is_cancelled_is_cancelled() -> None:
    (ends,) = await opened(around(Listener())[0], Client())
    ends.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends
