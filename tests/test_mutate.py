"""`python3 dev.py mutate` on a project with a function that nobody tests, and one that only the import runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import mutate

SOURCE = '''
from __future__ import annotations

def reaches(number: int, least: int | None = 3) -> bool | str:
    """Say whether a number is 3 or more."""
    return number >= least

def nobody_asks(number: int) -> int:
    return number - 1

def doubled(number: int) -> int:
    return number * 2

SIX = doubled(3)
'''
TESTS = """
from sums.sums import SIX, nobody_asks, reaches

def test_edge():
    assert reaches(3) and reaches(4) and reaches(9)
    assert not reaches(2)

def test_import():
    assert SIX == 6

def test_redis():
    assert nobody_asks(3) == 2
"""


@pytest.fixture
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = mutate.ROOT / "scripts" / "mutate_plugin.py"
    for name, text in (("src/sums/sums.py", SOURCE), ("tests/test_sums.py", TESTS), ("pytest.ini", "[pytest]\n")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "scripts").mkdir()
    shutil.copy(plugin, tmp_path / "scripts")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "SOURCES", ("src/sums",))
    monkeypatch.setattr(mutate, "MUTATE_TESTS", ("tests",))


@pytest.mark.usefixtures("_project")
def test_what_no_test_runs_survives_and_the_rest_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutate", "--sample", "100", "--processes", "2", "--at-least", "90"])
    assert mutate.main() == 1
    told = capsys.readouterr().out
    tried = [line for line in told.splitlines() if ": " not in line and " src/sums/sums.py:" in line]
    survive = [line for line in tried if line.endswith("SURVIVES")]
    assert {line.split()[1] for line in survive} == {"src/sums/sums.py:9"}
    assert {line.split()[1] for line in tried} - {"src/sums/sums.py:9"} == {
        f"src/sums/sums.py:{line}" for line in (4, 6, 12, 14)
    }
    assert "tests/test_sums.py::test_edge" in told
    assert told.count("-    return number - 1") == len(survive)
    assert f"{len(survive)} survive" in told


@pytest.mark.usefixtures("_project")
def test_a_sample_is_the_same_each_time_and_holds_no_annotation() -> None:
    first, again, other = (mutate.drawn(4, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert len(first) == 4
    everything = mutate.drawn(100, 1)
    assert all("least: int | None" in mutant.source for mutant in everything)
    assert all("-> bool | str" in mutant.source for mutant in everything)
