"""The operations of an application, and the rules that apply to them.

A middleware decides for one request, this file for all requests of an operation at once: the rules in order, up to one
that certainly ends the list; then `default_limits`; then the limits at the endpoint. Paths are those that clients
write: an exempt operation has no limits, though one of its odd spellings may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from re import Match
from typing import Any, Final, NamedTuple

from starlette.routing import PARAM_REGEX

from ..web.default_limits import EXEMPT_MARK
from ..web.endpoint_limits import rules_of_route
from ..web.examples import filled_for_both
from ..web.routes import attribute_of, reach_path, routes_of
from ..web.rule_set import is_exact
from ..web.rules import Rule
from .around import Application, Guard

_PROBES: Final = {"": "~", "str": "~", "int": "918273645", "float": "9182.73645", "uuid": "0" * 32, "path": "~/~"}
"""For each type of path parameters a value that hardly any path of a rule spells out, and that as few other types take
as possible."""


class Operation(NamedTuple):
    """An operation: the requests to a route with one method.

    Attributes:
        route: The route.
        path: Its full path, in Starlette's syntax.
        method: The method.
    """

    route: Any
    path: str
    method: str


def operations(application: Application, document: Mapping[str, Any]) -> Iterator[tuple[Operation, Any]]:
    """Yield the operations of an application, each with what its document says of it."""
    paths = document.get("paths", {})
    for route in routes_of(application.app) or ():
        if not hasattr(route, "dependant") or not attribute_of(route, "include_in_schema"):
            continue  # none of FastAPI, or one that the document leaves out
        described = paths.get(attribute_of(route, "path_format"), {})
        path = application.path + (attribute_of(route, "path") or route.path_format)
        for method in sorted(attribute_of(route, "methods") or ()):
            if method.lower() in described:
                yield Operation(route, path, method), described[method.lower()]


class Applying(NamedTuple):
    """The rules of one middleware that may count requests of an operation.

    Attributes:
        rules: The rules.
        is_blocked: Whether another rule refuses all requests.
    """

    rules: Sequence[Rule]
    is_blocked: bool


def applying(guard: Guard, operation: Operation) -> Applying:
    """Return the rules of a middleware that apply to an operation."""
    found: set[Rule] = set()
    is_blocked = True
    for path in _samples(guard, operation):
        met = _met(guard, operation, path)
        if met is not None:
            is_blocked = False
            found.update(met)
    in_order = [rule for rule in (*guard.rules, guard.default_rule) if rule in found]
    return Applying(in_order, is_blocked)


def _met(guard: Guard, operation: Operation, path: str) -> list[Rule] | None:
    """Return the limits of a request to a path; None if a rule blocks it."""
    found: list[Rule] = []
    for rule in guard.rules:
        matching = rule.matching
        action = rule.action
        if not matching.allows("http", operation.method):
            continue
        if matching.rule_paths and not any(one.takes(path) for one in matching.rule_paths):
            continue
        is_certain = matching.when is None
        if action.blocks and is_certain:
            return None  # who is blocked is not counted by the rules before, either
        if rule.counts and not action.is_shadow:
            found.append(rule)
        if not action.is_final or not is_certain:
            continue
        if is_exact(matching.methods, matching.rule_paths, operation.method, (path,)):
            return found
    is_exempt = EXEMPT_MARK in getattr(operation.route.endpoint, "__dict__", ())
    if guard.default_rule is not None and not is_exempt:
        found.append(guard.default_rule)
    return found


# -- paths -------------------------------------------------------------------------------------------------------------


def _samples(guard: Guard, operation: Operation) -> list[str]:
    """Return paths of requests to an operation, of each kind that the rules of a middleware tell apart."""
    template = operation.path.removeprefix(guard.path)
    if "{" not in template:
        return [template]
    usual = _filled(template)
    samples = [usual]
    if ":path}" in template:
        samples.append(PARAM_REGEX.sub("", template))
    for rule in guard.rules:
        for one in rule.matching.rule_paths:
            if filled_for_both(one.path, template) is not None:
                samples.append(_filled(_in_both(template, one.path)))
    # Another route may take some of them first.
    reaching = [path for path in dict.fromkeys(samples) if _reaches(guard, operation, path, template)]
    return reaching or [usual]


def _filled(template: str) -> str:
    """Return a path with values in the place of its parameters."""
    return PARAM_REGEX.sub(_probe_for, template)


def _probe_for(parameter: Match[str]) -> str:
    """Return a value of a parameter, by its type."""
    kind = (parameter[2] or "").removeprefix(":")
    return _PROBES.get(kind, "~")


def _in_both(template: str, other: str) -> str:
    """Return a path, perhaps with parameters, whose requests match two paths that may meet."""
    segments, others = template.split("/"), other.split("/")
    found: list[str] = []
    for index, (own, theirs) in enumerate(zip_longest(segments, others, fillvalue="")):
        if ":path}" in theirs:
            return "/".join([*found, *segments[index:]])
        if ":path}" in own:
            return "/".join([*found, *others[index:]])
        # What has no parameter is narrower than what has one, and one with a type than one without.
        if "{" not in own or ("{" in theirs and ":" not in theirs):
            found.append(own)
        else:
            found.append(theirs)
    return "/".join(found)


def _reaches(guard: Guard, operation: Operation, path: str, template: str) -> bool:
    """Return whether a request to a path reaches an operation, as the routers decide."""
    reached = reach_path(guard.app, path, operation.method)
    if reached is None:
        return False
    return reached.path == template and reached.endpoint is operation.route.endpoint


# -- at the endpoint ---------------------------------------------------------------------------------------------------


def at_endpoint(operation: Operation) -> list[Rule]:
    """Return the limits at an endpoint: those of dependencies and decorators that refuse."""
    found = rules_of_route(operation.route.endpoint, operation.route.dependant)
    refusing = [rule for rule in found if not rule.action.is_shadow]
    return [rule for rule in refusing if rule.matching.allows("http", operation.method)]
