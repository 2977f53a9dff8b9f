"""The applications that have a document, and the middlewares around them, those that are only planned as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import Mount

from ..core.errors import ConfigurationError
from ..files.config import STORE_VARIABLE, ConfigReader
from ..files.reload import ReloadingMiddleware
from ..web.middleware import RateLimitMiddleware
from ..web.policy import Policy
from ..web.routes import DEPTH, added_middlewares, attribute_of, layers, routes_of


class Application(NamedTuple):
    """An application with a document.

    Attributes:
        app: The application.
        path: The path where it is mounted.
        around: The applications and middlewares around it, from the outside in and itself included, each with the path
            where it is mounted.
    """

    app: Any
    path: str
    around: tuple[tuple[Any, str], ...]


def applications(app: object, path: str, around: tuple[tuple[Any, str], ...]) -> Iterator[Application]:
    """Yield the applications with a document: this one, and those that are mounted in it."""
    if len(around) > DEPTH or any(app is one for one, _ in around):
        return
    for layer in layers(app):
        around = (*around, (layer, path))
        if callable(attribute_of(layer, "openapi")):
            yield Application(layer, path, around)
    for route in routes_of(app) or ():
        if isinstance(route, Mount):
            yield from applications(route.app, path + route.path, around)


class Guard(NamedTuple):
    """A middleware around an application.

    Attributes:
        policy: What it decides.
        app: An application that has its routes.
        path: The path where it is mounted.
        on_error: What decides when the store fails; None if it cannot fail.
    """

    policy: Policy
    app: object
    path: str
    on_error: str | None

    def statuses(self) -> set[str]:
        """Return the statuses of answers to those who are banned or on a list."""
        ban_policies = self.policy.signals.ban_policies.values()
        statuses = {str(ban_policy.status) for ban_policy in ban_policies if not ban_policy.shadow}
        if self.policy.lists["blocklist"] is not None:
            statuses.add("403")
        return statuses


def guards_around(application: Application) -> Iterator[Guard]:
    """Yield the middlewares around the operations of an application, from the outside in."""
    for layer, path in application.around:
        if isinstance(layer, RateLimitMiddleware):
            yield Guard(layer.policy, layer.app, path, layer.limiter.on_error)
        for added in added_middlewares(layer):
            if issubclass(added.cls, RateLimitMiddleware):
                for name, value in added.kwargs.items():
                    if isinstance(value, Iterator):  # the middleware, made from the same object, would find it empty
                        added.kwargs[name] = tuple(value)
                yield from _planned(layer, path, added.kwargs, None)
            elif issubclass(added.cls, ReloadingMiddleware):
                yield from _planned_by_file(layer, path, *added.args, **added.kwargs)


def _planned(app: object, path: str, options: dict[str, Any], on_error: str | None) -> Iterator[Guard]:
    """Yield a middleware that is not built yet, unless it is switched off.

    Its rules are asked with a limiter in memory, so that its own one, which may be at work, learns of no second one.
    """
    known = signature(Policy).parameters.keys() - {"limiter"}  # a class of the user's may have others
    own = {name: options[name] for name in known & options.keys()}
    if options.get("limiter") is not None:
        on_error = options["limiter"].on_error
    if options.get("enabled", True):
        yield Guard(Policy(app, **own), app, path, on_error)


def _planned_by_file(app: object, mounted: str, path: Any, *, store: str = "", **code: Any) -> Iterator[Guard]:
    """Yield the middleware that a configuration file describes."""
    reader = ConfigReader(Path(path), code)
    options = reader.options()
    store = store or reader.of_limiter["store"] or os.environ.get(STORE_VARIABLE, "")
    on_error = None
    if store and not store.startswith("memory:"):
        on_error = reader.of_limiter["on_error"]
    try:
        yield from _planned(app, mounted, {**code, **options}, on_error)
    except ConfigurationError as error:
        raise reader.located(error) from error.__cause__
