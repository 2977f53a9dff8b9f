"""The words of the project: names of tests without codes, a page that lists the tests, and sentences with a head."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts.headless_sentences import MOST, files, find, headless, sentences, texts
from slidegate import Limiter

ROOT = Path(__file__).resolve().parents[1]
ROOMS = "core|limiter|netlists|stores|web|outbound|ops|testing"
CODE = re.compile(r"(?<![a-z0-9])(?!(?:as|at|by|in|is|of|on|or|to|utf)[_ -])[a-z][a-z0-9][_ -]\d\d(?![a-z0-9])", re.I)
"""The number of a scenario, two letters and two digits: it says something only beside a list that is not here."""


@cache
def names_of_tests() -> tuple[tuple[str, str], ...]:
    """Return (file, name) of each test, and of each case that has a name of its own."""
    return tuple(_found_names())


def _found_names() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield file, node.name
            elif isinstance(node, ast.keyword) and node.arg in {"id", "ids"}:
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield file, part.value


def test_no_name_of_a_test_holds_a_code() -> None:
    names = names_of_tests()
    assert len(names) > 2_000
    assert [(file, name) for file, name in names if CODE.search(name)] == []


@pytest.mark.parametrize(
    "name", ["test_hp_05_preflights", "test_v6_10_cf_09_no_network", "IP-02, two proxies", "V6-10"]
)
def test_a_code_is_found(name: str) -> None:
    assert CODE.search(name)


@pytest.mark.parametrize(
    "name", ["test_up_to_64_strikes", "test_a_key_of_64_bytes", "through_a_48_it", "utf-16", "429"]
)
def test_a_number_is_no_code(name: str) -> None:
    assert not CODE.search(name)


def test_no_test_hides_another_of_its_name() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for body in (tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))):
            defined = Counter(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            assert [name for name, times in defined.items() if times > 1 and name.startswith("test_")] == [], path


# -- the page that says where what is tested -----------------------------------------------------------------------


def test_the_page_about_tests_names_all_of_them_and_nothing_else() -> None:
    page = (ROOT / "tests" / "README.md").read_text("utf-8")
    linked = {target.partition("/")[0] for target in re.findall(r"\]\(([\w./]+)\)", page)}
    for target in re.findall(r"\]\(([\w./]+)\)", page) + re.findall(r"tests/[\w/]+\.py", page):
        assert (ROOT / "tests" / target.removeprefix("tests/")).exists(), target
    there = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() or path.name.startswith("test_")}
    assert there - linked <= {"__pycache__"}


def test_the_page_about_tests_names_tests_that_exist() -> None:
    page = (ROOT / "tests" / "README.md").read_text("utf-8")
    named = re.findall(r"\btest_\w{20,}", page)
    assert len(named) >= 2
    assert set(named) <= {name for _, name in names_of_tests()}


# -- headless sentences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sentence",
    [
        "What has left is dropped.",
        "The window lets go of what has left.",
        "Who leaves while waiting gives the place back.",
        "Whose ban refuses a request.",
        "Whoever reads may ask for another minute.",
        "The ban stays, because whoever asks from there is another client.",
        "strikes: What counts towards the next ban.",
        "It must not block; what it raises is dropped.",
        "The store keeps what was refused, and what was charged goes back.",
        "The gate says so, and who goes on stays refused.",
        "A key may be what a client sent.",
    ],
)
def test_a_headless_clause_is_found(sentence: str) -> None:
    assert headless(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "The message says what was expected.",
        "The message names the file, the line and the key, what was expected, and the closest name.",
        "The event says who was refused, for how long, and what is left.",
        "It depends on what the server supports.",
        "Nobody asked about what follows.",
        "A client who waits keeps its place.",
        "The client, who has waited, is served.",
        "Rules, all of whose limits are spent, refuse.",
        "Keys whose rows are gone and whose bans are over are dropped.",
        "The version (`IPv4`), of whose addresses most are public.",
        "The bound holds, whatever the clock says.",
        "Whatever happens to processes, nothing is lost.",
        "What has left?",
        "It says what to write instead.",
        "They ask what kind of store it is, and for what kinds of keys.",
        "The message names what objects were found.",
        "Somebody who has left is not counted.",
        "It is not clear who asked.",
    ],
)
def test_a_clause_with_a_head_is_no_finding(sentence: str) -> None:
    assert not headless(sentence)


def test_titles_and_code_are_no_sentences() -> None:
    page = """
# What it costs

| option | what it does |
| --- | --- |
| `wait` | Holds a request. What waits is counted. |

```python
# What is this?
```

A [paragraph](index.md#whose-ban) that goes
on. Another sentence.
"""
    assert list(sentences(page)) == [
        "Holds a request.",
        "What waits is counted.",
        "A [paragraph] that goes on.",
        "Another sentence.",
    ]


def test_docstrings_comments_and_error_messages_are_read(tmp_path: Path) -> None:
    source = '''
"""A module."""

LIMIT = 1
"""An attribute."""

def function(value):
    """A function."""
    # A comment that
    # goes on.
    text = "No message of an error."
    raise ValueError(f"expected {value!r} here; " "not that")
'''
    (tmp_path / "module.py").write_text(source, "utf-8")
    (tmp_path / "script.lua").write_text("local a = 1 -- no line of its own\n-- A remark.\n", "utf-8")
    read = [text for file in ("module.py", "script.lua") for _, text in texts(tmp_path / file)]
    assert sorted(read) == [
        "A comment that\ngoes on.",
        "A function.",
        "A module.",
        "A remark.",
        "An attribute.",
        "expected `value` here; not that",
    ]


@pytest.mark.parametrize(
    "place",
    ["docs", "README.md", "tests/README.md", *(f"src/slidegate/{room}" for room in ROOMS.split("|"))],
)
def test_hardly_any_sentence_is_headless(place: str) -> None:
    found, total = find([ROOT / place])
    assert total > 20
    assert len(found) <= MOST * total, "\n".join(f"{path}:{line}: {sentence}" for path, line, sentence in found)


def test_no_page_shows_the_traces_of_a_merge() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(page for room in ("docs", "examples", "tests") for page in (ROOT / room).rglob("*.md")),
    ]
    traces = re.compile(r"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)
    assert len(pages) > 40
    assert [page.as_posix() for page in pages if traces.search(page.read_text("utf-8"))] == []


# -- names of modules and files in texts ------------------------------------------------------------------------------

DOTTED = re.compile(rf"`(?:slidegate\.)?((?:{ROOMS})(?:\.(?!py`|toml`)\w+)+)`")
FILE = re.compile(
    rf"(?<![\w/.-])(?:src/slidegate/)?((?:{ROOMS}|tests|examples|scripts|benchmarks|lua)(?:/[a-z0-9]\w*)+\.(?:py|lua|toml))\b"
)


def exists(name: str) -> bool:
    """Return whether a dotted name is a module of the package, or something in one."""
    parts = name.split(".")
    if parts[0] == "limiter" and hasattr(Limiter, parts[1]):  # the object, as users call it
        return True
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(("slidegate", *parts[:cut])))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def stale(text: str) -> list[str]:
    """Return the names of modules and files in a text that are not there."""
    places = (ROOT, ROOT / "tests", ROOT / "src" / "slidegate", ROOT / "src" / "slidegate" / "stores" / "redis")
    missing = [name for name in DOTTED.findall(text) if not exists(name)]
    return missing + [name for name in FILE.findall(text) if not any((place / name).exists() for place in places)]


def test_texts_name_modules_and_files_that_exist() -> None:
    places = [
        ROOT / place for place in ("src", "docs", "README.md", "tests", "examples", "benchmarks", "scripts", "dev.py")
    ]
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in files(places)
        if path.name != "test_sentences.py"
        for names in [[name for _, text in texts(path) for name in stale(text)]]
        if names
    }
    assert found == {}


@pytest.mark.parametrize(
    "text", ["see `core.packed`", "as core/packed.py does", "`slidegate.web.forwarded`", "lua/rings/9_none.lua"]
)
def test_a_stale_name_is_found(text: str) -> None:
    assert stale(text)


@pytest.mark.parametrize(
    "text", ["`core.windows.codec`", "`core.Limit`", "core/decision.py", "tests/conftest.py", "`core`", "web/keys"]
)
def test_a_name_that_exists_is_not_stale(text: str) -> None:
    assert stale(text) == []
