"""A value that a connection holds for long and that is made of digests, which can change: see `Internals.spelling`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.types import Scope

from ...limiter import Limiter

T = TypeVar("T")


class Held(Generic[T]):
    """Something made of a scope as it is now, and made again of that one when digests change.

    Args:
        limiter: The limiter that makes the digests.
        scope: The scope.
        make: Makes it.
    """

    def __init__(self, limiter: Limiter, scope: Scope, make: Callable[[Scope], T]) -> None:
        self._limiter = limiter
        self._make = make
        # Routers alter a scope further in. Where digests never change, nobody needs it again.
        self._scope = scope if limiter.internals.per_process else dict(scope)
        self._spelling = limiter.internals.spelling
        self._value = make(scope)

    def __call__(self) -> T:
        """Return the value, made anew if digests have changed."""
        spelling = self._limiter.internals.spelling
        if spelling is not self._spelling:
            self._spelling = spelling
            self._value = self._make(self._scope)
        return self._value
