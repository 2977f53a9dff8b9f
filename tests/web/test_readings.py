"""One path, many spellings: what limits, what exempts, and what routers make of odd ones."""

from __future__ import annotations

import posixpath
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from slidegate import BanPolicy, RateLimit, RateLimitMiddleware, Rule, combine, everyone, path_param

from ..asgi import call, hello, page, scope_of, send_scope, statuses
from .middlewares import charged


def routed(rules: list[Rule], *routes: BaseRoute) -> Starlette:
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, rules=rules)])


def rooted(root_path: str) -> FastAPI:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a way of saying it that goes, and that is in use
        return FastAPI(root_path=root_path)


async def charged_on(app: ASGIApp, rules: list[Rule], path: str, method: str = "GET", **more: Any) -> list[str]:
    """Return the labels of the rules that one request was charged on."""
    scope = scope_of(path, method, raw_path=b"/", **more)
    await send_scope(RateLimitMiddleware(app, rules=rules), scope)
    return charged(scope)


async def test_a_mount_under_a_root_that_the_path_does_not_begin_with_is_read_anew() -> None:
    app = routed([Rule("/v1/v1/login", "1/minute")], Mount("/v1", routes=[Route("/v1/login", page)]))
    assert await statuses(app, 2, "/v1/login", root_path="/api") == [200, 429]


async def test_a_mounted_application_with_a_root_of_its_own_is_counted_by_what_it_reads() -> None:
    inner = rooted("/api")
    inner.get("/v1/login")(lambda: "hi")
    app = routed([Rule("/v1/v1/login", "1/minute")], Mount("/v1", inner))
    assert await statuses(app, 2, "/v1/login") == [200, 429]
    app = routed([Rule("/v1/login", exempt=True), Rule("*", "1/minute")], Mount("/v1", inner))
    assert await statuses(app, 2, "/v1/login") == [200, 429]


async def test_an_exemption_ends_where_the_router_does() -> None:
    app = routed(
        [Rule("/static/{rest:path}", exempt=True), Rule("/{user}/{action}", "1/minute")],
        Mount("/static", app=hello),
        Route("/{user}/{action}", page),
    )
    assert await statuses(app, 2, "/static/x\ny", raw_path=b"/") == [200, 429]
    assert await statuses(app, 3, "/static/x") == [200] * 3


async def test_a_final_rule_ends_the_list_only_where_every_reading_leads_to_it() -> None:
    rules = [Rule("/a/{rest:path}", "9/minute", final=True), Rule("*", "9/minute", name="all")]
    assert await charged_on(hello, rules, "/a/b") == ["/a/{rest|path}"]
    for path in ("/a/../login", "/a/x\ny", "/a/.."):
        assert await charged_on(hello, rules, path) == ["/a/{rest|path}", "all"]


@pytest.mark.parametrize("method", ["post", "Post", "pOST"])
async def test_a_limit_holds_a_method_in_any_case_and_an_exemption_only_as_it_is_written(method: str) -> None:
    rules = [Rule("/login", "1/minute", methods=["POST"])]
    assert await statuses(RateLimitMiddleware(hello, rules=rules), 2, "/login", method) == [200, 429]
    rules = [Rule("/login", methods=["POST"], exempt=True), Rule("*", "1/minute")]
    assert await statuses(RateLimitMiddleware(hello, rules=rules), 2, "/login", method) == [200, 429]


@pytest.mark.parametrize("rule", ["/login", "/api/login"])
@pytest.mark.parametrize("path", ["/login", "/api/login"])
@pytest.mark.parametrize("around", [True, False])
async def test_a_rule_holds_behind_the_root_path_of_an_application(rule: str, path: str, around: bool) -> None:
    app = rooted("/api")
    app.get("/login")(lambda: "hi")
    middleware: ASGIApp = app
    if around:
        middleware = RateLimitMiddleware(app, rules=[Rule(rule, "1/minute")])
    else:
        app.add_middleware(RateLimitMiddleware, rules=[Rule(rule, "1/minute")])
    assert await statuses(middleware, 2, path) == [200, 429]


@pytest.mark.parametrize("path", ["/health", "/api/health"])
async def test_a_documented_path_stays_exempt_behind_every_root_path(path: str) -> None:
    rules = [Rule("/health", exempt=True), Rule("*", "1/minute")]
    around, inside = rooted("/api"), rooted("/api")
    for app in (around, inside):
        app.get("/health")(lambda: "ok")
    inside.add_middleware(RateLimitMiddleware, rules=rules)
    for app in (RateLimitMiddleware(around, rules=rules), inside):
        assert await statuses(app, 3, path) == [200] * 3
    served = RateLimitMiddleware(hello, rules=rules)
    assert await statuses(served, 3, path, root_path="/api") == [200] * 3


@pytest.mark.parametrize("spelling", ["+5", "5.0", "-5", " 5", "5 ", "5_0", "05", "+5.", "\t5"])
async def test_a_number_is_one_in_every_spelling_that_an_endpoint_takes(spelling: str) -> None:
    app = FastAPI()

    @app.get("/items/latest")
    async def latest() -> str:
        return "hi"

    @app.get("/items/{id}")
    async def item(id: int) -> int:
        return id

    rules = [Rule("/items/{id:int}", "1/minute")]
    served = (await call(app, f"/items/{spelling}")).status == 200
    assert served or spelling in ("5_0", "+5.")
    if served:
        assert await statuses(RateLimitMiddleware(app, rules=rules), 2, f"/items/{spelling}") == [200, 429]
    assert await charged_on(app, rules, "/items/latest") == []
    assert await charged_on(hello, rules, "/items/latest") == []


async def test_spellings_of_one_number_are_one_key() -> None:
    app = FastAPI()
    app.get("/items/{id}")(lambda id: id)
    middleware = RateLimitMiddleware(app, rules=[Rule("/items/{id:int}", "2/minute", key=path_param("id"))])
    asked = ["5", "+5", "5.0", "5.00", "05", " 5", "//5", "6"]
    assert [(await call(middleware, f"/items/{number}")).status for number in asked] == [200] * 2 + [429] * 5 + [200]


@pytest.mark.parametrize(
    "path", ["/static//a.js", "/static/./a.js", "/static/x/../a.js", "/static/a.js/", "/static/a.js/."]
)
async def test_a_file_is_counted_however_its_path_is_spelt(tmp_path: Path, path: str) -> None:
    (tmp_path / "a.js").write_text("1")
    app = routed([Rule("/static/a.js", "1/minute")], Mount("/static", StaticFiles(directory=tmp_path)))
    assert await statuses(app, 2, path) == [200, 429]


@pytest.mark.parametrize(
    "path", ["/assets/x.js", "/./assets/x.js", "/x/../assets/x.js", "//assets/x.js", "/assets/x.js/"]
)
async def test_a_frontends_file_is_counted_however_its_path_is_spelt(tmp_path: Path, path: str) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "x.js").write_text("1")
    (tmp_path / "index.html").write_text("hi")
    app = FastAPI()
    app.frontend("/", directory=tmp_path)
    app.add_middleware(RateLimitMiddleware, rules=[Rule("/assets/{rest:path}", "1/minute")])
    if (await call(app, path)).status == 200:
        assert await statuses(app, 1, path) == [429]


async def test_a_shared_function_counts_in_the_bucket_of_its_route_however_the_path_is_spelt() -> None:
    shared = RateLimit("1/minute")(page)
    app = routed([], Mount("/v1", routes=[Route("/login", shared), Route("/other", shared)]))
    assert await statuses(app, 1, "/v1/login") == [200]
    assert await statuses(app, 1, "/v1//login\n", raw_path=b"/") == [429]
    assert await statuses(app, 1, "/v1/other") == [200]


PREFLIGHT = {"Origin": "https://example.org", "Access-Control-Request-Method": "PUT"}


async def test_a_preflight_meets_the_functions_and_exemptions_of_rules() -> None:
    async def who(request: Any) -> str | None:
        return None if request.headers["origin"] == "https://example.com" else "somebody"

    route = Route("/a", page, methods=["OPTIONS"])
    app = routed([Rule("/a", "1/hour", key=who)], route)
    elsewhere = {**PREFLIGHT, "Origin": "https://example.com"}
    assert await statuses(app, 3, "/a", "OPTIONS", headers=elsewhere) == [200] * 3
    assert await statuses(app, 2, "/a", "OPTIONS", headers=PREFLIGHT) == [200, 429]
    app = routed([Rule("/a", exempt=True), Rule("*", "1/hour")], route)
    assert await statuses(app, 3, "/a", "OPTIONS", headers=PREFLIGHT) == [200] * 3
    app = routed([Rule("/b/{tenant}", "1/hour", key=path_param("tenant"))], Route("/b/{tenant}", page))
    for path in ("/b/x", "/b/y", "//b/z"):
        assert [status == 429 for status in await statuses(app, 2, path, "OPTIONS", headers=PREFLIGHT)] == [False, True]
        assert await statuses(app, 2, path.replace("//", "/")) == [200, 429]


async def test_an_exemption_written_with_the_root_of_the_application_is_a_finding() -> None:
    rules = [Rule("/api/health", exempt=True), Rule("/health", exempt=True), Rule("/api/login", "5/minute")]
    app = rooted("/api")
    for path in ("/health", "/login"):
        app.get(path)(lambda: None)
    middleware = RateLimitMiddleware(app, rules=rules)
    await call(middleware, "/health")
    (found,) = middleware.findings
    assert found.code == "SG123"
    assert "'/api/health' of rule '/api/health' matches no route; did you mean '/health'?" in found.message


async def test_a_honeypot_is_one_in_its_normal_form_and_never_where_a_path_may_mean_any_other() -> None:
    bans = BanPolicy("1/10m", "1h", signals={"/.env": "ban"}, ban_private=True)
    for path, status in (("/.env", 403), ("//.env", 403), ("/./.env", 403), ("/x/../.env", 200), ("/.env\n", 200)):
        app = RateLimitMiddleware(hello, rules=[], bans=bans)
        assert await statuses(app, 1, path, raw_path=b"/") == [status], path


async def test_an_odd_path_that_is_too_long_to_be_read_is_counted_on_every_rule_and_exempt_from_none() -> None:
    rules = [Rule("/a/{rest:path}", exempt=True), Rule("/b", "9/m"), Rule("/c", "9/m", methods=["POST"])]
    for length, counted in ((2_000, []), (2_100, ["/b"])):
        assert await charged_on(hello, rules, "/a/" + "/" * length) == counted
        assert await charged_on(hello, rules, "/a/" + "x" * length) == []


class _Normalising:
    """A middleware that changes the path, and of which nothing is known."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = posixpath.normpath(scope["path"])
        await self.app({**scope, "path": path}, receive, send)


async def test_a_limit_applies_in_a_normal_form_whatever_the_routes_make_of_the_path() -> None:
    routes = [Route("/login", page), Route("/{a}/{b}/{c}", page)]
    rules = [Rule("/login", "1/minute")]
    app = RateLimitMiddleware(_Normalising(Starlette(routes=routes)), rules=rules)
    assert await statuses(app, 2, "/x/../login") == [200, 429]
    app = Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, rules=rules), Middleware(_Normalising)])
    assert await statuses(app, 2, "/x/../login") == [200, 429]
    assert await statuses(routed(rules, *routes), 2, "/x/../login") == [200, 429], "no route is asked"


class _Hiding:
    """A middleware that does not show what it wraps."""

    def __init__(self, app: ASGIApp) -> None:
        self._wrapped = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._wrapped(scope, receive, send)


async def test_a_route_that_fails_to_say_takes_no_limit_away() -> None:
    class Failing(Route):
        def matches(self, scope: Any) -> Any:
            raise LookupError(scope["path"])

    app = Starlette(routes=[Failing("/x", page), Route("/login", page)])
    middleware = RateLimitMiddleware(app, rules=[Rule("/login", "1/minute")])
    with pytest.raises(LookupError):
        await call(middleware, "//login")
    assert await statuses(middleware, 1, "//login") == [429]


@pytest.mark.parametrize(
    "options",
    [
        {"rules": [Rule("/a", exempt=True), Rule("/a", "1/minute", name="a")]},
        {"rules": [Rule("/a", "1/minute", when=lambda request: True)]},
        {"default_limits": "2/minute"},
    ],
)
async def test_what_fails_while_rules_are_chosen_is_no_way_past_them(
    options: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        """Stands for a path that no server sends."""

    odd: Any = Odd()
    middleware = RateLimitMiddleware(hello, **options, bans=BanPolicy())
    assert (await call(middleware, "/b")).status == 200
    for status in (200, 429):
        assert (await send_scope(middleware, {**scope_of("/a"), "path": odd})).status == status
    await middleware.limiter.ban("203.0.113.9", "1h")
    assert (await send_scope(middleware, {**scope_of("/a"), "path": odd})).status == 403
    assert caplog.text.count("whose rules are unknown") == 1, "odd requests fill no log"
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert (await send_scope(middleware, {**scope_of("/a"), "path": odd})).status == 403
    lines = [record.getMessage() for record in caplog.records if "rules are unknown" in record.getMessage()]
    assert len(lines) == 2
    assert int(lines[1].rpartition("=")[2].rstrip(")")) >= 2


@pytest.mark.parametrize(("rule", "path"), [("/a", "/a/"), ("/a/", "/a")])
async def test_a_final_slash_counts_as_written_where_starlette_answers(rule: str, path: str) -> None:
    routes = [Route("/a", page), Mount("/static", hello)]
    for app in (Starlette(routes=routes), Starlette(routes=[Mount("", app=Starlette(routes=routes))])):
        assert await charged_on(app, [Rule(rule, "9/minute")], path) == []
    middleware = Middleware(RateLimitMiddleware, rules=[Rule(rule, "1/minute")])
    app = Starlette(routes=[Route(path, page)], middleware=[middleware, Middleware(_Hiding)])
    assert await statuses(app, 3, path) == [200] * 3


@pytest.mark.parametrize(("rule", "path"), [("/static/a", "/static/a/"), ("/static/a/", "/static/a")])
@pytest.mark.parametrize("app", [hello, Starlette(routes=[Mount("/static", hello)])], ids=["unknown", "mounted"])
async def test_a_limit_takes_a_final_slash_either_way_where_an_unknown_application_answers(
    app: ASGIApp, rule: str, path: str
) -> None:
    assert await charged_on(app, [Rule(rule, "9/minute")], path) == [rule]
    assert await charged_on(app, [Rule(rule, exempt=True), Rule("*", "9/minute", name="all")], path) == ["all"]
    assert await charged_on(app, [Rule(f"/api{rule}", "9/minute")], f"/api{path}", root_path="/api") == [f"/api{rule}"]
    assert await charged_on(app, [Rule("/static/a/{rest:path}", "9/minute")], "/static/a") == []


async def test_a_path_with_a_line_break_meets_every_limit_and_no_exemption() -> None:
    rules = [
        Rule("/x/{rest:path}", exempt=True),
        Rule("/login", "9/minute"),
        Rule("/{tenant}/jobs", "9/minute", key=path_param("tenant"), name="jobs"),
        Rule("/post", "9/minute", methods=["POST"]),
        Rule("/closed", shadow=True, limits="9/minute"),
        Rule("*", "9/minute", name="all"),
    ]
    assert await charged_on(hello, rules, "/x/\ny") == ["/login", "jobs", "all"]
    blocked = RateLimitMiddleware(hello, rules=[Rule("/admin", block=True)])
    assert await statuses(blocked, 1, "/x\ny", raw_path=b"/") == [403]
    assert await statuses(blocked, 1, "/x") == [200]


@pytest.mark.parametrize("path", ["/items/latest", "/items/", "/items/5/more", "/items"])
async def test_what_holds_no_number_is_not_taken_for_one(path: str) -> None:
    assert await charged_on(hello, [Rule("/items/{id:int}", "9/minute")], path) == []


@pytest.mark.parametrize("key", [path_param("tenant"), combine(path_param("tenant"), everyone)])
async def test_an_odd_spelling_of_a_path_is_counted_under_the_same_value(key: Any) -> None:
    app = routed([Rule("/{tenant}/jobs", "1/minute", key=key)], Mount("/{tenant}", routes=[Route("/jobs", page)]))
    for tenant in ("one", "two"):
        assert await statuses(app, 1, f"/{tenant}/jobs") == [200]
        assert await statuses(app, 1, f"/{tenant}//jobs", raw_path=b"/", client=("192.0.2.1", 1)) == [429]
