"""What all tests share: how hard Hypothesis tries, random numbers that say where they come from, texts, servers."""

import difflib
import gc
import logging
import os
import random
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from starlette.convertors import CONVERTOR_TYPES, StringConvertor

from slidegate.core.events import Event
from slidegate.testing import FakeClock

from .redis_servers import RedisCluster, RedisServer
from .skips import missing_here, most_skipped, skipped_where_missing

ROOT = Path(__file__).resolve().parents[1]
EVENTS = ROOT / "docs" / "reference" / "errors.md"
FORKING = ("stores/test_forks.py", "stores/lmdb/")
"""The tests that fork most."""

settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # how long it takes to draw examples says how busy the machine is
    print_blob=True,
    report_multiple_bugs=False,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # it prints more lines than the case has
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=30)
settings.register_profile("transport", settings.get_profile("default"), max_examples=40)
settings.register_profile("quick transport", settings.get_profile("default"), max_examples=12)
settings.register_profile("deep", settings.get_profile("default"), max_examples=10_000)


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer random examples in the command that developers run all the time; pinned ones run everywhere."""
    is_quick = "not all" in config.option.markexpr and not os.environ.get("CI")
    if not config.getoption("--hypothesis-profile", default=None):  # which a run without its plugin lacks
        settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick" if is_quick else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the texts that tests compare whole")


@pytest.fixture(scope="session", autouse=True)
def _small_files() -> None:
    """Let files of LMDB take 4 MiB of the disk, and not 256."""
    with suppress(ImportError):
        from slidegate.stores.lmdb import counts

        counts.NEW_MAP_SIZE = 1 << 22  # type: ignore[misc]


@pytest.fixture(scope="module", autouse=True)
def _little_garbage() -> None:
    """Leave what there is before a file of tests out of its collections of garbage, which took a third of the time."""
    gc.collect()
    gc.freeze()


# -- texts that tests compare whole ------------------------------------------------------------------------------------

# Files of entries, each a line that begins with a prompt and what it gives. A blank line and comments may stand between
# two entries. ``pytest --update`` writes what is given now into the files; read the diff before you commit it.
BETWEEN = re.compile(r"\n(\n(?:#.*\n)*)\Z")
"""What stands between two entries: one blank line, then comments."""


def answered(text: str, prompt: str | re.Pattern[str], answer: Callable[[str], str], path: Path, first: int) -> str:
    """Return a text that begins in a line of a file, with what each of its entries gives now.

    What is answered is the rest of a line behind a prompt, or the first group of an expression that finds whole lines.
    """
    if isinstance(prompt, str):
        prompt = re.compile(rf"^{re.escape(prompt)}(.*)\n", re.MULTILINE)
    found = [*prompt.finditer(text)]
    ends = [*(one.start() for one in found[1:]), len(text)]
    parts = [text[: found[0].start()] if found else text]
    for question, end in zip(found, ends, strict=True):
        told = text[question.end() : end]
        between = BETWEEN.search(f"\n{told}")
        try:
            given = answer(question[1]).rstrip("\n")
        except (Exception, pytest.fail.Exception) as error:  # the latter, where an error was expected and none came
            line = first + text[: question.start()].count("\n")
            error.add_note(f"{path}:{line}: {question[0].rstrip()}")
            raise
        if missing_here(given):  # this one entry needs what is not installed
            parts += [question[0], told]
            continue
        parts += [question[0], f"{given}\n" if given else "", between[1] if between is not None else ""]
    return "".join(parts)


@pytest.fixture
def texts_in(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Checks what each entry in a part of a file gives: the path, the part, the prompt, and what answers an entry."""

    def check(path: Path, part: str, prompt: str | re.Pattern[str], answer: Callable[[str], str]) -> None:
        first = path.read_text("utf-8").partition(part)[0].count("\n") + 1
        text = answered(part, prompt, answer, path, first)
        if text == part:
            return
        if request.config.getoption("--update") and not os.environ.get("CI"):
            path.write_text(path.read_text("utf-8").replace(part, text, 1), "utf-8")
            return
        before, now = part.splitlines(), text.splitlines()
        same = takewhile(lambda both: both[0] == both[1], zip(before, now, strict=False))
        differs = first + len([*same])
        lines = difflib.unified_diff(before, now, f"{path}:{differs}", "now", n=1, lineterm="")
        raise AssertionError("\n".join(lines) + "\n(pytest --update writes the texts of now)")

    return check


@pytest.fixture
def texts(texts_in: Callable[..., None]) -> Callable[[Path, str, Callable[[str], str]], None]:
    """Checks what each entry of a file gives: the path, the prompt, and the function that answers an entry."""
    return lambda path, prompt, answer: texts_in(path, path.read_text("utf-8"), prompt, answer)


@pytest.fixture(autouse=True)
def _parameters_of_starlette() -> Iterator[None]:
    """Undo what the import of FastHTML does to the parameters of all routes, so that no test depends on others."""
    text, known = StringConvertor.regex, CONVERTOR_TYPES.copy()
    yield
    StringConvertor.regex = text
    CONVERTOR_TYPES.update(known)


@pytest.fixture
def rng() -> random.Random:
    """Random numbers; the seed is shown with a failure, and SLIDEGATE_TEST_SEED repeats it."""
    seed = int(os.environ.get("SLIDEGATE_TEST_SEED", 0)) or random.SystemRandom().getrandbits(32)
    print(f"SLIDEGATE_TEST_SEED={seed}")  # noqa: T201 - pytest shows it where a test fails
    return random.Random(seed)


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A server that all tests share: they empty it first, or have a prefix of their own, and leave it as it is."""
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The address of an empty store of the `kind` that a test is parametrized with."""
    if kind in ("memory", "lmdb"):
        return "memory://" if kind == "memory" else f"lmdb://{tmp_path}/store"
    servers = request.getfixturevalue("server" if kind == "redis" else "cluster")
    return f"{servers.url}?prefix={tmp_path.name}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10**9)


os.environ.pop("SLIDEGATE_SECRET", None)  # that of the developer would change every digest


@cache
def details() -> dict[str, set[str]]:
    """Return the names of the details of each kind of events; nothing without the page, as in a copy of the tests."""
    text = EVENTS.read_text("utf-8").partition("\n## All kinds of events\n")[2] if EVENTS.exists() else ""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", text, re.MULTILINE)
    return {kind: set(re.findall("`([^`]+)`", named)) for kind, named in rows}


odd_events: list[str] = []
"""Events of the package whose fields differ from those of docs/reference/errors.md, or whose messages break off."""
_finish = Event.__post_init__


def _look_at(event: Event) -> None:
    maker = sys._getframe(2).f_globals.get("__name__", "")  # behind the constructor that the dataclass has made
    if maker == "slidegate.limiter.observers":
        pass  # a copy with its time, also of an event that a test has made up
    elif maker.startswith("slidegate.") and details() and set(event.details) != details().get(event.kind):
        odd_events.append(f"{maker}: {event.kind} has {sorted(event.details)}")
    elif maker.startswith("slidegate.") and event.message.rstrip(" :") != event.message:
        odd_events.append(f"{maker}: {event.kind} ends without its reason: {event.message!r}")
    _finish(event)


Event.__post_init__ = _look_at  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def events_have_their_fields() -> Iterator[None]:
    """Look at every event that the package makes in any test."""
    logging.getLogger().setLevel(logging.WARNING)  # some frameworks, and a page, leave other levels
    logging.getLogger("slidegate").setLevel(logging.NOTSET)
    odd_events.clear()
    yield
    assert odd_events == []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Leave out files of tests that import what is missing here."""
    return skipped_where_missing((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave out tests that ask for it when they run."""
    return skipped_where_missing((yield))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what forks first, and leave out what a compiled wheel cannot do, where one is tested.

    A fork copies the tables of all memory that the tests before it have left.
    """
    items.sort(key=lambda item: not any(folder in item.nodeid for folder in FORKING))
    if os.environ.get("SLIDEGATE_COMPILED") == "1":
        for item in items:
            for mark in item.iter_markers("interpreted"):
                item.add_marker(pytest.mark.skip(reason=mark.args[0]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say that a run skips more tests than skips.txt allows; with ``CI=true`` it fails."""
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")  # none in a worker of xdist
    most = most_skipped()
    if terminal is None or most is None:
        return
    # Those that a compiled run leaves out by their mark are no surprise.
    reports = terminal.stats.get("skipped", [])
    skipped = sum("interpreted" not in getattr(report, "keywords", ()) for report in reports)
    if skipped > most:
        terminal.write_line(f"{skipped} tests were skipped, and at most {most} may be (tests/skips.txt)", red=True)
        if os.environ.get("CI") == "true":
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
