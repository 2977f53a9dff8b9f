"""The OpenAPI document of the admin API, written of the operations that are served."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from .answers import SCHEMAS, of
from .gates_shown import release
from .operations import OPERATIONS, Operation
from .parameters import Parameter

_PROBLEMS: Final = {
    400: "The body is no JSON.",
    401: "The visitor is unknown.",
    403: "The visitor may not do this, or is banned.",
    404: "There is nothing to act on.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body has another type than JSON.",
    422: "A value cannot be used; the detail names it, and what was expected.",
    429: "Too many wrong tokens.",
    503: "The store does not answer.",
}
_OF_ALL: Final = (401, 403, 422, 429, 503)
_OF_BODIES: Final = (400, 408, 413, 415)


def document(root: str = "") -> dict[str, Any]:
    """Return the document.

    Args:
        root: The path at which the API is mounted.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "slidegate admin API",
            "version": release(),
            "description": "Times are Unix seconds (`_at`), durations seconds (`_s`), latencies milliseconds (`_ms`).",
        },
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    problems = [*_OF_ALL, *([404] if operation.missing else []), *(_OF_BODIES if operation.body else ())]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": {
            str(operation.status): {
                "description": HTTPStatus(operation.status).phrase,
                "content": {"application/json": {"schema": of(operation.answer)}},
            },
            **{str(status): _problem(status) for status in sorted(problems)},
        },
    }
    if operation.query:
        described["parameters"] = [
            {
                "name": parameter.name,
                "in": "query",
                "description": parameter.description,
                "required": parameter.required,
                "schema": parameter.schema(),
            }
            for parameter in operation.query
        ]
    if operation.body:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body(operation.body)}},
        }
    return described


def _body(fields: tuple[Parameter, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.name: {**field.schema(), "description": field.description} for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def _problem(status: int) -> dict[str, Any]:
    return {
        "description": _PROBLEMS[status],
        "content": {"application/problem+json": {"schema": of("Problem")}},
    }
