"""The rules of an application leave a tool below their gate alone, and nothing but the tool."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware

from ...asgi import page, statuses
from .visits import HOST, TOKEN, Browser, House, said

HERE = {"host": HOST}


def mounted(house: House, **options: Any) -> tuple[Starlette, ASGIApp]:
    """Return an application with the tool in it, and the gate around it."""
    routes = [
        Mount("/admin/limits", house.door),
        Route("/{rest:path}", page, methods=["GET", "POST"]),
    ]
    app = Starlette(routes=routes)
    options = {"limits": "3/minute", "limiter": house.limiter, "ignore_checks": ["SG103"], **options}
    return app, RateLimitMiddleware(app, **options)


async def test_the_rules_of_the_application_count_no_request_to_the_tool() -> None:
    house = House()
    _, gate = mounted(house)
    for path in ("/admin/limits/", "/admin/limits/app.js"):
        assert await statuses(gate, 20, path, headers=HERE) == [200] * 20
    assert await statuses(gate, 20, "/admin/limits/api/items", headers=HERE) == [401] * 20
    # And nothing of it was charged to the client.
    assert await statuses(gate, 5, "/page") == [200] * 3 + [429] * 2
    assert await statuses(gate, 5, "/admin/limits/", headers=HERE) == [200] * 5


@pytest.mark.parametrize(
    "path",
    [
        "/admin/limitsx",
        "//admin/limits/",
        "/x/../admin/limits/",
        "/ADMIN/limits/",
    ],
)
async def test_a_path_that_only_looks_like_the_tool_is_counted(path: str) -> None:
    _, gate = mounted(House())
    assert await statuses(gate, 5, path, headers=HERE) == [200] * 3 + [429] * 2


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
