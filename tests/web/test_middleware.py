"""The middleware as a piece of ASGI: what it judges, what it leaves alone, and how middlewares stack."""

import asyncio
import contextvars
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    everyone,
    header,
)
from slidegate.testing import FakeClock
from slidegate.web.callbacks import whole_cost

from ..asgi import attempt, call, hello, page, statuses
from ..test_wrong_arguments import WRONG
from .middlewares import counted, limited, wrapping
from .stage import expanded


@pytest.mark.parametrize("of_a_file", [False, True])
@pytest.mark.parametrize("kind", ["lifespan", "foo"])
async def test_other_scope_types_pass_unchanged(kind: str, of_a_file: bool, tmp_path: Path) -> None:
    seen: list[Any] = []
    message = {"type": f"{kind}.startup.complete"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([scope, receive])
        await send(message)

    async def send(message: Any) -> None:
        seen.append(message)

    receive: Any = object()
    scope = {"type": kind, "state": {}}
    file = tmp_path / "slidegate.toml"
    file.write_text('limits = "1/hour"')
    made: Any = RateLimitMiddleware.from_file(app, file) if of_a_file else RateLimitMiddleware(app, limits="1/hour")
    await made(scope, receive, send)
    assert [*map(id, seen)] == [id(scope), id(receive), id(message)]
    assert scope == {"type": kind, "state": {}}


async def test_context_variables_streams_and_background_tasks_behave_as_without_the_middleware() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    done: list[str] = []

    async def chunks() -> Any:
        for word in ("a", "b", "c"):
            yield word

    async def stream(request: Request) -> StreamingResponse:
        user.set("inner")
        return StreamingResponse(chunks(), background=BackgroundTask(done.append, "task"))

    app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(RateLimitMiddleware, limits="9/hour")])
    answer = await call(app)
    assert answer.body == b"abc"
    assert user.get() == "inner"  # the application ran in the caller's own task and context
    assert done == ["task"]


async def test_a_condition_of_several_rules_is_asked_once_for_each_request() -> None:
    paths: list[str] = []

    def when(request: Any) -> bool:
        paths.append(request.url.path)
        return True

    rules = [Rule("/a", exempt=True, when=lambda request: False)]
    rules += [Rule("*", "9/hour", when=when, name=name) for name in ("one", "two")]
    app = RateLimitMiddleware(hello, rules=rules, bans=BanPolicy(signals={"refused": 1, "4xx": 1, "/honey": 1}))
    assert [await statuses(app, 1, path) for path in ("/a", "/b", "/b")] == [[200]] * 3
    assert paths == ["/a", "/b", "/b"]


async def test_an_answer_that_breaks_after_its_start_is_not_started_twice() -> None:
    class Broken(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            raise KeyError("half")

    app = RateLimitMiddleware(hello, limits="1/hour", on_refused=lambda request, decision: Broken("x"))
    await call(app)
    answer, error = await attempt(app)
    assert (repr(error), answer.messages) == ("KeyError('half')", [answer.start])


async def test_workers_that_create_middlewares_in_another_order_count_the_same_by_their_names(tmp_path: Path) -> None:
    for order, expected in (("ab", [200, 200, 200]), ("ba", [429, 429, 200])):
        async with Limiter.from_url(f"lmdb://{tmp_path}", deadline="30s") as limiter:
            apps = {name: RateLimitMiddleware(hello, limits="2/hour", limiter=limiter, name=name) for name in order}
            assert [(await call(apps[name])).status for name in "aab"] == expected


async def test_unnamed_limits_of_two_middlewares_are_numbered_or_an_error(tmp_path: Path) -> None:
    shared = Limiter()
    apps = [RateLimitMiddleware(hello, limits="2/hour", limiter=shared) for _ in range(2)]
    assert [await statuses(app, 3) for app in apps] == [[200, 200, 429]] * 2
    async with Limiter.from_url(f"lmdb://{tmp_path}") as limiter:
        first = RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        with pytest.raises(ConfigurationError, match=r"limits without a name \('default'\).*name=\"admin\""):
            RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        del first
        assert RateLimitMiddleware(hello, limits="2/hour", limiter=limiter), "the other one is gone"


# -- which requests a rule is about, and which limits: plans, quotas, and limits that nobody passes --------------------


def test_a_rule_without_a_name_counts_by_its_methods_and_its_paths_in_any_order() -> None:
    assert Rule("*", "5/minute").identity == "default"
    assert Rule("/a", "5/minute").identity == Rule("/a", "9/minute", key=everyone).identity == "/a"
    assert Rule("/a", "5/minute", methods=["POST"]).identity == "POST /a"
    assert Rule("/a", "5/minute", name="a").identity == "a"
    assert Rule(["/a"], "5/minute").identity == "/a"
    paths = ["/login", "/api/login", "/v2/{rest:path}"]
    (identity,) = {Rule(order, "1/minute").identity for order in permutations(paths)}
    assert (
        len({identity, *(Rule(some, "1/minute").identity for some in (paths[:2], paths[0], " ".join(paths[:2])))}) == 4
    )


@pytest.mark.parametrize("read", ["limits", "cost"])
def test_what_a_function_returns_is_taken_or_refused_with_what_was_expected(read: str) -> None:
    rule = Rule("*", lambda request: "5/minute", fallback_limits="5/minute")
    (bound,) = RateLimitMiddleware(hello, rules=[rule]).rule_set.bound()
    for returned in WRONG:
        with suppress(ConfigurationError):  # and nothing else, of which the log would have a traceback
            bound.with_limits(returned) if read == "limits" else whole_cost(returned)


CUSTOMER = header("X-API-Key")
PLANS: dict[str, Any] = {"k-ann": "5/minute", "k-eve": ["3/minute", Quota("100/month")]}
SHOWN = {"k-ann": ["5/1m"], "k-eve": ["3/1m", "100/month"]}


@pytest.mark.parametrize("at", ["rule", "decorator"])
async def test_a_customer_is_shown_the_fall_back_of_its_plan_and_the_plan_that_is_passed(at: str) -> None:
    def plan(request: HTTPConnection) -> Any:
        return PLANS[request.headers["X-API-Key"]]

    limiter = Limiter()
    app = limited(at, plan, limiter=limiter, key=CUSTOMER, fallback_limits="2/minute", name="plan")
    for customer in PLANS:
        await call(app, headers={"X-API-Key": customer})
        for plans, shown in ((None, ["2/1m"]), ({"plan": PLANS[customer]}, SHOWN[customer])):
            windows = (await limiter.inspect(CUSTOMER.of(customer), plans)).windows
            assert [str(window.limit).partition(" from ")[0] for window in windows] == shown
        assert [window.used for window in windows] == [1] * len(shown)


# -- default_limits: each route by itself; exemptions and limits at the endpoint take the place of defaults ------------


async def other(request: Any) -> PlainTextResponse:
    return PlainTextResponse("other")


@RateLimit.exempt
async def health(request: Any) -> PlainTextResponse:
    return PlainTextResponse("well")


def with_defaults(app: ASGIApp) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, default_limits="2/minute", limiter=Limiter(MemoryStore(clock=FakeClock())))


@RateLimit.exempt
class Base(HTTPEndpoint):
    async def get(self, request: Any) -> PlainTextResponse:
        return PlainTextResponse("hi")


class Child(Base):
    pass


API = Router([Route("/api", page)])
INNER = [Route("/items/{item:int}", page), Route("/", health), Route("/free/", health), Route("/b/", page)]
ROUTES = [
    Route("/a", page, methods=["GET", "PUT"]),
    Route("/a", other, methods=["POST"]),
    Route("/b/", page),
    Route("/free/", health),
    Route("/free/{rest:path}", health),
    Route("/below", wrapping(RateLimit.exempt(wrapping(page)))),
    Route("/above", RateLimit.exempt(wrapping(page))),
    Route("/limited", RateLimit("30/minute", name="own")(RateLimit.exempt(wrapping(page)))),
    Route("/base", Base),
    Route("/child", Child),
    Mount("/v1/{tenant}", routes=INNER),
    Mount("/raw", hello),
    Mount("/exempt", RateLimit.exempt(StaticFiles(directory=Path(__file__).parent))),
    Host("api.example.org", API),
    Host("{sub}.example.net", API),
    Host("www.example.org", Router([Route("/api", page)])),
]
INCLUDED = APIRouter()
for own, above in (("/in", ""), ("", "/around"), ("/in", "/around/deep")):
    INNERMOST = APIRouter(prefix=own)
    for method in ("GET", "POST"):
        INNERMOST.add_api_route("/parts/{number}", page, methods=[method])
    INNERMOST.add_api_route("/free", health)
    INCLUDED.include_router(INNERMOST, prefix=above)


def test_each_route_is_a_bucket_unless_it_is_exempt(texts: Callable[..., None]) -> None:
    """Also where the application alone tells its routes, because something between hides them."""

    def label(request_line: str) -> str:
        method, _, target = request_line.partition(" ")
        host, _, path = target.partition("/")
        found = set[str]()
        for stack in ([], [GZipMiddleware], [with_defaults, GZipMiddleware]):
            app = FastAPI(routes=ROUTES, middleware=[Middleware(one) for one in stack], openapi_url=None)
            app.include_router(INCLUDED, prefix="/v2")
            middleware = app if with_defaults in stack else with_defaults(app)
            counting = counted(middleware, f"/{expanded(path)}", method, headers={"host": host or "example.com"})
            found.add(", ".join(asyncio.run(counting)) or "exempt")
        return "\n".join(found)

    texts(Path(__file__).with_name("routes.txt"), "> ", label)


async def test_a_route_with_a_pattern_of_its_own_is_asked_all_the_same() -> None:
    login = Route("/login", page)
    login.path_regex = re.compile(login.path_regex.pattern, re.IGNORECASE)
    app = with_defaults(Starlette(routes=[login, Route("/other", page)]))
    assert await statuses(app, 1, "/login") == [200]
    assert await statuses(app, 2, "/LOGIN") == [200, 429]
    assert await statuses(app, 1, "/other") == [200]
    app.app.router.routes.append(Route("/late", page))
    assert await statuses(app, 3, "/late") == [200, 200, 429], "a route that was added at last is its own bucket"
