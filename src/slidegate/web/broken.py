"""A middleware that cannot be made ends the start of the server.

`add_middleware` only records a class and its options. The application makes its middleware when the server calls
it for the first time, and with most servers that call is the lifespan. An exception in it tells a server that the
application knows no lifespan: it goes on without, and answers 500 to everything. So in the stack that Starlette is just
building, a constructor that fails keeps its error: the middleware answers ``lifespan.startup.failed`` with it, at which
every server ends its start and shows the message, and raises it at every request. Anywhere else the constructor raises.

That stack is told by what the constructor is given: Starlette puts an `ExceptionMiddleware` around its router before it
makes any middleware, so one lies along `app` of what is further in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from .routes import layers

_P = ParamSpec("_P")
_M = TypeVar("_M")


class FailsAtStartup:
    """A middleware that keeps the error of its constructor where Starlette is building its stack.

    Of nested constructors of one object the outermost decides, that of the user's own class.

    Attributes:
        error: Why the middleware could not be made; nothing else of it is there then. None if it could.
    """

    error: Exception | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            setattr(cls, "__init__", _keeping(vars(cls)["__init__"]))  # noqa: B010 - mypy refuses the assignment


def whole(middleware: _M) -> _M:
    """Return a middleware that was made within another, which stands for it.

    Raises:
        Exception: It could not be made.
    """
    error = getattr(middleware, "error", None)
    if error is not None:
        raise error
    return middleware


async def end_start(error: Exception, scope: Scope, receive: Receive, send: Send) -> NoReturn:
    """Raise an error; tell it to the server first, if the server asks for the start.

    Starlette's own lifespan raises after it has said so, too, and its test client waits for ever where one returns.
    """
    if scope["type"] == "lifespan":
        await receive()
        shown = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        await send({"type": "lifespan.startup.failed", "message": shown})
    raise error.with_traceback(None)  # or each request would make it longer


def _keeping(init: Callable[_P, None]) -> Callable[_P, None]:
    @wraps(init)
    def made(*args: _P.args, **options: _P.kwargs) -> None:
        try:
            init(*args, **options)
        except Exception as error:
            middleware: Any = args[0]
            app = args[1] if len(args) > 1 else options.get("app")
            if type(middleware).__init__ is not made or not _is_in_stack(app):
                raise
            vars(middleware).clear()
            middleware.app, middleware.error = app, error  # whoever stands further out looks for the stack too

    return made


def _is_in_stack(app: object) -> bool:
    """Return whether Starlette is building the stack of an application around this."""
    return any(isinstance(layer, ExceptionMiddleware) for layer in layers(app))
