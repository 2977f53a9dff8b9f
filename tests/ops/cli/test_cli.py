"""The command in this process and as a process of its own, and the stores that it is used with."""

import contextlib
import errno
import io
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.ops.cli import run
from slidegate.ops.cli.main import table
from slidegate.ops.rows import span

from ...redis_servers import needs_redis
from ...web import frameworks
from ..replay.test_replay import line
from . import apps
from .terminal import Command, Terminal, command, create_store

os.environ.pop("SLIDEGATE_STORE", None)  # that of the developer would be used by every command
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def slidegate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, as if it had no other limiters."""
    return command(capsys, monkeypatch)


@pytest.fixture(scope="module")
def lmdb_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an LMDB store for all tests and examples that change nothing in it."""
    return create_store(f"lmdb://{tmp_path_factory.mktemp('of_examples')}/store")


USUAL = {
    **{name: ["--json"] for name in ("check", "limits list", "", "--version")},
    "bans add": ["203.0.113.7", "--for", "1h", "--reason", "scan", "--by", "ann"],
    "bans list": ["--json"],
    "bans remove": ["203.0.113.7"],
    "explain": ["header:X-API-Key", "--value", "k123", "--json"],
    "limits set": ["api", "50/minute", "--for", "2h", "--reason", "slow"],
    "limits off": ["--for", "10m", "--by", "ann"],
    "limits restore": ["api"],
}
OTHERS = ["--factory", "--help", "--", "a=5/m", "user:42", "--store", "memory://", "lmdb:///no/such/store"]
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
    store = ["--store", lmdb_store] if name.startswith(("bans", "limits", "explain")) else []
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = run([*name.split(), *store, *words])
    assert code in {0, 1, 2} or (code, name) == (3, "explain")
    assert "Traceback" not in err.getvalue()
    assert all(line.isprintable() for line in err.getvalue().splitlines() if line.startswith("Error"))


UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


@given(st.integers(0, 400 * 86_400 * 10**6) | st.integers(0, 60 * 10**6))
def test_a_span_never_says_less_than_the_exact_wait_and_little_more(span_us: int) -> None:
    words = span(span_us / 1_000_000).split()
    said_s = sum(float(number) * UNITS_S[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert span_us <= said_s * 1_000_000 + 1 <= span_us * 1.05 + 100_002
    assert len(words) <= 4


@given(st.lists(st.tuples(st.text(max_size=100), st.integers() | st.floats(allow_nan=False) | st.none()), min_size=1))
def test_a_table_has_one_printable_line_for_each_row(rows: list[tuple[str, object]]) -> None:
    shown = list(table(("name", "value"), [{"name": name, "value": value} for name, value in rows]))
    assert len(shown) == len(rows) + 1
    assert all(line.isprintable() for line in shown)
    assert shown[0].split() == ["name", "value"]


# -- check: middlewares are found wherever they are; what it says is in the transcripts --------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", frameworks.STACKS)
def test_a_middleware_in_a_framework_is_found(name: str, slidegate: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def codes(make: Callable[[], Any]) -> list[str]:
        """Return the codes of the findings of an application that a function of a module makes."""
        module: Any = ModuleType("tests_served")
        module.make = make
        with pytest.MonkeyPatch.context() as patched:  # which keeps no application alive
            patched.setitem(sys.modules, module.__name__, module)
            ended = slidegate("check", "--json", "--factory", f"{module.__name__}:make")
        found = [json.loads(line)["code"] for line in ended.out.splitlines()]
        assert ended.code == (1 if found else 0)
        return found

    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))  # the startup of Litestar changes both
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    make = {**frameworks.KNOWN, **frameworks.UNKNOWN}[name]
    # Litestar builds the middleware for each of its routes.
    assert codes(lambda: make(apps.limited)) == (["SG131"] if name == "litestar" else [])
    assert codes(make) == ["SG201"]
    if name in frameworks.UNKNOWN:
        assert codes(lambda: apps.limited(make())) == []


def test_a_store_of_another_user_is_an_unusable_store(
    lmdb_store: str, slidegate: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def of_another_user(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", of_another_user)
    for words in (["list"], ["add", "203.0.113.7", "--for", "1h"]):
        ended = slidegate("bans", *words, "--store", lmdb_store)
        assert (ended.code, ended.err.count("Permission denied")) == (1, 1)


# -- simulate and suggest: numbers that are right; their texts are in the transcripts ----------------------------------


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
def test_the_page_shows_what_the_command_prints_in_seconds(command: str, tmp_path: Path, slidegate: Command) -> None:
    page = (ROOT / "docs" / "guides" / "command.md").read_text("utf-8")
    shown = re.search(rf"^slidegate {command} access.log( ?[^\n]*)\n```\n\n```text\n([^`]*)```", page, re.MULTILINE)
    assert shown is not None
    log = tmp_path / "access.log"
    log.write_text(page_log())
    start = time.process_time()
    assert slidegate(command, str(log), *shlex.split(shown[1])).out == shown[2]
    if not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):  # which takes time, too
        assert time.process_time() - start < 8  # a quarter of it where nothing else runs


# -- the command as operators see it: every line of transcripts, on real stores, with exit codes and errors ------------


TRANSCRIPTS = Path(__file__).with_name("transcripts")
PLAYED = [
    *((name, "lmdb") for name in ("bans", "limits", "explain")),
    *(pytest.param(name, "redis", marks=needs_redis) for name in ("bans", "limits", "explain", "check")),
    pytest.param("processes", "lmdb", marks=pytest.mark.all),
    pytest.param("secrets", "lmdb", marks=pytest.mark.all),
    pytest.param("workers", "lmdb", marks=pytest.mark.all),
    pytest.param("workers", "redis", marks=[pytest.mark.all, needs_redis]),
    *((name, "") for name in ("usage", "no_stores", "simulate")),
]
"""The transcripts, and the kind of the existing, empty store that each is played on, if any."""


@pytest.mark.parametrize(("name", "kind"), PLAYED)
def test_operators_see_what_the_transcripts_say(
    name: str,
    kind: str,
    request: pytest.FixtureRequest,
    slidegate: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    texts: Callable[..., None],
) -> None:
    url = create_store(request.getfixturevalue("url")) if kind else ""
    terminal = Terminal(slidegate, tmp_path, monkeypatch, url)
    with terminal.servers:
        texts(TRANSCRIPTS / f"{name}.txt", "$ ", terminal.answer)
