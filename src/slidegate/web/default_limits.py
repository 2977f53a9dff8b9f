"""Default limits: one bucket for each route template and its methods, and one for all paths that match no route.

The application's routers determine the route of a request, so a bucket never depends on how a path is spelled. Limits
at an endpoint apply in addition; `RateLimit.exempt` exempts an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from inspect import isclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted
from ..core.memo import remember
from .paths import is_astray
from .routes import MountedRoute, look, reach, shown
from .rule_set import BoundRule, buckets_of
from .rules import MAX_LABEL, Limits, LimitsFunction, Rule, identity_of, label_of

if TYPE_CHECKING:
    from .endpoints import RateLimit
    from .keys import Key, KeyFunction

_T = TypeVar("_T", bound=Callable[..., Any])
LIMIT: Final = "__slidegate_limit__"
"""The attribute of a decorated endpoint that stores its `RateLimit`."""
EXEMPT: Final = "__slidegate_exempt__"
"""The attribute that marks an endpoint as exempt from default limits."""
_NO_ROUTE: Final = "*"


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        limits: The limits, applied to each route separately, or a function of the request that returns them.
        key: What to count by; None for the client's address.
        own_id: An identity that is unique among the middlewares of the limiter.
        app: The application that the middleware guards.

    Attributes:
        limits: The parsed limits.

    Raises:
        ConfigurationError: The limits cannot be parsed.
    """

    def __init__(
        self, limits: Limits | LimitsFunction, key: Key | KeyFunction | None, own_id: str, app: object
    ) -> None:
        try:
            self._rule = Rule("*", limits, key=key)
        except ConfigurationError as error:
            text = error.text if error.option == "limits" else str(error)
            raise ConfigurationError(text, "default_limits") from None
        self.limits = self._rule.limits
        self._own_id = own_id
        self._app = app
        self._bound: dict[str, BoundRule] = {}

    def met(self) -> list[BoundRule]:
        """Return the rules of the routes that were requested so far."""
        return list(self._bound.values())

    def find(self, scope: Scope) -> tuple[Sequence[BoundRule], bool]:
        """Return the limits of a request, none if its endpoint is exempt; and whether a route matches it."""
        reached = reach(shown(self._app, scope), scope)
        place = reached.place
        if place is None:
            return self.anywhere(), False
        if reached.answers and is_exempt(place, scope.get("method", "")):
            return self.anywhere() if is_astray(scope["path"]) else (), True
        return [self._at(place.label)], True

    def anywhere(self) -> Sequence[BoundRule]:
        """Return the limits of requests that match no known route."""
        return [self._at(_NO_ROUTE)]

    def _at(self, name: str) -> BoundRule:
        """Return the rule of a route, with its bucket."""
        bound = self._bound.get(name)
        if bound is None:
            rule = copy(self._rule)
            rule.paths = (f"per-route {name}",)
            rule.label = label_of(rule.paths)
            identity = identity_of(rule.label, self._own_id, name)
            if len(rule.label) == MAX_LABEL:  # probably truncated: keep it distinct from others
                rule.label = f"{rule.label[:-9]}-{identity[-8:]}"
            bound = BoundRule(rule, *buckets_of(rule, identity, rule.wire_names()))
            remember(self._bound, name, bound)  # bounded, as routes may come and go; the counts stay in the store
        return bound


def exempt(endpoint: _T) -> _T:
    """Exempt an endpoint from the `default_limits` of a middleware: ``@RateLimit.exempt``.

    Marks a function, a class, or a method of a class-based endpoint, and returns it unchanged. It can be placed above
    or below the route decorator. Lists, bans, rules and limits at the endpoint still apply.

    Raises:
        ConfigurationError: The endpoint cannot be marked, or is an application with routes of its own.
    """
    marked = getattr(endpoint, "__func__", endpoint)  # each access to a method creates a new bound method
    if not callable(endpoint) or not hasattr(marked, "__dict__"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected the function or class of an endpoint, for example @RateLimit.exempt above "
            f"async def health(request), not {quoted(endpoint)}"
        )
    if hasattr(endpoint, "routes"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected an endpoint, not {quoted(endpoint)} with routes of its own; write "
            'Rule("/path/{rest:path}", exempt=True) for everything below a path'
        )
    setattr(marked, EXEMPT, True)
    return endpoint


def is_exempt(place: MountedRoute, method: str) -> bool:
    """Return whether a route is exempt from default limits.

    Args:
        place: The route.
        method: The method of a request, for class-based endpoints with a function per method; empty for a websocket.
    """
    end = place.endpoint
    if _is_marked(end):
        return True
    if not isclass(end):
        return False
    name = "get" if method == "HEAD" and not hasattr(end, "head") else method.lower()
    return _is_marked(getattr(end, name, None))


def _is_marked(endpoint: object) -> bool:
    return any(getattr(one, "__dict__", {}).get(EXEMPT) for one in unwrapped(endpoint))


def unwrapped(endpoint: Any) -> Iterator[Any]:
    """Yield an endpoint and the functions that it wraps, from the outside in."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)


def limits_at(place: MountedRoute) -> Iterator[RateLimit]:
    """Yield the limits at a route: those that decorate its endpoint or its dependencies, or are dependencies."""
    required = [one.dependency for one in place.above]
    for called in (place.endpoint, *required, *_dependencies(place.route)):
        for layer in unwrapped(called):
            limit = layer if isinstance(look(layer, "rule"), Rule) else getattr(layer, "__dict__", {}).get(LIMIT)
            if limit is not None:
                yield limit


def _dependencies(route: object) -> Iterator[Any]:
    """Yield all dependencies of a FastAPI route, nested ones included; nothing for other routes."""
    waiting = [getattr(route, "dependant", None)]
    while waiting:
        for needed in getattr(waiting.pop(), "dependencies", ()):
            yield getattr(needed, "call", None)
            waiting.append(needed)
