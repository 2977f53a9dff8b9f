"""The OpenAPI document says of each operation which limits apply to it, and how it is refused, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Mount

import slidegate
from examples.demo.app import make_app
from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, header
from slidegate.core import ConfigurationError
from slidegate.openapi import document_limits
from slidegate.testing import FakeClock

from ..asgi import Answer, call


def site(**options: Any) -> FastAPI:
    """Return an application with some routes behind a middleware with these options."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **options)
    router = APIRouter(prefix="/api", dependencies=[Depends(RateLimit("40/minute", methods=["POST"]))])

    @app.get("/health")
    @RateLimit.exempt
    async def health() -> str:
        return "ok"

    @app.get("/items/special")
    async def special() -> str:
        return "ok"

    @app.get("/items/{item}")
    @app.post("/items/{item}")
    async def item(item: str) -> str:
        return item

    @router.get("/search", dependencies=[Depends(RateLimit("3/second", name="search"))])
    @router.post("/search")
    async def search() -> str:
        return "ok"

    @router.get("/decorated")
    @RateLimit("7/10s", key=slidegate.everyone)
    @RateLimit("70/hour", unit="tokens")
    async def decorated() -> str:
        return "ok"

    @router.get("/files/{path:path}")
    async def file(path: str) -> str:
        return path

    app.include_router(router)
    return app


def documented(app: Any, **options: Any) -> dict[str, Any]:
    """Return the operations of the document: ``GET /items/{item}`` and what stands there."""
    document_limits(app, **options)
    return operations(app)


def operations(app: Any) -> dict[str, Any]:
    paths = app.openapi()["paths"]
    return {f"{method.upper()} {path}": found for path, methods in paths.items() for method, found in methods.items()}


def limits(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return the limits of each operation that has any."""
    return {
        name: [one for rule in each["x-ratelimit"] for one in rule["limits"]]
        for name, each in found.items()
        if "x-ratelimit" in each
    }


def refusals(found: dict[str, Any]) -> set[str]:
    return {"403", "429", "503"} & found["responses"].keys()


# -- which limits ------------------------------------------------------------------------------------------------------


def test_a_rule_for_another_route_of_the_same_function_is_none_of_an_operation() -> None:
    app = FastAPI()

    async def item(item: str = "") -> str:
        return item

    app.add_api_route("/items/special", item)
    app.add_api_route("/items/{item}", item)
    app.add_middleware(RateLimitMiddleware, rules=[Rule("/items/special", "3/second")])
    document_limits(app)
    paths = app.openapi()["paths"]
    assert "429" in paths["/items/special"]["get"]["responses"]
    assert "429" not in paths["/items/{item}"]["get"]["responses"]


def test_one_path_of_many_counts_only_at_the_route_that_takes_it() -> None:
    found = documented(site(rules=[Rule("/items/special", "1/minute"), Rule("/items/other", "2/minute")]))
    assert limits(found)["GET /items/special"] == ["1/1m"]
    assert limits(found)["GET /items/{item}"] == ["2/1m"]
    assert found["GET /items/special"]["x-ratelimit"] == [{"limits": ["1/1m"]}]
    assert found["GET /items/{item}"]["x-ratelimit"] == [{"limits": ["2/1m"], "conditional": True}]


def test_default_limits_are_those_of_each_route_but_exempt_ones() -> None:
    found = limits(documented(site(default_limits="6/minute; 60/hour")))
    assert "GET /health" not in found
    assert found["GET /items/special"] == ["6/1m", "60/1h"]
    assert found["GET /api/search"] == ["6/1m", "60/1h", "3/1s"]
    assert found["GET /api/decorated"] == ["6/1m", "60/1h", "7/10s", "70/1h"]


class Planned(RateLimitMiddleware):
    """A middleware of the user's with options of its own."""

    def __init__(self, app: Any, *, plan: str, **options: Any) -> None:
        super().__init__(app, **options)


@pytest.mark.parametrize(
    ("middleware", "options", "expected"),
    [
        (None, {}, {}),  # a limit at an endpoint without a middleware is none
        (RateLimitMiddleware, {"limits": "5/minute", "enabled": False}, {}),
        (RateLimitMiddleware, {"rules": [Rule("*", "5/minute", shadow=True)]}, {"GET /": ["6/1m"]}),
        (Planned, {"plan": "gold", "limits": "5/minute"}, {"GET /": ["5/1m", "6/1m"]}),
    ],
)
def test_limits_are_those_of_a_middleware_that_enforces_them(middleware: Any, options: Any, expected: Any) -> None:
    app = FastAPI()
    if middleware is not None:
        app.add_middleware(middleware, **options)
    app.get("/", dependencies=[Depends(RateLimit("6/minute"))])(lambda: "ok")
    assert limits(documented(app)) == expected


def test_a_configuration_file_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "slidegate.toml"
    path.write_text('default_limits = "6/minute"\nstore = "redis://127.0.0.1:1"\non_error = "deny"\nheaders = "none"\n')
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware.from_file, path=path)
    app.get("/")(lambda: "ok")
    (found,) = documented(app).values()
    assert found["x-ratelimit"] == [{"limits": ["6/1m"]}]
    assert refusals(found) == {"429", "503"}
    assert [*found["responses"]["429"]["headers"]] == ["Retry-After"]


def test_an_error_of_a_configuration_file_names_the_file_as_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "slidegate.toml"
    path.write_text('limits = "5/minut"')
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware.from_file, path=path)
    with pytest.raises(ConfigurationError, match=f"^{re.escape(str(path))}: ") as raised_first:
        documented(app)
    with pytest.raises(ConfigurationError) as raised:
        RateLimitMiddleware.from_file(app, path)
    assert str(raised_first.value) == str(raised.value)


@pytest.mark.parametrize("documented_first", [0, 1])
def test_a_mounted_application_has_the_limits_around_it_in_its_own_document(documented_first: int) -> None:
    inner = site(rules=[Rule("/items/{n}", "1/minute"), Rule("/health", exempt=True)])
    outer = FastAPI()
    outer.add_middleware(RateLimitMiddleware, rules=[Rule("/v1/{n:path}", "2/minute"), Rule("/items/{n}", "3/minute")])
    outer.mount("/v1", inner)
    for at in (documented_first, 1 - documented_first):
        document_limits([outer, inner][at])
    found = limits(operations(inner))
    assert (found["GET /items/{item}"], found["GET /health"]) == (["2/1m", "1/1m"], ["2/1m"])
    assert operations(outer) == {}
    mounted = site(rules=[])
    around = [Middleware(RateLimitMiddleware, limits="4/minute", headers=("draft", "legacy"))]
    document_limits(Starlette(routes=[Mount("/v2", mounted, middleware=around)]))
    assert limits(operations(mounted))["GET /health"] == ["4/1m"]
    assert "X-RateLimit-Reset" in operations(mounted)["GET /health"]["responses"]["429"]["headers"]


def test_no_stack_is_kept() -> None:
    app = site(limits="5/minute")
    documented(app)
    app.add_middleware(RateLimitMiddleware, limits="50/hour")
    assert app.middleware_stack is None
    app.openapi_schema = None
    assert limits(operations(app))["GET /health"] == ["50/1h", "5/1m"]


def test_the_middleware_of_a_document_leaves_its_names_to_that_of_the_application() -> None:
    limiter = Limiter()
    app = site(rules=[Rule("/health", "1/hour")], limiter=limiter)
    assert limits(documented(app))["GET /health"] == ["1/1h"]
    client = TestClient(app)
    assert [client.get("/health").status_code for _ in range(2)] == [200, 429]
    assert len(limiter.middlewares) == 1


# -- how they are shown ------------------------------------------------------------------------------------------------


def test_limits_alone_are_published_unless_names_and_keys_are_asked_for() -> None:
    def tier(request: Any) -> str:
        return "5/minute"

    rules = [Rule("*", tier, name="tier"), Rule("*", "9/hour", key=header("X-API-Key"), when=lambda request: True)]
    by_tier, hourly = {"limits": [], "by_request": True}, {"limits": ["9/1h"], "conditional": True}
    assert documented(site(rules=rules))["GET /health"]["x-ratelimit"] == [by_tier, hourly]
    found = documented(site(rules=rules), names=True, keys=True)
    assert found["GET /health"]["x-ratelimit"] == [
        {**by_tier, "name": "tier", "key": "address"},
        {**hourly, "key": "header:x-api-key"},
    ]
    assert {"limits": ["70/1h"], "unit": "tokens", "key": "address"} in found["GET /api/decorated"]["x-ratelimit"]
    assert found["GET /api/search"]["x-ratelimit"][-1]["name"] == "search"


def test_bans_and_lists_add_a_403_everywhere_and_no_limit() -> None:
    bans = BanPolicy(after="3/minute", duration="1h", signals={"/.env": 1})
    for options in ({"bans": bans}, {"blocklist": slidegate.Networks(["192.0.2.0/24"])}):
        found = documented(site(rules=[], **options))
        assert "x-ratelimit" not in found["GET /health"]
        assert refusals(found["GET /health"]) == {"403"}
        assert "/.env" not in json.dumps(found)
    in_shadow = site(rules=[], bans=BanPolicy(after="3/minute", duration="1h", shadow=True))
    assert refusals(documented(in_shadow)["GET /health"]) == set()


@pytest.mark.parametrize(
    ("of_limiter", "of_rule", "expected"),
    [("deny", None, True), ("deny", "allow", False), ("local", None, False), ("local", "deny", True)],
)
def test_a_503_is_where_deny_can_refuse(of_limiter: Any, of_rule: Any, expected: bool) -> None:
    rules = [Rule("/health", "5/minute", on_error=of_rule)]
    found = documented(site(rules=rules, limiter=Limiter.from_url("redis://127.0.0.1:1", on_error=of_limiter)))
    assert refusals(found["GET /health"]) == ({"429", "503"} if expected else {"429"})
    assert refusals(found["GET /items/special"]) == set()
    assert refusals(documented(site(rules=rules))["GET /health"]) == {"429"}, "a memory store cannot fail"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("draft", ["Retry-After", "RateLimit", "RateLimit-Policy"]),
        (["legacy"], ["Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
        (None, ["Retry-After"]),
    ],
)
def test_fields_are_those_of_the_middleware(headers: Any, expected: list[str]) -> None:
    found = documented(site(limits="5/minute", headers=headers))
    assert [*found["GET /health"]["responses"]["429"]["headers"]] == expected


class SlowDown(BaseModel):
    """What an application answers."""

    class Hint(BaseModel):
        seconds: int

    error: str
    hint: Hint


async def own_answer(request: Any, error: Any) -> Response:
    return JSONResponse({"error": "slow down", "hint": {"seconds": 1}}, 429)


def content(app: FastAPI, name: str, **options: Any) -> Any:
    return [*documented(app, **options)[name]["responses"]["429"].get("content", ())]


def test_the_body_of_another_answer_is_the_users_to_describe() -> None:
    assert content(site(limits="5/minute"), "GET /health") == ["application/problem+json"]
    assert content(site(limits="5/minute", on_refused=own_answer), "GET /health") == []
    app = site(limits="5/minute", on_refused=own_answer)
    assert content(app, "GET /health", response=SlowDown) == ["application/json"]
    assert "Hint" in app.openapi()["components"]["schemas"]
    handled = site(limits="5/minute")
    handled.add_exception_handler(RateLimitExceeded, slidegate.rate_limit_exceeded)
    assert content(handled, "GET /api/search") == ["application/problem+json"]
    assert content(site(rules=[]), "GET /api/search") == ["application/json"]
    handled = site(rules=[])
    handled.add_exception_handler(RateLimitExceeded, own_answer)
    assert content(handled, "GET /api/search") == []


def described(style: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the descriptions of header fields, and the fields after hits at 0 s and 30 s."""
    clock = FakeClock()
    app = site(limits="5/minute", headers=style, limiter=Limiter(MemoryStore(clock=clock)))
    found = documented(app)["GET /health"]["responses"]["429"]["headers"]
    client = TestClient(app)
    client.get("/health")
    clock.advance("30s")
    return {name: one["description"] for name, one in found.items()}, dict(client.get("/health").headers)


def test_the_times_in_header_fields_are_those_that_their_descriptions_name() -> None:
    """One unit is back half a minute after the second request, all of them after a minute."""
    found, sent = described("draft")
    assert sent["ratelimit"] == '"default";r=3;t=30'
    assert found["RateLimit"] == "For each limit, what remains of it, and the seconds until more remains."
    found, sent = described("legacy")
    assert sent["x-ratelimit-reset"] == "90"
    assert found["X-RateLimit-Reset"] == "When it is whole again, in Unix seconds."


def test_what_the_application_says_itself_stays() -> None:
    app = FastAPI(responses={429: {"description": "ours"}})
    app.add_middleware(RateLimitMiddleware, limits="5/minute")
    app.get("/")(lambda: "ok")
    (found,) = documented(app).values()
    assert found["responses"]["429"] == {"description": "ours"}
    assert found["x-ratelimit"] == [{"limits": ["5/1m"]}]


def test_only_an_application_with_a_document_can_be_documented() -> None:
    with pytest.raises(ConfigurationError, match="expected a FastAPI application"):
        document_limits(Starlette())


def test_the_document_is_served_and_made_once() -> None:
    app = site(limits="500/minute")
    document_limits(app)
    document_limits(app)
    with TestClient(app) as client:
        first, second = client.get("/openapi.json").json(), client.get("/openapi.json").json()
    assert first == second
    assert first["paths"]["/health"]["get"]["x-ratelimit"] == [{"limits": ["500/1m"]}]


# -- the document and the application, in both directions --------------------------------------------------------------


PATHS = ["*", "/health", "/items/special", "/items/{item}", "/items/other", "/items/{n:int}"]
PATHS += ["/api/{rest:path}", "/api/search", "/api/files/{p:path}", "/api/{one}", "/items/special/", "/items/7/"]
MOST = 3
"""The largest amount of a limit."""
METHODS = [None, ["GET"], ["POST"]]
VALUES = {"{item}": ["~", "7", "other", "special"], "{path}": ["", "a", "a/b"]}


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        options: dict[str, Any] = draw(
            st.sampled_from([{}, {}, {"final": True}, {"shadow": True}, {"exempt": True}, {"block": True}])
        )
        amount = None if options.keys() & {"exempt", "block"} else f"{draw(st.integers(1, MOST))}/hour"
        path, methods = draw(st.sampled_from(PATHS)), draw(st.sampled_from(METHODS))
        found.append(Rule(path, amount, methods=methods, name=amount and f"r{number}", **options))
    return found


def spelled(name: str) -> Iterator[str]:
    """Yield paths by which requests reach an operation."""
    method, _, path = name.partition(" ")
    for parameter, values in VALUES.items():
        if parameter in path:
            paths = [path.replace(parameter, value) for value in values]
            yield from [one for one in paths if (method, one) != ("GET", "/items/special")]  # of another operation
            return
    yield path


async def answers(app: FastAPI, name: str) -> list[Answer]:
    """Return the answers of an operation to one request more than each limit admits, at each of its paths."""
    method = name.partition(" ")[0]
    return [await call(app, one, method) for one in spelled(name) for _ in range(MOST + 1)]


@given(rules(), st.sampled_from([None, f"{MOST}/hour"]))
async def test_an_operation_has_a_429_if_and_only_if_it_can_get_one(given_rules: list[Rule], defaults: Any) -> None:
    clock = FakeClock()
    app = site(rules=given_rules, default_limits=defaults, limiter=Limiter(MemoryStore(clock=clock)))
    found = documented(app)
    blocked = {403} if any(rule.blocks for rule in given_rules) else set()
    for name in found.keys() - {"POST /api/search", "GET /api/decorated"}:
        got = {answer.status for answer in await answers(app, name)}
        assert (429 in got) == ("429" in found[name]["responses"]), (name, given_rules)
        assert got - blocked <= {int(status) for status in found[name]["responses"]}
        clock.advance("1d")


async def test_every_response_of_the_demo_is_documented_and_every_documented_one_can_be_got() -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    app = make_app(limiter)
    found = operations(app)
    assert refusals(found["GET /health"]) == {"403"}, "which is exempt"
    for number, name in enumerate(found):
        method, _, path = name.partition(" ")
        peer = (f"203.0.113.{number + 1}", 1)
        got = [await call(app, path.replace("{slug}", "fair-queues"), method, client=peer) for _ in range(250)]
        await limiter.ban(peer[0], "1h")
        got.append(await call(app, path, method, client=peer))
        for answer in got:
            response = found[name]["responses"].get(str(answer.status))
            if answer.status == 401:  # of the application
                continue
            assert response is not None, (name, answer.status)
            if answer.status in (403, 429):
                check(answer, response)
        assert {str(answer.status) for answer in got} & {"403", "429", "503"} == refusals(found[name]), name


def check(answer: Answer, response: dict[str, Any]) -> None:
    """Check that an answer has the fields and the body that its document describes."""
    missing = {name.lower() for name in response["headers"]} - answer.headers.keys()
    assert missing == set()
    schema = response["content"][answer.headers["content-type"]]["schema"]
    Draft202012Validator(schema).validate(json.loads(answer.body))
