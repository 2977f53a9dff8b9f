"""A tool below a middleware is counted like everything else, and the middleware says which rule would exempt it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, client_ip

from ..asgi import page, statuses
from .dashboard_client import HOST, LOOK, TOKEN, Browser, Site, said

HERE = {"host": HOST}


def mounted(site: Site, **options: Any) -> tuple[Starlette, ASGIApp]:
    """Return an application with the tool in it, and the middleware around it."""
    routes = [
        Mount("/admin/limits", site.app),
        Route("/{rest:path}", page, methods=["GET", "POST"]),
    ]
    app = Starlette(routes=routes)
    options = {"limits": "3/minute", "limiter": site.limiter, "ignore_checks": ["SG103"], **options}
    return app, RateLimitMiddleware(app, **options)


async def test_a_tool_is_counted_like_everything_else() -> None:
    _, middleware = mounted(Site())
    assert await statuses(middleware, 5, "/admin/limits/", headers=HERE) == [200] * 3 + [429] * 2
    assert await statuses(middleware, 1, "/page") == [429]


async def test_an_exempt_rule_leaves_the_tool_alone() -> None:
    rules = [Rule("/admin/limits/{rest:path}", exempt=True), Rule("*", "3/minute")]
    _, middleware = mounted(Site(), limits=None, rules=rules)
    for path in ("/admin/limits/", "/admin/limits/static/app.js"):
        assert await statuses(middleware, 20, path, headers=HERE) == [200] * 20
    assert await statuses(middleware, 20, "/admin/limits/api/lists", headers=HERE) == [401] * 20
    assert await statuses(middleware, 5, "/page") == [200] * 3 + [429] * 2


async def test_a_tool_beside_the_middleware_is_no_finding_of_its() -> None:
    middlewares: list[Any] = []

    def middleware(app: ASGIApp) -> Any:
        middlewares.append(RateLimitMiddleware(app, limits="3/minute"))
        return middlewares[-1]

    app = Starlette(routes=[Mount("/admin", Site().app), Mount("/site", middleware(Starlette()))])
    await statuses(app, 1, "/site/x")
    assert [finding.code for finding in middlewares[0].findings] == []


async def test_a_banned_stranger_sees_that_he_is_banned() -> None:
    site = Site()
    await site.limiter.ban("203.0.113.9", "1h")
    for path in ("/", "/static/app.js", LOOK, "/api/session"):
        answer = await Browser(site.app).send("GET", path)
        assert (answer.status, said(answer)["code"], answer.headers["retry-after"]) == (403, "banned", "3600")
    answer = await Browser(site.app).send("GET", "/", accept="text/html,*/*")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"banned" in answer.body
    assert (await Browser(site.app).log_in()).status == 403
    assert (await Browser(site.app).send("GET", LOOK, authorization=f"Bearer {TOKEN}")).status == 403
    await site.limiter.ban("203.0.113.9", "permanent")
    assert "retry-after" not in (await Browser(site.app).send("GET", "/")).headers
    # Whoever is on the host takes the ban back without HTTP.
    assert await site.limiter.unban("203.0.113.9")
    assert (await Browser(site.app).log_in()).status == 200


@pytest.mark.parametrize("prefix", [24, 30, 32])
@pytest.mark.parametrize("target", ["203.0.113.9", "203.0.113.8/30", "203.0.113.0/24", "203.0.0.0/16"])
async def test_a_ban_holds_whatever_prefix_makes_one_client_of_the_tool(target: str, prefix: int) -> None:
    site = Site(client=client_ip(ipv4_prefix=prefix))
    await site.limiter.ban(target, "1h")
    assert (await Browser(site.app).log_in()).status == 403


@pytest.mark.parametrize("shared", [True, False])
async def test_bans_and_the_blocklist_of_the_middleware_hold_at_the_tool_too(shared: bool) -> None:
    site = Site()
    limiter = site.limiter if shared else Limiter(MemoryStore(clock=site.clock))
    _, middleware = mounted(site, limiter=limiter, blocklist=Networks(["203.0.113.0/28"]))
    await limiter.ban("203.0.113.99", "1h")
    for peer, status in (("203.0.113.9", 403), ("203.0.113.99", 403), ("192.0.2.1", 200)):
        assert await statuses(middleware, 1, "/admin/limits/", headers=HERE, client=(peer, 1)) == [status]


async def test_an_operator_on_the_allowlist_is_neither_counted_nor_banned_at_the_tool() -> None:
    site = Site()
    _, middleware = mounted(site, allowlist=Networks(["203.0.113.9"]))
    await site.limiter.ban("203.0.113.0/24", "1h")
    browser = Browser(middleware, at="/admin/limits")
    assert (await browser.send("GET", "/")).status == 403, "the door itself heeds the ban of a stranger"
    await site.limiter.unban("203.0.113.0/24")
    assert await statuses(middleware, 9, "/admin/limits/", headers=HERE) == [200] * 9
