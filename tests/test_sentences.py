"""The words of the project: names of tests without codes, and a page that says where what is tested."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = re.compile(r"(?<![a-z0-9])(?!(?:as|at|by|in|is|of|on|or|to|utf)[_ -])[a-z][a-z0-9][_ -]\d\d(?![a-z0-9])", re.I)
"""The number of a scenario, two letters and two digits: it says something only beside a list that is not here."""


def names_of_tests() -> Iterator[tuple[str, str]]:
    """Yield (file, name) of each test, and of each case that has a name of its own."""
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
    names = list(names_of_tests())
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
