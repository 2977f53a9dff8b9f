"""Remembering answers in bounded memory.

A question is often a text that a client chose, as long as the server lets it be, so a memo is bounded in bytes and not
only in entries: a question that weighs more than `MEMO_BYTES` is answered anew each time. That way a memo weighs at
most `MEMO_SIZE` times `MEMO_BYTES`, 4 MiB, and what the answers weigh.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Final, TypeVar

MEMO_SIZE: Final = 4_096
MEMO_BYTES: Final = 1_024
"""What the texts of one question may weigh; any address, key and ordinary path is far lighter."""
MAX_PATHS: Final = 16_384
"""How many paths of requests are remembered: there are more of them than of anything else."""
PATH_BYTES: Final = 512
"""What a path that is remembered may weigh, with the type, the method and the root of its request."""

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(
    memo: dict[_K, _V], question: _K, answer: _V, max_size: int = MEMO_SIZE, max_bytes: int = MEMO_BYTES
) -> _V:
    """Put an answer into a memo, which is emptied first when it is full, and return the answer.

    Emptying costs nothing for an ordinary load, and no more than working everything out again under a flood.
    """
    if text_bytes(question) <= max_bytes:
        if len(memo) >= max_size:
            memo.clear()
        memo[question] = answer
    return answer


def text_bytes(question: object) -> int:
    """Return what the texts in a question weigh, in bytes of memory."""
    if isinstance(question, (str, bytes)):
        return getsizeof(question)
    return sum(map(text_bytes, question)) if isinstance(question, tuple) else 0
