"""Finds routes that no rule is about, among those of the application below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...web.decorators import dependencies, limits_of, takes_no_defaults
from ...web.endpoints import RateLimit
from ...web.middleware import RateLimitMiddleware
from ...web.route_checks import is_about
from ...web.routes import ResolvedRoute, layers, walk


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
        if not any(is_about(rule, path, place) for rule in rules for path in rule.paths) and not _has_own_limit(place):
            yield place


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
