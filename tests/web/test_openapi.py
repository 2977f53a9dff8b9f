"""The 429 in the OpenAPI description of a FastAPI application."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
from starlette.routing import Route

from slidegate import ConfigurationError, RateLimit, RateLimitMiddleware, document_limits


def get() -> str:
    return "hi"


def limited(schema: dict[str, Any]) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
        if "429" in operation["responses"]
    }


def test_a_429_stands_at_every_operation() -> None:
    app = FastAPI()
    document_limits(app)
    app.get("/limited", dependencies=[Depends(RateLimit("9/hour"))])(get)
    for method in (app.get, app.post, app.put, app.patch, app.delete, app.options, app.head, app.trace):
        method("/login")(get)
    for _ in range(2):
        schema = app.openapi()
        operations = {f"{method.upper()} {path}" for path, found in schema["paths"].items() for method in found}
        assert len(operations) == 9
        assert limited(schema) == operations


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        (None, []),
        ("draft", ["RateLimit", "RateLimit-Policy"]),
        ("legacy", ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
    ],
)
def test_the_429_names_its_header_fields_and_its_problem(headers: Any, fields: list[str]) -> None:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, limits="9/hour", headers=headers)])
    document_limits(app, headers)
    document_limits(app)  # a second call changes nothing
    app.get("/")(get)
    client = TestClient(app)
    schema = client.get("/openapi.json").json()
    answer = schema["paths"]["/"]["get"]["responses"]["429"]
    assert sorted(answer["headers"]) == sorted(["Retry-After", *fields])
    assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/RateLimitProblem"}
    problem = schema["components"]["schemas"]["RateLimitProblem"]
    for _ in range(9):
        refused = client.get("/")
    assert refused.status_code == 429
    assert {name.lower() for name in answer["headers"]} <= set(refused.headers)
    assert set(problem["required"]) <= set(refused.json()) <= set(problem["properties"])


def test_an_operation_that_documents_its_own_429_keeps_it() -> None:
    app = FastAPI()
    document_limits(app, "both")
    app.get("/", responses={429: {"description": "Patience"}})(get)
    assert app.openapi()["paths"]["/"]["get"]["responses"]["429"] == {"description": "Patience"}


def test_only_a_fastapi_application_and_known_fields_can_be_documented() -> None:
    with pytest.raises(ConfigurationError, match="expected a FastAPI application"):
        document_limits(Route("/", get))
    with pytest.raises(ConfigurationError, match='headers: expected "draft", "legacy", "both" or None, not True'):
        document_limits(FastAPI(), True)  # type: ignore[arg-type]
