"""What an LMDB store does not hold yet: each test says what will, and which change brings it."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmdb.verify
import pytest

from slidegate import Limiter, StoreError
from slidegate.core import LimitSet, Reason, parse_limits
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import RecordingObserver

from .remote import SMALL
from .test_files import all_but_the_heads_damaged, heads_damaged
from .test_store import SHARED_MEMORY, disk_of

HOUR_US = 3_600_000_000
PATIENCE_S = 60.0
BANNED = ((LimitSet("rule", parse_limits("5/hour")), "user:eve", 1),)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="stores: rescued bans lie in the memory of who found the damage, until it writes",
)
def test_bans_of_a_damaged_file_hold_for_every_worker_as_soon_as_one_has_set_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "lmdb"
    store = LmdbStore(path, **SMALL)
    store.bans.ban("user:eve", HOUR_US, "by request", "ann")
    heads_damaged(path / "data.mdb")
    for _ in range(500):
        with suppress(StoreError):
            store.peek(BANNED)  # which only reads
        if list(path.glob("data.mdb.corrupt-*")):
            break
        time.sleep(0.01)
    else:
        pytest.fail("nobody has set it aside")
    code = f"""
from slidegate.core import LimitSet, parse_limits
from slidegate.stores.lmdb import LmdbStore
store = LmdbStore({str(path)!r}, map_size=1 << 20)
print(store.hit(((LimitSet("rule", parse_limits("5/hour")), "user:eve", 1),)).reason.value)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    store.close()
    assert ended.stdout.strip() == "banned", ended.stderr


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="stores: a damaged running file is checked on the loop")
async def test_the_event_loop_goes_on_while_a_running_file_is_looked_at_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, loop, verify = tmp_path / "lmdb", asyncio.get_running_loop(), lmdb.verify.verify
    store = LmdbStore(path, **SMALL)
    limiter, went_on = Limiter(store, on_error="allow"), list[bool]()

    def look(*given: Any, **named: Any) -> Any:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        went_on.append(turned.wait(1.0))
        return verify(*given, **named)

    await limiter.hit("user:ann", "5/hour")
    monkeypatch.setattr(lmdb.verify, "verify", look)
    all_but_the_heads_damaged(path / "data.mdb")
    for _ in range(500):
        await limiter.hit("user:ann", "5/hour")
        if went_on:
            break
        await asyncio.sleep(0.01)
    await limiter.close()
    if not went_on:
        pytest.fail("nobody looked at it")
    assert all(went_on)


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="stores: durability='safe' refuses all where a disk is full"
)
async def test_on_a_full_disk_keys_that_are_known_keep_their_limits_where_every_commit_is_synced() -> None:
    heard = RecordingObserver(without=["near_limit"])
    with TemporaryDirectory(prefix="slidegate-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as root:
        store = LmdbStore(Path(root) / "lmdb", map_size=1 << 20, durability="safe")
        limiter = Limiter(store, on_error="allow", observers=[heard], deadline="60s")
        known, numbers, reasons = [f"known:{key:>050}" for key in range(50)], itertools.count(), list[Reason]()
        for key in known:
            await limiter.hit(key, "15/hour")
        with disk_of(3 << 20):
            while len(reasons) < 500 and Reason.UNAVAILABLE not in reasons:
                for _ in range(15):
                    fresh = [f"new:{next(numbers):>050}" for _ in range(100)]
                    await asyncio.gather(*(limiter.hit(key, "5/hour") for key in fresh))
                reasons += [(await limiter.hit(key, "15/hour")).reason for key in known]
        await limiter.close()
    assert set(reasons) == {Reason.OK}
    assert "map_full" in heard.kinds
