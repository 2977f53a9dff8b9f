"""Adds limits, and the responses of refusals, to what a document says of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException

from ..core.exceeded import RateLimitExceeded
from ..limiter.named_limits import text_of_limit
from ..web.endpoints import rate_limit_exceeded
from ..web.policy import Policy
from ..web.published import kind_of_key
from ..web.routes import attribute_of
from .operations import Guard, Limit, Operation, limits_of

Content: TypeAlias = Mapping[str, object]
"""The schema of the body of a response, by its media type."""


def _field(description: str, kind: str) -> dict[str, object]:
    return {"description": description, "schema": {"type": kind}}


_TEXT: Final = {"type": "string"}
_PROPERTIES: Final = {
    **dict.fromkeys(("type", "title", "detail"), _TEXT),
    "status": {"type": "integer"},
    "violated-policies": {"type": "array", "items": _TEXT},
}
_REQUIRED: Final = ["type", "title", "status", "detail"]
_PROBLEM: Final[Content] = {
    "application/problem+json": {"schema": {"type": "object", "properties": _PROPERTIES, "required": _REQUIRED}}
}
"""The default answer of a middleware."""
_DETAIL: Final[Content] = {
    "application/json": {"schema": {"type": "object", "properties": {"detail": _TEXT}, "required": ["detail"]}}
}
"""The default answer of FastAPI."""
_RETRY_AFTER: Final = _field("Seconds until a request is admitted again; absent if none will be.", "integer")
_FIELDS: Final = {
    "draft": {
        "RateLimit": _field("For each limit, what remains of it, and the seconds until more remains.", "string"),
        "RateLimit-Policy": _field("The limits of this request.", "string"),
    },
    "legacy": {
        "X-RateLimit-Limit": _field("The amount of the limit that admits the fewest further requests.", "integer"),
        "X-RateLimit-Remaining": _field("What remains of it.", "integer"),
        "X-RateLimit-Reset": _field("When it is whole again, in Unix seconds.", "integer"),
    },
}
"""The header fields of each style."""
_DESCRIPTIONS: Final = {
    "403": "Banned, or on a blocklist",
    "429": "Too many requests",
    "503": "Requests cannot be counted now",
}


class Writer:
    """Adds the limits of operations to a document.

    Args:
        app: The application.
        document: Its document.
        response: The model of its own answers; None for none.
        names: Whether to publish the names of rules.
        keys: Whether to publish what limits count by.
    """

    def __init__(self, app: Any, document: dict[str, Any], *, response: Any, names: bool, keys: bool) -> None:
        self._names = names
        self._keys = keys
        self._own: Content = {}
        if response is not None:
            schema = response.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas |= schema.pop("$defs", {})
            self._own = {"application/json": {"schema": schema}}
        handlers = attribute_of(app, "exception_handlers", {})
        self._handler: Any = handlers.get(429) or handlers.get(RateLimitExceeded) or handlers.get(HTTPException)

    def add(self, guards: Sequence[Guard], operation: Operation) -> None:
        """Add the limits of an operation to what its document says of it."""
        limits = [*limits_of(guards, operation)]
        contents: dict[str, dict[str, object]] = {}
        for status, content in self._refusals(guards, limits):
            contents.setdefault(status, {}).update(content)
        for status, content in contents.items():
            operation.described["responses"].setdefault(status, _response(status, content, guards))
        if limits:
            operation.described["x-ratelimit"] = [self._published(limit) for limit in limits]

    def _refusals(self, guards: Sequence[Guard], limits: Sequence[Limit]) -> Iterator[tuple[str, Content]]:
        """Yield the status and the body of each answer that middlewares and limits may give."""
        for guard in guards:
            policy = guard.middleware.policy
            if policy.lists["blocklist"] is not None:
                yield "403", self._content(policy)
            for ban_policy in policy.signals.ban_policies.values():
                if not ban_policy.shadow:
                    yield str(ban_policy.status), self._content(policy)
        for limit in limits:
            content = self._content(limit.middleware.policy)
            if limit.is_at_endpoint:
                content = self._content_at_endpoint(content)
            yield "429", content
            on_error = limit.middleware.limiter.on_error  # None where the store cannot fail
            if on_error is not None and (limit.rule.charging.on_error or on_error) == "deny":
                yield "503", content

    def _content(self, policy: Policy) -> Content:
        """Return what a middleware answers."""
        if policy.refusals.on_refused is not None:
            return self._own
        return _PROBLEM

    def _content_at_endpoint(self, content: Content) -> Content:
        """Return what the application answers for a limit at an endpoint, given what its middleware would answer."""
        if self._handler is rate_limit_exceeded:
            return content
        if getattr(self._handler, "__module__", "") == "fastapi.exception_handlers":
            return _DETAIL
        return self._own

    def _published(self, limit: Limit) -> dict[str, object]:
        """Return what is published of a limit."""
        charging = limit.rule.charging
        published: dict[str, object] = {"limits": [text_of_limit(one) for one in charging.all_limits]}
        if charging.limits_function is not None:  # the others apply only if it fails
            published = {"limits": [], "by_request": True}
        if charging.unit is not None:
            published["unit"] = charging.unit
        if not limit.is_certain:
            published["conditional"] = True
        if self._names and limit.rule.name is not None:
            published["name"] = limit.rule.name
        if self._keys:
            published["key"] = kind_of_key(charging.key)
        return published


def _response(status: str, content: Content, guards: Sequence[Guard]) -> dict[str, object]:
    """Return the response with a status."""
    headers: dict[str, object] = {"Retry-After": _RETRY_AFTER}
    for style, fields in _FIELDS.items():
        is_written = any(style in guard.middleware.policy.headers.styles for guard in guards)
        if status == "429" and is_written:
            headers |= fields
    response: dict[str, object] = {"description": _DESCRIPTIONS[status], "headers": headers}
    if content:
        response["content"] = content
    return response
