"""The 429 in the OpenAPI description of a FastAPI application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from starlette.middleware import Middleware
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
    return app


EXPECTED = {"POST /login", "GET /api/a/{n}", "GET /dependency/{n}", "GET /decorated/{n}"}


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
    store = tmp_path / "store"
    path.write_text(f'store = "lmdb://{store}"\n[[rules]]\npath = "/a"\nlimits = "9/hour"\n', "utf-8")
    gate = RateLimitMiddleware.from_file
    given: dict[str, Any] = {"observers": [print]}
    app = FastAPI(middleware=[Middleware(gate, path=path, **given) if by_name else Middleware(gate, path, **given)])
    document_limits(app)
    app.get("/a")(get)
    app.get("/b")(get)
    assert limited(app.openapi()) == {"GET /a"}
    assert not store.exists(), "before the start nothing is opened"


def test_only_a_fastapi_application_can_be_documented() -> None:
    with pytest.raises(ConfigurationError, match="expected a FastAPI application"):
        document_limits(Route("/", get))
