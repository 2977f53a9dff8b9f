"""The page about the proof: each promise has tests that are run, with the numbers of their settings, and mutations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from . import test_broken_promises as broken
from .core import test_mutations as mutations
from .test_docs import blocks

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "concepts" / "proof.md").read_text("utf-8")
LONGER = "## Tried for longer"
PROMISED = PAGE[PAGE.index("## The promises") : PAGE.index(LONGER)]
NODE = re.compile(r"`(tests/[\w/]+\.py::[\w:]+(?:\[[^\]`]+\])?)`")
ROW = re.compile(
    rf"^\* (.+?)(?: \(([\d,]+) programs, deep ([\d,]+)\))?:\n  {NODE.pattern}$",
    re.MULTILINE,
)
STORES = (
    "tests/stores/test_memory.py::TestContract",
    "tests/stores/test_lmdb.py::TestContract",
    "tests/stores/test_lmdb.py::TestContractOverTwoProcesses",
    "tests/stores/test_redis_store.py::TestRedis",
    "tests/stores/test_redis_store.py::TestValkey",
    "tests/stores/test_redis_store.py::TestCluster",
)
"""Where the contract runs."""
COLLECTED = "COLLECTED="
PLUGIN = f'''
import inspect, json

def pytest_collection_finish(session):
    for item in session.items:
        marks = sorted({{mark.name for mark in item.iter_markers()}})
        print("{COLLECTED}" + json.dumps([item.nodeid, marks, inspect.getsource(item.function)]))
'''


class Row(NamedTuple):
    """One entry of a list: a test, and the programs that it tries."""

    tries: str
    ordinary: str
    deep: str
    node: str


class Section(NamedTuple):
    """One promise on the page."""

    title: str
    rows: list[Row]
    mutations: list[str]


class Item(NamedTuple):
    """A test as pytest collects it."""

    marks: list[str]
    source: str


def sections() -> Iterator[Section]:
    """Yield the promises."""
    for part in PROMISED.split("\n### ")[1:]:
        title, _, text = part.partition("\n")
        said = re.search(r"^Mutations: (.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        quoted = re.findall(r'"([^"]+)"', said[1]) if said else []
        rows = [Row(*found.groups(default="")) for found in ROW.finditer(text)]
        yield Section(title, rows, [" ".join(what.split()) for what in quoted])


SECTIONS = list(sections())


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Item]:
    """Every test that the page names, as pytest finds it; deep ones too."""
    directory = tmp_path_factory.mktemp("plugin")
    (directory / "tell_tests.py").write_text(PLUGIN, "utf-8")
    named = {node.partition("[")[0] for node in NODE.findall(PAGE)}
    named |= {store + node.removeprefix(STORES[0]) for node in named if node.startswith(STORES[0]) for store in STORES}
    path = os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
    command = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "tell_tests", "-m", "", *named]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    lines = [line.removeprefix(COLLECTED) for line in done.stdout.splitlines() if line.startswith(COLLECTED)]
    found: list[list[Any]] = [json.loads(line) for line in lines]
    return {node: Item(marks, source) for node, marks, source in found}


def items_of(node: str, collected: dict[str, Item]) -> list[Item]:
    """Return the tests of a name: the one, or each case of it."""
    return [item for found, item in collected.items() if found == node or found.partition("[")[0] == node]


def programs(source: str) -> tuple[str, str]:
    """Return how many random programs a test tries in an ordinary run and in a deep one, as the page writes it."""
    if "@given(" not in source:
        return "", ""
    own = re.search(r"max_examples=([\d_]+)", source)
    profiles = [settings.get_profile(name).max_examples for name in ("default", "deep")]
    ordinary, deep = [int(own[1])] * 2 if own else profiles
    return f"{ordinary:,}", f"{deep:,}"


def known_mutations() -> set[str]:
    """Return the names of all mutations."""
    found = {row.mutation.what for row in broken.ALL}
    for value in vars(mutations).values():
        for entry in value if isinstance(value, list) else ():
            found.update(part.what for part in (entry, *tuple(entry)) if isinstance(part, mutations.Mutation))
    return found


def test_the_page_has_every_promise() -> None:
    titles = [section.title for section in SECTIONS]
    assert [title.partition(".")[0] for title in titles[:8]] == [str(number) for number in range(1, 9)]
    assert titles[8:] == ["Quotas", "Concurrency"]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_a_promise_has_tests_and_mutations(section: Section) -> None:
    assert len(section.rows) >= 3
    assert len(section.mutations) >= 2
    assert set(section.mutations) <= known_mutations()


def test_every_entry_of_a_list_is_read() -> None:
    assert sum(len(section.rows) for section in SECTIONS) == len(re.findall(r"^ +`tests/", PROMISED, re.MULTILINE)) > 40


def test_no_mutation_is_written_twice() -> None:
    named = [what for section in SECTIONS for what in section.mutations]
    assert len(named) == len(set(named))


def test_every_mutation_that_one_promise_has_to_catch_stands_below_that_promise() -> None:
    for what, promise in mutations.PROMISES:
        (section,) = [
            section
            for section in SECTIONS
            if any(f"test_a_ring[{promise.__name__}]" in row.node for row in section.rows)
        ]
        assert what in section.mutations, (what, section.title)


def test_every_mutation_of_stores_failures_quotas_and_places_is_on_the_page() -> None:
    named = {what for section in SECTIONS for what in section.mutations}
    assert {row.mutation.what for row in broken.ALL} <= named


def test_every_test_in_a_list_is_run_every_time(collected: dict[str, Item]) -> None:
    for section in SECTIONS:
        for row in section.rows:
            found = items_of(row.node, collected)
            assert found, row.node
            # Where a test has a longer form, which is a case of it, the ordinary one has to be there too.
            assert any(not {"deep", "skip", "xfail"} & set(item.marks) for item in found), row.node


def test_tests_that_the_page_calls_long_are_marked_as_such(collected: dict[str, Item]) -> None:
    longer = PAGE[PAGE.index(LONGER) :]
    named = NODE.findall(longer)
    assert len(named) >= 2
    for node in named:
        assert all("deep" in item.marks for item in items_of(node, collected)), node


def test_numbers_of_programs_are_those_of_the_settings(collected: dict[str, Item]) -> None:
    wrong = {
        row.node: numbers
        for section in SECTIONS
        for row in section.rows
        for item in items_of(row.node, collected)
        for numbers in [programs(item.source)]
        if numbers != (row.ordinary, row.deep)
    }
    assert wrong == {}


def test_every_store_passes_the_tests_of_the_contract_that_the_page_names(collected: dict[str, Item]) -> None:
    named = {node.removeprefix(STORES[0]) for node in NODE.findall(PAGE) if node.startswith(STORES[0])}
    assert len(named) >= 5
    for name in named:
        for store in STORES:
            assert items_of(store + name, collected), store + name


def test_all_tests_that_the_page_names_anywhere_are_there(collected: dict[str, Item]) -> None:
    assert [node for node in NODE.findall(PAGE) if not items_of(node, collected)] == []
    for file in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / file).is_file()


def test_the_page_tries_the_theorem_by_running_it() -> None:
    theorem = PAGE[PAGE.index("## The window theorem") : PAGE.index("## The promises")]
    shown = [block.code for block in blocks(theorem)]
    assert len(shown) >= 3
    assert all("assert" in code for code in shown)


BY_PROFILE = tuple(f"{settings.get_profile(name).max_examples:,}" for name in ("default", "deep"))


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("def test(): pass", ("", "")),
        ("@given(x)\ndef test(x): pass", BY_PROFILE),
        ("def test():\n    @settings(max_examples=1_500)\n    @given(x)\n    def check(x): ...", ("1,500", "1,500")),
    ],
)
def test_programs_are_counted_by_settings_or_profile(source: str, numbers: tuple[str, str]) -> None:
    assert programs(source) == numbers
