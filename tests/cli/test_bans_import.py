"""Imports that are interrupted, files that cannot be read, and two commands at once."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from slidegate import Limiter
from slidegate.cli.bans_import import BATCH

from .stores_at_hand import fill, hanging_ends, run, start, touch

HEAD = '{"slidegate": "bans", "version": 3, "written_us": 1700000000000000}\n'


def row(place: int) -> str:
    ban = {"ban": f"user:{place}", "reason": "", "by": "test", "level": 0, "made_us": 1_700_000_000_000_000}
    return json.dumps({**ban, "ends_us": None, "since_us": 1_700_000_000_000_000}) + "\n"


async def count(limiter: Limiter) -> int:
    return len([ban async for ban in limiter.bans()])


@pytest.mark.all
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_import_that_ends_half_way_has_written_whole_batches(how: signal.Signals, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    process = start("bans", "import", "-", "--store", url, stdin=subprocess.PIPE)
    with hanging_ends(process):
        assert process.stdin is not None
        assert process.stderr is not None
        # It waits for the rest of the batch behind the tenth, which never comes.
        process.stdin.write((HEAD + "".join(map(row, range(10 * BATCH + BATCH // 2)))).encode())
        process.stdin.flush()
        assert any(b"10000 bans are imported" in line for line in process.stderr)
        process.send_signal(how)
        said = process.stderr.read().decode()
        process.wait(60)  # its errors end before it does
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
    if how == signal.SIGINT:
        assert "10000 bans are imported, and not all" in said
    assert fill(url, count) == 10 * BATCH
    whole = tmp_path / "bans"
    whole.write_text(HEAD + "".join(map(row, range(10 * BATCH + BATCH // 2))))
    for _ in range(2):
        assert run("bans", "import", str(whole), "--store", url) == 0
        assert fill(url, count) == 10 * BATCH + BATCH // 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("203.0.113.7\n", ()),
        ("203.0.113.7\n203.0.113.999\n", ("--for", "1h")),
        ("203.0.113.0 - 203.0.113.9\n", ("--for", "1h")),
        ("0.0.0.0/0\n", ("--for", "1h")),
        ("user:42\n", ("--for", "1h")),
        (HEAD + '{"ban": 3}\n', ()),
        (HEAD + "no JSON\n", ()),
        ('{"slidegate": "other"}\n', ()),
        (HEAD + " " * 70_000 + "\n", ()),
    ],
)
def test_a_file_that_cannot_be_read_is_bad_input_in_one_line(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    file = tmp_path / "bans.txt"
    file.write_text(text)
    assert run("bans", "import", str(file), "--store", url, "--quiet", *words) == 2
    assert "bans.txt" in capsys.readouterr().err.splitlines()[-1]
    assert fill(url, count) == 0


def test_a_file_that_is_not_there_or_a_directory_is_bad_input(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)
    for file in (tmp_path / "none", tmp_path):
        assert run("bans", "import", str(file), "--store", url) == 2


@pytest.mark.all
def test_of_two_commands_at_once_the_later_one_wins_and_both_succeed(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, touch)

    async def makers(limiter: Limiter) -> list[str]:
        return [ban.by async for ban in limiter.bans()]

    for _ in range(3):
        both = [
            start("bans", "add", "203.0.113.7", "--for", span, "--by", who, "--store", url, "--format", "json")
            for who, span in (("ann", "1h"), ("bob", "2h"))
        ]
        told = []
        for process in both:
            with hanging_ends(process):
                shown, said = process.communicate()
            assert process.returncode == 0, said
            told.append(json.loads(shown))
        assert fill(url, makers) == [max(told, key=lambda ban: ban["since_at"])["policy"]]
