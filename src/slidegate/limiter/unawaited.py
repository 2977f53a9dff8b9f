"""What a question to the `Limiter` returns before it is awaited: a coroutine without a truth value.

A coroutine is true. ``if not limiter.hit(...)`` would admit every request, and ``if limiter.banned(...)`` refuse each.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, TypeVar

from ..core.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")


class Unawaited(Coroutine[Any, Any, T]):
    """A coroutine that raises where it is used as its result.

    Args:
        work: The coroutine.
        call: The call that has returned it, for messages.
    """

    __slots__ = ("_call", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], call: str) -> None:
        self._work = work
        self._call = call

    def __bool__(self) -> NoReturn:
        """Raise, because nothing is decided yet.

        Raises:
            ConfigurationError: Always.
        """
        self._work.close()  # else Python warns of it, too
        raise ConfigurationError(f"{self._call} was not awaited, and is no answer yet; write await {self._call}")

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the coroutine.

        Raises:
            AttributeError: It has none of that name; its result may have one.
        """
        if hasattr(self._work, name):
            return getattr(self._work, name)
        raise AttributeError(
            f"{self._call} was not awaited, and has no {name!r} yet; write (await {self._call}).{name}",
            name=name,
            obj=self,
        )

    def __reduce__(self) -> NoReturn:
        """Raise, because no coroutine can be copied.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"{self._call} was not awaited, and no copy of it can be made; write await {self._call}")

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """See `Coroutine.send`."""
        return self._work.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None) -> Any:
        """See `Coroutine.throw`."""
        if value is None and traceback is None:
            return self._work.throw(kind)
        return self._work.throw(kind, value, traceback)

    def close(self) -> None:
        """See `Coroutine.close`."""
        self._work.close()


def must_be_awaited(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a method of the `Limiter` whose result raises where it is used before it is awaited."""
    call = f"limiter.{method.__name__}(...)"

    @wraps(method)
    def asked(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return Unawaited(method(*args, **options), call)

    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(asked)
    setattr(asked, "_is_coroutine", vars(asyncio.coroutines)["_is_coroutine"])  # noqa: B010 - the same, for asyncio
    return asked
