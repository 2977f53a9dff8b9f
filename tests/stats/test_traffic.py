"""The middleware records each request once, by rule and by route, whatever its outcome."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule
from slidegate.core import Reason
from slidegate.limiter.observers import Outcome
from slidegate.stats import Statistics, Stats, Traffic
from slidegate.stats.recorder import MAX_SERIES
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import scope_of, send_scope
from ..racing import THREADS, race
from ..virtual_time import turns

MS = 1_000


class Site:
    def __init__(self, *, inner: ASGIApp | None = None, **options: Any) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.statistics = Statistics(self.limiter)
        routes = [
            Route("/items/{id}", self.item),
            Route("/limited", RateLimit("1/day", name="tight")(self.item)),
            Mount("/sub", app=inner or Starlette(routes=[Route("/{name}", self.item, methods=["POST"])])),
        ]
        options.setdefault("rules", [Rule("*", "1000/day", name="all")])
        self.app = Starlette(
            routes=routes, middleware=[Middleware(RateLimitMiddleware, limiter=self.limiter, **options)]
        )

    async def item(self, request: Request) -> Response:
        self.clock.advance(us=30 * MS)
        return PlainTextResponse("x")

    async def ask(self, path: str, **more: Any) -> int:
        return (await send_scope(self.app, scope_of(path, **more))).status

    def stats(self) -> Stats:
        return self.statistics.stats("5m")


def seen(traffic: Traffic) -> dict[str, int]:
    return dict(traffic.seen.events)


async def test_a_request_is_recorded_by_its_rules_and_its_template() -> None:
    site = Site(rules=[Rule("*", "1000/day", name="all"), Rule("/items/{id}", "9/day", name="items")])
    for number in range(12):
        await site.ask(f"/items/{number}")
    stats = site.stats()
    assert seen(stats.routes["GET /items/{id}"]) == seen(stats.rules["all"]) == {"pass": 9, "2xx": 9, "success": 9}
    assert seen(stats.routes["(no route)"]) == {"block": 3, "4xx": 3}, "no router has seen these"
    assert seen(stats.rules["items"]) == seen(stats.total)
    assert seen(stats.total) == {"pass": 9, "block": 3, "2xx": 9, "4xx": 3, "success": 9}
    assert stats.rules["items"].seen.rt.min_us == 30 * MS
    assert (stats.total.passed, stats.total.refused, stats.total.exceptions, stats.total.qps) == (9, 3, 0, 9 / 300)


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
START_304: Message = {**START, "status": 304}
EARLY: Message = {"type": "http.response.early_hint", "links": []}
LAST: Message = {"type": "http.response.body", "body": b"x"}
MORE: Message = {**LAST, "more_body": True}
FILE: Message = {"type": "http.response.pathsend", "path": "/x"}
ZERO_COPY: Message = {"type": "http.response.zerocopysend", "file": 3}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}
ACCEPT: Message = {"type": "websocket.accept"}
CLOSE: Message = {"type": "websocket.close"}
DONE, DONE_304 = "pass 2xx success", "pass 3xx success"


@pytest.mark.parametrize(
    ("messages", "events"),
    [
        ([START, LAST], DONE),
        ([START, FILE], DONE),
        ([START, MORE, ZERO_COPY], DONE),
        ([START, {**ZERO_COPY, "more_body": True}, LAST], DONE),
        ([{**START, "trailers": True}, LAST, TRAILERS], DONE),
        ([EARLY, EARLY, START, LAST], DONE),
        ([START_304, LAST], DONE_304),
        ([START, LAST, LAST, MORE, START_304, FILE], DONE),
        ([RuntimeError()], "pass 5xx exception"),
        ([START, RuntimeError()], "pass 2xx exception"),
        ([START, LAST, RuntimeError()], DONE),
        ([START, MORE, ClientDisconnect()], "pass 2xx cancelled"),
        ([CancelledError()], "pass cancelled"),
        ([], "pass cancelled"),
        ([ACCEPT, CLOSE], "pass 1xx success"),
        ([ACCEPT, WebSocketDisconnect(1001)], "pass 1xx success"),
        ([CLOSE], "pass 4xx success"),
    ],
)
async def test_a_request_is_counted_once_whatever_its_answer_is_made_of_and_however_it_ends(
    messages: list[Message | BaseException], events: str
) -> None:
    limiter = Limiter()
    statistics = Statistics(limiter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            if isinstance(message, BaseException):
                raise message
            await send(message)

    middleware = RateLimitMiddleware(app, limits="5/day", limiter=limiter)
    connection = "websocket" if messages and messages[0] in (ACCEPT, CLOSE) else "http"
    with suppress(Exception, CancelledError):
        await send_scope(middleware, scope_of(type=connection))
    total = statistics.stats().total
    assert seen(total) == dict.fromkeys(events.split(), 1)
    assert (total.passed, total.refused, total.seen.rt.count) == (1, 0, 1)


async def test_a_limit_that_is_met_after_the_answer_began_is_an_exception() -> None:
    limit = RateLimit("1/day")

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await limit.check(HTTPConnection(scope))
        await send(LAST)

    middleware = RateLimitMiddleware(late, limits="9/day", limiter=(limiter := Limiter()))
    statistics = Statistics(limiter)
    await send_scope(middleware, scope_of())
    with pytest.raises(RateLimitExceeded):
        await send_scope(middleware, scope_of())
    assert seen(statistics.stats().total) == {"pass": 2, "2xx": 2, "success": 1, "exception": 1}


async def test_a_refusal_at_an_endpoint_is_recorded_as_it_was_answered() -> None:
    site = Site(on_refused=lambda request, decision: PlainTextResponse("later", 503))
    assert [await site.ask("/limited") for _ in range(2)] == [200, 503]
    expected = {"pass": 1, "block": 1, "2xx": 1, "5xx": 1, "success": 1}
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
    await turns(20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen(site.stats().total) == {"pass": 1, "2xx": 1, "success": 1, "cancelled": 2}
    assert site.stats().total.seen.rt.count == 1


async def test_a_refusal_has_the_route_where_a_router_has_seen_it() -> None:
    def inner() -> ASGIApp:
        return Starlette(
            routes=[Route("/{name}", lambda _: PlainTextResponse("x"), methods=["POST"])],
            middleware=[Middleware(RateLimitMiddleware, limits="1/day")],
        )

    for site in (Site(rules=[Rule("*", "1/day", name="all")]), Site(inner=inner())):
        for path, method in (("/sub/ann", "POST"), ("/sub/ann", "POST"), ("/sub/bob", "POST")):
            await site.ask(path, method=method)
        assert list(site.stats().routes) == ["(no route)", "POST /sub/{name}"]
        assert (site.stats().total.passed, site.stats().total.refused) == (1, 2)


async def test_a_method_that_a_route_has_not_is_of_that_route() -> None:
    site = Site(rules=[Rule("*", "1/day", name="all")])
    assert [await site.ask("/items/1", method="PUT") for _ in range(2)] == [405, 429]
    assert list(site.stats().routes) == ["(no route)", "GET /items/{id}"]


def test_threads_that_ask_for_a_new_series_at_once_get_the_same_and_lose_nothing() -> None:
    heard = RecordingObserver()
    limiter = Limiter(observers=[heard])
    statistics, rounds = Statistics(limiter), 400  # more than `MAX_SERIES`
    began_us = limiter.engine.now_us()

    def ask(number: int, thread: int) -> None:
        outcome = Outcome(True, Reason.OK, ("rule",), (), f"GET /{number}", 200, "success", began_us, 1, None, ())
        limiter.engine.observers.request(outcome)

    race(ask, rounds)
    stats = statistics.stats("5m")
    assert len(stats.routes) == MAX_SERIES + 1
    assert heard.kinds == ["series_full"]
    assert (stats.total.passed, stats.routes["GET /0"].passed) == (THREADS * rounds, THREADS)


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
    assert seen(site.stats().total) == {"pass": 1, "block": 2, "2xx": 1, "4xx": 2, "success": 1}
    assert seen(statistics.stats().total) == seen(site.stats().total), "each limiter has each request once"
    assert seen(site.stats().rules["in"]) == seen(site.stats().total)
