"""The applications that have a document, and what the middlewares around them may answer, from their options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import Mount

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..files.config import STORE_VARIABLE, ConfigReader
from ..files.reload import ReloadingMiddleware
from ..limiter import Limiter
from ..web.default_limits import rule_of_routes
from ..web.middleware import RateLimitMiddleware
from ..web.routes import DEPTH, added_middlewares, attribute_of, layers, routes_of
from ..web.rule_set import all_rules
from ..web.rules import Rule


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


@dataclass(frozen=True, slots=True)
class Guard:
    """What a middleware may answer.

    Attributes:
        app: An application that has its routes.
        path: The path where it is mounted.
        rules: Its rules.
        default_rule: The rule of each route; None for none.
        headers: The styles of its header fields.
        statuses: The statuses of answers to those who are banned or on a list.
        on_error: What decides when the store fails; None if it cannot fail.
        answers_itself: Whether `on_refused` may build the answers.
    """

    app: object
    path: str
    rules: Sequence[Rule]
    default_rule: Rule | None
    headers: Sequence[Any]
    statuses: frozenset[str]
    on_error: str | None
    answers_itself: bool


def guards_around(application: Application) -> Iterator[Guard]:
    """Yield the middlewares around the operations of an application, from the outside in."""
    for layer, path in application.around:
        if isinstance(layer, RateLimitMiddleware):
            yield _of_middleware(layer, path)
        for added in added_middlewares(layer):
            if not issubclass(added.cls, (RateLimitMiddleware, ReloadingMiddleware)):
                continue
            for name, value in added.kwargs.items():
                if isinstance(value, Iterator):  # which the middleware, made from the same object, would find empty
                    added.kwargs[name] = tuple(value)
            options = signature(added.cls).bind_partial(None, *added.args, **added.kwargs).arguments
            options |= options.pop("options", {})  # the others of `from_file`
            on_error = _on_error_of(options.get("limiter"))
            if issubclass(added.cls, ReloadingMiddleware):
                yield from _of_file(layer, path, options, on_error)
            elif options.get("enabled", True):
                yield _of_options(layer, path, options, on_error)


def _of_middleware(made: RateLimitMiddleware, path: str) -> Guard:
    """Return what a middleware may answer that is there already: around an application, or at a mount."""
    statuses = _statuses(made.ban_policies, made.lists["blocklist"])
    answers_itself = made.policy.refusals.on_refused is not None
    on_error = _on_error_of(made.limiter)
    headers = made.policy.headers.styles
    return Guard(made.app, path, made.rules, made.default_rule, headers, statuses, on_error, answers_itself)


def _of_file(app: object, path: str, options: dict[str, Any], on_error: str | None) -> Iterator[Guard]:
    """Yield what a middleware will answer that a file describes, unless the file switches it off."""
    reader = ConfigReader(Path(options.pop("path")), [name for name in options if name != "app"])
    options |= reader.options()
    if not options.get("enabled", True):
        return
    try:
        guard = _of_options(app, path, options, on_error or _on_error_in(reader))
    except ConfigurationError as error:
        raise reader.located(error) from error.__cause__
    yield guard


def _of_options(app: object, path: str, options: Mapping[str, Any], on_error: str | None) -> Guard:
    """Return what a middleware will answer, given its options."""
    key, headers, bans = options.get("key"), options.get("headers", "draft"), options.get("bans") or ()
    if isinstance(headers, str):
        headers = [headers]
    if isinstance(bans, BanPolicy):
        bans = [bans]
    default_rule = None
    if options.get("default_limits") is not None:
        default_rule = rule_of_routes(options["default_limits"], key)
    rules = all_rules(options.get("limits"), options.get("rules"), key)
    statuses = _statuses(bans, options.get("blocklist"))
    answers_itself = options.get("on_refused") is not None
    return Guard(app, path, rules, default_rule, headers or (), statuses, on_error, answers_itself)


def _statuses(bans: Iterable[BanPolicy], blocklist: object) -> frozenset[str]:
    found = {str(policy.status) for policy in bans if not policy.shadow}
    if blocklist is not None:
        found.add("403")
    return frozenset(found)


def _on_error_of(limiter: Limiter | None) -> str | None:
    """Return what decides when the store of a limiter fails; None if it cannot fail."""
    if limiter is None:  # then it is a new one in memory
        return None
    return limiter.on_error


def _on_error_in(reader: ConfigReader) -> str | None:
    """Return the same for the limiter that a configuration file describes."""
    store = reader.of_limiter["store"]
    if store is None:
        store = os.environ.get(STORE_VARIABLE)
    if not store or store.startswith("memory:"):
        return None
    return str(reader.of_limiter["on_error"])
