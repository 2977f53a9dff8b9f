"""Limits for each route: a bucket for each template and its methods, one for all paths that no route serves.

The routers are asked which route a request reaches, so the bucket belongs to the route and never to the spelling of a
path. An odd path has several readings, and something before the routers may take it for any of them: the routes of all
readings count the request, and the first that is spent refuses it.

Defaults stand for many routes: the `default_limits` of a middleware, and each `RateLimit` that a FastAPI application, a
router or its inclusion requires of all routes below. Whatever stands further in may take their place::

    default_limits  <-  application  <-  inclusion  <-  router  <-  ...  <-  route, with its endpoint and its parameters
    outermost                                                           innermost

An exemption or an override at one of these lifts all defaults to its left, and nothing beside it or to its right.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from inspect import Signature, isclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from starlette.types import Scope

from ..core.decision import Bucket, unique_name, wire_names
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit, parse_limits
from .matching import MAX_ODD, below, is_odd, readings
from .route_tree import ResolvedRoute, methods_of
from .routes import Reached, Routes
from .rule_set import BoundRule
from .rules import Rule, identity_of

if TYPE_CHECKING:
    from .endpoints import RateLimit

_T = TypeVar("_T", bound=Callable[..., Any])
LIMIT: Final = "__slidegate_limit__"
"""The attribute of a decorated endpoint that holds its `RateLimit`."""
IN_PLACE: Final = "__slidegate_in_place__"
"""The attribute of what takes the place of defaults: an endpoint or a dependency."""
_INNERMOST: Final = sys.maxsize
_MEMO: Final = 4_096
_MAX_READINGS: Final = 16
"""The largest number of readings that are asked beside the path itself: each costs another look at all routes."""
_CONVERTOR: Final = r":\w+\}"
_NO_ROUTE: Final = "*"


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        limits: The limits, each route by itself.
        claimed: An identity that no other middleware on the limiter has.

    Attributes:
        limits: The limits, read.

    Raises:
        ConfigurationError: The limits cannot be read.
    """

    def __init__(self, limits: str | AnyLimit | Iterable[str | AnyLimit], claimed: str) -> None:
        if callable(limits):
            raise ConfigurationError(
                f'default_limits: expected limits such as "60/minute", not the function {limits!r}; limits by '
                "request stand in a rule or at an endpoint"
            )
        try:
            self.limits = parse_limits(limits)
        except ConfigurationError as error:
            raise ConfigurationError(f"default_limits: {error}") from None
        self._rule = Rule("*", self.limits)
        self._claimed = claimed
        self._bound: dict[str, BoundRule] = {}
        self._labels: dict[str, str] = {}

    def met(self) -> list[BoundRule]:
        """Return the buckets of the routes that a request has met so far."""
        return list(self._bound.values())

    def find(self, scope: Scope, routes: Routes) -> Sequence[BoundRule]:
        """Return the buckets of a request: none only where all readings of its path lead to exempt routes."""
        reached = self._reached(scope, routes)
        method = scope.get("method", "")
        counting = [_named(one) for one in reached if one is not None and not _is_exempt(one, method)]
        if not counting and None in reached:
            return self.anywhere()
        return [self._bound.get(name) or self._bind(name) for name in dict.fromkeys(counting)]

    def anywhere(self) -> Sequence[BoundRule]:
        """Return the bucket of requests that reach no route that is known."""
        return [self._bound.get(_NO_ROUTE) or self._bind(_NO_ROUTE)]

    def _reached(self, scope: Scope, routes: Routes) -> list[Reached | None]:
        """Return the ends of all ways that a request may take; None stands for no route."""
        path: str = scope["path"]
        reached = [routes.reach(scope)]
        first = reached[0]
        odd = is_odd(path)
        if odd and len(path) > MAX_ODD:
            # Its readings are not worked out. It may mean any path, so no exemption holds for it.
            return [*reached, None]
        if not odd and first is not None and (first.sure or path[-1:] != "/"):
            return reached
        texts = list(_readings(scope, routes.root))
        # A slash at the end: routers redirect there or back, and a middleware may rewrite it so.
        slashless = {text.rstrip("/") or "/" for text in texts if text[-1:] == "/"}
        texts += slashless
        others = list(dict.fromkeys(texts if first is not None else [*texts, f"{path}/"]))
        others = [text for text in others if text != path]
        if len(others) > _MAX_READINGS:
            # No honest client sends such a path. The last reading is the one of whoever tidies up everything.
            others = [*others[: _MAX_READINGS - 1], others[-1]]
            reached.append(None)
        for text in others:
            end = routes.reach({**scope, "path": text})
            # Where nothing answers without the slash but a redirect, that is no route of its own.
            if end is not None or text not in slashless:
                reached.append(end)
        return reached

    def _bind(self, name: str) -> BoundRule:
        """Make the bucket of a route."""
        if len(self._bound) >= _MEMO:
            # Routes that came and went; the buckets they stand for stay.
            self._bound.clear()
            self._labels.clear()
        rule = copy(self._rule)
        rule.paths = (f"per-route {re.sub(_CONVERTOR, '}', name)}",)
        # Two names may be alike where they are shortened.
        label = unique_name(rule.label, self._labels)
        self._labels[label] = name
        bucket = Bucket(
            identity_of(label, self._claimed, name), rule.limits, wire_names(label, rule.limits), label=label
        )
        bound = self._bound[name] = BoundRule(rule, bucket)
        return bound


def _readings(scope: Scope, own_root: str) -> Iterator[str]:
    """Yield the readings of a path, with the root that comes before it and without."""
    path = scope["path"]
    yield from readings(path)
    for root in {scope.get("root_path", ""), own_root} - {""}:
        rest = below(root, path)
        yield from (root + text for text in readings(rest) if rest != path)


def _is_exempt(reached: Reached, method: str) -> bool:
    """Return whether the endpoint that a request reaches takes no defaults; an answer of 405 is no endpoint's."""
    return reached.answers and takes_no_defaults(reached.route, reached.end, method)


def _named(reached: Reached) -> str:
    return f"{'*' if reached.route is None else methods_of(reached.route)} {reached.written}"


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
        """Do nothing: the middleware finds the dependency at the route."""


def takes_no_defaults(route: object, end: object, method: str) -> bool:
    """Return whether a route is exempt from the `default_limits` of a middleware, or has limits that take their place.

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
    depths = list(asked_at(place))
    stands = max((depth for call, depth in depths if call is limit), default=_INNERMOST)
    return any(depth > stands and _is_marked(call) for call, depth in depths)


def asked_at(place: ResolvedRoute) -> Iterator[tuple[object, int]]:
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
    return any(getattr(one, "__dict__", {}).get(IN_PLACE) for one in (*unwrapped(call), *limits_of(call)))


def unwrapped(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint and the functions that it is wrapped around, from the outside."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)


def limits_of(endpoint: Any) -> Iterator[RateLimit]:
    """Yield the limits that decorate an endpoint, the outermost first."""
    for layer in unwrapped(endpoint):
        if (limit := getattr(layer, "__dict__", {}).get(LIMIT)) is not None:
            yield limit


def dependencies(route: object) -> Iterator[Any]:
    """Yield everything that FastAPI calls before the endpoint of a route; nothing for a route of another kind."""
    return needed_by(getattr(route, "dependant", None))


def needed_by(dependant: object) -> Iterator[Any]:
    """Yield everything that FastAPI calls before what one of its descriptions is about."""
    waiting = [dependant]
    while waiting:
        for needed in getattr(waiting.pop(), "dependencies", ()):
            yield getattr(needed, "call", None)
            waiting.append(needed)
