"""The command itself: subcommands, options, exit codes and output streams."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slidegate
from slidegate.cli import main

from .stores_at_hand import HANG_S, ban_many, environment, fill, hanging_ends, run, start

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = str(ROOT / "examples" / "demo" / "sample.log")
OPTIONS = {
    "bans add": "by create for format reason store value",
    "bans export": "store",
    "bans import": "create format store",
    "bans list": "format match policy store",
    "bans remove": "by format store value",
    "check": "app-dir factory format",
    "explain": "format",
    "key reset": "format store value",
    "key show": "format rule rules store value",
    "limits list": "format store",
    "limits set": "by for format reason store",
    "limits unset": "format store",
    "simulate": "ban-after format key limit log-fields log-format rules since until",
    "suggest": "format headroom key log-fields log-format routes since touch until",
    "top": "every format once store window",
}


def test_commands_and_options_are_those_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    kind = "compiled" if slidegate.__compiled__ else "interpreted"
    assert capsys.readouterr().out == f"slidegate {slidegate.__version__} ({kind})\n"
    assert main(["--help"]) == 0
    names = re.findall(r"^  (\w+) {2}", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert sorted(names) == sorted({name.split()[0] for name in OPTIONS})
    for name, options in OPTIONS.items():
        assert main([*name.split(), "-h"]) == 0
        shown = capsys.readouterr().out
        found = set(re.findall(r"^  (?:-\w, )?--([a-z-]+)", shown, re.MULTILINE)) - {"help"}
        assert found == set(options.split()), name
        assert f"\n  Example: slidegate {name}" in shown


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("sampel",), 2, "No such command 'sampel'"),
        (("--nothing",), 2, "--nothing"),
        (("explain", "5/minute", "--format", "xml"), 2, "'xml'"),
        (("explain", "5/minit"), 2, "did you mean 'min'?"),
        (("simulate", SAMPLE), 2, "expected either --limit"),
        (("simulate", SAMPLE, "--limit", "5/s", "--rules", "x.toml"), 2, "expected either --limit"),
        (("simulate", SAMPLE, "--rules", "x.toml", "--ban-after", "20/10m"), 2, "require --limit"),
        (("simulate", SAMPLE, "--limit", "5/s", "--key", "agent"), 2, "--key: expected ip or header:NAME"),
        (("simulate", SAMPLE, "--limit", "5/s", "--since", "yesterday"), 2, "'yesterday' does not match"),
        (("simulate", SAMPLE, "--limit", "5/s", "--log-fields", "[1]"), 2, "as a JSON object, such as"),
        (("simulate", SAMPLE, "--limit", "5/s", "--log-format", "%h"), 2, "is not an nginx format string"),
        (("suggest", SAMPLE, "--touch", "0.5"), 2, "in percent, such as 0.1%"),
        (("suggest", SAMPLE, "--headroom", "0.5"), 2, "--headroom"),
        (("suggest", "-"), 2, "standard input does not allow"),
        (("bans", "list"), 2, "SLIDEGATE_STORE"),
        (("bans", "list", "--store", "memory://"), 2, "dashboard"),
        (("bans", "list", "--store", "rediss:/x\x1b[2J"), 2, "store address"),
        # Errors of the operating system, and files with the wrong content.
        (("simulate", "no/such.log", "--limit", "5/s"), 1, "no/such.log: No such file or directory"),
        (("simulate", "/", "--limit", "5/s"), 1, "Is a directory"),
        (("simulate", SAMPLE, "--rules", "no/such.toml"), 1, "no/such.toml: cannot be read: No such file"),
        (("explain", str(ROOT / "LICENSE")), 1, "not TOML"),
        (("bans", "list", "--store", "lmdb:///no/such/store"), 1, "/no/such/store"),
        (("key", "reset", "user:1", "--store", "lmdb:///no/such/store"), 1, "/no/such/store"),
        (("top", "--once", "--store", "lmdb:///no/such/store"), 1, "/no/such/store"),
        (("bans", "list", "--store", "redis://localhost:1"), 1, "localhost:1"),
    ],
)
def test_wrong_usage_ends_with_2_and_everything_else_with_1_and_one_sentence(
    words: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == code
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.splitlines()[-1].startswith("Error: ")
    assert said.out == ""
    assert all(line.isprintable() for line in said.err.splitlines())


def test_a_full_disk_is_no_wrong_usage() -> None:
    with open("/dev/full", "wb") as full:
        process = start("explain", "5/minute", stdout=full.fileno())
        with hanging_ends(process):
            said = process.stderr.read()
    assert (process.returncode, said) == (1, b"Error: No space left on device\n")


@pytest.mark.parametrize(
    "more",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1", "COLUMNS": "20"},
    ],
)
def test_no_locale_and_no_width_ends_a_table(more: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    line = (
        '192.0.2.7 - - [03/Mar/2026:10:00:00 +0000] "GET /gr\u00f6\u00dfe%1b[2J\x1b[31m HTTP/1.1" 200 9 "-" "\x1b[2J"\n'
    )
    log.write_text(line * 5, "utf-8")
    command = [sys.executable, "-m", "slidegate", "simulate", str(log), "--limit", "1/hour"]
    ended = subprocess.run(command, capture_output=True, env=environment(**more), timeout=HANG_S)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert re.search(rb"^refused: +4$", ended.stdout, re.MULTILINE)
    assert b"\x1b" not in ended.stdout


@pytest.mark.parametrize("redirected", [">&- 2>&-", "| head -n 1"])
def test_a_reader_that_is_not_there_or_goes_away_is_no_failure(redirected: str, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/store"
    fill(url, lambda limiter: ban_many(limiter, 3_000))
    command = ["sh", "-c", f'"$0" -m slidegate bans list --store {url} --format json {redirected}', sys.executable]
    ended = subprocess.run(command, capture_output=True, env=environment(), timeout=HANG_S)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("explain", "5/minute"), ""),
        (("check", "tests.cli.sick_apps:healthy"), ""),
        (("simulate", SAMPLE, "--limit", "5/minute"), ""),
        (("bans", "list"), 'slidegate: the command needs the package pydantic: pip install "slidegate[cli]"'),
    ],
)
def test_without_pydantic_commands_without_a_store_work_and_others_say_what_to_install(
    words: tuple[str, ...], told: str
) -> None:
    code = f"import sys; sys.modules['pydantic'] = None; from slidegate.cli import main; sys.exit(main({words!r}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), timeout=HANG_S)
    said = ended.stderr.decode().splitlines()
    assert (ended.returncode, "Traceback" in str(said)) == (1 if told else 0, False)
    assert not told or said == [told]


KNOWN = ["--format", "json", "--rules", "--factory", "--app-dir", "--help", "--", "5/m", "--limit", "--headroom", "2"]
WORDS = st.lists(st.sampled_from(KNOWN) | st.text(max_size=12).filter(lambda word: ":" not in word), max_size=6)


@given(st.sampled_from([*OPTIONS, "", "--version"]), WORDS)
def test_no_words_give_a_traceback_or_a_code_of_their_own(name: str, words: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
        assert run(*name.split(), *words) in {0, 1, 2}
    assert "Traceback" not in said.getvalue()
