"""Which requests a rule is about."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

from slidegate import (
    Limiter,
    MemoryStore,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    everyone,
    header,
)
from slidegate.testing import FakeClock

from ...asgi import PEER, call, hello, page, scope_of, send_scope, statuses


async def charged(rules: list[Rule], path: str = "/", method: str = "GET", **more: Any) -> list[str]:
    """Return the names of the limits that one request was asked about."""
    scope = scope_of(path, method, **more)
    await send_scope(RateLimitMiddleware(hello, rules=rules), scope)
    return [state.name for state in scope["slidegate"].decision.states]


LOGIN = Rule("/login", "5/minute", methods=["POST"], name="login")
ITEM = Rule("/items/{id:int}", "5/minute", name="item")
API = Rule("/api/{rest:path}", "5/minute", name="api")
ALL = Rule("*", "5/minute", name="all")


@pytest.mark.parametrize(
    ("path", "method", "names"),
    [
        ("/login", "POST", ["login", "all"]),
        ("/login", "GET", ["all"]),
        ("/items/7", "GET", ["item", "all"]),
        ("/items/x", "GET", ["all"]),
        ("/items/7/more", "GET", ["all"]),
        ("/api/a/b", "GET", ["api", "all"]),
        ("/api/", "GET", ["api", "all"]),
        ("/api", "GET", ["all"]),
    ],
)
async def test_a_rule_matches_as_starlettes_router_would(path: str, method: str, names: list[str]) -> None:
    assert await charged([LOGIN, ITEM, API, ALL], path, method) == names


@pytest.mark.parametrize("path", ["/LOGIN", "/login\0", "/login\ufffd", "http://evil.example/login"])
async def test_what_no_router_takes_for_the_rule_is_charged_to_the_default(path: str) -> None:
    assert await charged([LOGIN, ALL], path, "POST", raw_path=b"/") == ["all"]


@pytest.mark.parametrize(
    "path", ["//login", "/./login", "/a/../login", "/login;x", "/login\n", "/login/.", "/login/", "/a/..;/login"]
)
async def test_what_some_router_takes_for_the_rule_is_charged_to_it(path: str) -> None:
    assert await charged([LOGIN, ALL], path, "POST", raw_path=b"/") == ["login", "all"]


@pytest.mark.parametrize(
    "path", ["/health/../login", "/healthz", "/health/..%2flogin", "/health;/login", "/Health", "/health/", "/health\n"]
)
async def test_only_the_exact_exempt_path_is_exempt(path: str) -> None:
    rules = [Rule("/health", exempt=True), ALL]
    assert await charged(rules, "/health") == []
    assert await charged(rules, path) == ["all"]


async def test_get_and_head_share_their_count_and_odd_methods_are_charged() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "2/minute", methods=["get"])])
    assert [*await statuses(app, 1), *await statuses(app, 1, method="HEAD"), *await statuses(app, 1)] == [200, 200, 429]
    assert await charged([LOGIN, ALL], "/login", "GET", headers={"X-HTTP-Method-Override": "POST"}) == ["all"]
    for method in ("get", "FOO"):
        assert await charged([LOGIN, ALL], "/login", method) == ["all"]
    assert await charged([LOGIN, ALL], "/login", "post") == ["login", "all"], "some applications take it for POST"


async def test_a_websocket_handshake_is_a_get() -> None:
    rules = [
        Rule("/ws", "5/minute", methods=["GET"], name="get"),
        Rule("/ws", "5/minute", methods=["POST"], name="post"),
        Rule("/ws", "5/minute", connection="websocket", name="ws"),
        Rule("/ws", "5/minute", connection="http", name="http"),
    ]
    scope = scope_of("/ws", type="websocket")

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    await RateLimitMiddleware(app, rules=rules)(scope, None, None)  # type: ignore[arg-type]
    assert [state.name for state in scope["slidegate"].decision.states] == ["get", "ws"]


async def test_exempt_and_final_end_the_list_and_what_stands_before_them_applies() -> None:
    before = Rule("*", "9/minute", name="before")
    assert await charged([before, Rule("/health", exempt=True), ALL], "/health") == ["before"]
    assert await charged([Rule("/a", "1/minute", name="a", final=True), ALL], "/a") == ["a"]
    assert await charged([Rule("/a", "1/minute", name="a"), ALL], "/a") == ["a", "all"]


async def test_paths_are_those_below_root_path_at_the_place_of_the_gate() -> None:
    inside = Starlette(
        routes=[Mount("/v1", routes=[Route("/login", page)],
                      middleware=[Middleware(RateLimitMiddleware, rules=[Rule("/login", "1/hour")])])]
    )  # fmt: skip
    outside = Starlette(
        routes=[Mount("/v1", routes=[Route("/login", page)])],
        middleware=[Middleware(RateLimitMiddleware, rules=[Rule("/v1/login", "1/hour")])],
    )
    for app in (inside, outside):
        assert await statuses(app, 2, "/v1/login") == [200, 429]
        # uvicorn: the path includes root_path
        assert (await call(app, "/app/v1/login", root_path="/app")).status == 429


@pytest.mark.parametrize(
    ("path", "root_path", "seen"),
    [("/app/login", "/app", True), ("/login", "/app", True), ("/apple/login", "/app", False), ("/login", "", True)],
)
async def test_a_rule_is_found_under_both_conventions_of_servers_for_root_path(
    path: str, root_path: str, seen: bool
) -> None:
    assert (await charged([LOGIN], path, "POST", root_path=root_path) == ["login"]) is seen


async def test_rules_of_one_name_in_two_gates_share_their_counts() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    one, two = (
        RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "2/hour", name="shared")]) for _ in range(2)
    )
    assert [*await statuses(one, 1), *await statuses(two, 1), *await statuses(one, 1)] == [200, 200, 429]


async def test_a_changed_amount_keeps_the_counts_of_a_named_and_of_an_unnamed_rule() -> None:
    for name in ("api", None):
        store = MemoryStore(clock=FakeClock())
        before = RateLimitMiddleware(hello, limiter=Limiter(store), rules=[Rule("/x", "5/hour", name=name), ALL])
        after = RateLimitMiddleware(hello, limiter=Limiter(store), rules=[Rule("/x", "2/hour", name=name)])
        assert await statuses(before, 2, "/x") == [200, 200]
        assert await statuses(after, 1, "/x") == [429]


def test_the_identity_of_a_rule_is_not_its_place_nor_its_amount() -> None:
    assert Rule("/a", "5/minute").identity == Rule("/a", "9/minute").identity
    different = [
        Rule("/a", "5/minute"),
        Rule("/b", "5/minute"),
        Rule("/a", "5/hour"),
        Rule("/a", "5/minute", methods=["POST"]),
        Rule("/a", "5/minute", key=everyone),
        Rule("/a", "5/minute", key=header("X-A")),
        Rule("/a", "5/minute", key=header("X-B")),
        Rule("/a", "5/minute", key=len),  # type: ignore[arg-type]
        Rule("/a", "5/minute", connection="http"),
        Rule("/a", "5/minute", name="a"),
    ]
    assert len({rule.identity for rule in different}) == len(different)


async def test_different_rules_on_one_path_are_told_apart_on_the_wire() -> None:
    rules = [Rule("/a", "5/minute", methods=["GET"]), Rule("/a", "9/minute", key=everyone)]
    assert await charged(rules, "/a") == ["/a", "/a-2"]


async def test_one_name_on_two_limiters_or_with_other_limits_is_two_limits() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    outer = [Rule("*", "9/hour", name="api")]
    other_store = RateLimitMiddleware(RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", name="api")]), rules=outer)
    assert await statuses(other_store, 3) == [200, 200, 429]
    inner = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "2/minute", name="api")])
    stricter = RateLimitMiddleware(inner, limiter=limiter, rules=outer)
    assert await statuses(stricter, 3) == [200, 200, 429]


async def test_a_named_shadow_in_two_gates_looks_once() -> None:
    seen: list[str] = []
    rule = Rule("*", "2/hour", on_exceeded=lambda key, decision: seen.append(key), name="hot")
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(RateLimitMiddleware(hello, limiter=limiter, rules=[rule]), limiter=limiter, rules=[rule])
    assert await statuses(app, 2) == [200, 200]
    assert seen == []
    await call(app)
    assert seen == [PEER]


async def test_odd_paths_and_methods_stand_in_header_fields_as_ascii() -> None:
    answer = await call(RateLimitMiddleware(hello, rules=[Rule("/caf\u00e9\r\n", "5/minute")]), "/caf\u00e9\r\n")
    assert answer.headers["ratelimit"].isascii()
    assert answer.headers["ratelimit"].isprintable()


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (Rule("/render", concurrency=4), "<Rule '/render' 4 at a time>"),
        (Rule("/a", "5/minute"), "<Rule '/a' 5/1m>"),
        (Rule("/a", lambda request: "5/minute"), "<Rule '/a' by request>"),
        (Rule("/a", exempt=True), "<Rule '/a' exempt>"),
        (Rule("/a", block=True, name="shut"), "<Rule 'shut' block>"),
        (Rule("/a", "5/minute", shadow=True), "<Rule '/a' 5/1m shadow>"),
        (RateLimit("5/minute", concurrency="4"), "<RateLimit 5/1m; 4 at a time>"),
    ],
    ids=repr,
)
def test_a_rule_says_what_it_does(rule: Rule | RateLimit, shown: str) -> None:
    assert repr(rule) == shown
