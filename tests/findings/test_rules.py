"""What rules, layers and decorators do in their order is what the findings about it say.

tests/web/scenarios/findings.txt has examples of each message.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from itertools import product
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.authentication import UnauthenticatedUser
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route
from starlette.testclient import TestClient

import slidegate
from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule, combine, everyone, header, user
from slidegate.findings.application import about_order
from slidegate.limiter import short_lived

from ..asgi import call, hello, page, scope_of
from ..drawing import examples
from ..web.middlewares import with_root

PLENTY = "1000000/minute"


def codes(app: Any) -> list[str]:
    return [finding.code for finding in app.findings]


# -- rules: the finding is compared with what the rules decide about every request -------------------------------------


PATHS = ["*", "/a", "/b", "/a/{x}", "/a/{x:int}", "/a/7", "/a/{rest:path}", "/{rest:path}", "/{x}", "/{x}/{y}"]
METHOD_SETS = [None, ["GET"], ["POST"], ["GET", "POST"], ["PUT"]]
ACTIONS: dict[str, dict[str, Any]] = {
    "limit": {"limits": PLENTY},
    "final": {"limits": PLENTY, "final": True},
    "exempt": {"exempt": True},
    "perhaps": {"exempt": True, "when": lambda request: False},
    "block": {"block": True},
    "shadow": {"limits": PLENTY, "shadow": True},
    "conditional": {"limits": PLENTY, "final": True, "when": lambda request: False},
}
RULES = st.lists(
    st.tuples(
        st.sampled_from(PATHS),
        st.sampled_from([*ACTIONS, "limit", "final", "exempt"]),
        st.sampled_from([None, None, *METHOD_SETS]),
        st.sampled_from([None, None, None, "http", "websocket"]),
    ),
    min_size=2,
    max_size=5,
)
VISITED = ["/", "/a", "/b", "/c", "/a/7", "/a/8", "/a/z", "/a/", "/a/b/c", "/a/b/c/d", "/c/7", "/c/z", "/c/d/e", "/7"]
"""Requests of every kind that these rules tell apart."""
SENT = [*product(["http"], ["GET", "POST", "PUT", "DELETE"], VISITED), *product(["websocket"], ["GET"], VISITED)]


def ruled(drawn: list[tuple[Any, ...]]) -> list[Rule]:
    return [
        Rule(path, methods=methods, connection=kind, name=f"r{number}", **ACTIONS[action])
        for number, (path, action, methods, kind) in enumerate(drawn)
    ]


def matching(rule: Rule, kind: str, method: str, path: str) -> bool:
    """Return whether a rule alone is for a request, as a middleware with this rule decides."""
    alone = RateLimitMiddleware(hello, rules=[rule])
    return bool(alone.policy.rules.match({"type": kind, "method": method, "path": path, "headers": []}).matches)


@settings(max_examples=examples(150), deadline=None)
@given(RULES)
@example([("*", "shadow", None, None), ("/a", "exempt", None, None)])
@example([("*", "conditional", None, None), ("/a", "exempt", None, None)])
@example([("/{x}", "final", None, None), ("*", "limit", None, None)])
@example([("/a/{x}", "final", None, None), ("/a/{rest:path}", "limit", None, None)])
@example([("*", "final", None, None), ("/a", "shadow", None, None)])
@example([("*", "final", None, None), ("/a", "exempt", None, None)])
@example([("*", "limit", None, None), ("/a", "exempt", ["POST"], None)])
@example([("/a", "limit", None, None), ("*", "limit", None, None), ("/{rest:path}", "exempt", None, None)])
@example([("/a", "shadow", None, None), ("*", "limit", None, None), ("/a", "exempt", None, None)])
@example([("*", "limit", None, "websocket"), ("*", "exempt", None, "http"), ("*", "exempt", None, None)])
def test_rules_that_decide_nothing_are_reported_and_no_others(drawn: list[tuple[Any, ...]]) -> None:
    rules = ruled(drawn)
    app = RateLimitMiddleware(hello, rules=rules)
    reached, exempted, uncounted = set[str](), set[str](), set[str]()
    for kind, method, path in SENT:
        matches = app.policy.rules.match({"type": kind, "method": method, "path": path, "headers": []}).matches
        reached.update(bound.rule.label for bound, _ in matches if is_exactly_for(bound.rule, path))
        for bound, ends in matches:
            if bound.rule.exempts and ends:
                exempted.add(bound.rule.label)
                above = [other.rule for other, _ in matches if other.rule in rules[: rules.index(bound.rule)]]
                counts = any(rule.action == "limit" and rule.when is None for rule in above)
                uncounted.update([] if counts else [bound.rule.label])
    found = [*about_order(app.policy.rules, [])]
    for rule in rules:
        never = any(code == "SG133" and f"rule {rule.label!r} never" in text for code, text in found)
        in_vain = any(code == "SG134" and f"rule {rule.label!r} is exempt" in text for code, text in found)
        if not any(matching(rule, *one) for one in SENT):  # POST over a websocket
            assert [never, in_vain] == [False, False]
            continue
        assert not never or rule.label not in reached, (rules, rule, found)
        assert not in_vain or rule.label in exempted - uncounted, (rules, rule, found)
        # One other rule that takes or counts all requests of this one is found, of several perhaps none.
        for at, above in enumerate(rules[: rules.index(rule)]):
            if PATHS_OF_ALL & paths_of(above) and alone(above):
                assert never or at or not above.is_final or alike_above(rules, rule), (rules, rule, found)
                assert in_vain or above.action != "limit" or rule.label not in exempted, (rules, rule, found)


PATHS_OF_ALL = {"*", "/{rest:path}"}


def paths_of(rule: Rule) -> set[str]:
    return {path.path for path in rule.rule_paths} or {"*"}


def alone(rule: Rule) -> bool:
    """Return whether a rule is for all methods and types, without a condition."""
    return rule.methods is None and rule.connection is None and rule.when is None


def is_exactly_for(rule: Rule, path: str) -> bool:
    """Return whether a rule is for a path as it is written; limits also count other spellings, which routers refuse."""
    return not rule.rule_paths or any(one.is_exactly(path) for one in rule.rule_paths)


def alike_above(rules: list[Rule], rule: Rule) -> bool:
    """Return whether a rule above does the same with its requests, so that nobody misses the rule."""
    above = rules[: rules.index(rule)]
    return rule.action in ("exempt", "block") and any(one.action == rule.action for one in above)


# -- routes: what is found is compared with who answers every request, before and after its advice ---------------------


ANSWERED = ["/", "/login", "/login/", "/items/{id}", "/items/{id:int}", "/items/7", "/admin", "/admin/{rest:path}"]
ANSWERED.append("/u/{id:uuid}")
WRITTEN = [*ANSWERED, "/items/7/", "/items/{x:int}/", "/v1", "/v1/login/", "/v1/{rest:path}", "/logni", "/{rest:path}"]
ASKED = ["/", "/login", "/items/7", "/items/z", "/admin", "/admin/x", "/u/0b4f2a9e-3c1d-4e5f-8a6b-7c8d9e0f1a2b"]
REQUESTS = [*product(["GET", "POST", "PUT"], map("".join, product(["", "/v1"], ASKED, ["", "/"])))]
OPTIONS = st.sampled_from([*ACTIONS, "limit", "limit", "exempt"])
ROUTED = st.lists(
    st.tuples(st.sampled_from(ANSWERED), st.sampled_from([["GET"], ["POST"], ["GET", "POST"]])), max_size=4
)
RULED = st.tuples(
    st.sampled_from(["*", *WRITTEN]), OPTIONS, st.sampled_from([None, ["GET"], ["POST"], ["PSOT"], ["GET", "PSOT"]])
)


def judged(routes: Any, mounted: Any, rules: list[Rule], root: str, is_wrapped: bool) -> RateLimitMiddleware:
    """Return an application within its rules, and perhaps within another middleware."""
    above, below = [[Route(path, page, methods=methods) for path, methods in each] for each in (routes, mounted)]
    app = with_root(root)
    app.router.routes[:] = [*above, Mount("/v1", routes=below)]
    return RateLimitMiddleware(GZipMiddleware(app) if is_wrapped else app, rules=rules, default_limits=PLENTY)


async def decided(app: RateLimitMiddleware) -> tuple[list[tuple[str, str, set[str]]], int]:
    """Return each request that is answered, with the rules that decide it, and how many are limited."""
    found, limited = [], 0
    for method, path in REQUESTS:
        if (await call(app.app, path, method)).status == 200:
            matches = app.policy.rules.match(scope_of(path, method)).matches
            found.append((method, path, {bound.rule.label for bound, _ in matches}))
            limited += any(bound.rule.counts or bound.rule.blocks for bound, _ in matches)
    return found, limited


@settings(max_examples=examples(150), deadline=None)
@given(ROUTED, ROUTED, st.lists(RULED, min_size=1, max_size=3), st.sampled_from(["", "/v1"]), st.booleans())
@example([("/", ["GET"]), ("/login", ["POST"])], [], [("/login/", "limit", None)], "", False)
@example([("/login/", ["GET"])], [], [("/login", "limit", None)], "", False)
@example([("/u/{id:uuid}", ["GET"])], [], [("/u/{id:uuid}", "limit", ["GET"])], "", False)
@example([("/items/{id}", ["GET"])], [], [("/items/7/", "final", None), ("/items/7/", "limit", None)], "", True)
@example([("/login", ["GET"])], [("/", ["GET"])], [("/v1/login", "limit", ["POST"])], "/v1", False)
@example([("/", ["GET"])], [("/", ["GET"]), ("/login", ["GET"])], [("/v1", "block", None)], "", False)
@example([("/", ["GET"])], [("/", ["GET"]), ("/login", ["GET"])], [("/v1", "block", ["POST"])], "", False)
async def test_nothing_is_found_of_a_rule_that_decides_a_request_and_no_advice_lifts_a_limit(
    routes: Any, mounted: Any, drawn: Any, root: str, is_wrapped: bool
) -> None:
    options = [
        (path, {**ACTIONS[action], "methods": methods, "name": f"r{at}"})
        for at, (path, action, methods) in enumerate(drawn)
    ]
    app = judged(routes, mounted, [Rule(path, **about) for path, about in options], root, is_wrapped)
    await call(app)
    found, limited = await decided(app)
    assert {*codes(app)} <= {"SG123", "SG133", "SG134", "SG136"}
    for finding in app.findings:
        if finding.code not in ("SG123", "SG133", "SG136"):
            continue
        label = re.search("rule '(.+?)'", finding.message)[1]
        begin = ""
        if "below" in finding.message:  # a mount's own path may be decided
            begin = re.search("write '(.+/){", finding.message)[1] + "."
        methods = {method for method, path, rules in found if label in rules and re.match(begin, path)}
        said = set(re.findall("[A-Z]{3,}", finding.message.partition("is for ")[2].partition(", which")[0]))
        assert not (methods & said if finding.code == "SG136" else methods), finding
        advice = re.search("(?:write|did you mean) '(.+?)'", finding.message)
        about = options[int(label[1:])][1]
        if finding.code == "SG123" and advice and "exempt" not in about:
            changed = [Rule(advice[1] if about["name"] == label else path, **about) for path, about in options]
            assert (await decided(judged(routes, mounted, changed, root, is_wrapped)))[1] >= limited, finding


async def test_of_many_rules_that_no_route_meets_ten_are_named() -> None:
    rules = [Rule(f"/nowhere/{number}", PLENTY) for number in range(2_000)]
    app = RateLimitMiddleware(Starlette(routes=[Route("/", page)]), rules=rules)
    await call(app)
    assert codes(app) == ["SG123"] * 10


async def test_of_the_routes_behind_a_host_nothing_is_reported() -> None:
    below = Starlette(routes=[Route("/login", page, methods=["POST"]), Route("/items/{id}", page)])
    rules = [Rule("/login", PLENTY, methods=["POST"]), Rule("/items/7", PLENTY), Rule("/nowhere", PLENTY)]
    app = RateLimitMiddleware(Starlette(routes=[Host("api.example.com", below), Route("/", page)]), rules=rules)
    await call(app)
    assert [finding.message.split("'")[1] for finding in app.findings] == ["/nowhere"]


# -- decorators --------------------------------------------------------------------------------------------------------


def a_passing(function: Any) -> Any:
    return function


async def labels(app: Any) -> set[str]:
    """Return the routes whose limits stand above their decorators."""
    await call(app)
    layer = app.middleware_stack
    while not isinstance(layer, RateLimitMiddleware):
        layer = layer.app
    return {finding.message.split("'")[1] for finding in layer.findings if finding.code == "SG137"}


def decorated(router: Any) -> None:
    @RateLimit("1/minute")
    @router.get("/above")
    async def one(request: Request) -> None: ...

    @router.get("/below")
    @RateLimit("1/minute")
    async def two(request: Request) -> None: ...

    @RateLimit("1/minute")
    @router.get("/twice")
    @RateLimit("2/minute")
    def twice() -> None: ...

    async def three() -> None: ...

    limit = RateLimit("1/minute")
    router.get("/three")(limit(three))
    router.get("/bare")(three)

    @limit
    @a_passing
    @router.get("/through")
    @a_passing
    async def four() -> None: ...


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_a_limit_above_the_decorator_of_a_route_is_reported(prefix: str) -> None:
    app, router = FastAPI(), APIRouter()
    app.add_middleware(RateLimitMiddleware)
    decorated(router if prefix else app)
    app.include_router(router, prefix=prefix)
    assert await labels(app) == {f"GET {prefix}/{name}" for name in ("above", "twice", "through")}


async def test_a_function_that_is_limited_at_one_application_alone_is_not_reported() -> None:
    limited = Starlette(routes=[Route("/", RateLimit("9/minute")(page))], middleware=[Middleware(RateLimitMiddleware)])
    free = Starlette(routes=[Route("/", page)], middleware=[Middleware(RateLimitMiddleware)])
    assert [await labels(limited), await labels(free)] == [set(), set()]


# -- layers ------------------------------------------------------------------------------------------------------------


REFUSING: dict[str, dict[str, Any]] = {
    "limits": {"limits": PLENTY},
    "a block": {"rules": [Rule("/a", block=True)]},
    "default limits": {"default_limits": PLENTY},
    "a blocklist": {"blocklist": slidegate.Networks(["192.0.2.0/24"])},
    "bans": {"bans": BanPolicy("9/hour")},
}
NOT_REFUSING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "shadows": {"rules": [Rule("*", PLENTY, shadow=True)], "bans": BanPolicy("9/hour", shadow=True)},
    "an allowlist": {"allowlist": slidegate.Networks(["192.0.2.0/24"])},
    "answers of its own": {"limits": PLENTY, "on_refused": lambda request, decision: PlainTextResponse("no", 429)},
}


CORS: dict[str, Callable[[Any], Any]] = {
    "next": lambda app: CORSMiddleware(app, allow_origins=["*"]),
    "deeper": lambda app: GZipMiddleware(CORSMiddleware(GZipMiddleware(app))),
    "of an application": lambda app: Starlette(middleware=[Middleware(GZipMiddleware), Middleware(CORSMiddleware)]),
}
"""Where it stands within a middleware."""


@pytest.mark.parametrize("around", CORS)
@pytest.mark.parametrize("what", [*REFUSING, *NOT_REFUSING])
async def test_cors_within_what_refuses_is_reported(what: str, around: str) -> None:
    app = RateLimitMiddleware(CORS[around](hello), **(REFUSING | NOT_REFUSING)[what])
    await call(app)
    assert ("SG138" in codes(app)) is (what in REFUSING)
    outside = RateLimitMiddleware(GZipMiddleware(hello), **(REFUSING | NOT_REFUSING)[what])
    await call(CORSMiddleware(outside))
    assert "SG138" not in codes(outside)


# -- who makes all clients one -----------------------------------------------------------------------------------------


def many(field: str, count: int = 100, different: int = 100) -> Iterator[dict[str, str]]:
    for number in range(count):
        yield {field: f"203.0.113.{number % different}"}


def app_behind(**options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(hello, **{"limits": PLENTY, "client": slidegate.client_ip(["10.0.0.0/8"]), **options})


async def sent(app: Any, *visits: tuple[str, dict[str, str]]) -> list[str]:
    for peer, headers in visits:
        await call(app, client=(peer, 123), headers=headers)
    return codes(app)


FIELDS = ["X-Forwarded-For", "Forwarded", "X-Real-IP", "CF-Connecting-IP", "DO-Connecting-IP"]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("peer", ["172.18.0.4", "127.0.0.1", "testclient", "2001:db8::1"])
async def test_one_client_that_names_many_others_is_reported(field: str, peer: str) -> None:
    """Such as a frontend server that is not trusted, and a call within the process."""
    app = app_behind()
    visits = [(peer, headers) for headers in many(field)]
    assert await sent(app, ("192.0.2.1", {}), *visits[:98]) == []
    assert await sent(app, *visits[98:]) == ["SG140"]
    assert peer.removesuffix("1") in app.findings[0].message


async def test_what_is_one_client_and_what_is_not_many_is_not_reported() -> None:
    plain: list[tuple[str, dict[str, str]]] = [("172.18.0.4", {})] * 100
    one = [("172.18.0.4", {"X-Forwarded-For": "203.0.113.9"})] * 100
    few = [("172.18.0.4", headers) for headers in many("X-Forwarded-For", different=19)]
    trusted = [("10.0.0.7", headers) for headers in many("X-Forwarded-For")]
    others = [(f"192.0.2.{number}", headers) for number, headers in enumerate(many("X-Forwarded-For"))]
    most = [*[("192.0.2.9", {})] * 11, *(("172.18.0.4", headers) for headers in many("X-Forwarded-For", 89))]
    for visits in (plain, one, few, trusted, others, most):
        assert await sent(app_behind(), *visits) == [], visits[:2]


async def test_it_is_reported_of_the_first_requests_alone_and_where_clients_are_counted() -> None:
    visits = [("172.18.0.4", headers) for headers in many("X-Forwarded-For")]
    assert await sent(app_behind(), *[("172.18.0.4", {})] * 100, *visits) == []
    for key in (everyone, header("X-API-Key"), user, lambda request: "one"):
        assert await sent(app_behind(key=key), *visits) == []
    assert await sent(app_behind(key=header("X-API-Key"), bans=BanPolicy("9/hour")), *visits) == ["SG140"]
    assert await sent(app_behind(limits=None), *visits) == ["SG140"]


# -- users who are set within ------------------------------------------------------------------------------------------


USERS: dict[str, Callable[[], dict[str, Any]]] = {
    "user": lambda: {"user": UnauthenticatedUser()},
    "state": lambda: {"state": {"user": "ann"}},
    "nowhere": dict,
}


BY_USER: dict[str, dict[str, Any]] = {
    "a rule": {"rules": [Rule("*", PLENTY, key=user)]},
    "a part of a key": {"rules": [Rule("*", PLENTY, key=combine(user, header("X-Tenant")))]},
    "default limits": {"default_limits": PLENTY, "key": user},
    "a queue": {"rules": [Rule("*", concurrency=4, key=everyone, wait="1s", fair=user)]},
    "a policy": {"limits": PLENTY, "bans": BanPolicy("9/hour", key=user)},
}
NOT_BY_USER: dict[str, dict[str, Any]] = {
    "addresses": {"limits": PLENTY},
    "an exemption": {"rules": [Rule("/a", exempt=True)], "key": user},
}


@pytest.mark.parametrize("place", USERS)
@pytest.mark.parametrize("what", [*BY_USER, *NOT_BY_USER])
async def test_a_user_who_is_set_within_what_counts_by_user_is_reported(what: str, place: str) -> None:
    def around(app: Any) -> Any:
        async def naming(scope: Any, receive: Any, send: Any) -> None:
            scope.update(USERS[place]())
            await app(scope, receive, send)

        return naming

    options = (BY_USER | NOT_BY_USER)[what]
    within = RateLimitMiddleware(around(hello), **options)
    await call(within)
    assert ("SG139" in codes(within)) is (what in BY_USER and place != "nowhere")
    outside = RateLimitMiddleware(hello, **options)
    await call(around(outside))
    assert "SG139" not in codes(outside)


async def sign_in(request: Request) -> None:
    request.state.user = request.headers.get("x-user")


KEYS = {"user": user, "a part": combine(user, header("X-Tenant")), "address": slidegate.client_ip()}


@pytest.mark.parametrize("signs_in", [True, False])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("where", ["in front", "behind", "router", "decorator"])
async def test_a_limit_in_front_of_the_dependency_that_sets_the_user_is_reported(
    where: str, key: str, signs_in: bool
) -> None:
    limit = RateLimit(PLENTY, key=KEYS[key])
    depends = [Depends(sign_in)] if signs_in else []
    if where == "in front":
        depends.insert(0, Depends(limit))
    elif where == "behind":
        depends.append(Depends(limit))

    async def endpoint() -> str:
        return "page"

    router = APIRouter(dependencies=[Depends(limit)] if where == "router" else [])
    router.get("/", dependencies=depends)(limit(endpoint) if where == "decorator" else endpoint)
    app = FastAPI()
    app.include_router(router)
    within = RateLimitMiddleware(app)
    for name in ("ann", ""):
        await call(within, headers={"X-User": name})
    is_late = signs_in and key != "address" and where in ("in front", "router")
    assert [str(finding) for finding in within.findings] == [
        "SG139: limit 'endpoint GET /' counts by user, but stands in front of the dependency that sets the user, so it "
        "counts addresses; write it behind that dependency"
    ] * is_late


@pytest.mark.parametrize("limiter", [None, Limiter()])
@pytest.mark.parametrize("of_rule", [{}, {"name": "api"}])
@pytest.mark.parametrize("more", [{}, {"default_limits": "9/minute"}, {"name": "site"}])
async def test_the_third_middleware_of_the_same_options_that_counts_apart_is_found(
    limiter: Limiter | None, of_rule: dict[str, Any], more: dict[str, Any]
) -> None:
    rules = [Rule("*", "9/minute", **of_rule)]
    if limiter is not None:
        await limiter.reset_all()
    built = [RateLimitMiddleware(hello, rules=rules, limiter=limiter, **more) for _ in range(4)]
    for one in built:
        fields = (await call(one)).headers["ratelimit"]
    assert ["SG131" in codes(one) for one in built] == [False, False, "r=8" in fields, False]
    again = [RateLimitMiddleware(hello, rules=list(rules), limiter=limiter, **more) for _ in range(3)]
    assert "SG131" not in codes(again[2])


# -- a limiter in memory that each request makes for itself is found, and one that stays is not ------------------------


@pytest.fixture
def new_process() -> None:
    short_lived._report.cache_clear()
    short_lived._latest.clear()


async def a_block() -> None:
    async with Limiter().limited("1/hour", key="ann"):
        pass


@cache
def of_tenant(name: str) -> Limiter:
    return Limiter()


AROUND = [Middleware(RateLimitMiddleware, limits="1/hour")]
FOUND: list[Callable[[str], Awaitable[object]]] = [
    lambda path: Limiter().hit("ann", "1/hour"),
    lambda path: Limiter.from_url("memory://").hit("ann", "1/hour"),
    lambda path: a_block(),
]
NOT_FOUND: list[Callable[[str], Awaitable[object]]] = [
    lambda path: of_tenant(path).hit("ann", "1/hour"),
    lambda path: call(RateLimitMiddleware(hello, limits="1/hour")),
    lambda path: call(Starlette(routes=[Mount("/", Starlette(routes=[Route("/", page)], middleware=AROUND))])),
    lambda path: call(hello),
]


@pytest.mark.parametrize("use", [*FOUND, *NOT_FOUND])
@pytest.mark.usefixtures("new_process")
async def test_a_limiter_that_each_request_makes_is_found_once(
    use: Callable[[str], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    """One that stays, or is that of a middleware, is not."""

    async def endpoint(request: Request) -> PlainTextResponse:
        await use(request.url.path)
        return PlainTextResponse("page")

    app = Starlette(routes=[Route("/{tenant}", endpoint)])
    for number in range(9):
        await call(app, f"/{number}")
        assert caplog.text.count("SG142") == (use in FOUND and number > 2)


@pytest.mark.usefixtures("new_process")
async def test_those_of_tests_and_of_lifespans_are_not(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await Limiter().hit("ann", "1/hour")
        yield

    for _ in range(9):
        await Limiter().hit("ann", "1/hour")
        with TestClient(Starlette(lifespan=lifespan)):
            pass
    assert "SG142" not in caplog.text
