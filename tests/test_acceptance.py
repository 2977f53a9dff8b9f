"""The code that users write, as the design shows it, and what it promises them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from httpx import Response
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    everyone,
    header,
)
from slidegate.core import Reason
from slidegate.testing import FakeClock, limits_clock

from .asgi import call, page

PROXY = "10.0.0.1"


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    """Stop the clock of every limiter."""
    with limits_clock(FakeClock(10**15)) as clock:
        yield clock


def test_one_line_holds_every_client_to_a_hundred_requests_a_minute(clock: FakeClock) -> None:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="100/minute")
    client = TestClient(app)
    *passed, refused = [client.get("/") for _ in range(101)]
    assert ([answer.status_code for answer in passed], refused.status_code) == ([404] * 100, 429)
    retry_after = refused.headers["retry-after"]
    sent = {name: refused.headers[name] for name in ("content-type", "cache-control", "ratelimit-policy", "ratelimit")}
    assert sent == {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        "ratelimit-policy": '"default";q=100;w=60',
        "ratelimit": f'"default";r=0;t={retry_after}',
    }
    assert refused.json()["violated-policies"] == ["default"]
    clock.advance(us=int(retry_after) * 1_000_000)
    assert client.get("/").status_code == 404


class Visitor:
    """Sends requests through the trusted proxy, or past it, to the application with the whole thing."""

    def __init__(self) -> None:
        self._app = app = FastAPI()
        app.add_middleware(
            RateLimitMiddleware,
            limiter=Limiter(MemoryStore()),
            client=client_ip(trusted=["10.0.0.0/8"], ipv6_prefix=64),
            rules=[
                Rule("/health", exempt=True),
                Rule("/login", "5/minute; 50/hour", methods=["POST"]),
                Rule("/api/{rest:path}", "100/10s", key=header("X-API-Key"), name="api"),
                Rule("/export", "10/hour", cost=lambda request: 5),
                Rule("*", "2000/second", key=everyone, name="service"),
                Rule("*", "600/minute"),
            ],
            blocklist=Networks.from_file("blocked.netset"),
            allowlist=Networks(["192.0.2.0/24"]),
            bans=BanPolicy(after="20/10m", duration="1h", factor=4, longest="7d"),
        )

    def statuses(
        self, count: int, path: str, method: str = "GET", client: str = "203.0.113.9", peer: str = PROXY, key: str = ""
    ) -> list[int]:
        headers = {"X-Forwarded-For": f"198.51.100.7, {client}", **({"X-API-Key": key} if key else {})}

        async def ask() -> list[int]:
            options: Any = {"client": (peer, 1234), "headers": headers}
            return [(await call(self._app, path, method, **options)).status for _ in range(count)]

        return asyncio.run(ask())

    def answer(self, path: str, client: str = "203.0.113.9", method: str = "GET") -> Response:
        sender = TestClient(self._app, client=(PROXY, 1234), headers={"X-Forwarded-For": client})
        return sender.request(method, path)


@pytest.fixture
def visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    (tmp_path / "blocked.netset").write_text("# by hand\n198.51.100.0/24\n")
    monkeypatch.chdir(tmp_path)
    return Visitor()


def test_the_whole_thing_counts_each_rule_by_its_key(visitor: Visitor) -> None:
    assert visitor.statuses(3, "/health") == [404] * 3
    assert visitor.statuses(6, "/login", "POST") == [404] * 5 + [429]
    assert visitor.statuses(1, "/login", "POST", client="203.0.113.10") == [404], "another client"
    assert visitor.statuses(1, "/login") == [404], "another method"
    assert visitor.statuses(3, "/export") == [404, 404, 429], "each costs five of ten"
    assert visitor.statuses(101, "/api/items", key="one") == [404] * 100 + [429]
    assert visitor.statuses(1, "/api/other", client="203.0.113.11", key="one") == [429], "the key is counted"
    assert visitor.statuses(1, "/api/items", key="two") == [404]


def test_the_whole_thing_knows_a_client_behind_the_trusted_proxy_only(visitor: Visitor) -> None:
    assert visitor.statuses(1, "/", client="198.51.100.3") == [403], "on the blocklist"
    assert visitor.statuses(601, "/", client="192.0.2.8") == [404] * 601, "on the allowlist"
    assert visitor.statuses(601, "/", client="2001:db8::1")[-1] == 429
    assert visitor.statuses(1, "/", client="2001:db8::2") == [429], "the same /64"
    assert visitor.statuses(1, "/", client="2001:db8:0:1::2") == [404], "the next /64"
    assert visitor.statuses(1, "/", client="192.0.2.8", peer="198.51.100.3") == [403], "a stranger is not believed"


def test_the_whole_thing_holds_everyone_together_to_the_service_limit(visitor: Visitor) -> None:
    counted = [visitor.statuses(500, "/", client=f"203.0.113.{number}") for number in range(1, 5)]
    assert counted == [[404] * 500] * 4
    assert visitor.statuses(1, "/", client="203.0.113.5") == [429]


def test_the_whole_thing_bans_at_the_twentieth_refusal_and_for_longer_each_time(
    visitor: Visitor, clock: FakeClock
) -> None:
    for least_s in (3_600, 4 * 3_600, 16 * 3_600, 64 * 3_600, 7 * 86_400, 7 * 86_400):
        for number in range(4):  # of a minute's 5, with 5 refusals each
            clock.advance("60s")
            assert visitor.statuses(10, "/login", "POST") == [404] * 5 + [429] * 5, number
        refused = visitor.answer("/")
        assert refused.status_code == 403
        assert refused.json()["type"].endswith("#abnormal-usage-detected")
        wait_s = int(refused.headers["retry-after"])
        assert least_s <= wait_s <= min(1.1 * least_s, 7 * 86_400)
        assert visitor.statuses(1, "/health") == [403], "whatever the rules say"
        assert visitor.statuses(1, "/health", client="203.0.113.10") == [404], "a neighbour"
        clock.advance(us=(wait_s - 1) * 1_000_000)
        assert visitor.statuses(1, "/") == [403]
        clock.advance("1s")
        assert visitor.statuses(1, "/") == [404]


def test_the_whole_thing_never_bans_the_allowlist_nor_the_proxy(visitor: Visitor) -> None:
    assert visitor.statuses(100, "/login", "POST", client="192.0.2.8") == [404] * 100
    own = [visitor.answer("/login", PROXY, "POST").status_code for _ in range(100)]
    assert own == [404] * 5 + [429] * 95


async def search() -> str:
    return "found"


def endpoint(how: str) -> ASGIApp:
    """Return an application whose page /search is limited in one of the ways that users have."""
    if how == "middleware of a route":
        middleware = Middleware(RateLimitMiddleware, limits="5/second")
        return Starlette(routes=[Route("/search", page, middleware=[middleware])])
    app, limit = FastAPI(), RateLimit("5/second")
    app.add_middleware(RateLimitMiddleware, rules=[])
    if how == "dependency":
        app.get("/search", dependencies=[Depends(limit)])(search)
    else:
        app.get("/search")(limit(search))
    return app


@pytest.mark.parametrize("how", ["dependency", "decorated", "middleware of a route"])
def test_an_endpoint_is_held_to_five_a_second(how: str, clock: FakeClock) -> None:
    client = TestClient(endpoint(how))
    assert [client.get("/search").status_code for _ in range(6)] == [200] * 5 + [429]
    clock.advance("1s")
    assert client.get("/search").status_code == 200


async def test_without_http_one_decision_says_everything() -> None:
    limiter = Limiter(MemoryStore())
    decision = await limiter.hit("user:42", "5/minute; 50/hour", cost=1)
    assert (decision.allowed, decision.remaining, decision.retry_after) == (True, 4, 0)
    assert (decision.reset_after, decision.reason) == (60, Reason.OK)
    assert (await limiter.peek("user:42", "5/minute")).remaining == 3, "what a hit would leave"
    assert await limiter.refund(decision) is True
    assert await limiter.refund(decision) is False
    refused = [await limiter.hit("user:42", "5/minute; 50/hour", cost=1) for _ in range(6)][-1]
    assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 60)
    assert (refused.reset_after, refused.reason) == (60, Reason.LIMITED)
    assert await limiter.reset("user:42") is True
    assert (await limiter.hit("user:42", "5/minute; 50/hour", cost=1)).remaining == 4
