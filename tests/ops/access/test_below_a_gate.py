"""The rules of an application leave a tool below their gate alone, and nothing but the tool."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule
from slidegate.web.findings.first_requests import WATCHED

from ...asgi import statuses
from .visits import HOST, TOKEN, Browser, House, said, with_token

HERE = {"host": HOST}


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


def mounted(house: House, **options: Any) -> tuple[Starlette, ASGIApp]:
    """Return an application with the tool in it, and the gate around it."""
    routes = [
        Mount("/admin/limits", house.door),
        Route("/{rest:path}", page, methods=["GET", "POST"]),
    ]
    app = Starlette(routes=routes)
    options = {"limits": "3/minute", "limiter": house.limiter, "silence": ["SG103"], **options}
    return app, RateLimitMiddleware(app, **options)


@pytest.mark.parametrize("warm", [0, WATCHED + 1])
async def test_the_rules_of_the_application_count_no_request_to_the_tool(warm: int) -> None:
    house = House()
    _, gate = mounted(house)
    for number in range(warm):
        await statuses(gate, 1, "/page", client=(f"198.51.100.{number % 250}", 1))
    for path in ("/admin/limits/", "/admin/limits/app.js"):
        assert await statuses(gate, 20, path, headers=HERE) == [200] * 20
    assert await statuses(gate, 20, "/admin/limits/api/items", headers=HERE) == [401] * 20
    # And nothing of it was charged to the client.
    assert await statuses(gate, 5, "/page") == [200] * 3 + [429] * 2
    assert await statuses(gate, 5, "/admin/limits/", headers=HERE) == [200] * 5


async def test_a_client_that_has_spent_everything_logs_in_and_works() -> None:
    house = House()
    _, gate = mounted(house)
    assert (await statuses(gate, 5, "/page"))[-1] == 429
    browser = Browser(gate, at="/admin/limits")
    for _ in range(6):
        answer = await browser.send("POST", "/api/session", {"token": TOKEN})
        assert answer.status == 200
    browser.csrf = said(answer)["csrf"]
    for _ in range(10):
        assert (await browser.send("POST", "/api/items", {})).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/admin/limitsx",
        "/admin/limit",
        "/page/admin/limits/",
        "//admin/limits/",
        "/x/../admin/limits/",
        "/admin//limits/",
        "/ADMIN/limits/",
        "/page?/admin/limits/",
        "/admin/limits%2f",
    ],
)
async def test_a_path_that_only_looks_like_the_tool_is_counted(path: str) -> None:
    _, gate = mounted(House())
    assert await statuses(gate, 5, path, headers=HERE) == [200] * 3 + [429] * 2


async def test_where_something_unknown_may_change_the_path_everything_is_counted() -> None:
    class Rewriting:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self.app({**scope, "path": "/page"}, receive, send)

    house = House()
    app, _ = mounted(house)
    gate = RateLimitMiddleware(Rewriting(app), limits="3/minute", limiter=house.limiter)
    assert await statuses(gate, 5, "/admin/limits/", headers=HERE) == [200] * 3 + [429] * 2


async def test_middleware_of_the_framework_changes_no_path() -> None:
    house = House()
    routes = [Mount("/ops", house.door), Route("/page", page)]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RateLimitMiddleware, limits="3/minute", limiter=house.limiter, silence=["SG107"]),
            Middleware(CORSMiddleware, allow_origins=["*"]),
        ],
    )
    assert await statuses(app, 10, "/ops/", headers=HERE) == [200] * 10
    assert (await statuses(app, 5, "/page"))[-1] == 429


async def test_the_way_to_the_tool_without_its_slash_is_not_counted_either() -> None:
    house = House()
    app = Starlette(routes=[Route("/page", page), Mount("/ops", house.door), Route("/exact", page)])
    gate = RateLimitMiddleware(app, limits="3/minute", limiter=house.limiter)
    assert await statuses(gate, 9, "/ops", headers=HERE) == [307] * 9
    assert await statuses(gate, 4, "/ops/..", headers=HERE) == [404] * 4  # a path of the tool, which knows none such
    assert await statuses(gate, 4, "/nothing/ops", headers=HERE) == [404] * 3 + [429]


@pytest.mark.parametrize("added", ["before", "after"])
async def test_the_tool_in_an_application_of_fastapi_is_found(added: str) -> None:
    house = House()
    app = FastAPI()
    if added == "before":
        app.mount("/ops", house.door)
    app.add_middleware(RateLimitMiddleware, limits="3/minute", limiter=house.limiter, silence=["SG103"])
    app.add_api_route("/page", lambda: "page")
    if added == "after":
        app.mount("/ops", house.door)
    assert await statuses(app, 10, "/ops/", headers=HERE) == [200] * 10
    assert await statuses(app, 4, "/page") == [200] * 3 + [429]


@pytest.mark.parametrize("place", ["mount in a mount", "host", "late", "root_path"])
async def test_the_tool_is_found_wherever_it_is_mounted(place: str) -> None:
    house = House()
    app = Starlette(routes=[Route("/page", page)])
    gate = RateLimitMiddleware(app, limits="3/minute", limiter=house.limiter, silence=["SG103"])
    path, more = "/ops/", {}
    if place == "mount in a mount":
        app.routes.append(Mount("/deep", routes=[Mount("/{tenant}", routes=[Mount("/ops", house.door)])]))
        path = "/deep/one/ops/"
    elif place == "host":
        app.routes.append(Host(HOST, house.door))
        path = "/"
    elif place == "late":
        for number in range(WATCHED - 1):
            await statuses(gate, 1, "/page", client=(f"198.51.100.{number % 250}", 1))
        app.routes.append(Mount("/ops", house.door))
        await statuses(gate, 1, "/page", client=("198.51.100.251", 1))
    else:
        app.routes.append(Mount("/ops", house.door))
        path, more = "/behind/ops/", {"root_path": "/behind"}
    assert await statuses(gate, 10, path, headers=HERE, **more) == [200] * 10


async def test_a_route_whose_endpoint_is_the_tool_is_found() -> None:
    house = House()
    app = Starlette(routes=[Route("/", house.door)])
    gate = RateLimitMiddleware(app, limits="3/minute", limiter=house.limiter)
    assert await statuses(gate, 10, "/", headers=HERE) == [200] * 10


async def test_no_signal_strikes_for_what_happens_at_the_tool() -> None:
    house = House()
    bans = BanPolicy(after="2/10m", duration="1h", signals={401: 1, 404: 1, "/admin/limits/x": "ban", "429": 1})
    _, gate = mounted(house, bans=bans)
    peer = ("8.8.8.8", 1)
    assert await statuses(gate, 8, "/admin/limits/api/items", headers=HERE, client=peer) == [401] * 8
    assert await statuses(gate, 8, "/admin/limits/x", headers=HERE, client=peer) == [404] * 8
    assert await statuses(gate, 1, "/page", client=peer) == [200]


async def test_requests_to_the_tool_are_no_requests_to_the_application() -> None:
    house = House()
    _, gate = mounted(house)
    for path in ("/admin/limits/", "/admin/limits/api/items", "/admin/limits/nothing"):
        await statuses(gate, 3, path, headers=HERE)
    assert house.limiter.stats().total.passed == 0
    await statuses(gate, 2, "/page")
    assert house.limiter.stats().total.passed == 2


# -- bans and lists ------------------------------------------------------------------------------------------------


async def test_a_banned_stranger_sees_that_he_is_banned() -> None:
    house = House()
    await house.limiter.ban("203.0.113.9", "1h")
    for path in ("/", "/app.js", "/api/items", "/api/session"):
        answer = await Browser(house.door).send("GET", path)
        assert (answer.status, said(answer)["code"], answer.headers["retry-after"]) == (403, "banned", "3600")
    answer = await Browser(house.door).send("GET", "/", accept="text/html,*/*")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"banned" in answer.body
    assert (await Browser(house.door).log_in()).status == 403
    assert (await Browser(house.door).send("GET", "/api/items", authorization=f"Bearer {TOKEN}")).status == 403
    await house.limiter.ban("203.0.113.9", "permanent")
    assert "retry-after" not in (await Browser(house.door).send("GET", "/")).headers
    # Whoever is on the host takes the ban back without HTTP.
    assert await house.limiter.unban("203.0.113.9")
    assert (await Browser(house.door).log_in()).status == 200


async def test_a_ban_keeps_a_script_out_that_has_shown_its_token_before() -> None:
    house = House()
    assert (await with_token(house.door, "GET", "/api/items")).status == 200
    await house.limiter.ban("203.0.113.9", "1h")
    assert (await with_token(house.door, "GET", "/api/items")).status == 403
    await house.limiter.unban("203.0.113.9")
    assert (await with_token(house.door, "GET", "/api/items")).status == 200


async def test_an_operator_who_bans_his_own_address_goes_on_in_his_session() -> None:
    house = House()
    _, gate = mounted(house, bans=BanPolicy(after="20/10m", duration="1h"))
    browser = Browser(gate, at="/admin/limits")
    browser.csrf = said(await browser.send("POST", "/api/session", {"token": TOKEN}))["csrf"]
    await house.limiter.ban("203.0.113.0/24", "1h")
    assert await statuses(gate, 1, "/page") == [403]
    assert (await browser.send("GET", "/")).status == 200
    assert (await browser.send("POST", "/api/items", {})).status == 200
    assert (await Browser(gate, at="/admin/limits").send("GET", "/")).status == 403


async def test_a_ban_in_another_limiter_than_that_of_the_tool_is_for_the_gate_to_heed() -> None:
    house = House()
    other = Limiter(MemoryStore(clock=house.clock))
    _, gate = mounted(house, limiter=other)
    assert await statuses(gate, 9, "/admin/limits/", headers=HERE) == [200] * 9
    await other.ban("203.0.113.9", "1h")
    assert await statuses(gate, 1, "/admin/limits/", headers=HERE) == [403]


async def test_the_blocklist_of_the_gate_holds_at_the_tool_too() -> None:
    house = House()
    _, gate = mounted(house, blocklist=Networks(["203.0.113.0/24"]))
    assert await statuses(gate, 1, "/admin/limits/", headers=HERE) == [403]
    assert await statuses(gate, 1, "/admin/limits/", headers=HERE, client=("192.0.2.1", 1)) == [200]


async def test_other_limits_of_the_gate_leave_the_tool_alone_too() -> None:
    house = House()
    rules = [Rule("/admin/{rest:path}", action="block"), Rule("*", concurrency=1), Rule("*", "1/minute", wait="1s")]
    _, gate = mounted(house, limits=None, rules=rules, per_route="1/minute")
    assert await statuses(gate, 5, "/admin/limits/", headers=HERE) == [200] * 5
    assert await statuses(gate, 1, "/admin/other", headers=HERE) == [403]
