"""Adds limits, and the responses of refusals, to what a document says of its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException

from ..core.exceeded import RateLimitExceeded
from ..limiter.named_limits import text_of_limit
from ..web.endpoints import rate_limit_exceeded
from ..web.published import kind_of_key
from ..web.routes import attribute_of
from .around import Guard
from .operations import Limit, Operation, limits_of

Content: TypeAlias = Mapping[str, object]
"""The schema of the body of a response, by its media type."""

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_PROPERTIES: Final = {
    **dict.fromkeys(("type", "title", "detail"), _TEXT),
    "status": _WHOLE,
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
_RETRY_AFTER: Final = ("Retry-After", "Seconds until a request is admitted again; absent if none will be.", _WHOLE)
_FIELDS: Final = {
    "draft": (
        ("RateLimit", "For each limit, what remains of it, and the seconds until more remains.", _TEXT),
        ("RateLimit-Policy", "The limits of this request.", _TEXT),
    ),
    "legacy": (
        ("X-RateLimit-Limit", "The amount of the limit that admits the fewest further requests.", _WHOLE),
        ("X-RateLimit-Remaining", "What remains of it.", _WHOLE),
        ("X-RateLimit-Reset", "When it is whole again, in Unix seconds.", _WHOLE),
    ),
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

    def __init__(self, app: Any, document: dict[str, Any], response: Any, *, names: bool, keys: bool) -> None:
        self._names = names
        self._keys = keys
        self._own: Content = {}
        if response is not None:
            schema = response.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas |= schema.pop("$defs", {})
            self._own = {"application/json": {"schema": schema}}
        handlers = attribute_of(app, "exception_handlers", {})
        self._handlers = [handlers[kind] for kind in (429, RateLimitExceeded, HTTPException) if kind in handlers]

    def add(self, described: dict[str, Any], guards: Sequence[Guard], operation: Operation) -> None:
        """Add the limits of an operation to what its document says of it."""
        contents: dict[str, Content] = {}
        for guard in guards:
            for status in guard.statuses():
                contents[status] = {**contents.get(status, {}), **self._content(guard)}
        limits = [*limits_of(guards, operation)]
        for limit in limits:
            content = self._content(limit.guard)
            if limit.is_at_endpoint:
                content = self._content_at_endpoint(content)
            for status in limit.statuses():
                contents[status] = {**contents.get(status, {}), **content}
        for status, content in contents.items():
            described["responses"].setdefault(status, _response(status, content, guards))
        if limits:
            described["x-ratelimit"] = [self._shown(limit) for limit in limits]

    def _content(self, guard: Guard) -> Content:
        """Return what a middleware answers."""
        if guard.policy.refusals.on_refused is not None:
            return self._own
        return _PROBLEM

    def _content_at_endpoint(self, content: Content) -> Content:
        """Return what the application answers for a limit at an endpoint, given what its middleware would answer."""
        handler = next(iter(self._handlers), None)
        if handler is rate_limit_exceeded:
            return content
        if getattr(handler, "__module__", "") == "fastapi.exception_handlers":
            return _DETAIL
        return self._own

    def _shown(self, limit: Limit) -> dict[str, object]:
        """Return what is published of a limit."""
        charging = limit.rule.charging
        shown: dict[str, object] = {"limits": [text_of_limit(one) for one in charging.all_limits]}
        if charging.limits_function is not None:  # the others apply only if it fails
            shown = {"limits": [], "by_request": True}
        if charging.unit is not None:
            shown["unit"] = charging.unit
        if not limit.is_certain:
            shown["conditional"] = True
        if self._names and limit.rule.name is not None:
            shown["name"] = limit.rule.name
        if self._keys:
            shown["key"] = kind_of_key(charging.key)
        return shown


def _response(status: str, content: Content, guards: Sequence[Guard]) -> dict[str, object]:
    """Return the response with a status."""
    written = {style for guard in guards for style in guard.policy.headers.styles}
    fields = [_RETRY_AFTER]
    if status == "429":
        fields += [field for style, its_fields in _FIELDS.items() if style in written for field in its_fields]
    headers = {name: {"description": description, "schema": schema} for name, description, schema in fields}
    response: dict[str, object] = {"description": _DESCRIPTIONS[status], "headers": headers}
    if content:
        response["content"] = content
    return response
