"""Default limits: one bucket for each route template and its methods, and one for all paths that match no route.

The application's routers determine the route of a request, so a bucket never depends on how a path is spelled. Limits
at an endpoint apply in addition; `RateLimit.exempt` exempts an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.types import Scope

from ..core.errors import ConfigurationError
from ..core.memo import remember
from .endpoints import is_exempt
from .paths import is_ambiguous
from .routes import is_by_path, reach, visible_app
from .rule_set import BoundRule
from .rules import Limits, LimitsFunction, Rule, label_of

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

Bind: TypeAlias = Callable[[Rule, str], BoundRule]
"""Returns a rule with its buckets, which have the given name."""
_NO_ROUTE: Final = "*"


class DefaultLimits:
    """The limits for each route below a middleware.

    Args:
        middleware: The middleware.
        limits: The limits, applied to each route separately, or a function of the request that returns them.

    Attributes:
        rule: The rule of each route, for all paths.

    Raises:
        ConfigurationError: The limits cannot be parsed.
    """

    def __init__(self, middleware: RateLimitMiddleware, limits: Limits | LimitsFunction) -> None:
        try:
            self.rule = Rule("*", limits, key=middleware.key)
        except ConfigurationError as error:
            text = error.text if error.option == "limits" else str(error)
            raise ConfigurationError(text, "default_limits") from None
        self._own_id = middleware.unique_id("per-route:")
        self._app = middleware.app
        self._bound: dict[str, BoundRule] = {}
        self._is_by_path: bool | None = None

    def find(self, scope: Scope, bind: Bind) -> tuple[Sequence[BoundRule], bool]:
        """Return the limits of a request, none if its endpoint is exempt.

        Returns:
            The limits; and whether all requests with its type, method, path and root have them: a route may be added
            later, or look at other parts of a request.
        """
        app = visible_app(self._app, scope)
        if self._is_by_path is None:
            self._is_by_path = is_by_path(app)
        route = reach(app, scope)
        if route is None:
            return self.anywhere(bind), False
        if is_exempt(route.endpoint):
            return self.anywhere(bind) if is_ambiguous(scope["path"]) else (), self._is_by_path
        return [self._at(route.label, bind)], self._is_by_path

    def anywhere(self, bind: Bind) -> Sequence[BoundRule]:
        """Return the limits of requests that match no known route."""
        return [self._at(_NO_ROUTE, bind)]

    def _at(self, name: str, bind: Bind) -> BoundRule:
        """Return the rule of a route, with its bucket."""
        bound = self._bound.get(name)
        if bound is None:
            rule = copy(self.rule)
            rule.paths = (f"per-route {name}",)
            rule.label = label_of(rule.paths)
            bound = bind(rule, f"{self._own_id}{name}")
            remember(self._bound, name, bound)  # bounded, as routes may come and go; the counts stay in the store
        return bound
