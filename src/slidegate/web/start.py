"""The start of an application: an error of a middleware in its stack fails it, and so do names that do not fit.

`add_middleware` only records a class and its options. The application constructs its middlewares when the server calls
it for the first time, which is the lifespan call with most servers. A server takes an exception there to mean that the
application does not support lifespan: it starts anyway and answers every request with 500. Therefore a middleware whose
constructor fails in a stack keeps the error. It answers ``lifespan.startup.failed`` with it, so that the server stops
and shows the message, and raises it at every request. Anywhere else the constructor raises.

Starlette builds the stack again after ``app.middleware_stack = None``, or when an agent instruments a running
application. The limits without a name belong to the application, so a limiter that outlives the stack goes on counting.

Starlette wraps its router in an `ExceptionMiddleware` before it constructs any other middleware. A middleware is
therefore in a stack if there is one among the inner applications of its `app`.

The names of the limits of one application are compared as it starts: counts belong to names. What is met only later,
such as limits behind a class or in an application of another framework, is compared at its first request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import chain, combinations
from typing import Any, NoReturn, ParamSpec

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from .endpoints import rules_of_route
from .policy import Policy
from .routes import MountedRoute, attribute_of, layers, router_of, walk

_P = ParamSpec("_P")


class FailsAtStartup:
    """A middleware that keeps the error of its constructor in a stack.

    Attributes:
        error: Why the construction failed, in which case only `app` is set besides; None if it succeeded.
    """

    error: Exception | None = None

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls):
            cls.__init__ = _keeping_error(cls.__init__)  # type: ignore[method-assign]


def _keeping_error(init: Callable[_P, None]) -> Callable[_P, None]:
    """Wrap a constructor: in a stack, the middleware keeps the error."""

    @wraps(init)
    def construct(*args: _P.args, **options: _P.kwargs) -> None:
        try:
            init(*args, **options)
        except Exception as error:
            middleware: Any = args[0]
            app = options.get("app")
            if len(args) > 1:
                app = args[1]
            is_outermost = type(middleware).__init__ is construct  # and not that of a subclass
            if not is_outermost or not is_in_stack(app):
                raise
            vars(middleware).clear()
            middleware.app = app  # the middlewares around it search the stack along it
            middleware.error = error

    return construct


def is_in_stack(app: object) -> bool:
    """Return whether a middleware around `app` is one of an application's stack."""
    return any(isinstance(layer, ExceptionMiddleware) for layer in layers(app))


class Stack:
    """The stack of an application, which owns the limits without a name of the middlewares there."""


def stack_of(app: object) -> Stack:
    """Return the stack of a middleware around `app`: a new one, or the one of all in the stack of its application."""
    if not is_in_stack(app):
        return Stack()
    return getattr(router_of(app), "__dict__", {}).setdefault("_slidegate_stack", Stack())  # type: ignore[no-any-return]


async def fail_startup(error: Exception, scope: Scope, receive: Receive, send: Send) -> NoReturn:
    """Raise an error; in a lifespan, report it to the server as a failed start-up first.

    Starlette's own lifespan also raises after the report, and its test client waits forever if the application returns.
    """
    if scope["type"] == "lifespan":
        await receive()
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, ConfigurationError):
            text = str(error)
        await send({"type": "lifespan.startup.failed", "message": text})
    raise error.with_traceback(None)  # otherwise every request would lengthen the traceback


# -- the names of limits -----------------------------------------------------------------------------------------------


def compare_names(policy: Policy, app: object) -> None:
    """Compare the names of the limits of a middleware and of everything within.

    Args:
        policy: The policy of the middleware.
        app: The application.

    Raises:
        ConfigurationError: Two limits without a name that one request can meet would be one, or one name has different
            limits; or a middleware cannot be built.
    """
    policies: dict[int, list[Policy]] = {}  # by the identity of an application
    for route, above, inside in chain([(app, "", ())], walk(app)):
        around = [policy]
        # Around a route are the middlewares of the application, those of each mount, and its own.
        for within in (app, *inside, attribute_of(route, "app")):
            if id(within) not in policies:
                policies[id(within)] = _policies_in(within)
            around += policies[id(within)]
        for outer, inner in combinations(around, 2):
            both = outer.names.unnamed & inner.names.unnamed
            if both and outer.limiter is inner.limiter and outer is not inner:
                raise ConfigurationError(
                    f"two middlewares around each other have limits without a name, {min(both)!r}, on one limiter, "
                    'which would count as one; give one another name: RateLimitMiddleware(..., name="inner")'
                )
        mounted = MountedRoute(route, above)
        for rule in rules_of_route(mounted):
            if rule.name is None:  # each endpoint has its own
                continue
            rule.where = f"RateLimit at {mounted.label}"
            problem = around[-1].rules.other_limits(rule)
            if problem:
                raise ConfigurationError(problem)


def _policies_in(app: object) -> list[Policy]:
    """Return the policies of the middlewares around the routes of an application, from the outside in."""
    middlewares: list[Any] = []
    for layer in layers(app):
        stack = attribute_of(layer, "middleware_stack")
        middlewares += layer, *layers(stack)
        if stack is None:  # Starlette builds it at the first request; only a constructor knows the limits of a subclass
            for added in attribute_of(layer, "user_middleware", ()):
                if FailsAtStartup in attribute_of(added.cls, "__mro__", ()) and added.kwargs.get("enabled", True):
                    middlewares += layers(added.cls(layer, *added.args, **added.kwargs))
    ours: list[Any] = [middleware for middleware in middlewares if isinstance(middleware, FailsAtStartup)]
    return [middleware.policy for middleware in ours if attribute_of(middleware, "is_enabled")]
