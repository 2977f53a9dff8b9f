"""What requests are answered, as readable scenarios; the words of them are those of `Stage`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from slidegate.findings import report

from ..virtual_time import VirtualTime
from .middlewares import FORMS
from .stage import Stage

SCENARIOS = Path(__file__).with_name("scenarios")
POSITIONS = {"site": [""], "forms": [*FORMS], "everywhere": ["rule", *FORMS]}
"""Where a scenario is played, by its first verb."""


def lines_of(path: Path) -> list[str]:
    return [line[2:] for line in path.read_text("utf-8").splitlines() if line.startswith("> ")]


async def played(scenario: list[str], virtual: VirtualTime, directory: Path) -> list[str]:
    """Return the answer to each line of one scenario; where places differ, each behind the places where it is given."""
    found: list[dict[str, list[str]]] = [{} for _ in scenario]
    for position in POSITIONS[scenario[0].partition(" ")[0]]:
        async with Stage(virtual, directory, position) as stage:
            for places, answer in zip(found, await stage.play(*scenario), strict=True):
                places.setdefault(answer, []).append(position)
    return [
        "\n".join(f"{', '.join(at)}: {answer}" if len(places) > 1 else answer for answer, at in places.items())
        for places in found
    ]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
async def test_scenarios(
    path: Path, tmp_path: Path, texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem != "findings":  # most requests of an application are not among the first ones, which are checked
        monkeypatch.setattr(report, "REQUESTS_CHECKED", 2)
    virtual, answers = VirtualTime(), list[str]()
    scenario: list[str] = []
    for line in [*lines_of(path), "site"]:
        if line.split(" ", 1)[0] in POSITIONS and scenario:
            answers += await played(scenario, virtual, tmp_path)
            scenario = []
        scenario.append(line)
    texts(path, "> ", lambda _: answers.pop(0))
