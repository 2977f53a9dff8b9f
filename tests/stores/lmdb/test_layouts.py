"""Files whose rows another version of the layout wrote: none of them is misread, and bans, strikes and rungs stay."""

from __future__ import annotations

import os
import random
import sys
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Any

import lmdb
import pytest

from slidegate import BanPolicy
from slidegate.core import Bucket, parse_limits
from slidegate.core.errors import StoreUnavailable
from slidegate.core.windows.codec import pack_window
from slidegate.core.windows.rings import new_window
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.files.layout import SCHEMA_VERSION
from slidegate.testing import FakeClock, RecordingObserver
from tests.stores.lmdb.test_store import fork

HOUR_US = 3_600_000_000
SMALL: dict[str, Any] = {"map_size": 1 << 20}
POLICY = BanPolicy("3/hour", "1h")
DATABASES = (*("meta", "bans", "changes", "history", "windows", "cells", "ends", "standings", "struck", "policies"),)
TIMES, COUNTS = Bucket("rule", parse_limits("5/hour")), Bucket("rule", parse_limits("500/hour"))
HEAD_OF_LAYOUT_1 = Struct("=BIq")  # version, serial, expiry
SERIAL = slice(1, 5)


def opened(path: Path, **options: Any) -> tuple[LmdbStore, RecordingObserver]:
    heard = RecordingObserver()
    store = LmdbStore(path, **SMALL, **options)
    store.observe(heard)
    return store, heard


def fill(path: Path, clock: FakeClock) -> None:
    """Count, ban and strike a little."""
    store, _ = opened(path, clock=clock)
    for bucket, key in ((TIMES, "user:ann"), (COUNTS, "user:bob")):
        store.hit(((bucket, key, 2),))
    store.bans.ban("user:eve", HOUR_US, "by request", "ann")
    for _ in range(2):
        store.bans.strike(POLICY, "user:mallory", 1, "refused")
    store.close()


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


def write_as_layout_1(path: Path, now_us: int) -> None:
    """Give a file the bytes of layout 1: the heads of its windows had no origin."""
    windows = rows_of(path)["windows"]
    old = {}
    for number, row in enumerate(windows):
        limit = (TIMES if row.startswith(b"user:ann") else COUNTS).limits[0]
        window = new_window(limit)
        window.spend(now_us, limit.amount, 2)
        old[row] = HEAD_OF_LAYOUT_1.pack(1, number, now_us + HOUR_US) + pack_window(window)
    put(path, {"windows": old, "meta": {b"schema": b"\x01\xfe"}})


def test_a_file_of_layout_1_is_migrated_once_with_its_bans_and_strikes(tmp_path: Path) -> None:
    clock = FakeClock()
    fill(tmp_path / "lmdb", clock)
    write_as_layout_1(tmp_path / "lmdb", clock())
    for kinds, spent in ((["store_migrated"], 1), ([], 2)):
        store, heard = opened(tmp_path / "lmdb", clock=clock)
        assert heard.kinds == kinds
        assert [ban.key for ban in store.bans.active()] == ["user:eve"]  # type: ignore[union-attr]
        for bucket, key in ((TIMES, "user:ann"), (COUNTS, "user:bob")):
            assert store.hit(((bucket, key, 1),)).remaining == bucket.limits[0].amount - spent  # type: ignore[union-attr]
        store.close()
    store, _ = opened(tmp_path / "lmdb", clock=clock)
    assert store.bans.strike(POLICY, "user:mallory", 1, "refused"), "the strikes from before are forgotten"
    store.close()


def test_whoever_runs_an_older_slidegate_keeps_the_file_that_it_has_open(tmp_path: Path) -> None:
    path, clock = tmp_path / "lmdb", FakeClock()
    fill(path, clock)
    write_as_layout_1(path, clock())
    (has_opened, opening), (may_write, writing) = os.pipe(), os.pipe()
    pid = fork()
    if not pid:
        code = 1
        try:
            with lmdb.open(str(path), max_dbs=16) as older:
                windows = older.open_db(b"windows")
                os.write(opening, b"x")
                os.read(may_write, 1)
                with older.begin(db=windows, write=True) as txn:
                    code = 0 if [value[0] for _, value in txn.cursor()] == [1, 1] else 2
                    txn.put(b"user:late\xff", b"\x01")
        finally:
            os._exit(code)
    os.read(has_opened, 1)
    store, heard = opened(path, clock=clock)
    assert heard.kinds == ["store_migrated"]
    assert [ban.key for ban in store.bans.active()] == ["user:eve"]  # type: ignore[union-attr]
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()
    assert rows_of(path)["windows"] == {}


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


@pytest.mark.parametrize("seed", range(40))
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


FINGERPRINTS = {2: "194cc17dc03abfc3ef07cf06e4c3790b"}


@pytest.mark.skipif(sys.byteorder == "big", reason="the bytes below are of a machine that begins with the low one")
def test_what_is_written_is_what_the_layout_version_says(tmp_path: Path) -> None:
    """If this fails, other bytes are written than before: raise SCHEMA_VERSION, and say which databases changed."""
    fill(tmp_path / "lmdb", FakeClock())
    digest = blake2b(digest_size=16)
    for name, rows in rows_of(tmp_path / "lmdb").items():
        for row, value in rows.items():
            if name in ("windows", "cells"):
                value = value[: SERIAL.start] + bytes(4) + value[SERIAL.stop :]
            if (name, row) not in (("meta", b"secret"), ("meta", b"clock")):
                digest.update(repr((name, row, value)).encode())
    assert FINGERPRINTS.get(SCHEMA_VERSION) == digest.hexdigest()
