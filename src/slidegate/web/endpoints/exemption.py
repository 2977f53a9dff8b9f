"""What takes the place of defaults: `RateLimit.exempt`, and limits with ``override=True``.

Defaults stand for many routes: the `default_limits` of a gate, and each `RateLimit` that a FastAPI application, a
router or its inclusion requires of all routes below. Whatever stands further in may take their place::

    default_limits  <-  application  <-  inclusion  <-  router  <-  ...  <-  route, with its endpoint and its parameters
    outermost                                                           innermost

An exemption or an override at one of these lifts all defaults to its left, and nothing beside it or to its right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from inspect import Signature, isclass
from typing import Any, Final, TypeVar, overload

from ...core.errors import ConfigurationError, quoted
from ..routes import ResolvedRoute
from .decorator import dependencies, layers, limits_of, needed_by

_T = TypeVar("_T", bound=Callable[..., Any])

IN_PLACE: Final = "__slidegate_in_place__"
"""The attribute of what takes the place of defaults: an endpoint or a dependency."""
_INNERMOST: Final = sys.maxsize


class Exemption:
    """Exempts routes from defaults: ``@RateLimit.exempt`` at an endpoint, or ``Depends(RateLimit.exempt)``.

    Defaults are the middleware's `default_limits`, and a `RateLimit` that FastAPI routers or applications require of
    all routes below. As a decorator it marks a function or a class and returns it as it was, above or below the
    decorator that makes the route. As a FastAPI dependency it exempts a route, or all routes of a router or an
    application from what stands further out. Lists, bans, rules and limits at the endpoint itself apply as before.
    """

    def __init__(self) -> None:
        # FastAPI asks the instance for its parameters, and would call a plain function in a thread.
        vars(self)["__call__"] = self._pass
        vars(self)["__signature__"] = Signature([])
        vars(self)[IN_PLACE] = True

    @overload
    def __call__(self) -> Coroutine[Any, Any, None]: ...

    @overload
    def __call__(self, endpoint: _T) -> _T: ...

    def __call__(self, endpoint: Any = None) -> Any:
        """Mark an endpoint, or pass, as a dependency.

        Raises:
            ConfigurationError: The endpoint cannot be marked, or is an application with routes of its own.
        """
        if endpoint is None:
            return self._pass()
        marked = getattr(endpoint, "__func__", endpoint)  # a method is made anew each time it is read
        if not callable(endpoint) or not hasattr(marked, "__dict__"):
            raise ConfigurationError(
                f"RateLimit.exempt: expected the function or class of an endpoint, for example @RateLimit.exempt above "
                f"async def health(request), not {quoted(endpoint)}"
            )
        if hasattr(endpoint, "routes"):
            raise ConfigurationError(
                f"RateLimit.exempt: expected an endpoint, not {quoted(endpoint)} with routes of its own; write "
                "dependencies=[Depends(RateLimit.exempt)] at a FastAPI router, or "
                'Rule("/path/{rest:path}", exempt=True) for all that is below a path'
            )
        setattr(marked, IN_PLACE, True)
        return endpoint

    async def _pass(self) -> None:
        """Do nothing: the gate finds the dependency at the route."""


def takes_no_defaults(route: object, end: object, method: str) -> bool:
    """Return whether a route is exempt from the `default_limits` of a gate, or has limits that take their place.

    Args:
        route: The route; None for an application without routes.
        end: Its endpoint, or that application.
        method: The method of a request, which a class may answer with a function of its own; empty for a websocket.
    """
    if _is_marked(end) or any(map(_is_marked, dependencies(route))):
        return True
    if not isclass(end):
        return False
    name = "get" if method == "HEAD" and not hasattr(end, "head") else method.lower()
    return _is_marked(getattr(end, name, None))


def is_lifted(limit: object, place: ResolvedRoute) -> bool:
    """Return whether something further in takes the place of a limit that stands above a route."""
    asked = list(_asked(place))
    stands = max((depth for call, depth in asked if call is limit), default=_INNERMOST)
    return any(depth > stands and _is_marked(call) for call, depth in asked)


def _asked(place: ResolvedRoute) -> Iterator[tuple[object, int]]:
    """Yield an endpoint and all that FastAPI asks on the way to it, each with how far in it stands."""
    yield place.route.endpoint, _INNERMOST
    depths: dict[int, list[int]] = {}
    for required in place.above:
        yield required.dependency, required.depth
        depths.setdefault(id(required.dependency), []).append(required.depth)
    for needed in getattr(getattr(place.route, "dependant", None), "dependencies", ()):
        above = depths.get(id(needed.call))
        depth = above.pop(0) if above else _INNERMOST
        yield from ((call, depth) for call in (needed.call, *needed_by(needed)))


def _is_marked(call: object) -> bool:
    return any(getattr(one, "__dict__", {}).get(IN_PLACE) for one in (*layers(call), *limits_of(call)))
