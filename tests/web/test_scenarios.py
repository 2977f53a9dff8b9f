"""What requests are answered, as readable scenarios; the words of them are those of `Stage`."""

import re
from collections.abc import Callable, Iterator
from itertools import chain, combinations, product
from pathlib import Path
from typing import NamedTuple

import pytest

from slidegate.web import policy

from ..virtual_time import VirtualTime
from .middlewares import FORMS
from .stage import METHODS_SENT, Stage

SCENARIOS = Path(__file__).with_name("scenarios")
PAGE = Path(__file__).parents[1] / "README.md"
POSITIONS = {"site": [""], "forms": [*FORMS], "everywhere": ["rule", *FORMS]}
"""Where a scenario is played, by its first verb."""
BEGINS = re.compile(rf"^> (?:{'|'.join(POSITIONS)})\b")

Answers = dict[tuple[str, ...], str]
"""The answers to one line, by the place and the alternatives that were chosen."""
ALTERNATIVES = re.compile(r"<[^<>]+ \| [^<>]+>")


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

    @property
    def variants(self) -> Iterator[tuple[tuple[str, ...], dict[int, str]]]:
        """The lines with each combination of their alternatives, behind what is chosen; the same ones go together."""
        lines = self.lines
        groups = [*dict.fromkeys(found for line in lines.values() for found in ALTERNATIVES.findall(line))]
        for chosen in product(*(group[1:-1].split(" | ") for group in groups)):
            choice = dict(zip(groups, chosen, strict=True))
            yield chosen, {number: _chosen(line, choice) for number, line in lines.items()}


def _chosen(line: str, choice: dict[str, str]) -> str:
    return ALTERNATIVES.sub(lambda found: choice[found[0]], line)


def scenarios() -> Iterator[Scenario]:
    for path in (PAGE, *sorted(SCENARIOS.glob("*.txt"))):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        starts = [number for number, line in enumerate(lines) if BEGINS.match(line)]
        ends = [
            number for number, line in enumerate([*lines, "```"]) if line.startswith("```")
        ]  # of a block of the page
        for start, following in zip(starts, [*starts[1:], len(lines)], strict=True):
            end = min(following, *(number for number in ends if number > start))
            yield Scenario(path, start + 1, "".join(lines[start:end]))


async def played(scenario: Scenario, virtual: VirtualTime, directory: Path) -> list[str]:
    """Return the answer to each line of a scenario; where they differ, each behind the places or alternatives of it."""
    found: list[Answers] = [{} for _ in scenario.lines]
    for chosen, lines in scenario.variants:
        for position in POSITIONS[lines[scenario.first_line].partition(" ")[0]]:
            async with Stage(virtual, directory, position) as stage:
                for (number, line), answers in zip(lines.items(), found, strict=True):
                    try:
                        answers[position, *chosen] = await stage.answer(line)
                    except Exception as error:
                        error.add_note(f"{scenario.path}:{number}: > {line}")
                        raise
    return [*map(shown, found)]


def shown(answers: Answers) -> str:
    """Return the answers to a line, each behind what gives it: as few of the choices as the answer depends on."""
    groups = range(len(next(iter(answers))))
    for named in chain.from_iterable(combinations(groups, size) for size in range(len(groups) + 1)):
        of_choice: dict[str, set[str]] = {}
        for choice, answer in answers.items():
            of_choice.setdefault(" + ".join(choice[group] for group in named), set()).add(answer)
        if all(len(given) == 1 for given in of_choice.values()):
            break
    choices: dict[str, list[str]] = {}
    for choice, (answer,) in of_choice.items():
        choices.setdefault(answer, []).append(choice)
    return "\n".join(f"{' | '.join(at)}: {answer}" if named else answer for answer, at in choices.items())


@pytest.mark.parametrize("scenario", [*scenarios()], ids=lambda one: f"{one.path.stem}:{one.first_line}")
async def test_scenarios(
    scenario: Scenario, tmp_path: Path, texts_in: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if scenario.path.stem != "findings":  # most requests of an application are not among the first ones
        monkeypatch.setattr(policy, "REQUESTS_CHECKED", 2)
    answers = await played(scenario, VirtualTime(), tmp_path)
    texts_in(scenario.path, scenario.text, "> ", lambda _: answers.pop(0))


def test_the_page_has_each_word_of_the_scenarios() -> None:
    words = {line.split()[0] for one in scenarios() for _, lines in one.variants for line in lines.values()}
    page = PAGE.read_text("utf-8")
    unknown = {word for word in words - METHODS_SENT if not re.search(rf"[>`|<] ?{re.escape(word)}\b", page)}
    assert {word for word in unknown if word[0] not in "+-"} == set()
