"""Commands and stores: what is no store stays as it is, reading writes nothing, and many bans are listed once."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate import Limiter

from .command import Command, ban_many, create_store, environment, use_store


def make(what: str, store: Path) -> None:
    if what == "a directory":
        store.mkdir()
    elif what == "of another program":
        with lmdb.open(str(store), max_dbs=4) as opened:
            opened.open_db(b"theirs")
    elif what != "nothing":
        create_store(f"lmdb://{store}")
        (counts,) = store.glob("counts-*")
        if what == "without its gate":
            (store / "gate").unlink()
        elif what == "of an earlier boot":
            counts.rename(store / "counts-12-0.mdb")
        else:
            counts.write_text("no store\n" * 2_000)


def snapshot(directory: Path) -> dict[str, object]:
    """Return the files with their contents."""
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in directory.rglob("*") if file.is_file()}


NO_STORES = ["nothing", "a directory", "text", "without its gate", "of an earlier boot", "of another program"]


@pytest.mark.parametrize("what", NO_STORES)
def test_what_is_no_store_is_refused_and_left_unchanged(what: str, tmp_path: Path, slidegate: Command) -> None:
    make(what, tmp_path / "store")
    before = snapshot(tmp_path)
    add = "bans", "add", "203.0.113.7", "--for", "1h"
    for words in (("bans", "list"), ("limits", "list"), ("explain", "203.0.113.7"), add):
        ended = slidegate(*words, "--store", f"lmdb://{tmp_path}/store")
        assert ended.code == 1
        (message,) = [line for line in ended.err.splitlines() if line.startswith("Error")]
        assert str(tmp_path) in message
        assert snapshot(tmp_path) == before


def test_a_store_that_may_only_be_read_is_an_unusable_store_for_changes(
    lmdb_url: str, slidegate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def of_another_user(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", of_another_user)
    assert slidegate("bans", "list", "--store", lmdb_url).code == 0
    ended = slidegate("bans", "add", "203.0.113.7", "--for", "1h", "--store", lmdb_url)
    assert (ended.code, ended.err.count("Permission denied")) == (1, 1)


@pytest.mark.parametrize("words", [("bans", "list"), ("limits", "list"), ("explain", "10.0.0.0", "--rule", "a=5/m")])
def test_reading_commands_write_nothing(
    words: tuple[str, ...], url: str, tmp_path: Path, request: Any, slidegate: Command
) -> None:
    use_store(url, lambda limiter: ban_many(limiter, 300))

    def written() -> object:
        if url.startswith("lmdb"):
            return snapshot(tmp_path)
        return request.getfixturevalue("server").info("persistence")["rdb_changes_since_last_save"]

    before = written()
    assert slidegate(*words, "--store", url).code == 0
    assert written() == before


def test_all_bans_are_listed_once_and_filters_choose(url: str, slidegate: Command) -> None:
    async def banned(limiter: Limiter) -> set[str]:
        await ban_many(limiter, 1_500)
        return {ban.key async for ban in limiter.bans()}

    known = use_store(url, banned)
    keys = [ban["key"] for ban in slidegate("bans", "list", "--store", url, "--json").rows]
    assert len(keys) == len(set(keys)) == 1_500
    assert set(keys) == known
    found = slidegate("bans", "list", "--store", url, "--json", "--by", "abuse", "--match", "SCAN 3").rows
    assert len(found) == len([n for n in range(1_500) if not n % 2 and n % 7 == 3])
    assert {(ban["by"], ban["reason"]) for ban in found} == {("abuse", "scan 3")}


INTERRUPTIBLE = """\
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it, and child processes inherit that
runpy.run_module("slidegate", run_name="__main__", alter_sys=True)
"""


@pytest.mark.all
def test_ctrl_c_ends_with_130(lmdb_url: str) -> None:
    use_store(lmdb_url, lambda limiter: ban_many(limiter, 20_000))
    command = [sys.executable, "-c", INTERRUPTIBLE, "bans", "list", "--json", "--store", lmdb_url]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert json.loads(process.stdout.readline())["key"]  # the process blocks until the pipe is read
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert (process.returncode, err) == (130, b"\n")
