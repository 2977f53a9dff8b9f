"""Default limits: one bucket for each route template and its methods, and one for all paths that match no route.

The application's routers determine the route of a request, so a bucket never depends on how a path is spelled. Limits
at an endpoint apply in addition; `RateLimit.exempt` exempts an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

from starlette.types import Scope

from ..core.errors import ConfigurationError
from ..core.memo import remember
from .keys import Key, KeyFunction
from .paths import is_ambiguous
from .plan import BoundRule
from .routes import is_by_path, layers, reach, visible_app
from .rules import Limits, LimitsFunction, Rule, label_of

EXEMPT_MARK: Final = "__slidegate_exempt__"
"""The attribute that marks an endpoint as exempt; `functools.wraps` copies it to a wrapper."""
NO_ROUTE: Final = "*"
OF_ROUTE: Final = "per-route "
"""What the labels of these limits begin with."""


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        limits: The limits, applied to each route separately, or a function of the request that returns them.
        key: What they count by.
        app: The application behind the middleware.
        prefix: What the names of their buckets begin with.
        bind: Returns a rule with its buckets, which have the given name.

    Attributes:
        rule: The rule of each route, for all paths.

    Raises:
        ConfigurationError: The limits cannot be parsed.
    """

    def __init__(
        self,
        limits: Limits | LimitsFunction,
        key: Key | KeyFunction | None,
        app: object,
        prefix: str,
        bind: Callable[[Rule, str], BoundRule],
    ) -> None:
        try:
            self.rule = Rule("*", limits, key=key)
        except ConfigurationError as error:
            raise ConfigurationError(error.text, "default_limits") from None
        self._prefix = prefix
        self._app = app
        self._bind = bind
        self._bound: dict[str, BoundRule] = {}
        self._is_by_path: bool | None = None

    def match(self, scope: Scope) -> tuple[list[BoundRule], bool]:
        """Return the limits of a request, none if its endpoint is exempt, and whether they may be remembered.

        That is for requests of the same type, method, path and root. They may not if a route may be added later, or if
        routes read other parts of a request.
        """
        app = visible_app(self._app, scope)
        if self._is_by_path is None:
            self._is_by_path = is_by_path(app)
        route = reach(app, scope)
        if route is None:
            return [self.at_route()], False
        bound: list[BoundRule] = []
        # The function of the method, of an endpoint that is a class.
        handler = getattr(route.endpoint, str(scope.get("method")).lower(), None)
        if not any(EXEMPT_MARK in getattr(function, "__dict__", ()) for function in (*layers(route.endpoint), handler)):
            bound = [self.at_route(route.label)]
        elif is_ambiguous(scope["path"]):  # it may lead to another endpoint, so it is not exempt
            bound = [self.at_route()]
        return bound, self._is_by_path

    def at_route(self, name: str = NO_ROUTE) -> BoundRule:
        """Return the limits of a route; by default those of all requests that match no known route."""
        bound = self._bound.get(name)
        if bound is None:
            rule = copy(self.rule)
            rule.label = label_of([f"{OF_ROUTE}{name}"])
            bound = self._bind(rule, f"{self._prefix}{name}")
            remember(self._bound, name, bound)  # bounded, as routes may come and go; the counts stay in the store
        return bound
