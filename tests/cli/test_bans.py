"""`slidegate bans` against real stores: what it says, what it changes, and what it must not touch."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate import BanPolicy, Limiter, header

from ..redis_servers import REDIS, RedisServer, needs_redis
from .stores_at_hand import ban_many, fill, hanging_ends, run, start, touch


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


async def keys_of(limiter: Limiter) -> set[str]:
    return {ban.key async for ban in limiter.bans()}


# -- one ban ---------------------------------------------------------------------------------------------------------


def test_a_ban_is_made_listed_and_taken_back(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--reason", "scan", "--by", "ann", "--store", url) == 0
    capsys.readouterr()
    assert run("bans", "list", "--store", url, "--format", "json") == 0
    (ban,) = lines(capsys)
    assert (ban["target"], ban["reason"], ban["policy"], ban["level"]) == ("203.0.113.7", "scan", "ann", 0)

    async def refused(limiter: Limiter) -> bool:
        return not await limiter.hit("203.0.113.7", "5/minute")

    assert fill(url, refused)
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 0
    assert not fill(url, refused)
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 1


def test_the_value_of_a_header_bans_whoever_sends_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bans", "add", "header:X-API-Key", "--value", "k123", "--for", "permanent")
    assert run(*words, "--store", url, "--format", "json") == 0
    (ban,) = lines(capsys)
    assert ban["until_at"] is None
    assert "k123" not in ban["target"]

    async def banned(limiter: Limiter) -> bool:
        return await limiter.banned(header("X-API-Key").of("k123")) is not None

    assert fill(url, banned)


def test_a_network_that_refuses_an_address_is_named_where_the_address_has_no_ban(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("bans", "add", "203.0.113.0/24", "--for", "1h", "--store", url)
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 1
    assert "203.0.113.0/24 is banned" in capsys.readouterr().err


@pytest.mark.parametrize("span", ["-5m", "1e400s", "5", "99999999999d", "401d", "0", "0s", "", "1h 5m", "٣h"])
def test_a_span_that_cannot_be_one_is_refused_with_the_forms(
    span: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bans", "add", "203.0.113.7", "--for", span, "--store", f"lmdb://{tmp_path}/x") == 2
    said = capsys.readouterr().err
    assert "permanent" in said
    assert "400d" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["999.1.1.1", "1.2.3.4/33", "", "0.0.0.0/0", "8.0.0.0/4"])
def test_a_target_that_cannot_be_one_is_bad_input(key: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bans", "add", key, "--for", "1h", "--store", url) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.interpreted("a constant of a compiled module is replaced")
def test_one_network_too_many_is_bad_input_by_itself_and_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidegate.core.bans.networks.MAX_NETWORKS", 1)
    url = f"lmdb://{tmp_path}/store"
    assert run("bans", "add", "203.0.113.0/24", "--for", "1h", "--store", url, "--create") == 0
    file = tmp_path / "list.txt"
    file.write_text("198.51.100.0/24\n")
    for words in (("add", "198.51.100.0/24"), ("import", str(file), "--quiet")):
        capsys.readouterr()
        assert run("bans", *words, "--for", "1h", "--store", url) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert "put 198.51.100.0/24 into a blocklist" in said[0]
    assert run("bans", "add", "203.0.113.0/24", "--for", "2h", "--store", url) == 0
    assert fill(url, keys_of) == {"203.0.113.0/24"}


def test_nobody_is_banned_in_a_store_that_is_not_there_unless_it_is_to_be_made(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/mistyped"
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--store", url) == 3
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 3
    assert not list(tmp_path.iterdir())
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--store", url, "--create") == 0
    assert fill(url, keys_of) == {"203.0.113.7"}


def test_the_memory_of_a_process_is_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bans", "list", "--store", "memory://") == 2
    assert "dashboard" in capsys.readouterr().err


def test_the_store_may_stand_in_the_environment(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bans", "list") == 2
    assert "SLIDEGATE_STORE" in capsys.readouterr().err
    monkeypatch.setenv("SLIDEGATE_STORE", url)
    assert run("bans", "list") == 0


# -- stores that cannot be read, and that must not change ------------------------------------------------------------


READING = [("bans", "list"), ("bans", "export")]


def _nothing(place: Path) -> None:
    pass


def _directory(place: Path) -> None:
    place.mkdir()


def _text_in_its_place(place: Path) -> None:
    place.mkdir()
    (place / "data.mdb").write_text("no store\n" * 2_000)
    (place / "lock.mdb").write_bytes(b"")


def _without_lock(place: Path) -> None:
    fill(f"lmdb://{place}", touch)
    (place / "lock.mdb").unlink()


def _of_another_program(place: Path) -> None:
    with lmdb.open(str(place), max_dbs=4) as environment:
        environment.open_db(b"theirs")


def _closed(place: Path) -> None:
    place.mkdir()
    (place / "data.mdb").symlink_to(place / "data.mdb")


def _snapshot(place: Path) -> dict[str, tuple[int, bytes]]:
    """Return what stands in the files; whoever reads a store takes a slot in its lock file."""
    return {
        str(file.relative_to(place)): (
            (0, b"")
            if file.name == "lock.mdb"
            else (file.lstat().st_mtime_ns, b"" if file.is_symlink() else file.read_bytes())
        )
        for file in sorted(place.rglob("*"))
        if file.is_symlink() or file.is_file()
    }


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize(
    "make", [_nothing, _directory, _text_in_its_place, _without_lock, _of_another_program, _closed]
)
def test_what_is_no_store_is_refused_and_left_as_it_is(
    make: Any, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "store")
    before = _snapshot(tmp_path)
    assert run(*words, "--store", f"lmdb://{tmp_path}/store") == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert str(tmp_path) in said[0]
    assert _snapshot(tmp_path) == before


@pytest.mark.parametrize("make", [_directory, _text_in_its_place, _of_another_program])
def test_a_change_of_what_is_no_store_is_refused_and_left_as_it_is(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "store")
    before = _snapshot(tmp_path)
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--store", f"lmdb://{tmp_path}/store") == 3
    assert _snapshot(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_store_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(f"lmdb://{tmp_path}/store", touch)
    (tmp_path / "store" / "data.mdb").chmod(0)
    assert run("bans", "list", "--store", f"lmdb://{tmp_path}/store") == 3
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("words", READING)
def test_looking_writes_nothing_into_a_file(words: tuple[str, ...], tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, lambda limiter: ban_many(limiter, 300))
    data = tmp_path / "store" / "data.mdb"
    before = data.read_bytes(), data.stat().st_mtime_ns, sorted(os.listdir(tmp_path / "store"))
    assert run(*words, "--store", url) == 0
    assert (data.read_bytes(), data.stat().st_mtime_ns, sorted(os.listdir(tmp_path / "store"))) == before


@needs_redis
@pytest.mark.parametrize("words", READING)
def test_looking_writes_nothing_into_redis(words: tuple[str, ...], server: RedisServer) -> None:
    server.command("FLUSHALL")
    assert run(*words, "--store", server.url) == 3, "nothing of slidegate stands there"
    assert server.command("DBSIZE") == 0
    fill(server.url, lambda limiter: ban_many(limiter, 300))
    before = server.info("persistence")["rdb_changes_since_last_save"]
    assert run(*words, "--store", server.url) == 0
    assert server.info("persistence")["rdb_changes_since_last_save"] == before


@pytest.mark.skipif(REDIS is None, reason="no redis-server")
def test_a_server_that_is_away_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer() as server:
        gone = server.url
    assert run("bans", "list", "--store", gone) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


# -- many bans -------------------------------------------------------------------------------------------------------


def test_all_bans_are_listed_once_and_filters_choose(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, lambda limiter: ban_many(limiter, 1_500))
    assert run("bans", "list", "--store", url, "--format", "json") == 0
    keys = [ban["target"] for ban in lines(capsys)]
    assert len(keys) == len(set(keys)) == 1_500
    assert set(keys) == fill(url, keys_of)
    assert run("bans", "list", "--store", url, "--format", "csv", "--policy", "abuse", "--match", "SCAN 3") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len([place for place in range(1_500) if not place % 2 and place % 7 == 3])
    assert {(row["policy"], row["reason"]) for row in rows} == {("abuse", "scan 3")}
    assert run("bans", "list", "--store", url, "--match", "10.0.1.") == 0
    assert "10.0.1.2" in capsys.readouterr().out


@pytest.mark.all
def test_a_reader_that_leaves_or_ctrl_c_ends_the_list_and_leaves_no_reader_in_the_file(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, lambda limiter: ban_many(limiter, 20_000))
    for interrupts in (False, True):
        process = start("bans", "list", "--store", url, "--format", "json")
        with hanging_ends(process):
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["target"]  # it waits now for somebody who reads on
            if interrupts:
                process.send_signal(signal.SIGINT)
            else:
                process.stdout.close()
            said = process.stderr.read()
        assert process.returncode == 130 if interrupts else process.returncode in (0, 141)
        assert said == b""
        with lmdb.open(str(tmp_path / "store"), readonly=True, max_dbs=20) as environment:
            assert str(process.pid) not in environment.readers()


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["slidegate", "plain"])
def test_what_is_exported_is_read_again(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = f"lmdb://{tmp_path}/first", f"lmdb://{tmp_path}/second"

    async def make(limiter: Limiter) -> None:
        await limiter.ban("203.0.113.7", "1h", reason='a, "b" # c')
        await limiter.ban("2001:db8::/48", "permanent", reason="scan")
        await limiter.ban("user:42", "2h")
        await limiter.strike("203.0.113.9", BanPolicy("5/10m", "1h", name="abuse"))

    async def known(limiter: Limiter) -> dict[str, Any]:
        return {ban.key: (ban.reason, ban.until) async for ban in limiter.bans()}

    fill(first, make)
    assert run("bans", "export", "--store", first, "--as", form) == 0
    written = tmp_path / "bans"
    written.write_text(capsys.readouterr().out)
    words = ("bans", "import", str(written), "--for", "permanent", "--create", "--store", second)
    assert run(*words, "--format", "json") == 0
    before, after = fill(first, known), fill(second, known)
    if form == "slidegate":
        assert after == before
        assert run(*words) == 0
        assert fill(second, known) == before
    else:
        assert set(after) == set(before) - {"user:42"}
    assert json.loads(capsys.readouterr().out.splitlines()[0])["imported"] == len(after)
