"""Limits for each route: a bucket for each template and its methods, one for all paths that no route serves.

The routers say which route a request takes, so the bucket belongs to the route and never to the spelling of a path. A
limit at an endpoint counts beside these; `RateLimit.exempt` lifts them at an endpoint.
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
"""The attribute of a decorated endpoint that holds its `RateLimit`."""
EXEMPT: Final = "__slidegate_exempt__"
"""The attribute of an endpoint that has no default limits."""
_NO_ROUTE: Final = "*"


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        limits: The limits, each route by itself, or a function of the request that returns them.
        key: Whom to count; None for the client's address.
        own_id: An identity that no other middleware on the limiter has.
        app: The application that the middleware guards.

    Attributes:
        limits: The limits, read.

    Raises:
        ConfigurationError: The limits cannot be read.
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
        """Return the buckets of the routes that a request has met so far."""
        return list(self._bound.values())

    def find(self, scope: Scope) -> tuple[Sequence[BoundRule], bool]:
        """Return the limits of a request, none where its endpoint is exempt; and whether a route takes it."""
        reached = reach(shown(self._app, scope), scope)
        place = reached.place
        if place is None:
            return self.anywhere(), False
        if reached.answers and is_exempt(place, scope.get("method", "")):
            return self.anywhere() if is_astray(scope["path"]) else (), True
        return [self._at(place.label)], True

    def anywhere(self) -> Sequence[BoundRule]:
        """Return the limits of requests that take no route that is known."""
        return [self._at(_NO_ROUTE)]

    def _at(self, name: str) -> BoundRule:
        """Return the bucket of a route."""
        bound = self._bound.get(name)
        if bound is None:
            rule = copy(self._rule)
            rule.paths = (f"per-route {name}",)
            rule.label = label_of(rule.paths)
            identity = identity_of(rule.label, self._own_id, name)
            if len(rule.label) == MAX_LABEL:  # it was shortened, and so may another be
                rule.label = f"{rule.label[:-9]}-{identity[-8:]}"
            bound = BoundRule(rule, *buckets_of(rule, identity, rule.wire_names()))
            remember(self._bound, name, bound)  # routes may come and go; the buckets they stand for stay
        return bound


def exempt(endpoint: _T) -> _T:
    """Exempt an endpoint from the `default_limits` of a middleware: ``@RateLimit.exempt``.

    It marks a function or a class, also a method of a class that answers requests, and returns it as it was, above or
    below the decorator that makes the route. Lists, bans, rules and limits at the endpoint itself apply as before.

    Raises:
        ConfigurationError: The endpoint cannot be marked, or is an application with routes of its own.
    """
    marked = getattr(endpoint, "__func__", endpoint)  # a method is made anew each time it is read
    if not callable(endpoint) or not hasattr(marked, "__dict__"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected the function or class of an endpoint, for example @RateLimit.exempt above "
            f"async def health(request), not {quoted(endpoint)}"
        )
    if hasattr(endpoint, "routes"):
        raise ConfigurationError(
            f"RateLimit.exempt: expected an endpoint, not {quoted(endpoint)} with routes of its own; write "
            'Rule("/path/{rest:path}", exempt=True) for all that is below a path'
        )
    setattr(marked, EXEMPT, True)
    return endpoint


def is_exempt(place: MountedRoute, method: str) -> bool:
    """Return whether a route has no default limits.

    Args:
        place: The route.
        method: The method of a request, which a class may answer with a function of its own; empty for a websocket.
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
    """Yield an endpoint and the functions that it is wrapped around, from the outside."""
    while endpoint is not None:
        yield endpoint
        endpoint = endpoint.func if isinstance(endpoint, partial) else getattr(endpoint, "__wrapped__", None)


def limits_at(place: MountedRoute) -> Iterator[RateLimit]:
    """Yield the limits at a route: those that decorate its endpoint, and those of what FastAPI calls before it."""
    required = [one.dependency for one in place.above]
    for called in (place.endpoint, *required, *_dependencies(place.route)):
        for layer in unwrapped(called):
            limit = layer if isinstance(look(layer, "rule"), Rule) else getattr(layer, "__dict__", {}).get(LIMIT)
            if limit is not None:
                yield limit


def _dependencies(route: object) -> Iterator[Any]:
    """Yield everything that FastAPI calls before the endpoint of a route; nothing for a route of another kind."""
    waiting = [getattr(route, "dependant", None)]
    while waiting:
        for needed in getattr(waiting.pop(), "dependencies", ()):
            yield getattr(needed, "call", None)
            waiting.append(needed)
