"""Websockets are refused at the handshake, before the application knows of them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from slidegate import Networks, RateLimitMiddleware

from ..asgi import scope_of, send_scope

ran: list[str] = []


async def chat(socket: WebSocket) -> None:
    ran.append(socket.url.path)
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text.upper())


@pytest.fixture
def app() -> Starlette:
    ran.clear()
    app = Starlette(routes=[WebSocketRoute("/ws", chat)])
    app.add_middleware(RateLimitMiddleware, limits="3/hour")
    return app


def test_with_the_denial_extension_the_client_reads_the_whole_answer(app: Starlette) -> None:
    client = TestClient(app)
    for _ in range(3):
        with client.websocket_connect("/ws") as socket:
            socket.send_text("hi")
            assert socket.receive_text() == "HI"
    with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/ws"):
        pass
    assert denied.value.status_code == 429
    assert denied.value.headers["retry-after"] == "3600"
    assert denied.value.headers["ratelimit"] == '"default";r=0;t=3600'
    assert denied.value.json()["violated-policies"] == ["default"]
    assert ran == ["/ws"] * 3


@pytest.mark.parametrize("extensions", [{}, None, {"tls": {}}])
async def test_without_the_extension_the_socket_is_closed_before_accept(app: Starlette, extensions: Any) -> None:
    middleware = RateLimitMiddleware(app, limits="9/hour", blocklist=Networks(["203.0.113.0/24"]))
    scope = scope_of("/ws", type="websocket", extensions=extensions)
    answer = await send_scope(middleware, scope)
    assert answer.messages == [{"type": "websocket.close", "code": 1008}]
    assert ran == []


def test_an_accepted_handshake_carries_the_header_fields(app: Starlette) -> None:
    with TestClient(app).websocket_connect("/ws") as socket:
        assert socket.extra_headers is not None
        fields = {name.decode(): value.decode() for name, value in socket.extra_headers}
    assert fields["ratelimit"] == '"default";r=2;t=3600'


async def test_a_close_of_the_applications_own_passes_as_it_is() -> None:
    close = {"type": "websocket.close", "code": 1008}

    async def closing(scope: Any, receive: Any, send: Any) -> None:
        await send(close)

    answer = await send_scope(RateLimitMiddleware(closing, limits="9/hour"), scope_of("/ws", type="websocket"))
    assert [message is close for message in answer.messages] == [True]
