"""A middleware in the stack of an application, whose error fails the server's start-up.

`add_middleware` only records a class and its options. The application constructs its middlewares when the server calls
it for the first time, which is the lifespan call with most servers. A server takes an exception there to mean that the
application does not support lifespan: it starts anyway and answers every request with 500. Therefore a middleware whose
constructor fails in a stack keeps the error. It answers ``lifespan.startup.failed`` with it, so that the server stops
and shows the message, and raises it at every request. Anywhere else the constructor raises.

Starlette builds the stack again after ``app.middleware_stack = None``, or when an agent instruments a running
application. The limits without a name belong to the application, so a limiter that outlives the stack goes on counting.

Starlette wraps its router in an `ExceptionMiddleware` before it constructs any other middleware. A middleware is
therefore in a stack if there is one among the inner applications of its `app`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from .routes import layers, router_of

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
    """Return the stack of a middleware around `app`: a new one, or if it is in one, that of each next one."""
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
