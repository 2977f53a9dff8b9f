"""Tables keep numbers as numbers, runs are saved with what they depend on, and the page shows what was saved."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.report import chart, comparison, figures, page
from benchmarks.report.tables import Table

HERE = Path(command.__file__).parent
SMALL = {
    "networks": ["--count", "50", "--rounds", "1"],
    "startup": ["--rounds", "1"],
}
"""Flags that make a benchmark small. The others need more time, other packages or a server."""
LONGER = {
    "lmdb": ["--rounds", "1", "--hits", "640"],
    "memory": ["--keys", "20000"],
}


def example(value: float = 1.5) -> figures.Figures:
    table = Table("Speed", {"what": "", "us": ".2f", "to": ""}, [["ours", value, "bare"], ["bare", 1_000, None]])
    return figures.Figures("python3 dev.py bench x", "2026-01-02", {"cores": 2, "load": 0.5}, {"CPython": "3"}, [table])


def test_a_table_shows_numbers_in_their_format_and_whole_ones_whole() -> None:
    assert example().tables[0].markdown().splitlines() == [
        "### Speed",
        "",
        "| what | us | to |",
        "| --- | ---: | --- |",
        "| ours | 1.50 | bare |",
        "| bare | 1,000 | |",
    ]


def test_figures_that_change_change_the_page_and_its_prose_stays() -> None:
    text = "before\n\n<!-- figures: x -->\n<!-- end of figures -->\n\nafter\n"
    first = page.filled(text, lambda name: example())
    assert first.startswith("before\n")
    assert first.endswith("\nafter\n")
    second = page.filled(first, lambda name: example(2.5))
    assert second == first.replace("1.50", "2.50")


def test_the_page_shows_the_saved_figures() -> None:
    text = page.PAGE.read_text("utf-8")
    assert tuple(found["name"] for found in page.PLACE.finditer(text)) == command.NAMES
    assert page.filled(text) == text, "run python3 dev.py bench --write"


@pytest.mark.parametrize("path", chart.charts(), ids=lambda path: path.stem)
def test_the_committed_chart_is_what_the_saved_figures_draw(path: Path) -> None:
    assert path.read_text("utf-8") == chart.charts()[path], "run python3 dev.py bench --write"


def test_the_readme_holds_the_table_of_the_pages_and_figures() -> None:
    text = comparison.README.read_text("utf-8")
    assert comparison.PLACE.search(text)
    assert text == comparison.filled(text), "run python3 dev.py bench --write"


def run_small(name: str, flags: list[str]) -> None:
    # A process of its own: benchmarks fork, silence the log and change the garbage collector.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent / "src"), str(HERE.parent)))}
    line = [sys.executable, "-m", "benchmarks", name, *flags]
    ended = subprocess.run(line, cwd=HERE.parent, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^\| -", ended.stdout, re.MULTILINE)
    assert f"`python3 dev.py bench {name}" in ended.stdout


@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_of_a_benchmark_ends_well(name: str) -> None:
    run_small(name, SMALL[name])


@pytest.mark.deep
@pytest.mark.parametrize("name", LONGER)
def test_a_longer_run_of_a_benchmark_ends_well(name: str) -> None:
    run_small(name, LONGER[name])
