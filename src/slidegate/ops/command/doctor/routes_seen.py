"""Compares the rules of a gate with the routes of the application below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ....web.endpoints.decorator import dependencies, limits_of
from ....web.endpoints.exemption import takes_no_defaults
from ....web.endpoints.rate_limit import RateLimit
from ....web.middleware import RateLimitMiddleware
from ....web.paths.layers import layers
from ....web.paths.segments import overlap, segments
from ....web.routes import ResolvedRoute, walk
from ....web.rules.rule import Rule

_KIND: Final = re.compile(":[a-z]+}")


def places_of(app: object) -> list[ResolvedRoute]:
    """Return the routes of an application; empty where they cannot be seen."""
    for layer in layers(app):
        if hasattr(layer, "routes"):
            return list(walk(layer))
    return []


def uncovered(gates: Sequence[RateLimitMiddleware], places: Iterable[ResolvedRoute]) -> Iterator[ResolvedRoute]:
    """Yield the routes that no rule of any gate speaks of, and that have no limit of their own."""
    if any(gate.default_limits for gate in gates):
        return
    rules = [rule for gate in gates for rule in gate.rules]
    for place in places:
        if not any(_meets(rule, place) for rule in rules) and not _has_own_limit(place):
            yield place


def matches_nothing(rules: Iterable[Rule], places: Sequence[ResolvedRoute]) -> Iterator[tuple[Rule, str]]:
    """Yield each path of a rule that no route can be reached by, with its rule."""
    for rule in rules:
        # A rule that blocks is often about pages that are not there.
        for path in () if rule.blocks else rule.paths:
            if path != "*" and not any(_same(rule, path, place) for place in places):
                yield rule, path


def _meets(rule: Rule, place: ResolvedRoute) -> bool:
    """Return whether some request comes by the place and meets the rule."""
    if rule.connection is not None and rule.connection != place.connection:
        return False
    if rule.methods is not None and place.methods is not None and not rule.methods & place.methods:
        return False
    return not rule.matchers or any(overlap(segments(path), segments(_typed(place))) for path in rule.paths)


def _same(rule: Rule, path: str, place: ResolvedRoute) -> bool:
    return _meets(rule, place) and overlap(segments(path), segments(_typed(place)))


def _typed(place: ResolvedRoute) -> str:
    """Return the template of a place with the kinds of its parameters where parts tell them: ``/items/{id:int}``."""
    parts = [*place.mounts, place.route]
    typed = "".join(getattr(part, "path", "") for part in parts)
    return typed if _KIND.sub("}", typed) == place.template else place.template


def _has_own_limit(place: ResolvedRoute) -> bool:
    """Return whether a limit stands at the endpoint, or is required by it or by a router above."""
    methods = place.methods or {"GET"}
    if any(True for _ in limits_of(place.route.endpoint)) or any(
        takes_no_defaults(place.route, place.route.endpoint, method) for method in methods
    ):
        return True
    if any(isinstance(required.dependency, RateLimit) for required in place.above):
        return True
    return any(isinstance(call, RateLimit) for call in dependencies(place.route))
