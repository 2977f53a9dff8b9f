"""The mark of endpoints that the limits for each route leave alone: `RateLimit.exempt`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import Signature
from typing import Any, Final, TypeVar, overload

from ...core.errors import ConfigurationError

_T = TypeVar("_T", bound=Callable[..., Any])

EXEMPT: Final = "__slidegate_exempt__"
"""The attribute of an endpoint that is exempt."""


class Exemption:
    """Exempts routes from `per_route`: ``@RateLimit.exempt`` at an endpoint, or ``Depends(RateLimit.exempt)``.

    As a decorator it marks a function or a class and returns it as it was, above or below the decorator that makes the
    route. As a FastAPI dependency it exempts a route, or all routes of a router or an application. Lists, bans, rules
    and limits at the endpoint apply as before.
    """

    def __init__(self) -> None:
        # FastAPI asks the instance for its parameters, and would call a plain function in a thread.
        vars(self)["__call__"] = self._pass
        vars(self)["__signature__"] = Signature([])

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
                f"async def health(request), not {endpoint!r}"
            )
        if hasattr(endpoint, "routes"):
            raise ConfigurationError(
                f"RateLimit.exempt: expected an endpoint, not {endpoint!r} with routes of its own; write "
                'Rule("/path/{rest:path}", exempt=True) for all that is below a path'
            )
        setattr(marked, EXEMPT, True)
        return endpoint

    async def _pass(self) -> None:
        """Do nothing: the gate finds the dependency at the route."""
