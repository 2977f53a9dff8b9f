"""The published weaknesses of fastapi-guard, tried here: each would be a way past a limit, a list or a ban.

docs/security.md has the table of them.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip, header
from slidegate.admin import AdminRoutes

from ..asgi import PEER, call, hello, scope_of, send_scope

PROXY = ("10.0.0.7", 1234)
TOKEN = "a-token-of-these-tests-alone"
HANG_S = 30
FORGED = [f"192.0.2.{number}" for number in range(20)]


def limited(**options: Any) -> RateLimitMiddleware:
    """Return an application that lets a client ask three times a minute, as far as the options say no more."""
    return RateLimitMiddleware(hello, **{"limits": "3/minute", **options})


async def passed(app: ASGIApp, requests: list[dict[str, Any]]) -> int:
    """Return how many requests reach the application."""
    return [(await call(app, **request)).status for request in requests].count(200)


# -- CVE-2025-46814: an invented X-Forwarded-For ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X_FORWARDED_FOR", "X-Real-IP", "Forwarded", "CF-Connecting-IP"])
@pytest.mark.parametrize("client", [client_ip(), client_ip(trusted=["10.0.0.0/8"])], ids=["no proxy", "past the proxy"])
async def test_an_invented_address_is_no_other_client(name: str, client: Any) -> None:
    value = "for={}" if name == "Forwarded" else "{}"
    requests = [{"headers": {name: value.format(forged)}} for forged in FORGED]
    assert await passed(limited(client=client), requests) == 3


async def test_an_invented_address_behind_a_proxy_is_left_of_the_true_one() -> None:
    app = limited(client=client_ip(trusted=["10.0.0.0/8"]))
    requests = [{"client": PROXY, "headers": {"X-Forwarded-For": f"{forged}, {PEER}"}} for forged in FORGED]
    assert await passed(app, requests) == 3


async def test_an_invented_address_gets_nobody_else_banned() -> None:
    limiter = Limiter()
    app = limited(limiter=limiter, bans=BanPolicy("1/minute", "1h"), client=client_ip(trusted=["10.0.0.0/8"]))
    for _ in range(5):
        await call(app, client=PROXY, headers={"X-Forwarded-For": f"192.0.2.1, {PEER}"})
    assert [ban.key async for ban in limiter.bans()] == [PEER]


# -- GHSA-8xvm-856x-7hwp: several lines of X-Forwarded-For -----------------------------------------------------------


@pytest.mark.parametrize("lines", [("{forged}", PEER), ("{forged}", "{forged}", PEER), ("{forged}, {forged}", PEER)])
async def test_several_lines_are_one_list_that_is_read_from_the_right(lines: tuple[str, ...]) -> None:
    app = limited(client=client_ip(trusted=["10.0.0.0/8"]))
    requests = [
        {"client": PROXY, "headers": [(b"x-forwarded-for", line.format(forged=forged).encode()) for line in lines]}
        for forged in FORGED
    ]
    assert await passed(app, requests) == 3


# -- CVE-2025-53539, CVE-2025-54365: text on which a pattern takes time out of proportion ----------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<script " * 8_000,
        "a" * 60_000 + "!",
        "/../" * 15_000,
        "%2e" * 20_000,
        "," * 60_000,
        " " * 60_000 + "x",
        '"' * 60_001,
    ],
    ids=lambda text: text[:8],
)
async def test_no_text_of_a_client_takes_long(text: str) -> None:
    app = RateLimitMiddleware(
        hello,
        rules=[Rule("/a/{rest:path}", "3/minute"), Rule("/{x}/{y}", "9/minute", key=header("X-API-Key"))],
        client=client_ip(trusted=["10.0.0.0/8"]),
        bans=BanPolicy(signals={"/.env": 1, "/x/{rest:path}": 1}),
    )
    names = ("X-Forwarded-For", "Forwarded", "X-API-Key", "Cookie", "User-Agent", "Host")
    began_s = time.monotonic()
    for name in names:
        await call(app, client=PROXY, headers={name: text})
    await call(app, f"/a/{text}")
    await call(app, "/a", query_string=text.encode())
    await call(app, "/a/b", "POST", text.encode())
    assert time.monotonic() - began_s < HANG_S


# -- GHSA-f2vm-w8gq-h378: mounts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/shop/buy", "//shop/buy", "/shop//buy", "/x/../shop/buy", "/shop/./buy"])
async def test_a_path_below_a_mount_is_held_by_its_whole_path(path: str) -> None:
    shop = FastAPI()
    shop.add_api_route("/buy", lambda: "bought")
    app = FastAPI()
    app.mount("/shop", shop)
    held = RateLimitMiddleware(app, rules=[Rule("/health", exempt=True), Rule("/shop/buy", "3/minute")])
    answers = [(await call(held, path)).status for _ in range(9)]
    assert answers.count(429) == 6


async def test_a_limit_at_an_endpoint_of_a_mounted_application_holds() -> None:
    shop = FastAPI()
    shop.add_api_route("/items/{item}", RateLimit("3/minute")(lambda item: item))
    app = FastAPI()
    app.mount("/shop", shop)
    app.add_middleware(RateLimitMiddleware)
    assert await passed(app, [{"path": f"/shop/items/{number}"} for number in range(9)]) == 3


# -- GHSA-634g-4wr8-xwxv: no client address --------------------------------------------------------------------------


@pytest.mark.parametrize("server", [("127.0.0.1", 80), ("::1", 443)])
async def test_a_request_without_an_address_on_a_port_that_has_named_peers_reaches_nothing(server: Any) -> None:
    app = limited(blocklist=Networks(["203.0.113.0/24"]))
    assert await passed(app, [{"client": ("198.51.100.7", 1), "server": server}]) == 1
    assert await passed(app, [{"client": None, "server": server} for _ in range(5)]) == 0


@pytest.mark.parametrize("server", [("/run/app.sock", None), None])
async def test_requests_without_an_address_on_a_socket_are_one_client(server: Any) -> None:
    requests = [{"client": None, "server": server, "headers": {"X-Forwarded-For": forged}} for forged in FORGED]
    assert await passed(limited(), requests) == 3


# -- GHSA-63qv-gh36-52qf: websockets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({}, 3),
        ({"blocklist": Networks(["203.0.113.0/24"])}, 0),
        ({"limits": None, "rules": [Rule("/ws", block=True)]}, 0),
        ({"limits": "100/minute", "bans": BanPolicy(signals={"/ws": "ban"})}, 0),
        ({"limits": None, "default_limits": "3/minute"}, 3),
    ],
    ids=["limits", "blocklist", "block", "honeypot", "default limits"],
)
async def test_a_handshake_is_a_request_to_limits_lists_and_bans(options: dict[str, Any], accepted: int) -> None:
    app = FastAPI()

    @app.websocket("/ws")
    async def chat(socket: WebSocket) -> None:
        await socket.accept()

    held = RateLimitMiddleware(app, **{"limits": "3/minute", **options})
    answers = [await send_scope(held, scope_of("/ws", type="websocket", extensions={})) for _ in range(9)]
    kinds = [answer.messages[0]["type"] for answer in answers]
    assert kinds.count("websocket.accept") == accepted


# -- GHSA-g53w-gmp9-9ch3: stores that grow with each new key ---------------------------------------------------------


async def test_keys_without_number_fill_nothing_and_free_nobody() -> None:
    store = MemoryStore(max_keys=64, max_bans=16)
    limiter = Limiter(store)
    app = RateLimitMiddleware(
        hello,
        limiter=limiter,
        rules=[Rule("*", "3/minute", key=header("X-API-Key"), name="keys"), Rule("*", "3/minute", name="addresses")],
        bans=BanPolicy("1/minute", "1h", key=header("X-API-Key"), signals={"refused": 1}),
    )
    assert await passed(app, [{"headers": {"X-API-Key": "known"}} for _ in range(9)]) == 3
    for number in range(2_000):
        client = (f"198.51.{number % 250}.{number // 250}", 1)
        await call(app, client=client, headers={"X-API-Key": f"made-up-{number}"})
    assert store.stats().keys <= 64
    assert len([ban async for ban in limiter.bans()]) <= 16
    assert await passed(app, [{"headers": {"X-API-Key": "known"}}]) == 0


# -- GHSA-x96c-fcg2-x2f9: a check that took any token ----------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer null",
        "Bearer *",
    ],
)
async def test_only_the_token_itself_opens_the_tools(value: str) -> None:
    tool = AdminRoutes(Limiter(), token=TOKEN)
    assert (await call(tool, "/rules", headers={"Host": "app.test", "Authorization": value})).status == 401
    right = {"Host": "app.test", "Authorization": f"Bearer {TOKEN}"}
    assert (await call(tool, "/rules", headers=right)).status == 200


async def test_a_limit_by_header_beside_one_by_address_holds_whoever_makes_up_tokens() -> None:
    rules = [Rule("*", "100/minute", key=header("Authorization")), Rule("*", "3/minute")]
    requests = [{"headers": {"Authorization": f"Bearer {number}"}} for number in range(20)]
    assert await passed(RateLimitMiddleware(hello, rules=rules), requests) == 3


# -- prefixes of static paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static../login",
        "/staticlogin",
        "/static",
        "/static;/login",
        "/static/../login",
        "/static/./../login",
        "//static/../login",
        "/STATIC/x",
        "/x/static/y",
        "/static/%2e%2e/\nlogin",
        "/static\\login",
    ],
)
async def test_what_begins_like_an_exempt_path_is_not_exempt(path: str) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("/static/{rest:path}", exempt=True), Rule("*", "3/minute")])
    assert await passed(app, [{"path": path} for _ in range(9)]) == 3


# -- decorators on included routes with parameters -------------------------------------------------------------------


@pytest.mark.parametrize("form", ["decorator", "router"])
async def test_a_limit_on_an_included_route_with_parameters_holds_for_all_values_together(form: str) -> None:
    inner = APIRouter(prefix="/teams/{team}")
    endpoint = RateLimit("3/minute")(lambda team, item: item) if form == "decorator" else lambda team, item: item
    inner.add_api_route("/items/{item}", endpoint, methods=["GET", "HEAD"])
    outer = APIRouter(prefix="/v1")
    outer.include_router(inner)
    app = FastAPI()
    app.include_router(outer, prefix="/api")
    app.add_middleware(RateLimitMiddleware, default_limits=None if form == "decorator" else "3/minute")
    values = itertools.product("abc", (1, "2%20", "%2e%2e"), ("GET", "HEAD"))
    requests = [{"path": f"/api/v1/teams/{team}/items/{item}", "method": method} for team, item, method in values]
    assert await passed(app, requests) == 3
