"""The chat: rooms at `/rooms/{room}`, a page for people at `/`, and the moderators' dashboard at `/moderation`.

    export MODERATION_TOKEN=$(python3 -c "import secrets; print(secrets.token_urlsafe(32))")
    uvicorn --factory examples.chat.app:make_app --ws-max-size 4096

Behind a proxy, name it: ``make_app(trusted=["10.0.0.0/8"])``, and start uvicorn with ``--no-proxy-headers``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from slidegate import BanPolicy, Limiter, MessageLimits, RateLimitMiddleware, Rule, client_ip
from slidegate.dashboard import Dashboard

from .rooms import Full, Rooms

ROOM = "/rooms/{room}"
RULES = [
    Rule("/moderation/{rest:path}", exempt=True),
    Rule(ROOM, "10/minute", connection="websocket", name="joins"),
    Rule(ROOM, connection="websocket", concurrency=3, name="sockets"),
    Rule("*", "120/minute", connection="http", name="pages"),
]
# All sockets of a client together: a second window does not double what one may write.
MESSAGES = MessageLimits("5/5s", key="client")
# A refused join is a strike, and so is a message too many.
RUDE = BanPolicy(name="rude", after="3/10m", duration="10m")

LONGEST_NAME = 24
LONGEST_TEXT = 500
UNSUPPORTED, TOO_BIG, TRY_AGAIN = 1003, 1009, 1013
"""Close codes. The middleware itself closes with 1013 beyond a message limit, and with 1008 for a ban."""
HERE = Path(__file__).parent


def make_app(limiter: Limiter | None = None, token: str | None = None, trusted: Sequence[str] = ()) -> Starlette:
    """Return the chat.

    Args:
        limiter: Where it counts; by default in memory.
        token: The token of moderators, 16 characters or more; by default `MODERATION_TOKEN`.
        trusted: The proxies whose `X-Forwarded-For` is believed.
    """
    limiter, client, rooms = limiter or Limiter(), client_ip(trusted=trusted), Rooms()
    moderation = Dashboard(limiter, token=token or os.environ["MODERATION_TOKEN"], client=client)

    async def room(socket: WebSocket) -> None:
        await visit_room(socket, rooms)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/chat.{ending}", part_of_the_page),
            WebSocketRoute(ROOM, room),
            Mount("/moderation", moderation),
        ],
        middleware=[
            Middleware(RateLimitMiddleware, limiter=limiter, client=client, rules=RULES, messages=MESSAGES, bans=RUDE)
        ],
    )


async def page(request: Request) -> Response:
    """Show the page."""
    return FileResponse(HERE / "chat.html", headers={"Content-Security-Policy": "default-src 'self'; img-src data:"})


async def part_of_the_page(request: Request) -> Response:
    """Return the script or the style of the page."""
    ending = request.path_params["ending"]
    return FileResponse(HERE / f"chat.{ending}") if ending in ("css", "js") else Response(status_code=404)


async def visit_room(socket: WebSocket, rooms: Rooms) -> None:
    """Let somebody talk and listen until one side closes."""
    name = socket.query_params.get("name", "").strip()[:LONGEST_NAME] or "somebody"
    room_name = socket.path_params["room"][:LONGEST_NAME]
    await socket.accept()
    try:
        with rooms.joined(name, room_name) as (room, hears):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell, socket, hears, tasks.cancel_scope)
                async for text in texts(socket):
                    room.say(name, text)
                tasks.cancel_scope.cancel()
    except Full as full:
        await close(socket, TRY_AGAIN, str(full))


async def texts(socket: WebSocket) -> AsyncIterator[str]:
    """Yield what somebody writes, until they leave or send what nobody could read."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text is None:
            await close(socket, UNSUPPORTED, "write text")
            return
        if len(text) > LONGEST_TEXT:
            await close(socket, TOO_BIG, f"write at most {LONGEST_TEXT} characters")
            return
        yield text


async def tell(socket: WebSocket, hears: MemoryObjectReceiveStream[str], visit: anyio.CancelScope) -> None:
    """Send what somebody hears, until they leave or fall too far behind."""
    with suppress(WebSocketDisconnect):
        async for message in hears:
            await socket.send_text(message)
    await close(socket, TRY_AGAIN, "you read too slowly")
    visit.cancel()


async def close(socket: WebSocket, code: int, reason: str) -> None:
    """Close a websocket, unless it has ended."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await socket.close(code, reason)
