"""`slidegate bans` with real stores: its output, the changes it makes, and those it must not make."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate import Limiter, header

from .command import Command, ban_many, create_store, killed_if_it_hangs, start, use_store


async def banned_keys(limiter: Limiter) -> set[str]:
    return {ban.key async for ban in limiter.bans()}


# -- one ban ---------------------------------------------------------------------------------------------------------


def test_ban_is_added_listed_and_removed(url: str, slidegate: Command) -> None:
    words = ("bans", "add", "203.0.113.7", "--for", "1h", "--reason", "scan", "--by", "ann", "--store", url)
    assert slidegate(*words).code == 0
    listed = slidegate("bans", "list", "--store", url, "--json")
    (ban,) = listed.rows
    assert listed.code == 0
    assert (ban["key"], ban["reason"], ban["by"], ban["level"]) == ("203.0.113.7", "scan", "ann", 0)
    assert ban["until_at"] - ban["since_at"] == pytest.approx(3_600)

    async def refused(limiter: Limiter) -> bool:
        return not await limiter.hit("203.0.113.7", "5/minute")

    assert use_store(url, refused)
    assert slidegate("bans", "remove", "203.0.113.7", "--store", url).out == "removed: 203.0.113.7\n"
    assert not use_store(url, refused)
    slidegate("bans", "add", "203.0.113.0/24", "--for", "1h", "--store", url)
    removed = slidegate("bans", "remove", "203.0.113.7", "--store", url)
    assert removed.code == 1
    assert "the ban of 203.0.113.0/24 covers it" in removed.err


def test_value_of_a_header_bans_its_sender_and_is_not_shown(url: str, slidegate: Command) -> None:
    words = ("bans", "add", "header:X-API-Key", "--value", "k123", "--for", "permanent", "--store", url)
    ended = slidegate(*words, "--json")
    (ban,) = ended.rows
    assert (ended.code, ban["until_at"]) == (0, None)
    assert "k123" not in ended.out

    async def banned(limiter: Limiter) -> bool:
        return await limiter.banned(header("X-API-Key").of("k123")) is not None

    assert use_store(url, banned)
    assert slidegate("bans", "remove", ban["key"], "--store", url).code == 0, "the key as it is shown needs no value"
    assert not use_store(url, banned)


@pytest.mark.parametrize(
    ("key", "span", "message"),
    [
        ("203.0.113.7", "-5m", "--for: expected a number and a unit"),
        ("203.0.113.7", "5", '--for: 5 what? Write "5m", "5h" or "5d"'),
        ("203.0.113.7", "0s", "must be greater than zero"),
        ("203.0.113.7", "401d", 'expected at most 400 days or "permanent"'),
        *((key, "1h", repr(key)) for key in ("203.0.113.O", "example.com:443", "0.0.0.0/0", "user:")),
        ("header:X-API-Key", "1h", "names no client without its value"),
        ("Cookie:session", "1h", "names no client without its value"),
    ],
)
def test_invalid_key_or_duration_is_wrong_usage_and_bans_nobody(
    key: str, span: str, message: str, lmdb_url: str, slidegate: Command
) -> None:
    ended = slidegate("bans", "add", key, "--for", span, "--store", lmdb_url)
    assert ended.code == 2
    assert message in ended.error
    assert use_store(lmdb_url, banned_keys) == set()


def test_commands_do_not_create_a_store(tmp_path: Path, slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"lmdb://{tmp_path}/store"
    for words in (("add", "203.0.113.7", "--for", "1h"), ("remove", "203.0.113.7"), ("list",)):
        assert slidegate("bans", *words, "--store", url).code == 1
    assert not list(tmp_path.iterdir())
    create_store(url)
    monkeypatch.setenv("SLIDEGATE_STORE", url)
    assert slidegate("bans", "list") == (0, "", "there are no bans\n")


# -- stores that cannot be opened, or must not change ------------------------------------------------------------------


def without_lock(store: Path) -> None:
    create_store(f"lmdb://{store}")
    (store / "lock.mdb").unlink()


def text_instead(store: Path) -> None:
    store.mkdir()
    (store / "data.mdb").write_text("no store\n" * 2_000)
    (store / "lock.mdb").write_bytes(b"")


def of_another_program(store: Path) -> None:
    with lmdb.open(str(store), max_dbs=4) as opened:
        opened.open_db(b"theirs")


def snapshot(directory: Path) -> dict[str, object]:
    """Return the files with their contents, except the lock file, in which a reader takes a slot."""
    return {
        str(file): file.name == "lock.mdb" or (file.stat().st_mtime_ns, file.read_bytes())
        for file in directory.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("make", [lambda store: None, Path.mkdir, text_instead, without_lock, of_another_program])
def test_what_is_no_store_is_refused_and_left_unchanged(
    make: Callable[[Path], object], tmp_path: Path, slidegate: Command
) -> None:
    make(tmp_path / "store")
    before = snapshot(tmp_path)
    changing = () if make is without_lock else (("bans", "add", "203.0.113.7", "--for", "1h"),)
    for words in (("bans", "list"), ("limits", "list"), ("explain", "203.0.113.7"), *changing):
        ended = slidegate(*words, "--store", f"lmdb://{tmp_path}/store")
        assert ended.code == 1
        (message,) = [line for line in ended.err.splitlines() if line.startswith("Error")]
        assert str(tmp_path) in message
        assert snapshot(tmp_path) == before


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


# -- many bans -------------------------------------------------------------------------------------------------------


def test_all_bans_are_listed_once_and_filters_choose(url: str, slidegate: Command) -> None:
    use_store(url, lambda limiter: ban_many(limiter, 1_500))
    keys = [ban["key"] for ban in slidegate("bans", "list", "--store", url, "--json").rows]
    assert len(keys) == len(set(keys)) == 1_500
    assert set(keys) == use_store(url, banned_keys)
    found = slidegate("bans", "list", "--store", url, "--json", "--by", "abuse", "--match", "SCAN 3").rows
    assert len(found) == len([n for n in range(1_500) if not n % 2 and n % 7 == 3])
    assert {(ban["by"], ban["reason"]) for ban in found} == {("abuse", "scan 3")}
    nothing = slidegate("bans", "list", "--store", url, "--match", "none of them")
    assert nothing == (0, "", "no ban matches\n")


@pytest.mark.all
def test_ctrl_c_ends_with_130_and_leaves_no_reader_in_the_file(tmp_path: Path, lmdb_url: str) -> None:
    use_store(lmdb_url, lambda limiter: ban_many(limiter, 20_000))
    process = start("bans", "list", "--json", "--store", lmdb_url)
    with killed_if_it_hangs(process):
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["key"]  # the process blocks until the pipe is read
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert (process.returncode, err) == (130, b"")
    with lmdb.open(str(tmp_path / "store"), readonly=True, max_dbs=20) as opened:
        assert str(process.pid) not in opened.readers()
