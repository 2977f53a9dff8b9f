"""The 429 in the OpenAPI description of a FastAPI application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from slidegate import (
    ConfigurationError,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    document_limits,
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


def test_a_429_stands_at_every_operation() -> None:
    app = app_with(Rule("/health", exempt=True), Rule("/login", "9/hour", methods=["POST"]))
    app.get("/health")(get)
    app.get("/free/{n}")(get)
    app.get("/limited", dependencies=[Depends(RateLimit("9/hour"))])(get)
    for method in (app.get, app.post, app.put, app.patch, app.delete, app.options, app.head, app.trace):
        method("/login")(get)
    schema = app.openapi()
    operations = {f"{method.upper()} {path}" for path, found in schema["paths"].items() for method in found}
    assert len(operations) == 11
    assert limited(schema) == operations


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


def test_an_operation_that_documents_its_own_429_keeps_it() -> None:
    app = app_with(Rule("*", "9/hour"))
    app.get("/", responses={429: {"description": "Patience"}})(get)
    assert app.openapi()["paths"]["/"]["get"]["responses"]["429"] == {"description": "Patience"}


def test_an_application_below_somebody_elses_gate_is_documented() -> None:
    app = FastAPI()
    app.get("/")(get)
    document_limits(app)
    document_limits(app)  # a second call changes nothing
    assert sorted(app.openapi()["paths"]["/"]["get"]["responses"]["429"]["headers"]) == [
        "RateLimit", "RateLimit-Policy", "Retry-After",
    ]  # fmt: skip


def test_where_the_answer_is_the_users_own_it_has_no_problem() -> None:
    app = app_with(Rule("*", "9/hour"), headers=None, on_refused=lambda request, decision: Response(status_code=429))
    app.get("/")(get)
    answer = app.openapi()["paths"]["/"]["get"]["responses"]["429"]
    assert (sorted(answer["headers"]), "content" in answer) == (["Retry-After"], False)


def test_the_gate_of_a_file_is_documented_before_and_after_the_start(tmp_path: Path) -> None:
    path = tmp_path / "slidegate.toml"
    store = tmp_path / "store"
    path.write_text(f'store = "lmdb://{store}"\nheaders = "legacy"\nlimits = "9/hour"\n', "utf-8")
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware.from_file, path=path)])
    document_limits(app)
    app.get("/a")(get)
    assert limited(app.openapi()) == {"GET /a"}
    assert not store.exists(), "before the start nothing is opened"
    with TestClient(app) as client:
        schema = client.get("/openapi.json").json()
    assert sorted(schema["paths"]["/a"]["get"]["responses"]["429"]["headers"]) == [
        "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
    ]  # fmt: skip


def test_an_application_whose_middleware_could_not_be_made_is_described_all_the_same() -> None:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limits="often")])
    document_limits(app)
    app.get("/a")(get)
    with pytest.raises(ConfigurationError, match="often"):
        TestClient(app).get("/a")
    assert limited(app.openapi()) == {"GET /a"}


def test_only_a_fastapi_application_can_be_documented() -> None:
    with pytest.raises(ConfigurationError, match="expected a FastAPI application"):
        document_limits(Route("/", get))
