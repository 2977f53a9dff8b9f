"""Memoization in bounded memory.

A memo is bounded in bytes and not only in entries, because its keys often contain text chosen by a client. A key of
more than `MEMO_BYTES` of text is not stored, and its answer is computed each time. If a key is larger by our own
objects, such as rules, which clients do not choose, fewer of its kind are stored. So the keys of a memo take at most
`MEMO_SIZE` times `MEMO_BYTES`, which is 4 MiB; four times that for a memo of size `MANY`. A full memo gives up its
oldest entries, a few at a time: emptying it would take milliseconds at once.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from sys import getsizeof
from typing import Final, TypeVar

MEMO_SIZE: Final = 4_096
MEMO_BYTES: Final = 1_024
"""The most bytes of text in one memo key; addresses, client keys and ordinary paths are far smaller."""
MANY: Final = 16_384
"""How many paths, clients and keys of requests are memoized; a busy site has more of them than of anything else."""
PATH_BYTES: Final = 512
"""The most bytes of a memoized path."""

_PARTS: Final = 64
"""In how many steps the entries of a full memo are replaced."""

_K = TypeVar("_K")
_V = TypeVar("_V")


def remember(memo: dict[_K, _V], key: _K, value: _V, max_size: int = MEMO_SIZE, max_bytes: int = MEMO_BYTES) -> _V:
    """Store a value in a memo, in place of the oldest ones if the memo is full, and return the value.

    Args:
        key: A text, or a tuple of texts and objects.
        max_size: The most entries of the memo; fewer if keys have more than `max_bytes`.
        max_bytes: The most bytes of text in the key; one with more is not stored.
    """
    size = key_bytes(key)
    if size > max_bytes:
        if not isinstance(key, tuple):
            return value
        texts = [part for part in key if isinstance(part, (str, bytes))]
        if sum(map(getsizeof, texts)) > max_bytes:
            return value
        max_size = max_size * max_bytes // size
    if len(memo) >= max_size:
        # A few more than too many go: one alone would be searched for among those that were removed before.
        too_many = len(memo) - max_size + 1
        with suppress(RuntimeError):  # another thread has changed the memo, without a lock of the interpreter
            for oldest in list(islice(memo, too_many + max_size // _PARTS)):
                memo.pop(oldest, None)
    memo[key] = value
    return value


def key_bytes(key: object) -> int:
    """Return the memory that a memo key takes with its elements, in bytes; not what these refer to in turn."""
    if isinstance(key, tuple):
        return sum(map(getsizeof, key))
    return getsizeof(key)
