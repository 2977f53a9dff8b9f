"""``slidegate simulate`` and ``slidegate suggest``: numbers that are right; their texts are in the transcripts."""

import gzip
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..replay.test_logs import line
from .command import HANG_S, ROOT, Command, environment


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def test_records_out_of_order_are_noted(log: Path, slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidegate.ops.replay.logs.BUFFERED", 2)
    log.write_text("".join(map(line, [*range(100), 1])))
    assert "1 records are too far out of order" in slidegate("simulate", str(log), "--limit", "60/minute").err


def test_gzip_several_files_and_standard_input_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(line(1).encode() * 2))
    words = ("simulate", str(tmp_path / "a.log.gz"), "-", "--limit", "3/minute", "--json")
    command, said = [sys.executable, "-m", "slidegate", *words], line(0).encode() * 2
    ended = subprocess.run(command, input=said, capture_output=True, env=environment(), timeout=HANG_S, check=True)
    result = json.loads(ended.stdout)
    assert (result["requests"], result["refused"]) == (4, 1)


def page_log() -> str:
    """Return two hours of 1,500 clients: most open a page or ten, twelve refresh a page, and one copies the site."""
    lines = [
        line((37 * client + second) % 7_200, f"198.51.{client // 250}.{client % 250}")
        for client in range(1_487)
        for second in range(0, 4 * (1 + client % 11), 1 + client % 3)
    ]
    lines += [line(10 * n, f"203.0.113.{client}") for client in range(1, 13) for n in range(150 + 10 * client)]
    lines += [line(3_600 + n / 8, "192.0.2.77", f"/pages/{n}") for n in range(2_400)]
    return "".join(lines)


@pytest.mark.parametrize("command", ["simulate", "suggest"])
def test_the_page_shows_what_the_command_prints(command: str, log: Path, slidegate: Command) -> None:
    page = (ROOT / "docs" / "guides" / "command.md").read_text("utf-8")
    shown = re.search(rf"^slidegate {command} access.log( ?[^\n]*)\n```\n\n```text\n([^`]*)```", page, re.MULTILINE)
    assert shown is not None
    log.write_text(page_log())
    assert slidegate(command, str(log), *shlex.split(shown[1])).out == shown[2]


@pytest.mark.parametrize("command", [("simulate", "--limit", "20/minute"), ("suggest",)], ids=lambda words: words[0])
def test_20_000_lines_take_a_few_seconds(command: Sequence[str], log: Path, slidegate: Command) -> None:
    log.write_text("".join(line(n / 6, f"192.0.2.{n * n % 251}", f"/{n % 97}") for n in range(20_000)))
    start = time.process_time()
    assert slidegate(*command, str(log), "--json").rows[0]["requests"] == 20_000
    assert time.process_time() - start < 8  # a quarter of it where nothing else runs
