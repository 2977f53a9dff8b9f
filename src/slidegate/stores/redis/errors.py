"""The errors of a Redis store: which one to raise for an error of redis-py, and what it concerns."""

from __future__ import annotations

from typing import Final

from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core.errors import Concerns, StoreError, StoreTimeout, StoreUnavailable, quoted

CLOSED: Final = "redis: the store is closed; create a new one"
_SIGNS: Final[dict[Concerns, tuple[str, ...]]] = {
    "request": ("WRONGTYPE", "data string too short"),
    "writes": ("OOM ", "READONLY ", "MISCONF ", "NOREPLICAS "),
}
"""What is in an error about another program's value, or a damaged one, at a key; and in those of a server that is full,
a replica, cannot save, or lacks replicas.
"""


def refusal(text: str) -> StoreUnavailable:
    """Return the exception for what Redis says instead of an answer."""
    return StoreUnavailable(f"redis: {text}", concerns=_concern_of(text))


def _concern_of(text: str) -> Concerns:
    """Return what an error is about, by the signs in its text; any other one is about the server."""
    for concern, signs in _SIGNS.items():
        if any(sign in text for sign in signs):
            return concern
    return "server"


def store_error(error: BaseException) -> StoreError:
    """Return an exception, of redis-py or of parsing an answer, as one that waiting tasks raise."""
    if isinstance(error, StoreError):
        return error
    text = f"{type(error).__name__}: {error}"
    is_late = isinstance(error, (TimeoutError, RedisTimeoutError))
    failed: StoreError = StoreTimeout(f"redis: {text}") if is_late else refusal(text)
    failed.__cause__ = error
    return failed


def unexpected(answer: object, concerns: Concerns = "server") -> StoreUnavailable:
    """Return the error for an answer that has the wrong shape for its command."""
    return StoreUnavailable(f"redis: the server sent an unexpected answer: {quoted(answer)}", concerns=concerns)
