"""What requests are answered, as readable scenarios; the words of them are those of `Stage`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slidegate.findings import report

from ..virtual_time import VirtualTime
from .middlewares import FORMS
from .stage import Stage

SCENARIOS = Path(__file__).with_name("scenarios")
POSITIONS = {"site": [""], "forms": [*FORMS], "everywhere": ["rule", *FORMS]}
"""Where a scenario is played, by its first verb."""
BEGINS = re.compile(rf"^> (?:{'|'.join(POSITIONS)})\b")


class Scenario(NamedTuple):
    """One scenario: a test by itself, called by the line of its file where it begins."""

    path: Path
    first_line: int
    text: str

    @property
    def lines(self) -> dict[int, str]:
        """What is played, by its line in the file."""
        numbered = enumerate(self.text.splitlines(), start=self.first_line)
        return {number: line[2:] for number, line in numbered if line.startswith("> ")}


def scenarios() -> Iterator[Scenario]:
    for path in sorted(SCENARIOS.glob("*.txt")):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        starts = [_start(lines, number) for number, line in enumerate(lines) if BEGINS.match(line)]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield Scenario(path, start + 1, "".join(lines[start:end]))


def _start(lines: list[str], number: int) -> int:
    """Return where a scenario starts: at its first verb, or at the files before it, which its options read."""
    while number and lines[number - 1].startswith("> write "):
        number -= 1
    return number


async def played(scenario: Scenario, virtual: VirtualTime, directory: Path) -> list[str]:
    """Return the answer to each line of a scenario; where places differ, each behind the places where it is given."""
    lines = scenario.lines
    begins = next(line for line in lines.values() if not line.startswith("write "))
    found: list[dict[str, list[str]]] = [{} for _ in lines]
    for position in POSITIONS[begins.partition(" ")[0]]:
        async with Stage(virtual, directory, position) as stage:
            for (number, line), places in zip(lines.items(), found, strict=True):
                try:
                    answer = await stage.answer(line)
                except Exception as error:
                    error.add_note(f"{scenario.path}:{number}: > {line}")
                    raise
                places.setdefault(answer, []).append(position)
    return [
        "\n".join(f"{', '.join(at)}: {answer}" if len(places) > 1 else answer for answer, at in places.items())
        for places in found
    ]


@pytest.mark.parametrize("scenario", [*scenarios()], ids=lambda one: f"{one.path.stem}:{one.first_line}")
async def test_scenarios(
    scenario: Scenario, tmp_path: Path, texts_in: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if scenario.path.stem != "findings":  # most requests of an application are not among the first ones
        monkeypatch.setattr(report, "REQUESTS_CHECKED", 2)
    answers = await played(scenario, VirtualTime(), tmp_path)
    texts_in(scenario.path, scenario.text, "> ", lambda _: answers.pop(0))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("GETT /", "no scenario has the word 'GETT'; did you mean 'GET'"),
        ("GET / time=3", "no request has the option 'time'; did you mean 'times'"),
    ],
)
async def test_a_word_that_no_scenario_has_is_said_with_its_line(line: str, message: str, tmp_path: Path) -> None:
    scenario = Scenario(SCENARIOS / "limits.txt", 7, f'> site\n> rule "*", "5/minute"\n> {line}\n200\n')
    with pytest.raises(LookupError, match=message) as caught:
        await played(scenario, VirtualTime(), tmp_path)
    assert caught.value.__notes__ == [f"{SCENARIOS / 'limits.txt'}:9: > {line}"]
