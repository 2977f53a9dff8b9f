"""Adds limits, and the responses of refusals, to what a document says of its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException

from ..core.exceeded import RateLimitExceeded
from ..limiter.named_limits import text_of_limit
from ..web.endpoints import rate_limit_exceeded
from ..web.policy import Policy
from ..web.published import kind_of_key
from ..web.routes import attribute_of
from ..web.rules import Rule
from .around import Guard
from .operations import Limit, Operation, limits_around, limits_within

_PROBLEM: Final = "application/problem+json"
_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_BODIES: Final[Mapping[str, object]] = {
    _PROBLEM: {
        "type": "object",
        "properties": {
            **dict.fromkeys(("type", "title", "detail"), _TEXT),
            "status": _WHOLE,
            "violated-policies": {"type": "array", "items": _TEXT},
        },
        "required": ["type", "title", "status", "detail"],
    },
    "application/json": {"type": "object", "properties": {"detail": _TEXT}, "required": ["detail"]},
}
"""The schemas of the default answers, by their media types: those of a middleware, and those of FastAPI."""
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
        self._own: dict[str, dict[str, object]] = {}
        if response is not None:
            schema = response.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas |= schema.pop("$defs", {})
            self._own = {"application/json": {"schema": schema}}
        self._handler = _handler_of(app)

    def add(self, described: dict[str, Any], guards: Sequence[Guard], operation: Operation) -> None:
        """Add the limits of an operation to what its document says of it."""
        bodies: dict[str, set[str]] = {}
        limits: list[Limit] = []
        for guard in guards:
            body = "" if guard.policy.refusals.on_refused else _PROBLEM
            for status in _statuses(guard.policy):
                bodies.setdefault(status, set()).add(body)
            around = limits_around(guard, operation)
            if around is None:
                break
            limits += self._counted(around, guard, body, bodies)
        else:
            if guards:  # without one around it, a limit at an endpoint is an error
                body = self._body_at_endpoint(guards[-1])
                limits += self._counted(limits_within(operation), guards[-1], body, bodies)
        written = {style for guard in guards for style in guard.policy.headers.styles}
        for status in sorted(bodies):
            described["responses"].setdefault(status, self._response(status, bodies[status], written))
        if limits:
            described["x-ratelimit"] = [self._shown(*limit) for limit in limits]

    @staticmethod
    def _counted(limits: list[Limit], guard: Guard, body: str, bodies: dict[str, set[str]]) -> list[Limit]:
        """Return some limits, after adding the statuses of their refusals, with the media type of the bodies."""
        for rule, _ in limits:
            bodies.setdefault("429", set()).add(body)
            # A limit may deny only where the store can fail.
            if guard.on_error is not None and (rule.charging.on_error or guard.on_error) == "deny":
                bodies.setdefault("503", set()).add(body)
        return limits

    def _body_at_endpoint(self, guard: Guard) -> str:
        """Return the media type of refusals at endpoints, which the application answers; empty if it is unknown."""
        if self._handler is rate_limit_exceeded and guard.policy.refusals.on_refused is None:
            return _PROBLEM
        if getattr(self._handler, "__module__", "") == "fastapi.exception_handlers":
            return "application/json"
        return ""

    def _response(self, status: str, bodies: set[str], styles: set[str]) -> dict[str, object]:
        """Return the response with a status; an empty body is one that only the user can describe."""
        fields = [_RETRY_AFTER]
        if status == "429":
            for style in _FIELDS.keys() & styles:
                fields.extend(_FIELDS[style])
        headers = {name: {"description": description, "schema": schema} for name, description, schema in fields}
        content: dict[str, object] = {body: {"schema": _BODIES[body]} for body in sorted(bodies - {""})}
        if "" in bodies:
            content |= self._own
        response: dict[str, object] = {"description": _DESCRIPTIONS[status], "headers": headers}
        if content:
            response["content"] = content
        return response

    def _shown(self, rule: Rule, is_certain: bool) -> dict[str, object]:
        """Return what is published of a limit."""
        charging = rule.charging
        shown: dict[str, object] = {"limits": [text_of_limit(limit) for limit in charging.all_limits]}
        if charging.limits_function is not None:  # the others apply only if it fails
            shown = {"limits": [], "by_request": True}
        if charging.unit is not None:
            shown["unit"] = charging.unit
        if not is_certain:
            shown["conditional"] = True
        if self._names and rule.name is not None:
            shown["name"] = rule.name
        if self._keys:
            shown["key"] = kind_of_key(charging.key)
        return shown


def _statuses(policy: Policy) -> set[str]:
    """Return the statuses of answers to those who are banned or on a list."""
    statuses = {str(ban_policy.status) for ban_policy in policy.signals.ban_policies.values() if not ban_policy.shadow}
    if policy.lists["blocklist"] is not None:
        statuses.add("403")
    return statuses


def _handler_of(app: Any) -> object:
    """Return the exception handler of an application that answers refusals at endpoints."""
    handlers: Mapping[object, object] = attribute_of(app, "exception_handlers", {})
    for kind in (429, RateLimitExceeded, HTTPException):
        if kind in handlers:
            return handlers[kind]
    return None
