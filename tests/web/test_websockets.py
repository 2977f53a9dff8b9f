"""Websockets: refused at the handshake, closed at a limit of messages, and closed when their client is banned."""

import asyncio
import threading
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, WebSocket
from hypothesis import given
from hypothesis import strategies as st
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from slidegate import BanPolicy, Limiter, MemoryStore, MessageLimits, Networks, RateLimit, RateLimitMiddleware
from slidegate.core import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import PEER, scope_of, send_scope
from ..remote_stores import RemoteStore
from .sockets import BYE, Client, Listener, opened, texts
from .test_servers import BOUND_S, SERVERS, Serve, serving


class Site:
    """An application behind one or more middlewares of one limiter, whose clock the test advances."""

    def __init__(self, app: Any, nested: int = 0, **options: Any) -> None:
        self.clock = FakeClock(10**9)
        self.limiter = Limiter(MemoryStore(clock=self.clock))
        self.app = RateLimitMiddleware(app, limiter=self.limiter, **options)
        for number in range(nested):
            self.app = RateLimitMiddleware(self.app, limiter=self.limiter, name=f"outer{number}")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text.upper())


# -- the handshake -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extensions", [{}, None, {"tls": {}}])
async def test_without_the_extension_it_is_closed_before_accept(extensions: Any) -> None:
    listener = Listener()
    middleware = RateLimitMiddleware(listener, limits="9/hour", blocklist=Networks(["203.0.113.0/24"]))
    answer = await send_scope(middleware, scope_of("/ws", type="websocket", extensions=extensions))
    assert answer.messages == [{"type": "websocket.close", "code": 1008}]
    assert listener.received == []


async def test_a_handshake_that_is_refused_is_no_exception_where_a_server_checks_the_code_there_too() -> None:
    class Checking(Client):
        async def send(self, message: Message) -> None:
            if message.get("code") not in (1000, None):
                raise ValueError(f"invalid close code {message['code']}")
            await super().send(message)

    app = FastAPI()
    app.websocket("/", dependencies=[Depends(RateLimit("1/hour"))])(echo)
    for middleware in (RateLimitMiddleware(app), RateLimitMiddleware(app, limits="1/hour")):
        assert [(await Checking(BYE).run(middleware)).kinds for _ in range(2)] == [["accept"], ["close"]]


# -- messages ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from(["192.0.2.1", "192.0.2.2"]), st.integers(0, 4), st.integers(0, 2)), max_size=8)
)
def test_the_messages_of_all_websockets_of_a_client_are_admitted_as_the_limiter_admits(
    connections: list[tuple[str, int, int]],
) -> None:
    async def run() -> None:
        app = Listener()
        site = Site(app, messages=MessageLimits("5/2s"))
        model = Limiter(MemoryStore(clock=site.clock))
        for address, sent, later_s in connections:
            site.clock.advance(us=later_s * 1_000_000)
            client = await Client(*texts(sent), BYE, address=address).run(site.app)
            admitted = 0
            while admitted < sent and (await model.hit(address, "5/2s")).allowed:
                admitted += 1
            assert app.received[:-1] == texts(admitted)
            assert bool(client.closes) == (admitted < sent), "the first message that is refused ends the connection"

    asyncio.run(run())


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

    client = await Client(*texts(2), BYE).run(Site(talkative, messages=MessageLimits("1/s")).app)
    assert seen == ["disconnected"]
    assert client.kinds == ["accept", "send", "close"]


async def test_a_client_that_has_gone_is_closed_once_and_its_error_is_the_one_of_the_server() -> None:
    tried: list[int] = []

    class Left(Client):
        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.close":
                tried.append(message["code"])
                raise ConnectionResetError("the client has gone")

    with pytest.raises(ConnectionResetError, match="the client has gone"):
        await Left(*texts(3)).run(Site(Listener(), messages=MessageLimits("1/hour")).app)
    assert tried == [1013]


async def test_a_store_that_fails_closes_the_websocket_and_strikes_nobody() -> None:
    class Away(RemoteStore):
        def hit(self, checks: Any, keys: Any = (), **line: Any) -> Any:
            if checks:
                raise StoreUnavailable("away")
            return super().hit(checks, keys, **line)

    limiter = Limiter(Away(), on_error="deny")
    limits = MessageLimits("9/hour")
    middleware = RateLimitMiddleware(Listener(), limiter=limiter, messages=limits, bans=BanPolicy("1/hour"))
    assert (await Client(*texts(5), BYE).run(middleware)).closes == [(1013, "message limit exceeded")]
    assert await limiter.banned(PEER) is None


@pytest.mark.parametrize("off", [{"enabled": False}, {"allowlist": Networks([PEER])}, {}], ids=str)
async def test_whoever_is_let_through_uncounted_has_no_message_limit_and_no_ban(off: dict[str, Any]) -> None:
    app, client = Listener(), Client(*texts(5))
    site = Site(app, messages=MessageLimits("1/hour"), **off)
    await site.limiter.ban(PEER, "1h")
    if not off:
        await site.limiter.override("*", "off", "1h")
    (ends,) = await opened(site.app, client)
    site.clock.advance("10s")
    for message in (*texts(1), BYE):
        client.coming.put_nowait(message)
    await ends
    assert (app.received, client.closes) == ([*texts(5), *texts(1), BYE], [])


# -- bans --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comes", [True, False], ids=["a message comes", "a message goes"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize("messages", [None, MessageLimits("99/second")])
async def test_a_ban_closes_it_with_1008_at_a_message_when_the_last_look_is_ten_seconds_old(
    comes: bool, strict: bool, nested: int, messages: Any
) -> None:
    app = Listener()
    site = Site(app, nested, messages=messages)
    banned, other = Client(strict=strict), Client(address="198.51.100.1")
    ends, stays = await opened(site.app, banned, other)

    async def talk(client: Client) -> None:
        if comes:
            client.coming.put_nowait(texts(1)[0])
        else:
            await app.sends[client.scope["client"][0]]({"type": "websocket.send", "text": "hi"})
        await anyio.wait_all_tasks_blocked()

    await talk(banned)
    await site.limiter.ban("203.0.113.0/24", "1h")
    site.clock.advance("9s")
    if not (comes and messages):  # a counted message is a question, which a ban refuses at once
        await talk(banned)
        assert banned.closes == []
        site.clock.advance("1s")
    for client in (other, banned):
        with anyio.fail_after(BOUND_S):
            if comes or client is other:
                await talk(client)
            else:
                with pytest.raises(OSError, match="banned"):
                    await talk(client)
                client.coming.put_nowait(texts(1)[0])
    assert banned.closes == [(1000 if strict else 1008, "banned")]
    assert (await ends).scope["state"]["ended"] == {"type": "websocket.disconnect", "code": 1008, "reason": "banned"}
    assert not stays.done()
    other.coming.put_nowait(BYE)
    assert (await stays).closes == []


async def test_messages_look_for_a_ban_once_in_ten_seconds() -> None:
    looks: list[Any] = []

    class Counting(RemoteStore):
        def answer(self, question: Any, *arguments: Any) -> Any:
            if question == self.inner.bans.find:
                looks.append(arguments)
            return super().answer(question, *arguments)

    clock = FakeClock(10**9)
    limiter = Limiter(Counting(clock))
    limiter.engine.now_us = clock
    client = Client()
    (ends,) = await opened(RateLimitMiddleware(Listener(), limiter=limiter), client)
    for _ in range(30):
        clock.advance("1s")
        client.coming.put_nowait(texts(1)[0])
        await anyio.wait_all_tasks_blocked()
    client.coming.put_nowait(BYE)
    await ends
    assert len(looks) == 3


async def test_a_look_that_fails_closes_nothing_and_the_next_one_decides() -> None:
    site = Site(Listener())
    find, client = site.limiter.store.bans.find, Client()

    def failing(keys: Any) -> Any:
        raise StoreUnavailable("away")

    (ends,) = await opened(site.app, client)
    await site.limiter.ban(PEER, "1h")
    for answer in (failing, find):
        assert client.closes == []
        site.limiter.store.bans.find = answer  # type: ignore[method-assign]
        site.clock.advance("10s")
        client.coming.put_nowait(texts(1)[0])
        await anyio.wait_all_tasks_blocked()
    assert (await ends).closes == [(1008, "banned")]


def test_under_trio_messages_are_counted_too() -> None:
    async def main() -> list[tuple[str, int | None]]:
        sent = [{"type": "websocket.connect"}, *texts(2), BYE]
        came: list[tuple[str, int | None]] = []

        async def receive() -> Message:
            return sent.pop(0)

        async def send(message: Message) -> None:
            came.append((message["type"], message.get("code")))

        app = RateLimitMiddleware(Listener(), messages=MessageLimits("1/hour"))
        await app(scope_of(type="websocket"), receive, send)
        return came

    assert anyio.run(main, backend="trio") == [("websocket.accept", None), ("websocket.close", 1013)]


@pytest.mark.parametrize("serve", SERVERS)
def test_real_servers_close_it_and_the_application_gets_a_disconnect(serve: Serve) -> None:
    ended = threading.Event()
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, messages=MessageLimits("1/hour"))])

    async def listening(socket: WebSocket) -> None:
        await socket.accept()
        async for _ in socket.iter_text():
            pass
        ended.set()

    app.websocket("/")(listening)
    with serving(serve, app) as host, connect(f"ws://{host}/") as client:
        client.send("one")
        client.send("two")
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=BOUND_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert ended.wait(BOUND_S)
