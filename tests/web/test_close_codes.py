"""Servers that refuse the close codes 1008 and 1013, as daphne does: the connection is closed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from slidegate import BanPolicy, Limiter, MemoryStore, MessageLimits, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock
from slidegate.web import websockets

from ..asgi import scope_of

BOUND_S = 20
"""How long a hang may last; nothing here takes as long as a second."""


class Strict:
    """A client, and a server that sends no close code but 1000 and those of applications: 3000 to 4999."""

    def __init__(self, *, sends: int = 0) -> None:
        self.scope = scope_of("/", type="websocket")
        self.came: list[Message] = []
        self.refused: list[int] = []
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        self.coming.put_nowait({"type": "websocket.connect"})
        for number in range(sends):
            self.coming.put_nowait({"type": "websocket.receive", "text": f"{number}"})

    async def send(self, message: Message) -> None:
        code = message.get("code", 1000)
        accepted = any(earlier["type"] == "websocket.accept" for earlier in self.came)
        if message["type"] == "websocket.close" and accepted and code != 1000 and not 3000 <= code <= 4999:
            self.refused.append(code)
            raise Exception(f"invalid close code {code} (must be 1000 or from [3000, 4999])")
        assert not self.closes, f"{message} after the close"
        self.came.append(message)

    @property
    def closes(self) -> list[tuple[int, str]]:
        return [(m["code"], m.get("reason", "")) for m in self.came if m["type"] == "websocket.close"]

    async def run(self, app: Any) -> None:
        async with asyncio.timeout(BOUND_S):
            await app(self.scope, self.coming.get, self.send)


def echoing(heard: list[str]) -> FastAPI:
    """Return an application that notes why its websockets end."""
    app = FastAPI()

    @app.websocket("/")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(await websocket.receive_text())
        except WebSocketDisconnect as ended:
            heard.append(f"disconnect {ended.code}")
        except BaseException as error:
            heard.append(repr(error))
            raise

    return app


def around(app: Any, nested: int, **options: Any) -> tuple[Any, Limiter]:
    """Return an application with middlewares around it, the innermost with some options, and the limiter of all."""
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(app, rules=[], limiter=limiter, **options)
    for _ in range(nested):
        app = RateLimitMiddleware(app, rules=[], limiter=limiter)
    return app, limiter


@pytest.mark.parametrize("nested", [0, 1, 2])
async def test_one_message_too_many_closes_it(nested: int) -> None:
    heard: list[str] = []
    app, _ = around(echoing(heard), nested, messages=MessageLimits("3/hour"))
    server = Strict(sends=5)
    await server.run(app)
    assert (server.refused, server.closes) == ([1013], [(1000, "message limit exceeded")])
    assert heard == ["disconnect 1013"], "the application is told why"


async def banned_at_a_message(app: Any, limiter: Limiter, server: Strict) -> None:
    running = asyncio.create_task(server.run(app))
    while not server.came:  # noqa: ASYNC110 - the acceptance tells nobody
        await asyncio.sleep(0)
    await limiter.ban("203.0.113.0/24", "1h")
    server.coming.put_nowait({"type": "websocket.receive", "text": "hi"})
    await running


async def banned_while_idle(app: Any, limiter: Limiter, server: Strict) -> None:
    running = asyncio.create_task(server.run(app))
    while not server.came:  # noqa: ASYNC110 - the acceptance tells nobody
        await asyncio.sleep(0)
    await limiter.ban("203.0.113.0/24", "1h")
    await running


@pytest.mark.parametrize("nested", [0, 1])
@pytest.mark.parametrize("happens", [banned_at_a_message, banned_while_idle])
async def test_a_ban_closes_it(
    happens: Callable[[Any, Limiter, Strict], Awaitable[None]], nested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websockets, "EVERY_S", 0)  # how long two looks are apart is not what is tested here
    heard: list[str] = []
    app, limiter = around(echoing(heard), nested, bans=BanPolicy("20/10m", "1h"))
    server = Strict()
    await happens(app, limiter, server)
    assert server.closes == [(1000, "banned")]
    assert heard == ["disconnect 1008"]


@pytest.mark.parametrize("nested", [0, 1])
async def test_a_limit_that_an_endpoint_asks_after_it_has_accepted_closes_it(nested: int) -> None:
    app = FastAPI()
    limit = RateLimit("2/hour")

    @app.websocket("/")
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        await limit.check(websocket)
        await websocket.close(3001)

    guarded, _ = around(app, nested)
    servers = [Strict() for _ in range(3)]
    for server in servers:
        await server.run(guarded)
    assert [server.closes for server in servers] == [[(3001, "")]] * 2 + [[(1000, "Too many requests.")]]


async def test_a_handshake_that_is_refused_is_no_exception_where_a_server_checks_the_code_there_too() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if message.get("code") not in (1000, None):
            raise ValueError(f"invalid close code {message['code']}")
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(RateLimit("1/hour"))])
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()

    for guarded in (around(app, 0)[0], RateLimitMiddleware(app, limits="1/hour")):
        sent.clear()
        for _ in range(2):
            await guarded(scope_of("/", type="websocket"), receive, send)
        assert [message["type"] for message in sent] == ["websocket.accept", "websocket.close"]


async def test_a_client_that_has_gone_is_closed_once_and_its_error_is_the_one_of_the_server() -> None:
    tried: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    class Left(Strict):
        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.close":
                tried.append(message["code"])
                raise ConnectionResetError("the client has gone")

    guarded, _ = around(app, 0, messages=MessageLimits("1/hour"))
    with pytest.raises(ConnectionResetError, match="the client has gone"):
        await Left(sends=3).run(guarded)
    assert tried == [1013]
