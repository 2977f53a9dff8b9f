"""What the middleware records about requests: each once, by rule and by route, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule
from slidegate.core import Reason
from slidegate.limiter.observers import Outcome
from slidegate.stats import Statistics, Stats, Traffic
from slidegate.stats.recorder import MAX_SERIES
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import scope_of, send_scope
from ..racing import THREADS, race

MS = 1_000


class Site:
    """An application with a clock that its endpoints move, behind a middleware."""

    def __init__(self, *, inner: ASGIApp | None = None, **options: Any) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.statistics = Statistics(self.limiter)
        routes = [
            Route("/items/{id}", self.item),
            Route("/stream", self.stream),
            Route("/background", self.background),
            Route("/limited", RateLimit("1/day", name="tight")(self.item)),
            WebSocketRoute("/ws", self.talk),
            Mount("/sub", app=inner or Starlette(routes=[Route("/{name}", self.item, methods=["POST"])])),
        ]
        options.setdefault("rules", [Rule("*", "1000/day", name="all")])
        self.app = Starlette(
            routes=routes, middleware=[Middleware(RateLimitMiddleware, limiter=self.limiter, **options)]
        )

    async def item(self, request: Request) -> Response:
        self.clock.advance(us=30 * MS)
        return PlainTextResponse("x", int(request.query_params.get("status", "200")))

    async def stream(self, request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(4):
                yield b"x"
                self.clock.advance(us=100 * MS)

        return StreamingResponse(chunks())

    async def background(self, request: Request) -> Response:
        def work() -> None:
            self.clock.advance(us=60_000 * MS)
            raise RuntimeError("later")

        return PlainTextResponse("x", background=BackgroundTask(work))

    async def talk(self, socket: WebSocket) -> None:
        await socket.accept()
        while (await socket.receive())["type"] != "websocket.disconnect":
            self.clock.advance(us=1_000 * MS)

    async def ask(self, path: str, **more: Any) -> int:
        return (await send_scope(self.app, scope_of(path, **more))).status

    def stats(self) -> Stats:
        return self.statistics.stats("5m")


def seen(traffic: Traffic) -> dict[str, int]:
    """Return all counts of a figure."""
    return dict(traffic.seen.events)


def near(time_us: float | None, expected_us: int) -> bool:
    return time_us is not None and abs(time_us - expected_us) <= 0.05 * expected_us


async def test_a_request_is_recorded_by_its_rules_and_its_template() -> None:
    site = Site(rules=[Rule("*", "1000/day", name="all"), Rule("/items/{id}", "9/day", name="items")])
    for number in range(12):
        await site.ask(f"/items/{number}")
    stats = site.stats()
    assert seen(stats.routes["GET /items/{id}"]) == seen(stats.rules["all"]) == {"pass": 9, "2xx": 9, "success": 9}
    assert seen(stats.routes["(no route)"]) == {"block": 3, "4xx": 3}, "no router has seen these"
    assert seen(stats.rules["items"]) == seen(stats.total)
    assert seen(stats.total) == {"pass": 9, "block": 3, "2xx": 9, "4xx": 3, "success": 9}
    assert near(stats.rules["items"].seen.rt.quantile(0.95), 30 * MS)
    assert stats.rules["items"].seen.rt.min_us == 30 * MS
    assert (stats.total.passed, stats.total.refused, stats.total.exceptions, stats.total.qps) == (9, 3, 0, 9 / 300)


async def test_what_happens_after_the_last_byte_is_not_part_of_the_request() -> None:
    site = Site()
    with pytest.raises(RuntimeError):
        await site.ask("/background")
    assert seen(site.stats().total) == {"pass": 1, "2xx": 1, "success": 1}
    assert site.stats().total.seen.rt.sum_us == 0


# -- answers sent by hand ----------------------------------------------------------------------------------------------

OK_START: Message = {"type": "http.response.start", "status": 200, "headers": []}
START_304: Message = {"type": "http.response.start", "status": 304, "headers": []}
EARLY: Message = {"type": "http.response.early_hint", "links": []}
DEBUG: Message = {"type": "http.response.debug", "info": {}}
LAST: Message = {"type": "http.response.body", "body": b"x"}
MORE: Message = {"type": "http.response.body", "body": b"x", "more_body": True}
FILE: Message = {"type": "http.response.pathsend", "path": "/x"}
ZERO_COPY: Message = {"type": "http.response.zerocopysend", "file": 3}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}
DONE = {"pass": 1, "2xx": 1, "success": 1}


async def by_hand(*messages: Message, error: BaseException | None = None, **scope: Any) -> dict[str, int]:
    """Send messages through a middleware, raise, and return what was recorded; each message takes 10 ms."""
    clock = FakeClock(1_000_000_000)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            clock.advance(us=10 * MS)
            await send(message)
        clock.advance(us=10 * MS)
        if error is not None:
            raise error

    limiter = Limiter(MemoryStore(clock=clock))
    statistics = Statistics(limiter)
    middleware = RateLimitMiddleware(app, limits="5/day", limiter=limiter)
    with nullcontext() if error is None else suppress(type(error)):
        await send_scope(middleware, scope_of(**scope))
    total = statistics.stats().total
    assert (total.passed, total.refused, total.seen.rt.count) == (1, 0, 1)
    return seen(total)


@pytest.mark.parametrize(
    ("messages", "events"),
    [
        ([OK_START, LAST], DONE),
        ([OK_START, FILE], DONE),
        ([OK_START, MORE, ZERO_COPY], DONE),
        ([OK_START, {**ZERO_COPY, "more_body": True}, LAST], DONE),
        ([{**OK_START, "trailers": True}, LAST, TRAILERS], DONE),
        ([EARLY, DEBUG, EARLY, OK_START, LAST], DONE),
        ([START_304, {"type": "http.response.body"}], {"pass": 1, "3xx": 1, "success": 1}),
        ([OK_START, LAST, LAST, MORE, OK_START, FILE], DONE),
    ],
    ids=lambda value: "-".join(m["type"].rpartition(".")[2] for m in value) if isinstance(value, list) else "",
)
async def test_an_answer_is_counted_once_whatever_it_is_made_of(
    messages: list[Message], events: dict[str, int]
) -> None:
    for method in ("GET", "HEAD"):
        assert await by_hand(*messages, method=method) == events


async def test_a_limit_that_is_met_after_the_answer_began_is_an_exception() -> None:
    limit = RateLimit("1/day")

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK_START)
        await limit.check(HTTPConnection(scope))
        await send(LAST)

    middleware = RateLimitMiddleware(late, limits="9/day", limiter=(limiter := Limiter()))
    statistics = Statistics(limiter)
    await send_scope(middleware, scope_of())
    with pytest.raises(RateLimitExceeded):
        await send_scope(middleware, scope_of())
    assert seen(statistics.stats().total) == {"pass": 2, "2xx": 2, "success": 1, "exception": 1}


@pytest.mark.parametrize("status", [200, 503])
async def test_a_refusal_at_an_endpoint_is_recorded_as_it_was_answered(status: int) -> None:
    def answer(request: HTTPConnection, decision: Any) -> Response:
        return PlainTextResponse("later", 503)

    async def handler(request: Request, error: Exception) -> Response:
        return PlainTextResponse("no", 200)

    site = Site(on_refused=answer if status == 503 else None)
    if status == 200:
        site.app.add_exception_handler(RateLimitExceeded, handler)
    answers = [await site.ask("/limited") for _ in range(2)]
    assert answers == [200, status]
    expected = {"pass": 1, "block": 1, "2xx": 2, "success": 1}
    if status == 503:
        expected |= {"2xx": 1, "5xx": 1}
    assert seen(site.stats().routes["GET /limited"]) == expected


async def test_who_leaves_while_waiting_for_a_turn_was_never_let_through() -> None:
    site = Site(rules=[Rule("*", "1/1h", name="all", wait="2h")])
    await site.ask("/items/1")
    left: list[Message] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await site.app(scope_of("/items/1"), receive, send)
    task = asyncio.create_task(site.ask("/items/1"))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen(site.stats().total) == {"pass": 1, "2xx": 1, "success": 1, "cancelled": 2}
    assert site.stats().total.seen.rt.count == 1


# -- names of routes ---------------------------------------------------------------------------------------------------


async def test_a_refusal_has_the_route_where_a_router_has_seen_it() -> None:
    def inner() -> ASGIApp:
        return Starlette(
            routes=[Route("/{name}", lambda _: PlainTextResponse("x"), methods=["POST"])],
            middleware=[Middleware(RateLimitMiddleware, limits="1/day")],
        )

    for site, routes in (
        (Site(rules=[Rule("*", "1/day", name="all")]), ["(no route)", "POST /sub/{name}"]),
        (Site(inner=inner()), ["(no route)", "POST /sub/{name}"]),
    ):
        for path, method in (("/sub/ann", "POST"), ("/sub/ann", "POST"), ("/sub/bob", "POST")):
            await site.ask(path, method=method)
        assert list(site.stats().routes) == routes
        assert (site.stats().total.passed, site.stats().total.refused) == (1, 2)


async def test_a_method_that_a_route_has_not_is_of_that_route() -> None:
    site = Site(rules=[Rule("*", "1/day", name="all")])
    assert [await site.ask("/items/1", method="PUT") for _ in range(2)] == [405, 429]
    assert list(site.stats().routes) == ["(no route)", "GET /items/{id}"]


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_that_ask_for_a_new_series_at_once_get_the_same_and_lose_nothing() -> None:
    limiter = Limiter()
    statistics, rounds = Statistics(limiter), 400  # more than there is room for
    began_us = limiter.engine.now_us()

    def ask(number: int, thread: int) -> None:
        outcome = Outcome(True, Reason.OK, ("rule",), (), f"GET /{number}", 200, "success", began_us, 1, None, ())
        limiter.engine.observers.request(outcome)

    race(ask, rounds)
    stats = statistics.stats("5m")
    assert len(stats.routes) == MAX_SERIES + 1
    assert (stats.total.passed, stats.routes["GET /0"].passed) == (THREADS * rounds, THREADS)


# -- bans, further middlewares, waiting --------------------------------------------------------------------------------


async def test_bans_and_lists_are_blocks_of_no_rule() -> None:
    site = Site(bans=BanPolicy("1/10m", signals={404: 1}))
    await site.ask("/nowhere")
    await site.ask("/items/1")
    stats = site.stats()
    assert seen(stats.routes["(no route)"])["block"] == 1
    assert stats.rules["all"].refused == 0


async def test_a_middleware_further_in_records_nothing_twice() -> None:
    limiter = Limiter()
    statistics = Statistics(limiter)
    inner = RateLimitMiddleware(
        Starlette(routes=[Route("/{name}", lambda _: PlainTextResponse("x"), methods=["POST"])]),
        rules=[Rule("*", "1/day", name="in")],
        limiter=limiter,
    )
    site = Site(inner=inner)
    assert [await site.ask("/sub/x", method="POST") for _ in range(3)] == [200, 429, 429]
    assert seen(statistics.stats().total) == {}
    assert seen(site.stats().total) == {"pass": 1, "block": 2, "2xx": 1, "4xx": 2, "success": 1}
    assert seen(site.stats().rules["in"]) == seen(site.stats().total)


async def test_who_was_admitted_by_waiting_is_told_apart() -> None:
    site = Site(rules=[Rule("*", "1/10ms", name="all", wait="20ms")])
    assert [await site.ask("/items/1"), await site.ask("/stream"), await site.ask("/items/1")] == [200, 200, 200]
    site.clock.advance("1m")
    async with asyncio.timeout(10):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(site.ask("/stream"))
    assert site.stats().total.seen.count("occupied_pass") == 1
    assert site.stats().total.passed == 5
