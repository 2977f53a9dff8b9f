"""What a store may offer besides what every store does: who offers it, and that a limiter takes it up."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from pathlib import Path

import pytest

from slidegate import Limiter, MemoryStore
from slidegate.core import (
    AnswersThreads,
    Check,
    CountsBans,
    Decision,
    HasParts,
    KeepsDeadline,
    KeepsFigures,
    ListsBans,
    Store,
)
from slidegate.core.bans.in_force import Guarded
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

OPTIONAL = (AnswersThreads, CountsBans, HasParts, KeepsDeadline, KeepsFigures, ListsBans)


def offered(store: Store) -> set[type]:
    """Return which of the optional protocols a store or its bans have, and see that they take the same arguments."""
    found = {protocol for protocol in OPTIONAL for seam in (store, store.bans) if isinstance(seam, protocol)}
    for protocol in found:
        for name, wanted in vars(protocol).items():
            seam = store if hasattr(store, name) else store.bans
            if not name.startswith("_") and inspect.isfunction(wanted):
                given = list(inspect.signature(getattr(seam, name)).parameters)
                assert given == list(inspect.signature(wanted).parameters)[1:], name
    return found


async def test_each_store_offers_what_it_can_do(tmp_path: Path) -> None:
    lmdb, redis = LmdbStore(tmp_path / "lmdb"), RedisStore("redis://127.0.0.1:1")
    # Assigned by type, so that mypy compares the signatures as well.
    keeps: KeepsDeadline = lmdb
    answers: AnswersThreads = lmdb
    parts: HasParts = redis
    lists: ListsBans = redis.bans
    counting: list[CountsBans] = [MemoryStore().bans, lmdb.bans, redis.bans]
    try:
        assert offered(MemoryStore()) == {CountsBans}
        assert offered(lmdb) == {AnswersThreads, CountsBans, KeepsDeadline, KeepsFigures}
        assert offered(redis) == {CountsBans, HasParts, KeepsFigures, ListsBans}
        assert keeps.keep_deadline(30.0) is True
        assert answers.answers_threads() is True
        assert parts.part_of(()) is None
        assert lists.judge((), ()) is None
        assert [book.count() for book in counting] == [0, 0, 0]
    finally:
        lmdb.close()
        await redis.close()


class OneServer(MemoryStore):
    """A store that fails."""

    promised_s = 0.0

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        raise OSError("gone")


class TwoServers(OneServer):
    """One that has parts and keeps its deadline."""

    def part_of(self, checks: Sequence[Check]) -> Hashable:
        return "left" if checks else "right"

    def keep_deadline(self, deadline_s: float) -> bool:
        self.promised_s = deadline_s
        return True


@pytest.mark.parametrize(("kind", "where", "promised_s"), [(OneServer, "", 0.0), (TwoServers, " at left", 0.07)])
async def test_a_limiter_takes_up_what_a_store_offers(
    kind: type[OneServer], where: str, promised_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, heard = kind(), RecordingObserver()
    monkeypatch.setattr("slidegate.limiter.internals.MemoryStore", str)  # these stand for stores elsewhere
    limiter = Limiter(store, deadline="70ms", on_error="deny", observers=[heard])
    assert not await limiter.hit("ann", "5/minute")
    assert heard.events[0].message.startswith(f"the store failed{where},")
    assert store.promised_s == promised_s
