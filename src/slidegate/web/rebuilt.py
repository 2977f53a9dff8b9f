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
        app = options.get("app")
        if args:
            app = args[0]
        stack = next((layer for layer in layers(app) if isinstance(layer, ExceptionMiddleware)), None)
        if stack is None:
            return super().__new__(cls)
        built = _built_around(router_of(stack))
        if built is None:
            return super().__new__(cls)
        built.enter(stack)
        given: dict[Any, object] = {**options, "app": None}
        given.update(enumerate(args[1:]))
        middleware: Self | None = built.again(cls, given)
        if middleware is None:
            middleware = super().__new__(cls)
        built.now.append(_Made(given, middleware))
        return middleware


class _Made(NamedTuple):
    """A middleware, and its options by place or name."""

    given: dict[Any, object]
    middleware: Any

    def is_again(self, kind: type, given: dict[Any, object]) -> bool:
        """Return whether it is complete, of this class, and has the same objects as options."""
        if not self.middleware.is_built or type(self.middleware) is not kind:
            return False
        if self.given.keys() != given.keys():
            return False
        return all(self.given[name] is given[name] for name in given)


class _Built:
    """The middlewares that were built around a router: in its newest stack, and in the one before."""

    def __init__(self) -> None:
        self._stack: object = None
        self._before: list[_Made] = []
        self.now: list[_Made] = []

    def __reduce__(self) -> tuple[type[_Built], tuple[()]]:
        return type(self), ()  # the copy of an application has middlewares of its own

    def enter(self, stack: object) -> None:
        """Begin a stack if it is another one than before; the newest one until then is the one before."""
        if stack is self._stack:
            return
        self._stack = stack
        self._before = self.now
        self.now = []

    def again(self, kind: type, given: dict[Any, object]) -> Any:
        """Remove the middleware with the same options from the stack before, and return it; None if there is none."""
        for place, made in enumerate(self._before):
            if made.is_again(kind, given):
                del self._before[place]
                return made.middleware
        return None


def _built_around(router: object) -> _Built | None:
    """Return what was built around a router; None if it cannot keep that."""
    attributes = getattr(router, "__dict__", None)
    if not isinstance(attributes, dict):
        return None
    built: _Built = attributes.setdefault(_ATTRIBUTE, _Built())
    return built
