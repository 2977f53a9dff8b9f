"""`slidegate bans` with real stores: its output, the changes it makes, and those it must not make."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate import BanPolicy, Limiter, header

from .stores_at_hand import ban_many, fill, hanging_ends, lines, run, start, touch


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
    run("bans", "add", "203.0.113.0/24", "--for", "1h", "--store", url)
    capsys.readouterr()
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 1
    assert "the ban of 203.0.113.0/24 covers it" in capsys.readouterr().err


def test_the_value_of_a_header_bans_whoever_sends_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bans", "add", "header:X-API-Key", "--value", "k123", "--for", "permanent")
    assert run(*words, "--store", url, "--format", "json") == 0
    (ban,) = lines(capsys)
    assert ban["until_at"] is None
    assert "k123" not in ban["target"]

    async def banned(limiter: Limiter) -> bool:
        return await limiter.banned(header("X-API-Key").of("k123")) is not None

    assert fill(url, banned)


@pytest.mark.parametrize(
    ("key", "span", "told"),
    [
        *(("203.0.113.7", span, "--for: expected") for span in ("-5m", "5", "401d")),
        *((key, "1h", repr(key)) for key in ("203.0.113.O", "example.com:443", "0.0.0.0/0", "user:")),
    ],
)
def test_a_key_or_a_span_that_cannot_be_one_is_wrong_usage(
    key: str, span: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    assert run("bans", "add", key, "--for", span, "--store", url) == 2
    assert told in capsys.readouterr().err
    assert fill(url, keys_of) == set()


def test_nobody_is_banned_in_a_store_that_is_not_there_unless_it_is_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/mistyped"
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--store", url) == 1
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 1
    assert not list(tmp_path.iterdir())
    assert run("bans", "add", "203.0.113.7", "--for", "1h", "--store", url, "--create") == 0
    assert fill(url, keys_of) == {"203.0.113.7"}
    assert run("bans", "remove", "203.0.113.7", "--store", url) == 0
    capsys.readouterr()
    monkeypatch.setenv("SLIDEGATE_STORE", url)
    assert run("bans", "list") == 0
    assert capsys.readouterr() == ("", "there are no bans\n")


# -- stores that cannot be opened, or must not change ------------------------------------------------------------------

READING = [("bans", "list"), ("bans", "export")]


def without_lock(store: Path) -> None:
    fill(f"lmdb://{store}", touch)
    (store / "lock.mdb").unlink()


def text_instead(store: Path) -> None:
    store.mkdir()
    (store / "data.mdb").write_text("no store\n" * 2_000)
    (store / "lock.mdb").write_bytes(b"")


def of_another_program(store: Path) -> None:
    with lmdb.open(str(store), max_dbs=4) as environment:
        environment.open_db(b"theirs")


def snapshot(directory: Path) -> dict[str, object]:
    """Return the files with their contents, except the lock file, in which a reader takes a slot."""
    return {
        str(file): file.name == "lock.mdb" or (file.stat().st_mtime_ns, file.read_bytes())
        for file in directory.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("make", [lambda store: None, Path.mkdir, text_instead, without_lock, of_another_program])
def test_what_is_no_store_is_refused_and_left_as_it_is(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "store")
    before = snapshot(tmp_path)
    changing = () if make is without_lock else (("bans", "add", "203.0.113.7", "--for", "1h"),)
    for words in (*READING, *changing):
        assert run(*words, "--store", f"lmdb://{tmp_path}/store") == 1
        (said,) = capsys.readouterr().err.splitlines()
        assert str(tmp_path) in said
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize("words", READING)
def test_looking_writes_nothing(words: tuple[str, ...], url: str, tmp_path: Path, request: Any) -> None:
    fill(url, lambda limiter: ban_many(limiter, 300))

    def written() -> object:
        if url.startswith("lmdb"):
            return snapshot(tmp_path)
        return request.getfixturevalue("server").info("persistence")["rdb_changes_since_last_save"]

    before = written()
    assert run(*words, "--store", url) == 0
    assert written() == before


# -- many bans -------------------------------------------------------------------------------------------------------


def test_all_bans_are_listed_once_and_filters_choose(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill(url, lambda limiter: ban_many(limiter, 1_500))
    assert run("bans", "list", "--store", url, "--format", "json") == 0
    keys = [ban["target"] for ban in lines(capsys)]
    assert len(keys) == len(set(keys)) == 1_500
    assert set(keys) == fill(url, keys_of)
    words = ("--format", "json", "--policy", "abuse", "--match", "SCAN 3")
    assert run("bans", "list", "--store", url, *words) == 0
    found = lines(capsys)
    assert len(found) == len([place for place in range(1_500) if not place % 2 and place % 7 == 3])
    assert {(ban["policy"], ban["reason"]) for ban in found} == {("abuse", "scan 3")}


# -- export and import -----------------------------------------------------------------------------------------------

HEAD = '{"slidegate": "bans", "version": 3, "written_us": 1700000000000000}\n'


def row(place: int) -> str:
    ban = {"ban": f"user:{place}", "reason": "", "by": "test", "level": 0, "made_us": 1_700_000_000_000_000}
    return json.dumps({**ban, "ends_us": None, "since_us": 1_700_000_000_000_000}) + "\n"


async def known(limiter: Limiter) -> dict[str, Any]:
    return {ban.key: (ban.reason, ban.until) async for ban in limiter.bans()}


def test_what_is_exported_is_read_again_as_often_as_you_like(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make(limiter: Limiter) -> None:
        await limiter.ban("203.0.113.7", "1h", reason='a, "b" # c')
        await limiter.ban("2001:db8::/48", "permanent", reason="scan")
        await limiter.ban("user:42", "2h")
        await limiter.strike("203.0.113.9", BanPolicy("5/10m", "1h", name="abuse"))

    fill(url, make)
    assert run("bans", "export", "--store", url) == 0
    written = tmp_path / "bans.jsonl"
    exported, said = capsys.readouterr()
    assert (exported.count("\n"), said) == (5, "exported: 3 bans\n")
    written.write_text(exported)
    other = f"lmdb://{tmp_path}/other"
    words = ("bans", "import", str(written), "--store", other)
    assert run(*words) == 1, "the store is not there"
    assert run(*words, "--create", "--format", "json") == 0
    assert lines(capsys) == [{"imported": 3, "over": 0}]
    assert run(*words) == 0
    assert fill(other, known) == fill(url, known)
    assert run("bans", "export", "--store", other) == 0
    again = capsys.readouterr().out.splitlines()
    assert '"struck": "203.0.113.9"' in again[-1], "strikes come along"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEAD + row(1) + row(2) + "no JSON\n" + row(3), "line 4: expected JSON, not 'no JSON"),
        (HEAD + "".join(map(row, range(2_500))) + '{"ban": 3}\n', "line 2502: cannot be read"),
        ('{"slidegate": "other"}\n', "line 1: cannot be read"),
        ("203.0.113.7\n", "line 1: expected JSON, not '203.0.113.7"),
        ("", "there are no rows"),
    ],
)
def test_a_file_with_a_line_that_cannot_be_read_changes_nothing_and_the_line_comes_first(
    text: str, told: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bans.jsonl"
    file.write_text(text)
    assert run("bans", "import", str(file), "--store", url) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"Error: {file}, {told}")
    assert said.err.endswith("nothing was imported\n")
    assert fill(url, keys_of) == set()


def test_an_import_reads_stdin_and_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    process = start("bans", "import", "-", "--store", url, stdin=subprocess.PIPE)
    with hanging_ends(process):
        shown, said = process.communicate((HEAD + row(1)).encode())
    assert (process.returncode, shown, said) == (0, b"imported: 1 bans; 0 already ended\n", b"")
    assert fill(url, keys_of) == {"user:1"}
    assert run("bans", "import", str(tmp_path / "none"), "--store", url) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.all
def test_ctrl_c_ends_a_command_and_leaves_no_reader_in_the_file(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, lambda limiter: ban_many(limiter, 20_000))
    process = start("bans", "list", "--format", "json", "--store", url)
    with hanging_ends(process):
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["target"]  # the process blocks until the pipe is read
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.strip() == b"Aborted!"
    with lmdb.open(str(tmp_path / "store"), readonly=True, max_dbs=20) as environment:
        assert str(process.pid) not in environment.readers()
