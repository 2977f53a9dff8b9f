"""The middleware counts each request once, by rule and by route, whatever its outcome."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule
from slidegate.ops.statistics import Statistics, Stats, Traffic

from ..asgi import page
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
