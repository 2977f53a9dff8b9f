"""What requests are answered, as readable scenarios; the words of them are those of `Stage`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ..virtual_time import VirtualTime
from .middlewares import FORMS
from .stage import Stage

SCENARIOS = Path(__file__).with_name("scenarios")
POSITIONS = {"site": [""], "forms": [*FORMS], "everywhere": ["rule", *FORMS]}
"""Where a scenario is played, by its first verb."""


def lines_of(path: Path) -> list[str]:
    return [line[2:] for line in path.read_text("utf-8").splitlines() if line.startswith("> ")]


async def played(scenario: list[str], virtual: VirtualTime, directory: Path) -> list[str]:
    """Return the answers to the lines of one scenario; where places differ, those of each."""
    positions = POSITIONS[scenario[0].partition(" ")[0]]
    found = []
    for position in positions:
        async with Stage(virtual, directory, position) as stage:
            found.append(await stage.play(*scenario))
    return [
        answers[0] if len(set(answers)) == 1 else differing(positions, answers) for answers in zip(*found, strict=True)
    ]


def differing(positions: list[str], answers: tuple[str, ...]) -> str:
    """Return each answer behind the places where it is given."""
    said = {
        answer: [position for position, own in zip(positions, answers, strict=True) if own == answer]
        for answer in answers
    }
    return "\n".join(f"{', '.join(positions)}: {answer}" for answer, positions in said.items())


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
async def test_scenarios(path: Path, tmp_path: Path, texts: Callable[..., None]) -> None:
    virtual, answers = VirtualTime(), list[str]()
    scenario: list[str] = []
    for line in [*lines_of(path), "site"]:
        if line.split(" ", 1)[0] in POSITIONS and scenario:
            answers += await played(scenario, virtual, tmp_path)
            scenario = []
        scenario.append(line)
    texts(path, "> ", lambda _: answers.pop(0))
