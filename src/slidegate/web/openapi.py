"""Documents the 429 in an OpenAPI description: one for every operation, because any may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import wraps
from typing import Any, Final

from ..core.errors import ConfigurationError, quoted
from .middleware import RateLimitMiddleware
from .routes import layers

_DOCUMENTED: Final = "__slidegate_documented__"
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
_RETRY_AFTER: Final = {
    "Retry-After": {
        "description": "Seconds until the request is admitted.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_DRAFT: Final = {
    "RateLimit": {"description": "The tightest limit, and what is left of it.", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "Every limit that applies.", "schema": {"type": "string"}},
}
_LEGACY: Final = {
    "X-RateLimit-Limit": {"description": "Units in a window.", "schema": {"type": "integer"}},
    "X-RateLimit-Remaining": {"description": "Units left.", "schema": {"type": "integer"}},
    "X-RateLimit-Reset": {"description": "Unix seconds when all units are back.", "schema": {"type": "integer"}},
}


def document_limits(app: Any) -> None:
    """Put the 429 into a FastAPI application's OpenAPI, with its header fields, at every operation.

    Call it anywhere: the middlewares are looked at when the description is asked for, by a client of the running
    application or by `app.openapi()` in a script. An operation that documents a 429 itself keeps its own.

    Args:
        app: The application.

    Raises:
        ConfigurationError: `app` is no FastAPI application.
    """
    make = getattr(app, "openapi", None)
    if not callable(make) or not hasattr(app, "user_middleware"):
        raise ConfigurationError(f"document_limits: expected a FastAPI application, not {quoted(app)}")
    if hasattr(make, _DOCUMENTED):
        return

    @wraps(make)
    def openapi() -> dict[str, Any]:
        # FastAPI keeps its description; a copy shows the header fields as they are now.
        schema: dict[str, Any] = deepcopy(make())
        _document(schema, app)
        return schema

    setattr(openapi, _DOCUMENTED, True)
    app.openapi = openapi


def _document(schema: dict[str, Any], app: Any) -> None:
    answer = _response(app)
    for path in schema.get("paths", {}).values():
        for operation in [path[method] for method in _METHODS & path.keys()]:
            operation.setdefault("responses", {}).setdefault("429", deepcopy(answer))
    schema.setdefault("components", {}).setdefault("schemas", {}).setdefault(_PROBLEM, deepcopy(_SCHEMA))


def _response(app: Any) -> dict[str, Any]:
    styles, own_answers = zip(*list(_middlewares(app)) or [("draft", False)], strict=True)
    headers: dict[str, Any] = dict(_RETRY_AFTER)
    headers |= _DRAFT if {"draft", "both"} & {*styles} else {}
    headers |= _LEGACY if {"legacy", "both"} & {*styles} else {}
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": headers}
    return response if any(own_answers) else response | {"content": _CONTENT}


def _middlewares(app: Any) -> Iterator[tuple[str | None, bool]]:
    """Yield the style of header fields of each middleware of an application, and whether its answers are the user's.

    These are the middlewares at work, or, before the start, those to be. A file is not read before the start: its
    middleware counts with the options that the code gives. One that could not be made answers nobody.
    """
    for layer in layers(app.middleware_stack):
        if isinstance(layer, RateLimitMiddleware) and layer.error is None:
            yield layer.headers, layer.own_answer
    for kind, _, options in app.user_middleware if app.middleware_stack is None else ():
        from_file = getattr(kind, "__func__", None) is RateLimitMiddleware.from_file.__func__  # type: ignore[attr-defined]
        if from_file or (isinstance(kind, type) and issubclass(kind, RateLimitMiddleware)):
            yield options.get("headers", "draft"), options.get("on_refused") is not None
