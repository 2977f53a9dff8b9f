"""The names of the limits of one application, compared as it starts: counts belong to names.

What is met only later, such as limits behind a class or in an application of another framework, is compared at its
first request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Any

from ..core.errors import ConfigurationError
from .endpoints import rules_of_route
from .policy import Policy
from .routes import MountedRoute, attribute_of, layers, walk


def compare_names(kind: Any, policy: Policy, app: object) -> None:
    """Compare the names of the limits of a middleware and of everything within.

    Args:
        kind: The class of middlewares, of which mounted applications may not have built theirs yet.
        policy: The policy of the middleware.
        app: The application.

    Raises:
        ConfigurationError: Two limits without a name that one request can meet would be one, or one name has different
            limits; or a middleware cannot be built.
    """
    built: dict[int, Any] = {}
    for route, above, inside in chain([(app, "", ())], walk(app)):
        around = [policy]
        for within in (app, *inside, attribute_of(route, "app")):
            around += _policies_in(within, kind, built)
        for outer, inner in combinations(around, 2):
            both = outer.names.unnamed & inner.names.unnamed
            if both and outer.limiter is inner.limiter and outer is not inner:
                raise ConfigurationError(
                    f"two middlewares around each other have limits without a name, {min(both)!r}, on one limiter, "
                    'which would count as one; give one another name: RateLimitMiddleware(..., name="inner")'
                )
        for rule in rules_of_route(attribute_of(route, "endpoint"), attribute_of(route, "dependant")):
            if rule.name is None:  # each endpoint has its own
                continue
            rule.where = f"RateLimit at {MountedRoute(route, above).label}"
            problem = around[-1].rules.other_limits(rule, rule.identity)
            if problem:
                raise ConfigurationError(problem)


def _policies_in(app: object, kind: Any, built: dict[int, Any]) -> Iterator[Policy]:
    """Yield the policies of the middlewares around the routes of an application, from the outside in.

    Args:
        built: What this function has built so far, by the identity of what is to be built.
    """
    for layer in layers(app):
        stack = attribute_of(layer, "middleware_stack")
        things: list[Any] = [layer, *layers(stack)]
        if stack is None:  # Starlette builds it at the first request
            things += attribute_of(layer, "user_middleware", ())
        for thing in things:
            middleware = thing
            if kind in attribute_of(attribute_of(thing, "cls"), "__mro__", ()):
                middleware = built.get(id(thing)) or built.setdefault(id(thing), thing.cls(layer, **thing.kwargs))
            if isinstance(middleware, kind) and middleware.is_enabled:
                yield middleware.policy
