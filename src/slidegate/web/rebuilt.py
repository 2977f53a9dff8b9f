"""Keeps a middleware where an application builds its stack again.

Starlette builds the stack of an application for its first request, and again after ``app.middleware_stack = None`` or
when an agent instruments a running application. Each time it calls the class of every middleware with the same objects
as options. A second middleware would count anew, or under the names of the first one. So the same options of the same
application are the same middleware: only what it guards is set anew.

Its router keeps the middlewares of an application, from the inside out as they are built: two with the same options are
two in each stack.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

from starlette.middleware.exceptions import ExceptionMiddleware

from .routes import layers, router_of

_ATTRIBUTE: Final = "_slidegate_built"


class BuiltOnce:
    """A middleware that is the same one in the next stack of its application.

    Attributes:
        is_built: Whether the constructor has succeeded. Called again, it only sets what the middleware guards.
    """

    is_built = False

    def __new__(cls, *args: object, **options: object) -> Self:
        app = args[0] if args else options.get("app")
        stack = next((layer for layer in layers(app) if isinstance(layer, ExceptionMiddleware)), None)
        built = None if stack is None else _built_around(router_of(stack))
        if built is None:
            return super().__new__(cls)
        given: dict[Any, object] = {**options, "app": None}
        given.update(enumerate(args[1:]))
        middleware: Self = built.again(stack, cls, given) or super().__new__(cls)
        built.now.append(_Made(given, middleware))
        return middleware


class _Made(NamedTuple):
    """A middleware, and its options by place or name."""

    given: dict[Any, object]
    middleware: Any


class _Built:
    """The middlewares that were built around a router: in its newest stack, and in the one before."""

    def __init__(self) -> None:
        self._stack: object = None
        self._before: list[_Made] = []
        self.now: list[_Made] = []

    def __reduce__(self) -> tuple[type[_Built], tuple[()]]:
        return type(self), ()  # the copy of an application has middlewares of its own

    def again(self, stack: object, kind: type, given: dict[Any, object]) -> Any:
        """Return the middleware of the stack before with the same options, once; None if there is none."""
        if stack is not self._stack:
            self._stack, self._before, self.now = stack, self.now, []
        for place, (options, middleware) in enumerate(self._before):
            is_same = type(middleware) is kind and options.keys() == given.keys()
            if is_same and middleware.is_built and all(options[name] is given[name] for name in options):
                del self._before[place]
                return middleware
        return None


def _built_around(router: object) -> _Built | None:
    """Return what was built around a router; None if it cannot keep that."""
    attributes = getattr(router, "__dict__", None)
    return attributes.setdefault(_ATTRIBUTE, _Built()) if isinstance(attributes, dict) else None
