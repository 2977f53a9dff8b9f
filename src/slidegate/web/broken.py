"""Makes a server's start-up fail if a middleware cannot be constructed.

`add_middleware` only records a class and its options. The application constructs its middleware when the server calls
it for the first time, which is the lifespan call with most servers. A server takes an exception there to mean that the
application does not support lifespan: it starts anyway and answers every request with 500. Therefore a constructor that
fails while Starlette builds its middleware stack keeps its error. The middleware answers ``lifespan.startup.failed``
with it, so that the server stops and shows the message, and raises it at every request. Anywhere else the constructor
raises.

Starlette wraps its router in an `ExceptionMiddleware` before it constructs any other middleware. A constructor is
therefore called for a stack if there is one among the inner applications of its `app`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from .rebuilt import BuiltOnce
from .routes import layers

_P = ParamSpec("_P")


class FailsAtStartup(BuiltOnce):
    """A middleware that keeps the error of its constructor while Starlette builds its stack.

    In a chain of ``super().__init__`` calls the outermost constructor decides, which may be that of a user's subclass.

    Attributes:
        error: Why the construction failed, in which case only `app` is set besides; None if it succeeded.
    """

    error: Exception | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _keeping(vars(cls)["__init__"]))  # noqa: B010 - mypy refuses the assignment


async def fail_startup(error: Exception, scope: Scope, receive: Receive, send: Send) -> NoReturn:
    """Raise an error; in a lifespan, report it to the server as a failed start-up first.

    Starlette's own lifespan also raises after the report, and its test client waits forever if the application returns.
    """
    if scope["type"] == "lifespan":
        await receive()
        shown = f"{type(error).__name__}: {error}"
        if isinstance(error, ConfigurationError):
            shown = str(error)
        await send({"type": "lifespan.startup.failed", "message": shown})
    raise error.with_traceback(None)  # otherwise every request would lengthen the traceback


def _keeping(init: Callable[_P, None]) -> Callable[_P, None]:
    @wraps(init)
    def made(*args: _P.args, **options: _P.kwargs) -> None:
        try:
            init(*args, **options)
        except Exception as error:
            middleware: Any = args[0]
            app = options.get("app")
            if len(args) > 1:
                app = args[1]
            if type(middleware).__init__ is not made or not _is_in_stack(app):
                raise
            vars(middleware).clear()
            middleware.app = app  # outer constructors search the stack along it
            middleware.error = error

    return made


def _is_in_stack(app: object) -> bool:
    """Return whether Starlette is building the middleware stack of an application around `app`."""
    return any(isinstance(layer, ExceptionMiddleware) for layer in layers(app))
