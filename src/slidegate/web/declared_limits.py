"""Limits and exemptions that endpoints declare, found in the routes of an application before any request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import isclass
from typing import Any

from ..core.errors import ConfigurationError
from ..limiter import Limiter
from .decorators import EXEMPT, LIMIT, LIMITED, is_function_or_class, unwrapped
from .routes import MountedRoute, attribute_of, layers, mounted_routes
from .rules import Rule


def is_exempt(route: MountedRoute, method: str) -> bool:
    """Return whether a route is exempt from default limits.

    Args:
        route: The route.
        method: The method of a request, for class-based endpoints with a function per method; empty for a websocket.
    """
    end = route.endpoint
    if _is_marked(end):
        return True
    if not isclass(end):
        return False
    name = "get" if method == "HEAD" and not hasattr(end, "head") else method.lower()
    return _is_marked(getattr(end, name, None))


def _is_marked(endpoint: object) -> bool:
    return any(getattr(one, "__dict__", {}).get(EXEMPT) for one in unwrapped(endpoint))


def limits_at(route: MountedRoute) -> Iterator[Rule]:
    """Yield the limits at a route: those that decorate its endpoint or its dependencies, or are dependencies."""
    required = [one.dependency for one in route.above]
    for called in (route.endpoint, *_methods_of(route.endpoint), *required, *_dependencies(route.original)):
        for layer in unwrapped(called):
            rule = attribute_of(layer, "rule") if _is_limit(layer) else getattr(layer, "__dict__", {}).get(LIMIT)
            if rule is not None:
                yield rule


def _is_limit(called: object) -> bool:
    return isinstance(attribute_of(called, "rule"), Rule)


def _methods_of(endpoint: object) -> Iterator[Any]:
    """Yield the methods of a class-based endpoint, which may have limits of their own."""
    if isclass(endpoint):
        yield from (attribute_of(endpoint, name) for name in dir(endpoint) if not name.startswith("_"))


def _dependencies(route: object) -> Iterator[Any]:
    """Yield all dependencies of a FastAPI route, nested ones included; nothing for other routes."""
    waiting = [getattr(route, "dependant", None)]
    while waiting:
        for needed in getattr(waiting.pop(), "dependencies", ()):
            yield getattr(needed, "call", None)
            waiting.append(needed)


def check_decorator_order(app: object) -> None:
    """Check that no limit is above a route decorator, which would have registered the function without the limit.

    Also check that no limit is itself the endpoint of a route.

    Raises:
        ConfigurationError: A limit is misplaced.
    """
    routes = mounted_routes(app)
    used = {id(function) for route in routes for function in unwrapped(route.endpoint)}
    for route in routes:
        endpoint = route.endpoint
        if _is_limit(endpoint):
            raise ConfigurationError(
                f"RateLimit: the endpoint of {route.label!r} is a limit, which sends no response; "
                'write @RateLimit("5/minute") above a function, and use that function as the endpoint'
            )
        limited = LIMITED.get(endpoint) if is_function_or_class(endpoint) else None
        if limited is not None and not any(id(one) in used for one in limited) and not _is_named(endpoint):
            raise ConfigurationError(
                f"RateLimit: it is above the decorator that adds the route {route.label!r}, so it would never run; "
                f"put @RateLimit(...) below it, next to {endpoint.__name__!r}"
            )


def limits_below(app: object, limiter: Limiter) -> Iterator[tuple[Rule, str]]:
    """Yield the limits at endpoints of an application that use a limiter, each with a phrase for its location."""
    if _asks_another(app, limiter):
        return
    for route in mounted_routes(app):
        if not any(_asks_another(app, limiter) for app in (*route.inside, getattr(route.original, "app", None))):
            yield from ((rule, f"at {route.label!r}") for rule in limits_at(route))


def _asks_another(app: object, limiter: Limiter) -> bool:
    """Return whether a middleware around an application may use another limiter."""
    for layer in layers(app):
        asked = attribute_of(layer, "limiter")
        if isinstance(asked, Limiter) and asked is not limiter:
            return True
        added = attribute_of(layer, "user_middleware")  # of an application that has not built its stack yet
        for made in added if isinstance(added, list) else ():
            ours = str(attribute_of(attribute_of(made, "cls"), "__module__", "")).startswith("slidegate.")
            if ours and made.kwargs.get("limiter") is not limiter:
                return True
    return False


def _is_named(endpoint: Any) -> bool:
    """Return whether the name of an endpoint in its module still refers to itself, not to a decorated version."""
    named: Any = sys.modules.get(endpoint.__module__)
    for part in endpoint.__qualname__.split("."):
        named = getattr(named, part, None)
    return named is endpoint
