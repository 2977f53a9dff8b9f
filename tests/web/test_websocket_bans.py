"""An open websocket whose client is banned is closed, also if it says nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from fastapi import FastAPI, WebSocket
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from slidegate import BanPolicy, Limiter, MessageLimits, RateLimitMiddleware
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.web import websockets as sockets

from ..asgi import scope_of
from ..redis_servers import needs_redis
from .test_servers import BOUND_S, SERVERS, Serve, serving


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one look follow the other at once; how long they are apart is not what is tested here."""
    monkeypatch.setattr(sockets, "EVERY_S", 0)


class Connection:
    """An idle client behind a server that keeps ASGI's rules: whoever closes, the application hears of the end."""

    def __init__(self, client: str = "203.0.113.9", *, hangs: bool = False, **headers: str) -> None:
        self.scope = scope_of("/", type="websocket", client=(client, 1), headers=headers)
        self.came: list[Message] = []
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.coming.put_nowait({"type": "websocket.connect"})
        self.hangs = hangs
        self.accepted = asyncio.Event()

    async def send(self, message: Message) -> None:
        self.came.append(message)
        if message["type"] == "websocket.accept":
            self.accepted.set()
        elif message["type"] == "websocket.close":
            if self.hangs:
                await asyncio.sleep(BOUND_S)  # who does not read keeps the server waiting
            self.coming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def run(self, app: Any) -> Connection:
        await app(self.scope, self.coming.get, self.send)
        return self

    @property
    def codes(self) -> list[int]:
        return [message["code"] for message in self.came if message["type"] == "websocket.close"]


async def listener(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and wait for the end."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        pass
    scope["state"] = {"ended": message["code"]}


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)


async def some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def questions(limiter: Limiter) -> list[int]:
    """Return a list to which each question about bans adds about how many keys it was."""
    asked: list[int] = []
    find = limiter.store.bans.find

    def counting(subjects: Sequence[Any]) -> Any:
        asked.append(len(subjects))
        return find(subjects)

    limiter.store.bans.find = counting  # type: ignore[method-assign]
    return asked


async def opened(middleware: Any, *connections: Connection) -> list[asyncio.Task[Connection]]:
    tasks = [asyncio.create_task(connection.run(middleware)) for connection in connections]
    for connection in connections:
        await connection.accepted.wait()
    return tasks


@pytest.mark.parametrize("options", [{}, {"messages": MessageLimits("9/second", key="client")}])
async def test_an_idle_websocket_is_closed_with_1008_when_its_client_is_banned(options: Any) -> None:
    limiter = Limiter()
    middleware = RateLimitMiddleware(listener, rules=[], limiter=limiter, **options)
    idle, other = Connection(), Connection("198.51.100.1")
    async with asyncio.timeout(BOUND_S):
        ends, stays = await opened(middleware, idle, other)
        await limiter.ban("203.0.113.0/24", "1h")
        await ends
        assert (idle.codes, idle.scope["state"]["ended"]) == ([1008], 1008)
        assert not stays.done()
        other.coming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await stays
        assert other.codes == []


async def test_a_websocket_that_only_sends_is_closed_too() -> None:
    limiter = Limiter()
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

    connection = Connection()
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(RateLimitMiddleware(sender, rules=[], limiter=limiter), connection)
        await limiter.ban("203.0.113.9", "1h")
        await ends
    assert seen == ["banned"]
    assert connection.codes == [1008]


async def test_messages_ask_no_store_for_bans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "EVERY_S", 3_600)

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": message["text"]})

    limiter, connection = Limiter(), Connection()
    policy = BanPolicy("3/10m", "1h")
    asked = questions(limiter)
    (ends,) = await opened(RateLimitMiddleware(echo, rules=[], limiter=limiter, bans=policy), connection)
    for _ in range(10):
        connection.coming.put_nowait({"type": "websocket.receive", "text": "hello"})
    connection.coming.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await ends
    assert [message["type"] for message in connection.came].count("websocket.send") == 10
    assert asked == []


@pytest.mark.parametrize("store", ["lmdb", pytest.param("redis", marks=needs_redis)])
async def test_a_ban_that_another_worker_makes_closes_it(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if store == "lmdb":
        limiter, other = (Limiter(LmdbStore(tmp_path)) for _ in range(2))
    else:
        server = request.getfixturevalue("server")
        server.command("FLUSHALL")
        limiter, other = (Limiter(RedisStore(server.url), deadline="5s") for _ in range(2))
    async with limiter, other:
        idle = Connection()
        async with asyncio.timeout(BOUND_S):
            (ends,) = await opened(RateLimitMiddleware(listener, rules=[], limiter=limiter), idle)
            await other.ban("203.0.113.9", "1h")
            await ends
        assert idle.codes == [1008]


async def test_one_question_is_about_many_and_exactly_the_banned_of_them_are_closed() -> None:
    limiter = Limiter()
    middleware = RateLimitMiddleware(listener, rules=[], limiter=limiter)
    asked = questions(limiter)
    connections = [Connection(f"198.51.{number // 250}.{number % 250}") for number in range(600)]
    async with asyncio.timeout(BOUND_S):
        tasks = await opened(middleware, *connections)
        asked.clear()
        await until(lambda: len(asked) >= 6)
        assert max(asked) == 2 * sockets.AT_ONCE, "the key and the address of each client"
        assert sorted(asked[:3]) == sorted(asked[3:6]) == [2 * 88, 2 * 256, 2 * 256]
        banned = connections[7::100]
        for connection in banned:
            await limiter.ban(connection.scope["client"][0], "1h")
        await until(lambda: sum(task.done() for task in tasks) >= len(banned))
    assert [connection for connection in connections if connection.codes] == banned
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_takes_its_time_over_the_close_holds_nobody_up() -> None:
    limiter = Limiter()
    middleware = RateLimitMiddleware(listener, rules=[], limiter=limiter)
    slow, quick = Connection(hangs=True), Connection("198.51.100.1")
    async with asyncio.timeout(BOUND_S / 2):
        held, ends = await opened(middleware, slow, quick)
        await limiter.ban("203.0.113.9", "1h")
        await until(lambda: slow.codes)
        await limiter.ban("198.51.100.1", "1h")
        await ends
    assert (slow.codes, quick.codes) == ([1008], [1008])
    held.cancel()


async def test_a_look_that_fails_is_logged_and_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter()
    middleware = RateLimitMiddleware(listener, rules=[], limiter=limiter)
    find, failures = limiter.store.bans.find, iter(range(3))

    def failing(subjects: Sequence[Any]) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("no")
        return find(subjects)

    limiter.store.bans.find = failing  # type: ignore[method-assign]
    idle = Connection()
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(middleware, idle)
        await limiter.ban("203.0.113.9", "1h")
        await ends
    assert idle.codes == [1008]
    assert "not looked through" in caplog.text


async def test_a_websocket_that_is_not_accepted_or_has_ended_is_let_go_of() -> None:
    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close", "code": 4000})

    async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    for app in (refusing, leaving):
        limiter = Limiter()
        asked = questions(limiter)
        await Connection().run(RateLimitMiddleware(app, rules=[], limiter=limiter))
        gc.collect()
        await some_turns()
        asked.clear()
        await some_turns()
        assert asked == [], "nobody looks where nothing is open"


def test_under_trio_nobody_looks_and_all_else_works() -> None:
    async def main() -> list[Message]:
        waiting: list[Message] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]
        came: list[Message] = []

        async def receive() -> Message:
            return waiting.pop(0)

        async def send(message: Message) -> None:
            came.append(message)

        await RateLimitMiddleware(listener, rules=[])(scope_of(type="websocket"), receive, send)
        return came

    assert [message["type"] for message in anyio.run(main, backend="trio")] == ["websocket.accept"]


@pytest.mark.parametrize("serve", SERVERS)
def test_real_servers_close_it_and_tell_the_application(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # as it is in life
    limiter, ended = Limiter(), threading.Event()
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=[], limiter=limiter)])

    async def idle(socket: WebSocket) -> None:
        await socket.accept()
        async for _ in socket.iter_text():
            pass
        ended.set()

    app.websocket("/")(idle)
    with serving(serve, app) as host, connect(f"ws://{host}/") as client:
        began_s = time.monotonic()
        asyncio.run(limiter.ban("127.0.0.1/32", "1h"))
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=BOUND_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert ended.wait(BOUND_S)
        assert time.monotonic() - began_s < BOUND_S


@pytest.mark.parametrize("around", ["timeout", "wait_for", "task", "anyio", "task group", "two middlewares"])
async def test_whatever_the_application_waits_in_it_gets_a_disconnect_and_is_not_cancelled(around: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        message: Any = None
        if around == "timeout":
            async with asyncio.timeout(BOUND_S):
                message = await receive()
        elif around == "wait_for":
            message = await asyncio.wait_for(receive(), BOUND_S)
        elif around == "task":
            message = await asyncio.create_task(receive())  # type: ignore[arg-type]
        elif around == "anyio":
            with anyio.fail_after(BOUND_S):
                message = await receive()
        elif around == "task group":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.sleep, 0)
                message = await receive()
        else:
            message = await receive()
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        scope["state"] = {"ended": message, "cancelling": task.cancelling()}

    limiter = Limiter()
    middleware = RateLimitMiddleware(app, rules=[], limiter=limiter)
    outer = RateLimitMiddleware(middleware, rules=[], limiter=limiter) if around == "two middlewares" else middleware
    idle = Connection()
    async with asyncio.timeout(BOUND_S):
        (ends,) = await opened(outer, idle)
        await limiter.ban("203.0.113.9", "1h")
        await ends
    assert idle.codes == [1008]
    ended = {"type": "websocket.disconnect", "code": 1008, "reason": "banned"}
    assert idle.scope["state"] == {"ended": ended, "cancelling": 0}


async def test_an_application_that_is_cancelled_is_cancelled() -> None:
    middleware = RateLimitMiddleware(listener, rules=[], limiter=Limiter())
    idle = Connection()
    (ends,) = await opened(middleware, idle)
    ends.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ends
