"""At most so many requests of a key are under way at a time, and each place comes back, whatever ends the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.testing import FakeClock

from ..asgi import Answer, call, hello, page, scope_of, send_scope, statuses


class Workshop:
    """An application whose requests go on until they are told how to end, and the middleware before it."""

    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.store = MemoryStore(clock=FakeClock(10**9))
        self.limiter = Limiter(self.store)
        self.under_way = 0
        self.seen = 0
        self.orders: asyncio.Queue[Callable[[Scope, Receive, Send], Any]] = asyncio.Queue()
        self.middleware = RateLimitMiddleware(self.work, limiter=self.limiter, rules=rules, **options)

    @property
    def held(self) -> int:
        return self.store.permits_held()

    async def work(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.under_way += 1
        self.seen += 1
        try:
            await (await self.orders.get())(scope, receive, send)
        finally:
            self.under_way -= 1

    async def begin(self, path: str = "/", **more: Any) -> asyncio.Task[Answer]:
        """Send a request that the application gets, and return its task."""
        before = self.seen
        task = asyncio.ensure_future(call(self.middleware, path, **more))
        while self.seen == before:
            assert not task.done(), task.result().status
            await asyncio.sleep(0)
        return task

    def finish(self, how: Callable[[Scope, Receive, Send], Any] = hello) -> None:
        self.orders.put_nowait(how)


def workshop(concurrency: object = "2", path: str = "*", **options: Any) -> Workshop:
    return Workshop(Rule(path, concurrency=concurrency, name="work", **options))  # type: ignore[arg-type]


async def answered(task: asyncio.Task[Answer]) -> int:
    async with asyncio.timeout(20):
        return (await task).status


async def test_no_more_than_the_amount_are_under_way_at_a_time() -> None:
    shop = workshop("2")
    first, second = await shop.begin(), await shop.begin()
    assert (shop.held, (await call(shop.middleware)).status, shop.seen) == (2, 429, 2)
    shop.finish()
    assert 200 in [
        await answered(task) for task in (await asyncio.wait([first, second], return_when="FIRST_COMPLETED"))[0]
    ]
    assert shop.held == 1
    third = await shop.begin()
    for _ in range(2):
        shop.finish()
    assert [await answered(task) for task in (second, third)] == [200] * 2
    assert shop.held == 0


async def test_a_refusal_says_what_is_known_and_no_more() -> None:
    shop = workshop(1)
    await shop.begin()
    refused = await call(shop.middleware)
    assert refused.status == 429
    assert "retry-after" not in refused.headers
    assert refused.headers["ratelimit-policy"] == '"work";q=1;qu="concurrent-requests"'
    assert refused.headers["ratelimit"] == '"work";r=0'
    problem = json.loads(refused.body)
    assert problem["violated-policies"] == ["work"]
    assert problem["type"].endswith("#quota-exceeded")
    assert problem["detail"] == "No more than 1 at a time; try again when an earlier request has ended."
    shop.finish()


async def test_an_answer_says_how_many_more_there_is_room_for() -> None:
    shop = workshop(3, limits="100/minute")
    await shop.begin()
    last = await shop.begin()
    for _ in range(2):
        shop.finish()
    answer = await last
    assert answer.headers["ratelimit"] == '"work-concurrency";r=1, "work";r=98;t=61'
    assert answer.headers["ratelimit-policy"] == '"work";q=100;w=60, "work-concurrency";q=3;qu="concurrent-requests"'


async def test_the_older_header_fields_say_no_reset_that_nobody_knows() -> None:
    shop = Workshop(Rule("*", concurrency=1), headers="both")
    shop.finish()
    fields = (await call(shop.middleware)).headers
    assert (fields["x-ratelimit-limit"], fields["x-ratelimit-remaining"]) == ("1", "0")
    assert "x-ratelimit-reset" not in fields


async def test_a_file_that_the_server_sends_and_trailers_are_last_bytes_too() -> None:
    shop = workshop(1)
    seen: list[int] = []

    def sending(*messages: Message) -> Any:
        async def send_all(scope: Scope, receive: Receive, send: Send) -> None:
            seen.clear()
            for message in messages:
                await send(message)
                seen.append(shop.held)

        return send_all

    start = {"type": "http.response.start", "status": 200, "headers": []}
    shop.finish(sending(start, {"type": "http.response.pathsend", "path": "/dev/null"}))
    await call(shop.middleware)
    assert seen == [1, 0]
    body, trailers = {"type": "http.response.body", "body": b""}, {"type": "http.response.trailers", "headers": []}
    shop.finish(sending({**start, "trailers": True}, body, {**trailers, "more_trailers": True}, trailers))
    await call(shop.middleware)
    assert seen == [1, 1, 1, 0]


async def test_a_background_task_holds_no_place() -> None:
    shop = workshop(1)
    seen: list[int] = []
    shop.finish(PlainTextResponse("hi", background=BackgroundTask(lambda: seen.append(shop.held))))
    assert (await call(shop.middleware)).status == 200
    assert seen == [0]


async def test_a_server_that_cannot_send_the_last_byte_gets_the_place_back() -> None:
    shop = workshop(1)

    async def broken(message: Message) -> None:
        raise OSError("the client has gone")

    shop.finish()
    with pytest.raises(OSError, match="gone"):
        await shop.middleware(scope_of(), lambda: asyncio.sleep(0, {"type": "http.request"}), broken)  # type: ignore[arg-type]
    assert shop.held == 0


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "gone"])
async def test_the_turn_of_a_client_that_has_left_goes_to_the_next(how: str) -> None:
    shop = workshop(1, wait="20s", wait_max=2)
    first = await shop.begin()
    leaves = asyncio.Event()

    async def receive() -> Message:
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def nowhere(message: Message) -> None:
        raise AssertionError(message)

    leaver = asyncio.ensure_future(shop.middleware(scope_of(), receive, nowhere))
    await asyncio.sleep(0)
    stayer = asyncio.ensure_future(call(shop.middleware))
    await asyncio.sleep(0)
    if how == "gone":
        leaves.set()
        await leaver
    else:
        leaver.cancel()
        with suppress(asyncio.CancelledError):
            await leaver
    for _ in range(2):
        shop.finish()
    assert [await answered(first), await answered(stayer)] == [200, 200]
    assert (shop.held, shop.seen) == (0, 2)


async def test_whoever_waits_is_asked_about_bans_again() -> None:
    shop = workshop(1, wait="20s", key=everyone)
    first = await shop.begin()
    waiting = asyncio.ensure_future(call(shop.middleware, client=("203.0.113.66", 1)))
    await asyncio.sleep(0)
    await shop.limiter.ban("203.0.113.66", "1h")
    shop.finish()
    assert [await answered(first), await answered(waiting)] == [200, 403]
    assert shop.held == 0


# -- at the endpoint --------------------------------------------------------------------------------------------------


def with_endpoint(limit: RateLimit, answer: Callable[[Request], Any], store: MemoryStore) -> Starlette:
    async def page(request: Request) -> Response:
        return await answer(request)  # type: ignore[no-any-return]

    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await limit.check(websocket)
        await websocket.send_json(store.permits_held())
        await websocket.close()

    middleware = Middleware(RateLimitMiddleware, rules=[], limiter=Limiter(store))
    return Starlette(routes=[Route("/page", limit(page)), WebSocketRoute("/talk", talk)], middleware=[middleware])


@pytest.mark.parametrize("how", ["raises", "cancelled"])
async def test_the_place_of_an_endpoint_comes_back(how: str) -> None:
    store = MemoryStore()
    broken = False
    inside = asyncio.Event()

    async def answer(request: Request) -> Response:
        if broken and how == "raises":
            raise RuntimeError("broken")
        inside.set()
        if broken:
            await asyncio.Event().wait()
        return PlainTextResponse("hi")

    app = with_endpoint(RateLimit("9000/minute", concurrency=1), answer, store)
    assert await statuses(app, 2, "/page") == [200, 200]
    broken = True
    inside.clear()
    task = asyncio.ensure_future(call(app, "/page"))
    if how == "raises":
        with pytest.raises(RuntimeError):
            await task
    else:
        await inside.wait()
        assert store.permits_held() == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert store.permits_held() == 0


async def test_a_websocket_can_ask_for_a_place_after_it_was_accepted() -> None:
    store = MemoryStore()
    app = with_endpoint(RateLimit(concurrency=1), page, store)
    sent = (await send_scope(app, scope_of("/talk", type="websocket"))).messages
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.send", "websocket.close"]
    assert (sent[1]["text"], store.permits_held()) == ("1", 0)
