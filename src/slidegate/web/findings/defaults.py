"""Checks of limits for each route and at endpoints: whether routes are seen, exemptions exempt and functions run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from starlette.types import Scope

from ...core.limits import AnyLimit
from ..endpoints.decorator import unawaited
from ..endpoints.per_route import takes_no_defaults
from ..paths.layers import layers
from ..paths.routes import Place, walk
from ..paths.tree import Tree
from ..scope_keys import RECORD
from .codes import Finding

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Defaulting(Protocol):
    """The part of a gate that the checks see."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def per_route(self) -> Sequence[AnyLimit]:
        """The limits of each route."""


def about_defaults(gate: Defaulting, scope: Scope) -> Iterator[Finding]:
    """Yield the findings about limits for each route, from the first request of a gate."""
    if gate.per_route and not Tree(gate.app).known(scope):
        yield Finding(
            "SG117",
            "per_route: no routes are seen below the gate, so all requests count as one route; put the gate around the "
            "application that has the routes, or write rules",
        )
    if RECORD in scope or _has_defaults(gate):
        return  # a gate further out looks at the exemptions; or this one has defaults for all routes below
    for place in walk(scope.get("app", gate.app)):
        if _takes_no_defaults(place) and not any(map(_has_defaults, (*place.mounts, place.route))):
            yield Finding(
                "SG118",
                f"{place.label} takes the place of defaults, and no gate above has per_route: limits= and rules apply "
                'to it; write per_route="60/minute", or Rule(path, exempt=True) before other rules',
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


def _takes_no_defaults(place: Place) -> bool:
    endpoint = place.route.endpoint
    return any(takes_no_defaults(place.route, endpoint, method) for method in place.methods or _METHODS)


def _has_defaults(above: Any) -> bool:
    """Return whether a gate with `per_route` is among the layers around an application, or may be."""
    for layer in layers(above):
        if getattr(layer, "per_route", ()):
            return True
        for _, _, options in getattr(layer, "user_middleware", ()):
            # An application makes its middlewares at its first request. A file may have `per_route` too.
            if options.get("per_route") is not None or "path" in options:
                return True
    return False
