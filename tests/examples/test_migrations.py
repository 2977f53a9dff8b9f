"""The pages of docs/coming_from have the numbers that the example measures; those of slidegate keep its promises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("slowapi")

from examples.migrations.asking import loop
from examples.migrations.attacks import flood
from examples.migrations.facts import QUESTIONS, SYSTEMS
from examples.migrations.pages import FOLDER, filled
from examples.migrations.rows import Table
from examples.migrations.virtual_time import virtual_time

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300


@pytest.fixture(scope="module", autouse=True)
def closed_loop() -> Iterator[None]:
    """Close the event loop of the example when all its tests have run."""
    yield
    loop.close()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Table]]:
    """The tables that the example measures, as a reader would start it."""
    file = tmp_path_factory.mktemp("migrations") / "tables.json"
    command = [sys.executable, "-m", "examples.migrations", "--json", str(file)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=BOUND_S).stdout
    assert "slowapi" in shown
    return {name: [Table(**table) for table in found] for name, found in json.loads(file.read_text("utf-8")).items()}


def test_every_page_has_the_numbers_that_were_measured(tables: dict[str, list[Table]]) -> None:
    stale = [
        name
        for name, of_page in tables.items()
        for text in [(FOLDER / f"{name}.md").read_text("utf-8")]
        if filled(text, of_page) != text
    ]
    assert stale == [], "python3 dev.py example migrations --pages writes them"


def test_our_promises_hold_in_the_table(tables: dict[str, list[Table]]) -> None:
    (overview,) = tables["index"]
    for row in overview.rows[:2]:
        ours = dict(zip(overview.head, row, strict=True))
        assert [ours[question] for question in QUESTIONS[:2]] == ["100", "100"]
        promised, true = (float(part.removesuffix(" s")) for part in ours[QUESTIONS[2]].split("; "))
        assert true <= promised < true + 1


LIBRARIES = {name: one for name, (one, _) in SYSTEMS.items() if "(model)" not in name and "counter" not in name}


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_is_set_up_for_the_same_limit(library: str) -> None:
    with virtual_time() as clock:
        system = LIBRARIES[library](clock)
        assert flood(system) == 100
        assert system.ask().status in (403, 429)
        clock.advance("121s")
        assert system.ask().passed
