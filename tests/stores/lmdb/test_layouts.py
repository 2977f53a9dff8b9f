"""Files that two versions of the layout write to: nobody misreads a row, and the older one leaves the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate.core import Bucket, parse_limits
from slidegate.core.errors import StoreUnavailable
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.files.layout import SCHEMA_VERSION
from slidegate.testing import FakeClock, RecordingObserver

HOUR_US = 3_600_000_000
SMALL: dict[str, Any] = {"map_size": 1 << 20}
DATABASES = (*("meta", "bans", "changes", "history", "windows", "cells", "ends", "standings", "struck", "policies"),)
TIMES, COUNTS = Bucket("rule", parse_limits("5/hour")), Bucket("rule", parse_limits("500/hour"))


def opened(path: Path, **options: Any) -> tuple[LmdbStore, RecordingObserver]:
    heard = RecordingObserver()
    store = LmdbStore(path, **SMALL, **options)
    store.observe(heard)
    return store, heard


def rows_of(path: Path) -> dict[str, dict[bytes, bytes]]:
    with lmdb.open(str(path), max_dbs=16, readonly=True) as env:
        dbs = {name: env.open_db(name.encode(), create=False) for name in DATABASES}
        with env.begin() as txn:
            return {name: {bytes(row): bytes(value) for row, value in txn.cursor(db)} for name, db in dbs.items()}


def put(path: Path, rows: dict[str, dict[bytes, bytes]]) -> None:
    with lmdb.open(str(path), max_dbs=16) as env:
        dbs = {name: env.open_db(name.encode()) for name in rows}
        with env.begin(write=True) as txn:
            for name, some in rows.items():
                for row, value in some.items():
                    txn.put(row, value, db=dbs[name])


def test_who_runs_while_a_newer_slidegate_takes_the_file_over_leaves_it(tmp_path: Path) -> None:
    path, clock = tmp_path / "lmdb", FakeClock()
    store, _ = opened(path, clock=clock)
    asked = ((TIMES, "user:ann", 1),)
    store.hit(asked)
    newer = bytes([SCHEMA_VERSION + 1, 254 - SCHEMA_VERSION])
    txn = store._env.begin()
    txn.put(b"schema", newer, db=store._env.dbs.meta)
    store._env.commit(txn)
    clock.advance("2s")
    store.hit(asked)  # about once a second it looks
    with pytest.raises(StoreUnavailable, match=f"layout version {SCHEMA_VERSION + 1}, .*upgrade slidegate"):
        store.hit(asked)
    store.close()
    assert rows_of(path)["meta"][b"schema"] == newer


@pytest.mark.parametrize("seed", range(12))
def test_no_row_of_another_version_is_misread(tmp_path: Path, seed: int) -> None:
    """Any bytes may follow another version's mark, in any row: the key counts afresh, and nothing fails."""
    chance, clock, path = random.Random(seed), FakeClock(), tmp_path / "lmdb"
    store, _ = opened(path, clock=clock, max_keys=2)
    bucket = chance.choice((TIMES, COUNTS))
    booked = Bucket("rule", bucket.limits, wait_us=HOUR_US)
    keys = [f"user:{number}" for number in range(4)]  # two in windows of their own, two in cells
    for key in keys:
        for _ in range(chance.randrange(1, 7)):
            store.hit(((chance.choice((bucket, booked)), key, 1),))
    store.close()
    rows = rows_of(path)
    versions = [version for version in range(256) if version != next(iter(rows["windows"].values()))[0]]
    foreign = {
        name: {row: bytes([chance.choice(versions)]) + chance.randbytes(chance.randrange(60)) for row in rows[name]}
        for name in ("windows", "cells")
    }
    put(path, foreign)
    store, heard = opened(path, clock=clock, max_keys=8)
    for number, key in enumerate(keys):
        hit = store.hit(((bucket, key, 1),))
        assert hit.remaining == bucket.limits[0].amount - 1, f"seed {seed}: {number}: {foreign}"  # type: ignore[union-attr]
    clock.advance("3h")
    store.hit(((bucket, "user:later", 1),))  # looks at the rows whose time has come
    assert store.stats().keys == 1, f"seed {seed}"
    assert heard.kinds == []
    store.close()
