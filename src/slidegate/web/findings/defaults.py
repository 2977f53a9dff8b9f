"""Checks of limits for each route and at endpoints: whether routes are seen, exemptions exempt and functions run."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from starlette.types import Scope

from ...core.limits import AnyLimit
from ..endpoints.decorator import dependencies, unawaited
from ..endpoints.exemption import is_lifted, takes_no_defaults
from ..endpoints.rate_limit import RateLimit
from ..paths.layers import layers
from ..paths.tree import Tree
from ..routes import ResolvedRoute, walk
from ..scope_keys import RECORD
from .codes import Finding

_SHOWS_ROUTERS: Final = (0, 137)
"""The first FastAPI whose routes tell by which router they come."""
_NUMBER: Final = re.compile(r"\d+")
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Defaulting(Protocol):
    """The part of a gate that the checks see."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def default_limits(self) -> Sequence[AnyLimit]:
        """The limits of each route."""


def about_defaults(gate: Defaulting, scope: Scope) -> Iterator[Finding]:
    """Yield the findings about limits for each route, from the first request of a gate."""
    if gate.default_limits and not Tree(gate.app).known(scope):
        yield Finding(
            "SG117",
            "default_limits: no routes are seen below the gate, so all requests count as one route; put the gate "
            "around the application that has the routes, or write rules",
        )
    if RECORD in scope:
        return  # a gate further out looks at the exemptions
    app = scope.get("app", gate.app)
    if (kept := _kept(app)) is not None:
        yield Finding(
            "SG118",
            f"{kept.label} takes the place of defaults, but of a limit that other routes require too it cannot: before "
            "FastAPI 0.137 nothing tells the limit of a router from that of a route; take a newer FastAPI, or write "
            "the limit at the application",
        )
    if _has_defaults(gate):
        return
    for place in () if kept is not None else walk(app):
        if _takes_no_defaults(place) and not _lifts(place):
            yield Finding(
                "SG118",
                f"{place.label} takes the place of defaults, and there are none: no gate above has default_limits, "
                "and no router or application above requires a RateLimit; limits=, rules and limits at the endpoint apply to "
                'it; write default_limits="60/minute", or Rule(path, exempt=True) before other rules',
            )
            return


def about_callers(app: object) -> Iterator[Finding]:
    """Yield the findings about functions that call a limited one and cannot await it."""
    for caller, name in unawaited(app):
        yield Finding(
            "SG121",
            f"{caller!r} calls {name!r}, which @RateLimit made a coroutine function, so neither it nor its limit runs; "
            "write `async def` for both, and await it, or put limiter.limited(...) in the place of RateLimit",
        )


def _takes_no_defaults(place: ResolvedRoute) -> bool:
    endpoint = place.route.endpoint
    return any(takes_no_defaults(place.route, endpoint, method) for method in place.methods or _METHODS)


def _lifts(place: ResolvedRoute) -> bool:
    """Return whether there are defaults for a route between it and the application, which are lifted."""
    return any(map(_has_defaults, (*place.mounts, place.route))) or any(
        is_lifted(limit, place) for limit in _limits_of(place)
    )


def _kept(app: object) -> ResolvedRoute | None:
    """Return a route whose exemption leaves a limit of a router as it is, because this FastAPI shows no routers."""
    version = _NUMBER.findall(getattr(sys.modules.get("fastapi"), "__version__", ""))[:2]
    if not version or tuple(map(int, version)) >= _SHOWS_ROUTERS:
        return None
    places = list(walk(app))
    counts = Counter(limit for place in places for limit in _limits_of(place) if not limit.override)
    for place in filter(_takes_no_defaults, places):
        if any(counts[limit] > 1 and not is_lifted(limit, place) for limit in _limits_of(place)):
            return place
    return None


def _limits_of(place: ResolvedRoute) -> set[RateLimit]:
    """Return the limits that FastAPI asks before an endpoint."""
    return {call for call in dependencies(place.route) if isinstance(call, RateLimit)}


def _has_defaults(above: Any) -> bool:
    """Return whether a gate with `default_limits` is among the layers around an application, or may be."""
    for layer in layers(above):
        if getattr(layer, "default_limits", ()):
            return True
        for _, _, options in getattr(layer, "user_middleware", ()):
            # An application makes its middlewares at its first request. A file may have `default_limits` too.
            if options.get("default_limits") is not None or "path" in options:
                return True
    return False
