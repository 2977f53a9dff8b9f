"""What a worker publishes of its rules: what it knows when it starts and what requests have met, once if equal."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip, header
from slidegate.limiter import workers
from slidegate.limiter.workers import RULES, WORKERS
from slidegate.testing import FakeClock

from ..asgi import PEER, hello, page, statuses
from ..ops.shared_rows import SharedRows, limiter_on
from ..virtual_time import turns
from .middlewares import around, class_of


async def test_a_limit_that_a_worker_meets_is_published_also_if_it_is_idle_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "monotonic", count().__next__)
    limiter = limiter_on(SharedRows(FakeClock()))
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits="900/hour", limiter=limiter)
    app.get("/login", dependencies=[Depends(RateLimit("3/hour", name="login"))])(hello)
    for path, names in (("/", {"default"}), ("/login", {"default", "login"})):
        await statuses(app, 1, path)
        await turns(9)
        (published,) = await limiter_on(limiter.store.shared_rows).published()  # type: ignore[attr-defined]
        assert {one.name for one in published.rules if one.limit} == names


async def test_workers_that_have_met_the_same_publish_one_text_and_24_bytes_each() -> None:
    rows = SharedRows(FakeClock())
    routes = [Route(f"/{name}/{{id}}", page) for name in "abc"] + [Route("/free", RateLimit.exempt(around(page)))]
    for path in ("/a/1", "/a/2", "/a/3"):
        app = RateLimitMiddleware(Starlette(routes=routes), default_limits="5/minute", limiter=limiter_on(rows))
        assert await statuses(app, 2, path) == [200] * 2
        await app.limiter.engine.workers.write(1.0)
    texts = {name[1] for name in rows.rows if name[0] == RULES}
    assert [len(value) for name, (value, _) in rows.rows.items() if name[0] == WORKERS] == [24] * 3
    (published,) = await limiter_on(rows).published()
    found = [(one.rule, one.requests, one.at_endpoint) for one in published.rules]
    assert (published.workers, found) == (3, [("client", "", False), ("per-route GET /a/{id}", "GET /a/{id}", False)])
    assert await statuses(app, 1, "/nowhere") == [404]
    await app.limiter.engine.workers.write(1.0)
    assert len({name[1] for name in rows.rows if name[0] == RULES} - texts) == 1
    last = max(await limiter_on(rows).published(), key=lambda one: len(one.rules))
    assert sorted(one.requests for one in last.rules) == ["", "*", "GET /a/{id}"]


async def test_a_text_that_is_gone_is_written_again_and_one_of_a_later_version_is_not_read() -> None:
    rows = SharedRows(FakeClock())
    app = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter_on(rows))

    async def written(tool: Limiter) -> list[Any]:
        app.limiter.engine.workers.pause_s = 0.0
        rows.clock.advance("1s")
        assert await statuses(app, 1) == [200]
        await turns()
        return [(one.is_readable, [rule.name for rule in one.rules if rule.limit]) for one in await tool.published()]

    assert await written(limiter_on(rows)) == [(True, ["default"])]
    for name in [name for name in rows.rows if name[0] == RULES]:
        del rows.rows[name]
    tool = limiter_on(rows)
    assert [one.is_readable for one in await tool.published()] == [False]
    assert await written(tool) == [(True, ["default"])], "it is not remembered that there was none"
    for name, (_, until_us) in {**rows.rows}.items():
        if name[0] == RULES:
            rows.rows[name] = json.dumps({"version": 9}).encode(), until_us
    tool = limiter_on(rows)
    assert [one.is_readable for one in await tool.published()] == [False]
    assert not (await tool.override("anything", "5/minute", "1h")).is_published


async def test_a_limit_at_an_endpoint_is_published_once_it_is_met() -> None:
    decorated = RateLimit("3/minute", when=lambda request: True)(page)
    inner = FastAPI()
    router = APIRouter(dependencies=[Depends(RateLimit("9/minute", key=header("X-API-Key"), name="router"))])
    router.add_api_route("/inner", lambda: "page", dependencies=[Depends(RateLimit("4/minute; 40/hour", cost=2))])
    inner.include_router(router)
    routes = [Route("/decorated", decorated), Route("/also", decorated), Route("/free", page), Mount("/v1", inner)]
    routes.append(Route("/class", class_of(page, RateLimit("7/minute"))))
    rows, app = SharedRows(FakeClock()), Starlette(routes=routes)
    idle, busy = (RateLimitMiddleware(app, limits="900/minute", limiter=limiter_on(rows)) for _ in range(2))
    assert await statuses(idle, 1, "/free") == [200]
    for path in ("/free", "/decorated", "/also", "/class", "/v1/inner"):
        assert await statuses(busy, 1, path) == [200]
    for one in (idle, busy):
        await one.limiter.engine.workers.write(1.0)
    unmet, published = sorted(await limiter_on(rows).published(), key=lambda one: len(one.rules))
    assert [one.rule for one in unmet.rules] == ["client", "default"]
    found = [one for one in published.rules if one.at_endpoint]
    assert sorted((one.rule, one.limit, one.key, one.cost, one.conditional) for one in found) == [
        ("endpoint * /class Page.get", "7/1m", "address", 1, False),
        ("endpoint GET /also", "3/1m", "address", 1, True),
        ("endpoint GET /v1/inner", "4/1m", "address", 2, False),
        ("endpoint GET /v1/inner", "40/1h", "address", 2, False),
        ("router", "9/1m", "header:x-api-key", 1, False),
    ]
    counted = await busy.limiter.inspect(PEER, {one.bucket: one.limit for one in found})
    assert {window.used for window in counted.windows} == {1, 2}, "the names of buckets are those that are counted"


async def test_lists_and_what_decides_about_a_request_are_published(tmp_path: Path) -> None:
    (tmp_path / "bad.netset").write_text("10.0.0.0/8\n192.0.2.7\n203.0.113.0/24\n")
    rules = [
        Rule(["/a", "/b"], "9/minute", methods=["GET"], wait="1s", final=True, name="a"),
        Rule("/{rest:path}", "8/minute", cost=3, when=lambda request: True, name="b"),
        Rule("*", "7/minute", cost=lambda request: 2, concurrency=3, key=client_ip(ipv4_prefix=16), name="c"),
    ]
    app = RateLimitMiddleware(
        hello,
        rules=rules,
        limiter=limiter_on(SharedRows(FakeClock())),
        client=client_ip(trusted=["203.0.113.64/26"], ipv4_prefix=24),
        blocklist=Networks.from_file(tmp_path / "bad.netset"),
        allowlist=Networks([f"198.{18 + n // 256}.{n % 256}.0/25" for n in range(1_001)]),
        bans=BanPolicy(duration="1h", factor=10, longest="2d"),
        name="outer",
    )
    (published,) = await app.limiter.published()
    found = {(one.bucket, one.limit): one for one in published.rules if one.limit}
    assert {
        name: (one.requests, one.final, one.conditional, one.wait_us, one.cost, one.cost_by_function, one.ipv4_prefix)
        for name, one in found.items()
    } == {
        ("outer:a", "9/1m"): ("GET /a /b", True, False, 1_000_000, 1, False, 24),
        ("outer:b", "8/1m"): ("/{rest:path}", False, True, 0, 3, False, 24),
        ("outer:c", "7/1m"): ("", False, False, 0, 1, True, 16),
        ("outer:c", "3"): ("", False, False, 0, 1, False, 16),
    }
    lists = [one for one in published.rules if one.action in ("allowlist", "blocklist")]
    assert sorted((one.rule, one.size, one.ranges) for one in lists) == [
        ("allowlist", 1_001, ""),  # of a long list only its size is published
        ("bad", 3, "4:c0000207-c0000207 4:cb007100-cb00713f 4:cb007180-cb0071ff"),
    ]
    assert [(one.rule, one.key) for one in published.rules if one.action == "ban"] == [("abuse", "address")]


async def test_a_middleware_that_is_switched_off_in_code_enforces_and_publishes_nothing() -> None:
    app = RateLimitMiddleware(hello, limits="9/minute", limiter=limiter_on(SharedRows(FakeClock())), enabled=False)
    (published,) = await app.limiter.published()
    assert not published.rules
