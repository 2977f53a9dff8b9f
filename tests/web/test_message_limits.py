"""Messages over an accepted websocket are counted on their way in."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterable
from typing import Any

import anyio
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    MessageLimits,
    Networks,
    RateLimitMiddleware,
    everyone,
)
from slidegate.core import StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import scope_of
from ..remote_stores import RemoteStore
from ..virtual_time import VirtualTime


class Socket:
    """A client that has sent everything in advance, and notes what comes back."""

    def __init__(self, sent: Iterable[Message], client: str = "203.0.113.9") -> None:
        self.waiting = [{"type": "websocket.connect"}, *sent]
        self.came: list[Message] = []
        self.scope = scope_of("/", type="websocket", client=(client, 1))

    async def receive(self) -> Message:
        return self.waiting.pop(0)

    async def send(self, message: Message) -> None:
        self.came.append(message)

    async def run(self, app: ASGIApp) -> Socket:
        await app(self.scope, self.receive, self.send)
        return self


class Listener:
    """An application that accepts, and notes what it receives until the connection ends."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not self.heard or self.heard[-1]["type"] == "websocket.receive":
            self.heard.append(await receive())


BYE: Message = {"type": "websocket.disconnect", "code": 1000}


def texts(count: int) -> list[Message]:
    return [{"type": "websocket.receive", "text": f"m{number}"} for number in range(count)]


@pytest.fixture
async def clock() -> FakeClock:
    """A clock that stands still, and that sleeping moves."""
    return VirtualTime().clock


def middleware_at(clock: FakeClock, app: ASGIApp, messages: MessageLimits) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, rules=[], limiter=Limiter(MemoryStore(clock=clock)), messages=messages)


async def test_the_eleventh_message_closes_with_1013_and_the_application_sees_a_disconnect(
    clock: FakeClock,
) -> None:
    app = Listener()
    socket = await Socket([*texts(12), BYE]).run(middleware_at(clock, app, MessageLimits("10/s")))
    assert app.heard[:10] == texts(10)
    assert [(message["type"], message["code"]) for message in app.heard[10:]] == [("websocket.disconnect", 1013)]
    assert [message["type"] for message in socket.came] == ["websocket.accept", "websocket.close"]
    assert (socket.came[1]["code"], socket.came[1]["reason"]) == (1013, "message limit exceeded")
    assert socket.waiting == [texts(12)[11], BYE], "nothing is read after the close"


async def test_dropped_messages_leave_no_trace_and_the_rest_goes_on(clock: FakeClock) -> None:
    app = Listener()
    middleware = middleware_at(clock, app, MessageLimits("10/s", beyond="drop"))
    socket = await Socket([*texts(12), BYE]).run(middleware)
    assert app.heard == [*texts(10), BYE]
    assert [message["type"] for message in socket.came] == ["websocket.accept"]


@pytest.mark.parametrize(("key", "expected"), [("connection", [3, 3, 3]), ("client", [3, 0, 3]), (everyone, [3, 0, 0])])
async def test_each_connection_counts_by_itself_or_all_of_a_client_or_of_a_key_together(
    key: Any, expected: list[int], clock: FakeClock
) -> None:
    app = Listener()
    middleware = middleware_at(clock, app, MessageLimits("3/s", key=key, beyond="drop"))
    heard = []
    for client in ("203.0.113.1", "203.0.113.1", "203.0.113.2"):
        app.heard.clear()
        await Socket([*texts(5), BYE], client).run(middleware)
        heard.append(len(app.heard) - 1)
    assert heard == expected


async def test_after_the_close_a_send_fails_as_on_any_closed_connection_and_a_close_does_nothing(
    clock: FakeClock,
) -> None:
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

    socket = await Socket([*texts(2), BYE]).run(middleware_at(clock, talkative, MessageLimits("1/s")))
    assert seen == ["disconnected"]
    assert [message["type"] for message in socket.came] == ["websocket.accept", "websocket.send", "websocket.close"]


async def bytes_of_sockets(messages: MessageLimits | None, count: int = 1_000) -> tuple[int, int]:
    """Return what open websockets hold, and what is left of them when they are over and nothing was collected."""
    go = anyio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await Listener()(scope, receive, send)
        await go.wait()

    middleware = RateLimitMiddleware(waiting, rules=[], messages=messages)
    await Socket([*texts(1), BYE]).run(RateLimitMiddleware(Listener(), rules=[], messages=messages))
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(Socket([*texts(1), BYE]).run, middleware)
            await anyio.wait_all_tasks_blocked()
            held = tracemalloc.get_traced_memory()[0]
            go.set()
        return held // count, tracemalloc.get_traced_memory()[0] // count
    finally:
        tracemalloc.stop()
        gc.enable()


async def test_the_counts_of_a_connection_are_small_and_go_with_it() -> None:
    await bytes_of_sockets(MessageLimits("10/s; 100/minute"))  # fills what the interpreter keeps for later tuples
    held, left = await bytes_of_sockets(MessageLimits("10/s; 100/minute"))
    bare_held, bare_left = await bytes_of_sockets(None)
    assert held - bare_held < 2_000
    assert left - bare_left < 500


async def test_clients_on_the_allowlist_and_http_requests_have_no_message_limit() -> None:
    app = Listener()
    options: Any = {"rules": [], "messages": MessageLimits("1/s"), "allowlist": Networks(["203.0.113.9"])}
    await Socket([*texts(5), BYE]).run(RateLimitMiddleware(app, **options))
    assert len(app.heard) == 6
    seen: list[Any] = []

    async def http(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(receive)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    await RateLimitMiddleware(http, rules=[], messages=MessageLimits("1/s"))(scope_of(), receive, Socket([]).send)
    assert seen == [receive]


async def test_a_store_that_fails_is_not_held_against_the_client() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Listener()(scope, receive, send)

    class Away(RemoteStore):
        """A store that does not answer where something is counted."""

        def hit(self, checks: Any, subjects: Any = (), **line: Any) -> Any:
            if checks:
                raise StoreUnavailable("away")
            return super().hit(checks, subjects, **line)

    limiter = Limiter(Away(), on_error="deny")
    middleware = RateLimitMiddleware(
        app,
        rules=[],
        limiter=limiter,
        messages=MessageLimits("9/hour", key="client", beyond="drop"),
        bans=BanPolicy("1/hour"),
    )
    await Socket([*texts(5), BYE]).run(middleware)
    assert [ban async for ban in limiter.bans()] == []
