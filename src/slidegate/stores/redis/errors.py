"""The errors of a Redis store: what a server said, and what that concerns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from struct import error as StructError
from typing import Any, Final, ParamSpec, TypeVar

from ...core.errors import Concerns, SlidegateError, StoreError, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

CLOSED: Final = "redis: the store is closed, and answers nobody any more; make a new one"
SICK: Final = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM")
"""Errors after which another connection may lead to a server that is well, or one that has learnt the password."""
NONSENSE: Final = (TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, StructError)
"""What reading an answer raises that is none of ours."""
_OF_A_KEY: Final = "WRONGTYPE"
_OF_A_SLOT: Final = ("TRYAGAIN", "CLUSTERDOWN Hash slot", "MOVED", "ASK", "CROSSSLOT")
_MAX_SHOWN: Final = 300


def refusal(place: str, said: object) -> StoreUnavailable:
    """Return the error to raise for an error of a server.

    Args:
        place: What to call the server.
        said: Its words.
    """
    text = str(said)
    concerns: Concerns = "server"
    if _OF_A_KEY in text:  # a script may say more before it
        concerns = "key"
    elif text.startswith(_OF_A_SLOT):
        concerns = "slot"
    return StoreUnavailable(f"redis: {place}{': ' if place else ''}{text}", concerns=concerns)


def store_error(error: BaseException) -> StoreError:
    """Return any error as the StoreError that waiting tasks get."""
    return error if isinstance(error, StoreError) else StoreUnavailable(f"redis: {error!r}")


def unexpected(place: str, answer: object) -> StoreUnavailable:
    """Return the error for an answer that does not fit its command."""
    shown = repr(answer)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return StoreUnavailable(f"redis: {place or 'the server'} gave an answer that does not fit: {shown}")


async def unless_foreign(answer: Awaitable[T]) -> T | None:
    """Wait for an answer about a key; return None if a value of somebody else stands there."""
    try:
        return await answer
    except StoreUnavailable as error:
        if error.concerns != "key":
            raise
        return None


def sensible(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Raise a StoreUnavailable where what a server has answered cannot be read by a method, whatever that was."""

    @wraps(method)
    async def read(*args: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*args, **named)
        except SlidegateError:  # some of which are of these kinds, too
            raise
        except NONSENSE as error:
            raise StoreUnavailable(f"redis: an answer makes no sense: {error!r}") from error

    return read
