"""The frame of the command: how sub-commands are found, how it ends, and where its output goes."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.cli import main, program

from .sample import HOSTILE
from .stores_at_hand import environment

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ("tests.cli.sample:sample", "End in some way.")
REAL = f"""
import sys
from slidegate.cli import main, program
program.COMMANDS["sample"] = {SAMPLE!r}
sys.exit(main())
"""
WITHOUT_THE_EXTRA = """
import sys
sys.modules.update(click=None, rich=None)
from slidegate.cli import main
sys.exit(main())
"""
HANG_S = 120


@pytest.fixture(autouse=True)
def sample_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.COMMANDS, "sample", SAMPLE)


def real(*arguments: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a process of its own."""
    command = [sys.executable, "-c", REAL, *arguments]
    return subprocess.run(command, capture_output=True, env=environment(**more), timeout=HANG_S, check=False)


# -- how it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "code"),
    [
        *(("configuration", 2), ("usage", 2), ("missing", 2), ("timeout", 3), ("unreachable", 3), ("not-found", 1)),
        *(("interrupt", 130), ("abort", 130), ("pipe", 141), ("fault", 70), ("exit", 1)),
    ],
)
def test_each_end_has_its_code_and_at_most_one_line(end: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--quiet", end]) == code
    said = capsys.readouterr()
    silent = end in {"interrupt", "abort", "pipe", "exit"}
    assert said.err.count("\n") == (0 if silent else 1)
    assert silent or said.err.startswith("slidegate: ")
    assert said.err.removesuffix("\n").isprintable()
    assert said.out == ""


def test_a_fault_shows_its_traceback_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEGATE_TRACEBACK", "1")
    assert main(["sample", "fault"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sampel"], "did you mean 'sample'?"),
        (["--nothing"], "--nothing"),
        (["sample", "--rows", "-1"], "--rows"),
        (["sample", "--format", "xml"], "--format"),
        (["sample", "a", "b"], "b"),
        (["x\x1b[2J\n" * 2_000], "x\\x1b[2J"),
    ],
)
def test_bad_words_are_one_sentence_and_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1
    assert len(said.err) < 1_100


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_command_and_imports_none(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(program.COMMANDS, "gone", (".no_such_module:gone", "A module that cannot be imported."))
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in program.COMMANDS)


OPTIONS = {
    "bans add": "by create for format quiet reason store value",
    "bans export": "as quiet store",
    "bans import": "by create for format quiet reason store",
    "bans list": "format match policy quiet store",
    "bans remove": "by format quiet store value",
    "check": "app-dir factory format quiet",
    "explain": "format quiet",
    "key reset": "format quiet store value",
    "key show": "format quiet rule rules store value",
    "simulate": "ban-after format html key limit log-fields log-format quiet rules since until",
    "suggest": "format key log-fields log-format quiet routes since touch until",
    "top": "every format once quiet store window",
}


def test_commands_and_options_are_those_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name.split()[0] for name in OPTIONS} == set(program.COMMANDS) - {"sample"}
    for name, options in OPTIONS.items():
        assert main([*name.split(), "--help"]) == 0
        found = set(re.findall(r"^  (?:-\w, )?--([a-z-]+)", capsys.readouterr().out, re.MULTILINE)) - {"help"}
        assert found == set(options.split()), name


@pytest.mark.parametrize("name", ["", "bans", "key", *OPTIONS])
def test_every_help_has_an_example_and_a_short_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "-h"]) == 0
    assert f"\n  Example: slidegate {name}".rstrip() in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slidegate {version}\n"


def test_without_the_extra_a_sentence_says_what_to_install() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=HANG_S,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == 'slidegate: the command needs the package click: pip install "slidegate[cli]"\n'


# -- output --------------------------------------------------------------------------------------------------------


def lines_in(form: str, capsys: pytest.CaptureFixture[str], rows: int = 3) -> list[str]:
    assert main(["sample", "--format", form, "--rows", str(rows)]) == 0
    said = capsys.readouterr()
    assert said.err == "working\n"
    return said.out.splitlines()


def test_tables_are_aligned_and_control_characters_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    head, *rows = lines_in("text", capsys)
    assert head.split() == ["number", "agent"]
    assert len(rows) == 3
    assert all(row.isprintable() and row.index("a\\x1b") == head.index("agent") for row in rows)


def test_a_narrow_terminal_gets_blocks_of_names_and_values(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    lines = lines_in("text", capsys)
    assert [line.partition(":")[0] for line in lines] == [*["number", "agent", ""] * 2, "number", "agent"]


def test_json_holds_each_row_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_in("json", capsys)
    assert json.loads(lines[0]) == {"number": 0, "agent": f"{HOSTILE} größe "}
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_csv_has_a_head_and_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_in("csv", capsys)
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    assert rows[0] == ["number", "agent"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "2"]
    assert all(line.isprintable() for line in lines)


WAYS_OF_TEXT = [
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"NO_COLOR": "1", "COLUMNS": "20"},
]


@pytest.mark.parametrize("more", WAYS_OF_TEXT)
def test_no_locale_and_no_width_ends_a_table(more: dict[str, str]) -> None:
    ended = real("sample", "--rows", "300", **more)
    assert (ended.returncode, ended.stderr) == (0, b"working\n")
    assert len(ended.stdout.splitlines()) >= 300
    assert b"\x1b" not in ended.stdout


def test_a_reader_that_goes_away_is_no_failure() -> None:
    command = [sys.executable, "-c", REAL, "sample", "--quiet", "--rows", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(HANG_S) in {0, 141}


def test_closed_streams_are_no_failure() -> None:
    command = ["sh", "-c", '"$0" -c "$1" sample --rows 3 <&- >&- 2>&-', sys.executable, REAL]
    assert subprocess.run(command, env=environment(), timeout=HANG_S, check=False).returncode == 0


# -- completion of the shell ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place", "expected"), [("slidegate sam", "1", "sample"), ("slidegate sample --f", "2", "--format")]
)
def test_shells_complete_commands_and_options(words: str, place: str, expected: str) -> None:
    ended = real(_SLIDEGATE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=place)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode().splitlines() == [f"plain,{expected}"]


# -- words that nobody foresaw -------------------------------------------------------------------------------------

KNOWN = ["--format", "json", "csv", "--quiet", "--rules", "--factory", "--app-dir", "--help", "--", "-q", "5/m"]
WORDS = st.lists(st.sampled_from(KNOWN) | st.text(max_size=12).filter(lambda word: ":" not in word), max_size=6)


NAMES = [
    "explain",
    "check",
    "simulate",
    "suggest",
    "bans add",
    "bans import",
    "key show",
    "top",
    "",
    "--version",
]


@given(st.sampled_from(NAMES), WORDS)
def test_no_words_give_a_traceback_or_a_code_of_their_own(name: str, words: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        assert main([*name.split(), *words]) in {0, 1, 2, 3}
    assert "Traceback" not in said.getvalue()
