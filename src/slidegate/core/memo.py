"""Memoization in bounded memory.

A memo is bounded in bytes and not only in entries, because its keys often contain text chosen by a client. A key of
more than `MEMO_BYTES` is not stored, and its answer is computed each time. So the keys of a memo take at most
`MEMO_SIZE` times `MEMO_BYTES`, which is 4 MiB.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Final, TypeVar

MEMO_SIZE: Final = 4_096
MEMO_BYTES: Final = 1_024
"""The most bytes of the texts in one memo key; addresses, client keys and ordinary paths are far smaller."""
MAX_PATHS: Final = 16_384
"""How many request paths are memoized; there are more of them than of other texts."""
PATH_BYTES: Final = 512
"""The most bytes of a memoized path, with the type, method and root path of its request."""

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(
    memo: dict[_K, _V], question: _K, answer: _V, max_size: int = MEMO_SIZE, max_bytes: int = MEMO_BYTES
) -> _V:
    """Store an answer in a memo, after clearing the memo if it is full, and return the answer.

    Clearing is rare under ordinary load; under a flood it costs no more than computing every answer again.
    """
    if text_bytes(question) <= max_bytes:
        if len(memo) >= max_size:
            memo.clear()
        memo[question] = answer
    return answer


def text_bytes(question: object) -> int:
    """Return the memory that the texts in a memo key take, in bytes."""
    if isinstance(question, (str, bytes)):
        return getsizeof(question)
    return sum(map(text_bytes, question)) if isinstance(question, tuple) else 0
