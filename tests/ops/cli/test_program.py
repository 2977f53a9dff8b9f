"""The command itself: subcommands, options, exit codes, output streams and texts."""

import contextlib
import io
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slidegate as package
from slidegate.ops.cli import run
from slidegate.ops.cli.main import table
from slidegate.ops.rows import span_of

from .command import HANG_S, Command, ban_many, environment, use_store

OPTIONS = {
    "bans add": "by for json reason store value",
    "bans list": "by json match store",
    "bans remove": "by json store value",
    "check": "factory json",
    "explain": "json rule rules store value",
    "limits list": "json store",
    "limits off": "by for json reason store",
    "limits restore": "json store",
    "limits set": "by for json reason store",
}


def test_commands_and_options_are_those_of_today(slidegate: Command) -> None:
    kind = "compiled" if package.__compiled__ else "interpreted"
    assert slidegate("--version") == (0, f"slidegate {package.__version__} ({kind})\n", "")
    for name, options in OPTIONS.items():
        shown = slidegate(*name.split(), "-h")
        assert shown.code == 0
        found = set(re.findall(r"^  (?:-\w, )?--([a-z-]+)", shown.out, re.MULTILINE)) - {"help"}
        assert found == set(options.split()), name
        assert f"\n  Example: slidegate {name}" in shown.out


@pytest.mark.parametrize(
    "more",
    [
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1", "COLUMNS": "20"},
    ],
)
def test_untrusted_text_is_escaped_in_every_locale(more: dict[str, str], lmdb_url: str) -> None:
    reason = "gr\u00f6\u00dfe \x1b[2J\u202e"
    use_store(lmdb_url, lambda limiter: limiter.ban(f"user:{reason}", "1h", reason=reason))
    for words in (("bans", "list"), ("bans", "list", "--json")):
        command = [sys.executable, "-m", "slidegate", *words, "--store", lmdb_url]
        ended = subprocess.run(command, capture_output=True, env=environment(**more), timeout=HANG_S)
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert b"[2J" in ended.stdout
        assert b"\x1b" not in ended.stdout


def test_a_value_on_stdin_in_another_encoding_is_refused_in_a_sentence(lmdb_url: str) -> None:
    words = ["bans", "add", "header:X-API-Key", "--value", "-", "--for", "1h", "--store", lmdb_url]
    command, more = [sys.executable, "-m", "slidegate", *words], environment(PYTHONIOENCODING="utf-8:strict")
    ended = subprocess.run(command, input=b"k\xfc\n", capture_output=True, env=more, timeout=HANG_S)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.startswith(b"Error: header:x-api-key: expected a header's value")


def test_application_of_this_directory_is_found_and_what_is_reported_is_not_logged_too() -> None:
    command = [sys.executable, "-P", "-m", "slidegate", "check", "apps:half"]
    ended = subprocess.run(command, capture_output=True, cwd=Path(__file__).parent, env=environment(), timeout=HANG_S)
    assert (ended.returncode, ended.stderr) == (1, b"")
    assert ended.stdout.startswith(b"SG123")


@pytest.mark.parametrize("redirected", [">&- 2>&-", "| head -n 1"])
def test_closed_output_is_no_failure(redirected: str, lmdb_url: str) -> None:
    use_store(lmdb_url, lambda limiter: ban_many(limiter, 3_000))
    command = ["sh", "-c", f'"$0" -m slidegate bans list --store {lmdb_url} --json {redirected}', sys.executable]
    ended = subprocess.run(command, capture_output=True, env=environment(), timeout=HANG_S)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("words", [("bans", "list", "--store", "lmdb:///store"), ("--version",)])
def test_a_missing_driver_is_named_and_only_where_it_is_needed(words: tuple[str, ...]) -> None:
    code = f"import sys; sys.modules['lmdb'] = None; from slidegate.ops.cli import run; sys.exit(run({words!r}))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(), timeout=HANG_S)
    err = " ".join(ended.stderr.decode().split())
    assert "Traceback" not in err
    assert (ended.returncode != 0, "slidegate[lmdb]" in err) == ("--store" in words,) * 2


USUAL = {
    **{name: ["--json"] for name in (*OPTIONS, "", "--version")},
    "bans add": ["203.0.113.7", "--for", "1h", "--reason", "scan", "--by", "ann"],
    "bans list": ["--match", "scan", "--by", "ann"],
    "bans remove": ["203.0.113.7"],
    "explain": ["header:X-API-Key", "--value", "k123", "--rule", "api=100/10s; 5/day"],
    "limits set": ["api", "50/minute", "--for", "2h", "--reason", "slow"],
    "limits off": ["--for", "10m", "--by", "ann"],
    "limits restore": ["api"],
}
OTHERS = ["--rules", "--factory", "--help", "--", "a=5/m", "user:42", "--store", "memory://", "lmdb:///no/such/store"]
NO_ADDRESS = st.text(max_size=12).filter(lambda word: ":" not in word)
WORDS = st.lists(st.sampled_from(sorted({*OTHERS, *chain(*USUAL.values())})) | NO_ADDRESS, max_size=6)


@st.composite
def mutated(draw: st.DrawFn, words: list[str]) -> list[str]:
    """Return the words of a command with some characters of theirs replaced."""
    words = [*words]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(words) - 1))
        cut = draw(st.integers(0, len(words[at])))
        words[at] = words[at][:cut] + draw(st.text(max_size=3)) + words[at][cut + draw(st.integers(0, 2)) :]
    return words


@given(st.sampled_from([*USUAL]).flatmap(lambda name: st.tuples(st.just(name), mutated(USUAL[name]) | WORDS)))
def test_no_arguments_cause_a_traceback_or_another_exit_code(lmdb_store: str, said: tuple[str, list[str]]) -> None:
    name, words = said
    store = ["--store", lmdb_store] if "store" in OPTIONS.get(name, "") else []
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        assert run([*name.split(), *store, *words]) in {0, 1, 2}
    assert "Traceback" not in err.getvalue()
    assert all(line.isprintable() for line in err.getvalue().splitlines() if line.startswith("Error"))


UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


@given(st.integers(0, 400 * 86_400 * 10**6) | st.integers(0, 60 * 10**6))
def test_a_span_never_says_less_than_the_exact_wait_and_little_more(span_us: int) -> None:
    words = span_of(span_us / 1_000_000).split()
    said_s = sum(float(number) * UNITS_S[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert span_us <= said_s * 1_000_000 + 1 <= span_us * 1.05 + 100_002
    assert len(words) <= 4


@given(st.lists(st.tuples(st.text(max_size=100), st.integers() | st.floats(allow_nan=False) | st.none()), min_size=1))
def test_a_table_has_one_printable_line_for_each_row(rows: list[tuple[str, object]]) -> None:
    shown = list(table(("name", "value"), [{"name": name, "value": value} for name, value in rows]))
    assert len(shown) == len(rows) + 1
    assert all(line.isprintable() for line in shown)
    assert shown[0].split() == ["name", "value"]
