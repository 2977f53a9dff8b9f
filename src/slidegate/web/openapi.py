"""Documents the 429 in an OpenAPI description, for every operation that has a limit and for no other; and, below a gate
with ban policies, the answer to banned clients, for every operation.

The paths of a rule and of an operation tell whether they can meet. Where that is not sure (a rule for one value of a
path parameter, a rule that its function may lift) the 429 is documented, because a client may see it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import wraps
from typing import Any, Final, NamedTuple

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..limiter import Limiter
from .endpoints.decorator import dependencies, limits_of
from .endpoints.exemption import is_lifted, takes_no_defaults
from .endpoints.rate_limit import RateLimit
from .findings.codes import CODES
from .middleware import RateLimitMiddleware
from .paths.segments import Segments, covers, overlap, segments
from .routes import ResolvedRoute, walk
from .rules.rule import Rule
from .rules.rule_set import all_rules

_DOCUMENTED: Final = "__slidegate_documented__"
_PROBLEM: Final = "RateLimitProblem"
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": _PROBLEM,
    "description": "Problem details (RFC 9457) of a request beyond a limit, or of a banned client.",
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


class _Gate(NamedTuple):
    """The part of a middleware that shows in a description."""

    rules: tuple[Rule, ...]
    headers: str | None
    own_answer: bool
    policies: tuple[BanPolicy, ...]
    defaults: bool


def document_limits(app: Any) -> None:
    """Put the 429 into a FastAPI application's OpenAPI, with its header fields, wherever a limit applies; and, where
    there are ban policies, the 403 that banned clients get.

    Call it anywhere: routes and middlewares are looked at when the description is asked for, by a client of the running
    application or by `app.openapi()` in a script. An operation that documents such an answer itself keeps its own.

    Args:
        app: The application.

    Raises:
        ConfigurationError: `app` is no FastAPI application.
    """
    make = getattr(app, "openapi", None)
    if not callable(make) or not hasattr(app, "user_middleware"):
        raise ConfigurationError(f"document_limits: expected a FastAPI application, not {app!r}")
    if hasattr(make, _DOCUMENTED):
        return

    @wraps(make)
    def openapi() -> dict[str, Any]:
        # FastAPI keeps its description; a copy shows limits as they are now.
        schema: dict[str, Any] = deepcopy(make())
        _document(schema, app)
        return schema

    setattr(openapi, _DOCUMENTED, True)
    app.openapi = openapi


def _document(schema: dict[str, Any], app: Any) -> None:
    gates = list(_gates(app))
    shut = _shut(gates)
    used = False
    for place in walk(app):
        path = schema.get("paths", {}).get(place.template, {})
        for method in place.methods or ():
            operation = path.get(method.lower())
            if operation is None:
                continue
            answers = shut | {"429": _response(gates)} if _is_limited(place, method, gates) else shut
            used = used or bool(answers)
            for status, answer in answers.items():
                operation.setdefault("responses", {}).setdefault(status, deepcopy(answer))
    if used:
        schema.setdefault("components", {}).setdefault("schemas", {}).setdefault(_PROBLEM, deepcopy(_SCHEMA))


def _response(gates: Iterable[_Gate]) -> dict[str, Any]:
    headers: dict[str, Any] = dict(_RETRY_AFTER)
    for gate in gates:
        headers |= _DRAFT if gate.headers in ("draft", "both") else {}
        headers |= _LEGACY if gate.headers in ("legacy", "both") else {}
    response: dict[str, Any] = {"description": "Too Many Requests", "headers": deepcopy(headers)}
    if not any(gate.own_answer for gate in gates):
        response["content"] = _CONTENT
    return response


def _shut(gates: Iterable[_Gate]) -> dict[str, Any]:
    """Return the answers to banned clients, by their status."""
    answers: dict[str, Any] = {}
    for gate in gates:
        for policy in gate.policies:
            if policy.action == "ban":
                named = "Forbidden" if policy.status == 403 else "Too Many Requests"
                answer = answers.setdefault(str(policy.status), {"description": named, "headers": dict(_RETRY_AFTER)})
                if policy.answer != "drop" and not gate.own_answer:
                    answer["content"] = _CONTENT
    return answers


def _gates(app: Any) -> Iterator[_Gate]:
    """Yield the middlewares of an application: those at work, or, before that, those it is going to have."""
    layer = getattr(app, "middleware_stack", None)
    if layer is not None:
        while layer is not None:
            if isinstance(layer, RateLimitMiddleware):
                yield _gate_of(layer)
            layer = getattr(layer, "app", None)
        return
    for kind, args, options in app.user_middleware:
        if isinstance(kind, type) and issubclass(kind, RateLimitMiddleware):
            yield _gate_to_be(options)
        elif getattr(kind, "__func__", None) is RateLimitMiddleware.from_file.__func__:  # type: ignore[attr-defined]
            # This one is only looked at; the application makes its own, which reports the findings and opens the store.
            looked = {"silence": [*CODES], "limiter": Limiter(), "replace_store": True, "observers": ()}
            yield _gate_of(kind(_nowhere, *args, **{**options, **looked}).app)


def _gate_of(gate: RateLimitMiddleware) -> _Gate:
    return _Gate(gate.rules, gate.headers, gate.own_answer, gate.policies, bool(gate.per_route))


def _gate_to_be(options: Mapping[str, Any]) -> _Gate:
    limits, rules, bans = map(options.get, ("limits", "rules", "bans"))
    defaults = options.get("per_route") is not None
    if (bans is not None or defaults) and limits is None and rules is None:
        rules = []
    # An iterator can be read only once, and the middleware needs it.
    policies = (bans,) if isinstance(bans, BanPolicy) else tuple(bans) if isinstance(bans, Collection) else ()
    own_answer = options.get("on_refused") is not None
    return _Gate(tuple(all_rules(limits, rules)), options.get("headers", "draft"), own_answer, policies, defaults)


async def _nowhere(scope: object, receive: object, send: object) -> None:
    """Stand for the application below a middleware that is made only to be looked at."""


def _is_limited(place: ResolvedRoute, method: str, gates: Iterable[_Gate]) -> bool:
    needed = [call for call in dependencies(place.route) if isinstance(call, RateLimit) and not is_lifted(call, place)]
    if any(limit.rule.action == "limit" for limit in (*limits_of(place.route.endpoint), *needed)):
        return True
    asked = segments(place.route.path)
    spared = takes_no_defaults(place.route, place.route.endpoint, method)
    return any(_limits(gate, method, asked, spared=spared) for gate in gates)


def _limits(gate: _Gate, method: str, asked: Segments, *, spared: bool) -> bool:
    """Return whether a gate can refuse a request of an operation by a limit."""
    for rule in gate.rules:
        if _meets(rule, method, asked):
            return True
        if _ends(rule, method, asked):
            return False
    return gate.defaults and not spared


def _ends(rule: Rule, method: str, asked: Segments) -> bool:
    """Return whether a rule surely ends the list for an operation."""
    surely = rule.final and not rule.conditional and _about(rule, method)
    return surely and any(covers(segments(path), asked) for path in _paths(rule))


def _meets(rule: Rule, method: str, asked: Segments) -> bool:
    """Return whether a rule can refuse a request of an operation."""
    if rule.exempt or rule.action != "limit" or not _about(rule, method):
        return False
    return any(overlap(segments(path), asked) for path in _paths(rule))


def _paths(rule: Rule) -> Iterable[str]:
    return ["/{all:path}"] if rule.paths == ("*",) else rule.paths


def _about(rule: Rule, method: str) -> bool:
    return (rule.methods is None or method in rule.methods) and rule.connection != "websocket"
