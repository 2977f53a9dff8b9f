"""The 429 in the OpenAPI description of a FastAPI application, and that it tells the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    document_limits,
    everyone,
)


def get() -> str:
    return "hi"


def app_with(*rules: Rule, **options: Any) -> FastAPI:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=rules, **options)])
    document_limits(app)
    return app


def limited(schema: dict[str, Any]) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        if "429" in operation["responses"]
    }


def every_way() -> FastAPI:
    app = app_with(
        Rule("/health", exempt=True),
        Rule("/login", "9/hour", methods=["POST"]),
        Rule("/api/{rest:path}", "9/hour"),
        Rule("/hot", "9/hour", action="track", on_exceeded=print),
        Rule("/dark", "9/hour", action="shadow"),
    )
    for path in ("/health", "/login", "/api/a/{n}", "/hot", "/dark", "/free/{n}"):
        app.get(path)(get)
    app.post("/login")(get)
    app.get("/dependency/{n}", dependencies=[Depends(RateLimit("9/hour"))])(get)
    app.get("/decorated/{n}")(RateLimit("9/hour")(get))

    def user(_: None = Depends(RateLimit("9/hour"))) -> str:
        return "ann"

    app.get("/nested", dependencies=[Depends(user)])(get)
    router, inner = APIRouter(dependencies=[Depends(RateLimit("9/hour"))]), APIRouter()
    inner.get("/inner")(get)
    router.include_router(inner, prefix="/in")
    app.include_router(router, prefix="/v1")
    return app


EXPECTED = {
    "POST /login", "GET /api/a/{n}", "GET /dependency/{n}", "GET /decorated/{n}", "GET /nested", "GET /v1/in/inner"
}  # fmt: skip


def test_a_429_stands_at_every_operation_with_a_limit_and_at_no_other() -> None:
    assert limited(every_way().openapi()) == EXPECTED


def test_the_429_names_its_header_fields_and_its_problem() -> None:
    app = app_with(Rule("*", "9/hour"), headers="both")
    app.get("/")(get)
    schema = app.openapi()
    answer = schema["paths"]["/"]["get"]["responses"]["429"]
    assert sorted(answer["headers"]) == [
        "RateLimit", "RateLimit-Policy", "Retry-After",
        "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
    ]  # fmt: skip
    assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/RateLimitProblem"}
    problem = schema["components"]["schemas"]["RateLimitProblem"]
    client = TestClient(app)
    for _ in range(9):
        client.get("/")
    refused = client.get("/").json()
    assert set(problem["required"]) <= set(refused) <= set(problem["properties"])


def test_an_answer_of_ones_own_is_documented_by_its_header_fields_alone() -> None:
    app = app_with(Rule("*", "9/hour"), headers=None, on_refused=lambda request, decision: PlainTextResponse("no", 429))
    app.get("/")(get)
    answer = app.openapi()["paths"]["/"]["get"]["responses"]["429"]
    assert list(answer["headers"]) == ["Retry-After"]
    assert "content" not in answer


def test_an_operation_that_documents_its_own_429_keeps_it() -> None:
    app = app_with(Rule("*", "9/hour"))
    app.get("/", responses={429: {"description": "Patience"}})(get)
    assert app.openapi()["paths"]["/"]["get"]["responses"]["429"] == {"description": "Patience"}


def test_without_a_limit_nothing_is_added() -> None:
    plain, documented = FastAPI(), app_with()
    plain.get("/")(get)
    documented.get("/")(get)
    assert documented.openapi() == plain.openapi()


@pytest.mark.parametrize("by_name", [False, True])
def test_the_rules_of_a_file_are_documented(by_name: bool, tmp_path: Path) -> None:
    path = tmp_path / "slidegate.toml"
    path.write_text('[[rules]]\npath = "/a"\nlimits = "9/hour"\n', "utf-8")
    gate = RateLimitMiddleware.from_file
    app = FastAPI(middleware=[Middleware(gate, path=path) if by_name else Middleware(gate, path)])
    document_limits(app)
    app.get("/a")(get)
    app.get("/b")(get)
    assert limited(app.openapi()) == {"GET /a"}


def test_only_a_fastapi_application_can_be_documented() -> None:
    with pytest.raises(ConfigurationError, match="expected a FastAPI application"):
        document_limits(Route("/", get))


def shut(schema: dict[str, Any], path: str = "/") -> dict[str, Any]:
    """Return the answers of an operation but its own."""
    return {status: answer for status, answer in schema["paths"][path]["get"]["responses"].items() if status != "200"}


def test_what_banned_clients_get_stands_at_every_operation() -> None:
    app = app_with(bans=BanPolicy(signals={"/trap": "ban"}))
    app.get("/")(get)
    client = TestClient(app, client=("203.0.113.9", 1))
    schema = app.openapi()
    assert list(shut(schema)) == ["403"]
    assert list(shut(schema)["403"]["headers"]) == ["Retry-After"]
    problem = schema["components"]["schemas"]["RateLimitProblem"]
    refused = client.get("/trap")
    assert (refused.status_code, "retry-after" in refused.headers) == (403, True)
    assert set(problem["required"]) <= set(refused.json()) <= set(problem["properties"])


# -- the truth of it -----------------------------------------------------------------------------------------------


def shop() -> FastAPI:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=[Rule("/orders", "2/hour", key=everyone)])])
    document_limits(app)

    @app.get("/search", dependencies=[Depends(RateLimit("2/hour", key=everyone))])
    async def search(q: str = "") -> list[str]:
        return [q]

    @app.get("/items/{item_id}")
    @RateLimit("2/hour", key=everyone)
    def item(item_id: int) -> int:
        return item_id

    @app.post("/orders")
    async def order(item_id: int, count: int = 1) -> dict[str, int]:
        return {"item": item_id, "count": count}

    @app.get("/health")
    async def health() -> str:
        return "ok"

    return app


def statuses_of(operation: Any) -> set[int]:
    """Ask an operation for what its description allows, and hold each answer to the description."""
    found: set[int] = set()

    @hypothesis.settings(max_examples=6, deadline=None, database=None, derandomize=True)
    @hypothesis.given(operation.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call()
        found.add(answer.status_code)
        case.validate_response(answer)

    ask()
    return found


def test_generated_requests_meet_a_429_where_one_is_documented_and_nowhere_else() -> None:
    app = shop()
    operations = [found.ok() for found in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations()]
    met = {operation.label: statuses_of(operation) for operation in operations}
    assert {label for label, statuses in met.items() if 429 in statuses} == limited(app.openapi())
    assert met.keys() - limited(app.openapi()) == {"GET /health"}
    assert met["GET /health"] == {200}


def test_an_undocumented_429_is_found() -> None:
    app = shop()
    del app.openapi  # back to the description without limits
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    with pytest.raises(schemathesis.core.failures.FailureGroup, match="Undocumented status code"):
        statuses_of(schema["/search"]["GET"])
