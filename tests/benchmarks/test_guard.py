"""The guard counts instructions of paths that do what their names say, and fails when one grows by over a tenth."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.guard import instructions, paths

ROOT = Path(__file__).resolve().parents[2]
BEFORE = {"gate, admitted": 10.0, "gate, refused": 5.0}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that records `BEFORE` for this interpreter, on a machine with valgrind."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    target = tmp_path / "figures" / "instructions.json"
    instructions.record(target, {paths.REFERENCE: 100.0, **{name: 100 * ratio for name, ratio in BEFORE.items()}})
    return target


def counted(monkeypatch: pytest.MonkeyPatch, reference: float = 100.0, **grown: float) -> None:
    """Let the counter find that the named paths grew by a factor."""
    now = {name: reference * ratio * grown.get(name.split(", ")[1], 1) for name, ratio in BEFORE.items()}
    monkeypatch.setattr(instructions, "count", lambda names=(): {paths.REFERENCE: reference, **now})


@pytest.mark.parametrize("name", [name for name in paths.paths() if name != paths.REFERENCE])
async def test_each_path_ends_as_its_name_says(name: str) -> None:
    for times in (3, 5):
        await paths.paths()[name](times)


async def test_a_path_that_ends_otherwise_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expected 429, got 200"):
        await paths.gate(paths.PLENTY, 429)(3)
    with pytest.raises(RuntimeError, match="expected False"):
        await paths.hit(paths.PLENTY, allowed=False)(3)


def test_each_path_runs_in_two_children_that_differ_in_the_requests_alone() -> None:
    command = [sys.executable, "-m", "benchmarks.guard.paths", "limiter.hit, refused"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in ended.stdout.splitlines()]
    expected = [(name, times) for name in (paths.REFERENCE, "limiter.hit, refused") for times in (1, 2)]
    assert [(name, int(times) // paths.COUNT) for name, times, _ in lines] == expected
    assert len({pid for _, _, pid in lines}) == 4


@pytest.mark.parametrize(("factor", "code"), [(0.5, 0), (1.0, 0), (1.09, 0), (1.11, 1)])
def test_growth_of_more_than_a_tenth_fails_with_before_and_after(
    factor: float, code: int, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(monkeypatch, refused=factor)
    assert instructions.check(recorded) == code
    said = capsys.readouterr().out
    assert f"gate, refused: 5.00 before, {5 * factor:.2f} now" in said
    assert ("FAILED: gate, refused" in said) == bool(code)
    assert "FAILED: gate, admitted" not in said


def test_an_interpreter_that_does_everything_in_fewer_instructions_changes_no_ratio(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted(monkeypatch, reference=70.0)
    assert instructions.check(recorded) == 0
    assert "+0.0%" in capsys.readouterr().out


def test_a_path_on_one_side_alone_is_named_and_not_compared() -> None:
    lines, failures = instructions.compare({"gone": 1.0, "kept": 1.0}, {"kept": 1.0, "new": 1.0})
    assert lines[0] == "gone: recorded, but no longer a path"
    assert lines[2] == "new: not recorded, so not compared"
    assert failures == []


@pytest.mark.parametrize("ci", [False, True])
def test_without_valgrind_a_line_says_so_and_continuous_integration_fails(
    ci: bool, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CI", "true" if ci else "")
    assert instructions.check(recorded) == int(ci)
    assert capsys.readouterr().out == "not compared: valgrind is not installed: sudo apt install valgrind\n"


@pytest.mark.parametrize("ci", [False, True])
def test_figures_of_another_python_are_never_compared(
    ci: bool, recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = instructions.interpreter()
    monkeypatch.setattr(instructions, "interpreter", lambda: "CPython 3.99.0, GCC 99, x86_64")
    monkeypatch.setattr(instructions, "count", lambda names=(): pytest.fail("counted for nothing"))
    monkeypatch.setenv("CI", "true" if ci else "")
    assert instructions.check(recorded) == int(ci)
    said = capsys.readouterr().out
    assert said.startswith("not compared: no figures of CPython 3.99.0")
    assert own in said


def test_recording_keeps_figures_of_other_interpreters(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = instructions.interpreter()
    monkeypatch.setattr(instructions, "interpreter", lambda: "another")
    instructions.record(recorded, {paths.REFERENCE: 10.0, "gate, admitted": 30.0})
    kept = json.loads(recorded.read_text("utf-8"))
    assert kept[own]["ratios"] == BEFORE
    assert kept["another"]["ratios"] == {"gate, admitted": 3.0}


def test_what_is_recorded_in_the_repository_names_every_path() -> None:
    kept = json.loads(instructions.RECORDED.read_text("utf-8"))
    assert kept
    for figures in kept.values():
        assert {*figures["ratios"], paths.REFERENCE} == set(paths.paths())


@pytest.mark.deep
@pytest.mark.skipif(bool(instructions.missing_tool()), reason=instructions.missing_tool())
def test_two_counts_of_the_same_code_agree_to_a_hundredth() -> None:
    first, second = (instructions.ratios(instructions.count(["limiter.hit, refused"])) for _ in range(2))
    assert second == pytest.approx(first, rel=0.01)
