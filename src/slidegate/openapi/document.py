"""A document with limits, and with the responses of refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException

from ..core.exceeded import RateLimitExceeded
from ..limiter.named_limits import text_of_limit
from ..web.endpoints import rate_limit_exceeded
from ..web.policy import Policy
from ..web.published import kind_of_key
from .operations import Guard, Layer, Limit, Operation, guards_in, limits_of, operations

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
_FIELDS: Final[Mapping[Any, Mapping[str, object]]] = {
    "draft": {
        "RateLimit": _field("For each limit, what remains of it, and the seconds until more remains.", "string"),
        "RateLimit-Policy": _field("The limits of this request.", "string"),
    },
    "legacy": {
        "X-RateLimit-Limit": _field("The amount of the limit that admits the fewest further requests.", "integer"),
        "X-RateLimit-Remaining": _field("What remains of it.", "integer"),
        "X-RateLimit-Reset": _field("When it is whole again, in Unix seconds.", "integer"),
    },
    None: {},
}
"""The header fields of each style."""
_DESCRIPTIONS: Final = {
    "403": "Banned, or on a blocklist",
    "429": "Too many requests",
    "503": "Requests cannot be counted now",
}


class LimitedDocument:
    """The `openapi` of an application that adds its limits to its document, see `document_limits`.

    Args:
        around: The layers around the application, from the outside in and itself included.
        generate: Its own `openapi`.
        response: The model of its own answers; None for none.
        names: Whether to publish the names of rules.
        keys: Whether to publish what limits count by.

    Attributes:
        around: The argument.
        generate: The argument.
    """

    def __init__(
        self, around: tuple[Layer, ...], generate: Callable[[], Any], *, response: Any, names: bool, keys: bool
    ) -> None:
        self.around = around
        self.generate = generate
        self._names = names
        self._keys = keys
        self._described: object = None
        self._own: Content = {}
        self._schemas: dict[str, object] = {}
        if response is not None:
            schema = response.model_json_schema(ref_template="#/components/schemas/{model}")
            self._schemas = schema.pop("$defs", {})
            self._own = {"application/json": {"schema": schema}}

    def __call__(self) -> Any:
        document = self.generate()
        if document is self._described:
            return document
        if self._schemas:
            document.setdefault("components", {}).setdefault("schemas", {}).update(self._schemas)
        guards = [*guards_in(self.around)]
        for operation in operations(self.around[-1], document):
            limits = [*limits_of(guards, operation)]
            bodies: dict[str, dict[str, object]] = {}
            for status, content in self._refusals(guards, limits):
                bodies.setdefault(status, {}).update(content)
            for status, body in bodies.items():
                operation.described["responses"].setdefault(status, _response(status, body, guards))
            if limits:
                operation.described["x-ratelimit"] = [self._published(limit) for limit in limits]
        self._described = document  # last: what has failed midway is described again
        return document

    def _refusals(self, guards: Sequence[Guard], limits: Sequence[Limit]) -> Iterator[tuple[str, Content]]:
        """Yield the status and the content of each answer that middlewares and limits may give."""
        for guard in guards:
            policy = guard.middleware.policy
            if policy.lists["blocklist"] is not None:
                yield "403", self._content(policy)
            for ban_policy in policy.signals.ban_policies.values():
                if not ban_policy.shadow:
                    yield str(ban_policy.status), self._content(policy)
        handlers = self.around[-1].app.exception_handlers
        for limit in limits:
            content = self._content(limit.middleware.policy)
            if limit.is_at_endpoint:  # the application answers
                handler = handlers.get(429) or handlers.get(RateLimitExceeded) or handlers[HTTPException]
                content = self._content(limit.middleware.policy, handler)
            yield "429", content
            on_error = limit.middleware.limiter.on_error  # None where the store cannot fail
            if on_error is not None and (limit.rule.charging.on_error or on_error) == "deny":
                yield "503", content

    def _content(self, policy: Policy, handler: Any = rate_limit_exceeded) -> Content:
        """Return what an exception handler answers, which answers as a middleware if it is `rate_limit_exceeded`."""
        if getattr(handler, "__module__", "") == "fastapi.exception_handlers":
            return _DETAIL
        if handler is rate_limit_exceeded and policy.refusals.on_refused is None:
            return _PROBLEM
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
    if status == "429":
        for guard in guards:
            for style in guard.middleware.policy.headers.styles:
                headers |= _FIELDS[style]
    return {"description": _DESCRIPTIONS[status], "headers": headers, "content": content}
