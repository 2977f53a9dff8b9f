"""A middleware in the stack of an application: its error fails the server's start-up, and it outlives the stack.

`add_middleware` only records a class and its options. The application constructs its middlewares when the server calls
it for the first time, which is the lifespan call with most servers. A server takes an exception there to mean that the
application does not support lifespan: it starts anyway and answers every request with 500. Therefore a middleware whose
constructor fails in a stack keeps the error. It answers ``lifespan.startup.failed`` with it, so that the server stops
and shows the message, and raises it at every request. Anywhere else the constructor raises.

Starlette builds the stack again after ``app.middleware_stack = None``, or when an agent instruments a running
application. Each time it calls the class of every middleware with the same objects as options. A second middleware
would count anew, or under the names of the first one. So the same options of the same application are the same
middleware: only what it guards is set anew. The application's router keeps its middlewares, from the inside out as they
are built: two with the same options are two in each stack.

Starlette wraps its router in an `ExceptionMiddleware` before it constructs any other middleware. A middleware is
therefore in a stack if there is one among the inner applications of its `app`.
"""

from __future__ import annotations

from abc import ABCMeta
from inspect import Signature, signature
from types import MethodType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Receive, Scope, Send

from ..core.errors import ConfigurationError
from .routes import layers, router_of

_T = TypeVar("_T")

_ATTRIBUTE: Final = "_slidegate_built"


class _InStack(ABCMeta):  # so that abstract classes may be mixed in
    """Constructs a middleware in the stack of an application."""

    @property
    def __signature__(cls) -> Signature:
        """The arguments of the constructor, as of any class."""
        return signature(MethodType(cls.__init__, cls))  # type: ignore[misc]

    def __call__(cls: type[_T], *args: Any, **options: Any) -> _T:
        """Return a new middleware, or the one that the stack before has for the same options."""
        app = options.get("app")
        if args:
            app = args[0]
        stack = next((layer for layer in layers(app) if isinstance(layer, ExceptionMiddleware)), None)
        if stack is None:
            return cast(_T, type.__call__(cls, *args, **options))
        others: dict[Any, object] = {**options, "app": None}
        others.update(enumerate(args[1:]))
        middleware: Any = _stacks_of(router_of(stack)).middleware(stack, cls, others)
        try:
            middleware.__init__(*args, **options)
        except Exception as error:
            vars(middleware).clear()
            middleware.app = app  # the middlewares around it search the stack along it
            middleware.error = error
        return cast(_T, middleware)


class FailsAtStartup(metaclass=_InStack):
    """A middleware that keeps the error of its constructor, and is the same one in the next stack of its application.

    Attributes:
        error: Why the construction failed, in which case only `app` is set besides; None if it succeeded.
        is_built: Whether the constructor has succeeded. Called again, it only sets what the middleware guards.
    """

    error: Exception | None = None
    is_built = False


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


class _Entry(NamedTuple):
    """A middleware, and its options by place or name."""

    options: dict[Any, object]
    middleware: Any


class _Stacks:
    """The middlewares around a router: in its newest stack, and in the one before."""

    def __init__(self) -> None:
        self._stack: object = None
        self._before: list[_Entry] = []
        self.now: list[_Entry] = []

    def __reduce__(self) -> tuple[type[_Stacks], tuple[()]]:
        return type(self), ()  # the copy of an application has middlewares of its own

    def middleware(self, stack: object, kind: Any, options: dict[Any, object]) -> Any:
        """Return the middleware of a stack with some options: that of the stack before, or one to be constructed."""
        if stack is not self._stack:
            self._stack, self._before, self.now = stack, self.now, []
        middleware: Any = kind.__new__(kind)
        for place, entry in enumerate(self._before):
            if type(entry.middleware) is kind and entry.middleware.is_built and entry.options == options:
                middleware = entry.middleware
                del self._before[place]
                break
        self.now.append(_Entry(options, middleware))
        return middleware


def _stacks_of(router: Any) -> _Stacks:
    """Return the stacks around a router; new ones if it cannot keep them."""
    try:
        stacks: _Stacks = vars(router).setdefault(_ATTRIBUTE, _Stacks())
    except TypeError:
        return _Stacks()
    return stacks
