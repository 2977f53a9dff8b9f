"""The errors of a Redis store: which error to raise for a server's reply, and whether it concerns a key or a slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from struct import error as StructError
from typing import Any, Final, ParamSpec, TypeVar

from ...core.errors import Concerns, SlidegateError, StoreError, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

CLOSED: Final = "redis: the store is closed; create a new one"
SICK: Final = ("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "NOPERM")
"""Errors after which a new connection may reach a healthy server, or one that accepts the credentials."""
NONSENSE: Final = (TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError, StructError)
"""Exceptions of parsing a malformed answer."""
_OF_A_KEY: Final = "WRONGTYPE"
_OF_A_SLOT: Final = ("TRYAGAIN", "CLUSTERDOWN Hash slot", "MOVED", "ASK", "CROSSSLOT")
_MAX_SHOWN: Final = 300


def refusal(server: str, reply: object) -> StoreUnavailable:
    """Return the exception for an error reply of a server.

    Args:
        server: The server's name for the message.
        reply: The error reply.
    """
    text = str(reply)
    concerns: Concerns = "server"
    if _OF_A_KEY in text:  # a script may put text before it
        concerns = "key"
    elif text.startswith(_OF_A_SLOT):
        concerns = "slot"
    return StoreUnavailable(f"redis: {server}{': ' if server else ''}{text}", concerns=concerns)


def store_error(error: BaseException) -> StoreError:
    """Return an exception as a StoreError, which waiting tasks raise."""
    return error if isinstance(error, StoreError) else StoreUnavailable(f"redis: {error!r}")


def unexpected(server: str, answer: object) -> StoreUnavailable:
    """Return the error for an answer that has the wrong shape for its command."""
    shown = repr(answer)
    shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
    return StoreUnavailable(f"redis: {server or 'the server'} sent an unexpected answer: {shown}")


async def unless_foreign(answer: Awaitable[T]) -> T | None:
    """Wait for an answer about a key; return None if another program's value is stored there."""
    try:
        return await answer
    except StoreUnavailable as error:
        if error.concerns != "key":
            raise
        return None


def sensible(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a method to raise StoreUnavailable if it cannot parse a server's answer."""

    @wraps(method)
    async def read(*args: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*args, **named)
        except SlidegateError:  # ConfigurationError is also a ValueError
            raise
        except NONSENSE as error:
            raise StoreUnavailable(f"redis: an answer cannot be parsed: {error!r}") from error

    return read
