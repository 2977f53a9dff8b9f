"""A question of a memory store, which caches its shard and the locations of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.decide import WindowRef
from ...core.question import Question
from .shard import Shard, Shards


@final
class MemoryQuestion(Question):
    """A question with its shard and the dicts of its windows.

    It refers to the dicts of tables, which are cleared but never replaced, so it keeps no swept or reset windows alive.

    Args:
        checks: The checks.
        subjects: Further keys and addresses whose bans refuse it.
        shard: The shard of its keys, or several.

    Attributes:
        shard: The argument.
        refs: The locations of its windows. Like `version`, read and written only under the shard's lock.
        version: The version of the shard for which `refs` is valid; -1 for none, as with shared cells among them.
    """

    __slots__ = ("refs", "shard", "version")

    def __init__(self, checks: Sequence[Check], subjects: Sequence[BanSubject], shard: Shard | Shards) -> None:
        super().__init__(checks, subjects)
        self.shard = shard
        self.refs: Sequence[WindowRef] = ()
        self.version = -1
