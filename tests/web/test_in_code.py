"""What only code can say: applications in pieces, middlewares that are made again, and what is freed."""

import asyncio
import gc
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES, StringConvertor
from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.routing import Mount, Route, request_response
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, path_param
from slidegate.core import Bucket, Concurrency
from slidegate.web.routes import layers

from ..asgi import attempt, call, hello, statuses
from ..remote_stores import RemoteStore, hit_all
from ..virtual_time import VirtualTime
from .middlewares import fails, page
from .stage import Stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with Stage(VirtualTime(), tmp_path) as one:
        yield one


async def answers(stage: Stage, app: Any, *requests: str) -> list[str]:
    """Return what an application answers to requests, which are written as in scenarios."""
    stage.serve(app)
    return await stage.play(*requests)


# -- names and stores --------------------------------------------------------------------------------------------------


async def test_middlewares_without_names_count_apart_where_no_other_process_counts(stage: Stage) -> None:
    shared = Limiter()
    first, second = (RateLimitMiddleware(hello, limits="2/hour", limiter=shared) for _ in range(2))
    assert await answers(stage, first, "GET / times=3") == ["200 200 429"]
    assert await answers(stage, second, "GET / times=3") == ["200 200 429"]


async def test_a_store_that_connects_does_so_as_the_application_starts() -> None:
    connected = list[Any]()

    class Connecting(RemoteStore):
        async def connect(self) -> None:
            connected.append(self)

    async def starts(scope: Scope, receive: Receive, send: Send) -> None:
        assert connected == []
        await send({"type": "lifespan.startup.complete"})
        assert connected == [limiter.store]

    limiter = Limiter(Connecting())
    _, error = await attempt(RateLimitMiddleware(starts, limits="5/minute", limiter=limiter), type="lifespan")
    assert error is None


class Odd(Route):
    """A route that looks like one of FastAPI's, and is none."""

    def effective_candidates(self) -> Any:
        raise RuntimeError("not now")


class OddApp(Starlette):
    user_middleware: Any = property(lambda self: 5, lambda self, value: None)


@pytest.mark.parametrize("app", [Starlette(routes=[Odd("/", page)]), OddApp(routes=[Route("/", page)])])
async def test_what_the_start_cannot_understand_is_an_unknown_application(app: Any) -> None:
    outer = RateLimitMiddleware(Starlette(routes=[Mount("/below", app)]), limits="1/hour")
    app.middleware_stack = None
    for around, path in ((RateLimitMiddleware(app.router, limits="1/hour"), "/"), (outer, "/nowhere")):
        assert [(await call(around, path)).status for _ in range(2)] == [200 if path == "/" else 404, 429]


async def test_workers_that_make_middlewares_in_another_order_count_the_same_by_their_names(stage: Stage) -> None:
    store, made = MemoryStore(), []
    for names in ("ab", "ba"):
        limiter = Limiter(store)
        made.append({name: RateLimitMiddleware(hello, limits="2/hour", limiter=limiter, name=name) for name in names})
    first, second = made
    assert await answers(stage, first["a"], "GET / times=2") == ["200 200"]
    assert await answers(stage, first["b"], "GET /") == ["200"]
    assert await answers(stage, second["a"], "GET / times=2") == ["429 429"]
    assert await answers(stage, second["b"], "GET / times=2") == ["200 429"]


# -- what is freed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_other_limiter", [False, True])
def test_a_middleware_is_freed_though_its_options_refer_to_it(has_other_limiter: bool) -> None:
    limiter = Limiter() if has_other_limiter else None

    def owner(request: Request) -> str:
        return "user:1"

    vars(owner)["app"] = RateLimitMiddleware(hello, limits="9/minute", key=owner, limiter=limiter)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


async def test_of_a_file_that_changes_only_the_newest_middleware_is_kept(stage: Stage) -> None:
    route = """application routes=[Route("/", RateLimit("9000/hour")(page))]"""
    await stage.play("""write a.toml 'default_limits = "900/hour"'""", route, "file a.toml store")
    replaced = []
    for amount in (9, 10):
        assert await stage.play("GET /") == ["200"]
        replaced.append(weakref.ref(stage.app.app))
        await stage.play(f"""write a.toml 'default_limits = "{amount}/hour"'""", "look")
    assert await stage.play("GET /") == ["200"]
    gc.collect()
    assert [each() for each in replaced] == [None, None]


async def test_two_rules_of_one_database_read_one_file(stage: Stage) -> None:
    rule = """'path = "{}"' 'limits = "9/hour"' 'key = {{ network = "asn.mmdb" }}' """
    rule += """'when = {{ network = "asn.mmdb", is_in = [64500] }}'"""
    rules = " ".join(f"'[[rules]]' {rule.format(path)}" for path in ("/0", "/1"))
    await stage.play(f"""write b.toml 'networks = "asn.mmdb"' {rules}""", "file b.toml store")
    network, *others = stage.limiter.engine.networks
    files: list[Any] = [*others, *(rule.key.file for rule in stage.app.app.rules)]
    assert len(files) >= 2
    assert all(file is network for file in files)


@pytest.mark.parametrize(("count", "is_included"), [(1, False), (3_000, False), (3_000, True)])
async def test_routes_are_looked_at_before_the_first_request_and_before_a_changed_file_is_in_force(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, count: int, is_included: bool
) -> None:
    """Many routes in a thread, as they take half a second, and so does FastAPI to expand them."""
    threads: list[str] = []

    class Watched(Route):
        def __getattribute__(self, name: str) -> Any:
            if name == "path_format":  # no router reads it
                threads.append(threading.current_thread().name)
            return super().__getattribute__(name)

    router, stage.names["routes"] = APIRouter(), [Watched(f"/a{number}", page) for number in range(count)]
    if is_included:
        router.include_router(APIRouter(routes=stage.names["routes"]))
        included = stage.names["routes"] = router.routes
        if not hasattr(included[0], "effective_candidates"):
            pytest.skip("this FastAPI expands routers when it includes them")
        expand = type(included[0]).effective_candidates

        def watched(routes: Any) -> Any:
            threads.append(threading.current_thread().name)
            return expand(routes)

        monkeypatch.setattr(type(included[0]), "effective_candidates", watched)
    before = """write a.toml 'rules = [{ path = "/before", limits = "9/minute" }]'"""
    await stage.play(before, "application routes=routes", "file a.toml store", "GET /a")
    asked = {*threads}
    assert (threads[0] == threading.current_thread().name) is (count == 1)
    *_, said = await stage.play(before.replace("before", "after"), "look", "findings")
    assert {*threads} - asked == {"slidegate-files"}
    assert said.startswith("SG123: path '/after' of rule '/after' matches no route")


async def test_a_request_that_waits_ends_under_the_limits_it_came_to_and_later_ones_queue_behind(stage: Stage) -> None:
    rule = "write a.toml '[[rules]]' 'path = \"*\"' 'limits = \"{}/10s\"' 'wait = \"20s\"' 'name = \"api\"'"
    await stage.play(rule.format(1), "file a.toml", "come GET / times=2", rule.format(3), "look", "come GET /")
    await asyncio.gather(*stage.tasks)
    ended = {number: (at_s, status) for at_s, number, status in stage.ended}
    assert [ended[number][1] for number in range(3)] == ["200"] * 3
    assert ended[2][0] >= ended[1][0] >= 7, "the new file would let both in at once"


# -- middlewares of routes ---------------------------------------------------------------------------------------------


async def test_middlewares_of_routes_are_no_middleware_that_is_built_again(stage: Stage) -> None:
    limited = [Middleware(RateLimitMiddleware, limits="9/minute")]
    routes = [Route(path, page, middleware=limited) for path in ("/a", "/b", "/c")]
    assert await answers(stage, Starlette(routes=routes), "GET /a", "GET /b", "GET /c") == ["200"] * 3
    made = [layer for route in routes for layer in layers(route.app) if isinstance(layer, RateLimitMiddleware)]
    assert [one.findings for one in made] == [[], [], []]


async def test_one_limit_at_two_functions_of_one_name_counts_each(stage: Stage) -> None:
    limit = RateLimit("1/hour")
    one, two = (request_response(limit(function)) for function in (page, stage.another_endpoint()))

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        await (two if scope["path"] == "/two" else one)(scope, receive, send)

    app = RateLimitMiddleware(ExceptionMiddleware(inside))
    assert await answers(stage, app, "GET /one/1", "GET /two", "GET /one/2", "GET /two") == ["200", "200", "429", "429"]


# -- paths -------------------------------------------------------------------------------------------------------------


async def test_limits_of_each_route_follow_a_route_with_a_pattern_of_its_own_and_one_that_comes_later(
    stage: Stage,
) -> None:
    login = Route("/login", page)
    login.path_regex = re.compile(login.path_regex.pattern, re.IGNORECASE)
    inside = Starlette(routes=[login, Route("/other", page)])
    app = RateLimitMiddleware(inside, default_limits="2/minute", limiter=stage.limiter)
    requests = ["GET /login", "GET /LOGIN times=2", "GET /other"]
    assert await answers(stage, app, *requests) == ["200", "200 429", "200"]
    inside.router.routes.append(Route("/late", page))
    assert await stage.play("GET /late times=3") == ["200 200 429"]


async def test_a_rule_older_than_a_change_of_the_routers_knows_what_they_take(stage: Stage) -> None:
    """FastHTML changes Starlette's pattern of a text when it is imported, perhaps after the rules."""
    rule, exempt = Rule("/items/{id}", "1/hour"), Rule("/items/{id}", exempt=True)
    stage.environment.setattr(StringConvertor, "regex", "[^/]*")
    app = RateLimitMiddleware(hello, rules=[rule])
    assert await answers(stage, app, "GET /items/ times=2") == ["200 429"]
    app = RateLimitMiddleware(hello, rules=[exempt, Rule("*", "1/hour", name="all")])
    assert await answers(stage, app, "GET /items/ times=2") == ["200 200"]


async def test_only_the_parameter_that_a_rule_counts_by_is_converted(stage: Stage) -> None:
    """Another one may ask a database."""

    class Report(StringConvertor):
        convert = staticmethod(fails)  # type: ignore[assignment]

    stage.environment.setitem(CONVERTOR_TYPES, "report", Report())
    rule = Rule("/{tenant}/{number:report}", "1/hour", key=path_param("tenant"))
    app = RateLimitMiddleware(hello, rules=[rule], limiter=stage.limiter)
    assert await answers(stage, app, "GET /a/7 times=2", "GET /b/7", "log") == ["200 429", "200", "none"]


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_permit_released_elsewhere_goes_to_the_tenant_that_holds_the_fewest(stage: Stage) -> None:
    rule = 'rule "/", concurrency=2, key=everyone, wait="30s", fair=header("X-Tenant"), name="held"'
    await stage.play("site remote=True", rule, "slow")
    limiter = Limiter(stage.remote.inner)
    elsewhere = await hit_all(limiter, [(Bucket("held", (Concurrency(2),)), "everyone", 1)])
    await stage.play("stalls", "come GET / X-Tenant=big")
    stage.remote.hangs = False
    await stage.play("come GET / X-Tenant=big", "come GET / X-Tenant=small", "recovers")
    assert await stage.play("inside") == ["big"]
    assert stage.remote.inner.refund(elsewhere.begin_refund())
    assert await stage.play("sleep 1s", "inside") == ["", "big small"]


async def test_a_request_that_is_closed_awaits_nothing_and_gives_its_permit_back(stage: Stage) -> None:
    """As where a server ends its event loop."""
    await stage.play("site remote=True", 'rule "/", concurrency=1', "slow", "come GET /")
    assert await stage.play("inside", "permits") == ["nobody", "1"]
    coroutine: Any = stage.tasks[0].get_coro()
    coroutine.close()
    assert await stage.play("ended", "permits") == ["none", "0"]


@pytest.mark.parametrize("value", [{}, "on", 5, object()])
async def test_a_request_whose_scope_has_something_else_at_our_place_is_counted(value: object) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("/health", exempt=True), Rule("*", "1/minute")])
    assert await statuses(app, 2, slidegate=value) == [200, 429]
    assert await statuses(app, 2, "/health", slidegate=value) == [200, 200]


OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **{name: lambda function, name=name: {"limits": "1/minute", name: function} for name in ("key", "cost", "when")},
    "fair": lambda function: {"limits": "1/minute", "fair": function, "wait": "1s", "concurrency": 5},
    "limits": lambda function: {"limits": function, "fallback_limits": "1/minute"},
    "on_refused": lambda function: {"limits": "1/minute"},
}
"""Where a rule, or its middleware, has a function."""


@pytest.mark.parametrize("is_cancelled", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
async def test_a_function_that_awaits_what_somebody_else_has_cancelled_fails_and_one_that_is_cancelled_ends(
    option: str, caplog: pytest.LogCaptureFixture, *, is_cancelled: bool
) -> None:
    reached, shared = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def function(*_: Any) -> Any:
        reached.set()
        await shared

    if is_cancelled:
        shared.cancel()
    on_refused = function if option == "on_refused" else None
    app = RateLimitMiddleware(hello, rules=[Rule("*", **OPTIONS[option](function))], on_refused=on_refused)
    requests = asyncio.create_task(statuses(app, 2))
    if is_cancelled:
        assert await requests == [200, 429]
        assert "CancelledError" in caplog.text
        return
    await reached.wait()
    requests.cancel()
    with pytest.raises(asyncio.CancelledError):
        await requests
