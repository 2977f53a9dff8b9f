"""Documents the 429 in an OpenAPI description: one for every operation, because any may be refused."""

from __future__ import annotations

from copy import deepcopy
from functools import wraps
from typing import Any, Final

from ..core.errors import ConfigurationError, quoted
from .headers import HeaderStyle

_METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
_PROBLEM: Final = "RateLimitProblem"
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": _PROBLEM,
    "description": "Problem details (RFC 9457) of a request beyond a limit.",
    "required": ["type", "title", "status", "detail", "violated-policies"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "violated-policies": {"type": "array", "items": {"type": "string"}},
        "unsatisfiable": {"type": "boolean", "description": "True where the request can never pass."},
    },
}
_CONTENT: Final = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{_PROBLEM}"}}}
_ALWAYS: Final = {"Retry-After": ("integer", "Seconds until the request is admitted.")}
_DRAFT: Final = {
    "RateLimit": ("string", "The tightest limits, four at most, and what is left of each."),
    "RateLimit-Policy": ("string", "Every limit that applies."),
}
_LEGACY: Final = {
    "X-RateLimit-Limit": ("integer", "Units in a window."),
    "X-RateLimit-Remaining": ("integer", "Units left."),
    "X-RateLimit-Reset": ("integer", "Unix seconds when all units are back."),
}
_STYLES: Final[dict[HeaderStyle | None, dict[str, tuple[str, str]]]] = {
    None: _ALWAYS,
    "draft": _ALWAYS | _DRAFT,
    "legacy": _ALWAYS | _LEGACY,
    "both": _ALWAYS | _DRAFT | _LEGACY,
}
"""The type and the meaning of each header field of the answer, by the style of the fields."""


def document_limits(app: Any, headers: HeaderStyle | None = "draft") -> None:
    """Put the 429 into a FastAPI application's OpenAPI, with its header fields, at every operation.

    An operation that documents a 429 itself keeps its own.

    Args:
        app: The application.
        headers: The header fields of the answer, as at `RateLimitMiddleware`.

    Raises:
        ConfigurationError: `app` is no FastAPI application, or there are no such header fields.
    """
    make = getattr(app, "openapi", None)
    if not callable(make) or not hasattr(app, "user_middleware"):
        raise ConfigurationError(f"document_limits: expected a FastAPI application, not {quoted(app)}")
    if headers not in _STYLES:
        raise ConfigurationError(f'headers: expected "draft", "legacy", "both" or None, not {quoted(headers)}')
    fields = {
        name: {"description": meaning, "schema": {"type": kind}} for name, (kind, meaning) in _STYLES[headers].items()
    }
    answer = {"description": "Too Many Requests", "headers": fields, "content": _CONTENT}

    @wraps(make)
    def openapi() -> dict[str, Any]:
        schema: dict[str, Any] = make()
        for path in schema.get("paths", {}).values():
            for operation in [path[method] for method in _METHODS & path.keys()]:
                operation.setdefault("responses", {}).setdefault("429", deepcopy(answer))
        schema.setdefault("components", {}).setdefault("schemas", {}).setdefault(_PROBLEM, deepcopy(_SCHEMA))
        return schema

    app.openapi = openapi
