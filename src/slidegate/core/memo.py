"""Remembering answers in bounded memory."""

from __future__ import annotations

from typing import Final, TypeVar

MEMO_SIZE: Final = 4_096

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(memo: dict[_K, _V], asked: _K, answer: _V, most: int = MEMO_SIZE) -> _V:
    """Put an answer into a memo, which is emptied first when it is full, and return the answer.

    Emptying costs nothing for an ordinary load, and no more than working everything out again under a flood.
    """
    if len(memo) >= most:
        memo.clear()
    memo[asked] = answer
    return answer
