"""The middleware counts each request once, by rule and by route, whatever its outcome."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import BanPolicy, Limiter, Networks, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule
from slidegate.ops.statistics import Statistics, Stats, Traffic

from ..asgi import page, scope_of, send_scope
from ..virtual_time import turns
from .shared_rows import SharedRows, worker_of
from .site import Site

MS = 1_000


class Recorded(Site):
    """A site with statistics."""

    def __init__(self, rules: list[Rule] | None = None, **options: Any) -> None:
        super().__init__(rules, **options)
        self.statistics = Statistics.of(self.limiter)

    async def read(self) -> Stats:
        return await self.statistics.read("5m")


def counts(traffic: Traffic) -> tuple[int, int, int, int]:
    return traffic.passed, traffic.refused, traffic.exceptions, traffic.cancelled


async def test_a_request_counts_for_its_rules_and_its_route() -> None:
    site = Recorded([Rule("*", "1000/day", name="all"), Rule("/items/{id}", "9/day", name="items")])
    await site.visit(*(f"/items/{number}" for number in range(12)))
    stats = await site.read()
    assert {name: counts(one) for name, one in stats.routes.items()} == {
        "GET /items/{id}": (9, 0, 0, 0),
        "items": (0, 3, 0, 0),
    }
    assert {name: counts(one) for name, one in stats.rules.items()} == {"all": (9, 0, 0, 0), "items": (9, 3, 0, 0)}
    assert counts(stats.total) == (9, 3, 0, 0)
    assert stats.total.p50_us == pytest.approx(30 * MS, rel=0.05)
    assert stats.rules["items"].times.min_us == 30 * MS


async def test_bans_and_lists_are_counted_apart() -> None:
    policy = BanPolicy(after="2/10m", duration="1h", ban_private=True)
    site = Recorded([Rule("*", "1/day", name="all")], bans=policy, blocklist=Networks(["192.0.2.0/24"]))
    await site.visit(*["/items/1"] * 5)
    await site.visit("/items/1", client=("192.0.2.1", 1))
    stats = await site.read()
    assert (stats.total.passed, stats.total.refused, stats.total.banned, stats.total.blocked) == (1, 5, 2, 1)
    assert counts(stats.rules["all"]) == (1, 2, 0, 0)
    (client,) = await site.statistics.clients()
    assert (client.requests, client.refused, client.banned) == (5, 4, 2)
    await site.limiter.unban(client.key)
    events = await site.statistics.events()
    assert {event.kind for event in events} == {"exceeded", "refused", "banned", "unbanned"}
    assert {event.details["reason"] for event in events if event.kind == "refused"} == {"limited", "banned", "blocked"}


async def test_a_shadow_rule_shows_what_it_would_have_refused() -> None:
    site = Recorded([Rule("*", "4/minute", name="now"), Rule("*", "2/minute", shadow=True, name="stricter")])
    await site.visit(*["/items/1"] * 6)
    stats = await site.read()
    assert (stats.rules["stricter"].shadow_refused, *counts(stats.rules["now"])[:2]) == (2, 4, 2)
    assert (stats.total.shadow_refused, stats.total.passed) == (2, 4)
    shadow = await site.statistics.read("5m", rule="stricter")
    assert sum(step.shadow_refused for step in shadow.steps) == 2
    assert "shadow_refused" in {event.kind for event in await site.statistics.events()}


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
EARLY: Message = {"type": "http.response.early_hint", "links": []}
LAST: Message = {"type": "http.response.body", "body": b"x"}
MORE: Message = {**LAST, "more_body": True}
FILE: Message = {"type": "http.response.pathsend", "path": "/x"}
ZERO_COPY: Message = {"type": "http.response.zerocopysend", "file": 3}
TRAILERS: Message = {"type": "http.response.trailers", "headers": []}
ACCEPT: Message = {"type": "websocket.accept"}
CLOSE: Message = {"type": "websocket.close"}
SUCCESS, EXCEPTION, CANCELLED = (1, 0, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([START, LAST], SUCCESS),
        ([START, FILE], SUCCESS),
        ([START, MORE, ZERO_COPY], SUCCESS),
        ([START, {**ZERO_COPY, "more_body": True}, LAST], SUCCESS),
        ([{**START, "trailers": True}, LAST, TRAILERS], SUCCESS),
        ([EARLY, EARLY, START, LAST], SUCCESS),
        ([{**START, "status": 304}, LAST], SUCCESS),
        ([START, LAST, LAST, MORE, START, FILE], SUCCESS),
        ([RuntimeError()], EXCEPTION),
        ([START, RuntimeError()], EXCEPTION),
        ([START, LAST, RuntimeError()], SUCCESS),
        ([START, MORE, ClientDisconnect()], CANCELLED),
        ([CancelledError()], CANCELLED),
        ([], CANCELLED),
        ([ACCEPT, CLOSE], SUCCESS),
        ([ACCEPT, WebSocketDisconnect(1001)], SUCCESS),
        ([CLOSE], SUCCESS),
    ],
)
async def test_a_request_counts_once_whatever_its_messages_and_its_end(
    messages: list[Message | BaseException], expected: tuple[int, int, int, int]
) -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            if isinstance(message, BaseException):
                raise message
            await send(message)

    middleware = RateLimitMiddleware(app, limits="5/day", limiter=limiter)
    connection = "websocket" if messages and messages[0] in (ACCEPT, CLOSE) else "http"
    with suppress(Exception, CancelledError):
        await send_scope(middleware, scope_of(type=connection))
    total = (await statistics.read()).total
    assert counts(total) == expected
    assert total.times.count == 1


async def test_a_limit_that_refuses_after_the_response_began_is_an_exception() -> None:
    limit = RateLimit("1/day")

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await limit.check(HTTPConnection(scope))
        await send(LAST)

    middleware = RateLimitMiddleware(late, limits="9/day", limiter=(limiter := Limiter()))
    statistics = Statistics.of(limiter)
    await send_scope(middleware, scope_of())
    with pytest.raises(RateLimitExceeded):
        await send_scope(middleware, scope_of())
    assert counts((await statistics.read()).total) == (2, 0, 1, 0)


async def test_a_refusal_at_an_endpoint_counts_for_its_route() -> None:
    site = Recorded()
    assert await site.visit("/limited", "/limited") == [200, 429]
    stats = await site.read()
    assert counts(stats.routes["GET /limited"]) == (1, 1, 0, 0)


async def test_a_client_that_leaves_while_it_waits_was_not_admitted() -> None:
    site = Recorded([Rule("*", "1/1h", name="all", wait="2h", wait_max=1)])
    await site.visit("/items/1")
    left: list[Message] = [{"type": "http.request", "body": b""}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return left.pop(0)

    async def send(message: Message) -> None:
        raise AssertionError(message)

    gone = asyncio.create_task(site.app(scope_of("/items/1"), receive, send))
    await turns(20)
    task = asyncio.create_task(site.visit("/items/1"))  # it finds the queue full, and takes the place of who has left
    await turns(20)
    await gone
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    total = (await site.read()).total
    assert counts(total) == (1, 0, 0, 2)
    assert total.times.count == 1


async def test_refusals_before_routing_count_for_their_rule() -> None:
    def inner() -> ASGIApp:
        return Starlette(
            routes=[Route("/{name}", lambda _: PlainTextResponse("x"), methods=["POST"])],
            middleware=[Middleware(RateLimitMiddleware, limits="1/day")],
        )

    outside, inside = Recorded([Rule("*", "1/day", name="all")]), Recorded(inner=inner())
    for site, routes in ((outside, ["POST /sub/{name}", "all"]), (inside, ["POST /sub/{name}", "default"])):
        for path, method in (("/sub/ann", "POST"), ("/sub/ann", "POST"), ("/sub/bob", "POST")):
            await site.visit(path, method=method)
        stats = await site.read()
        assert sorted(stats.routes) == routes
        assert (stats.total.passed, stats.total.refused) == (1, 2)


async def test_a_wrong_method_counts_for_the_route_of_its_path() -> None:
    site = Recorded([Rule("*", "1/day", name="all")])
    assert await site.visit("/items/1", "/items/1", method="PUT") == [405, 429]
    assert sorted((await site.read()).routes) == ["GET /items/{id}", "all"]


async def test_nested_middlewares_count_a_request_once_for_each_limiter() -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)
    inner = RateLimitMiddleware(
        Starlette(routes=[Route("/{name}", lambda _: PlainTextResponse("x"), methods=["POST"])]),
        rules=[Rule("*", "1/day", name="in")],
        limiter=limiter,
    )
    site = Recorded(inner=inner)
    assert await site.visit(*["/sub/x"] * 3, method="POST") == [200, 429, 429]
    stats = await site.read()
    assert counts(stats.total) == counts(stats.rules["in"]) == (1, 2, 0, 0)
    assert counts((await statistics.read()).total) == (1, 2, 0, 0), "each limiter counts each request once"


def test_the_end_of_a_server_writes_the_last_statistics() -> None:
    rows = SharedRows()
    limiter, _ = worker_of(rows)
    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware])) as client:
        client.get("/item")
        assert {kind for kind, _, _ in rows.rows} == {"limits"}, "no statistics yet, but the row of the worker"
    _, other = worker_of(rows)
    found = asyncio.run(other.read())
    assert (found.total.passed, len(found.workers)) == (1, 1)


def test_an_application_that_closes_its_limiter_logs_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter.from_url(f"lmdb://{tmp_path / 'counts'}")
    Statistics.of(limiter)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await limiter.close()

    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware], lifespan=lifespan)) as client:
        client.get("/item")
    assert caplog.messages == []
