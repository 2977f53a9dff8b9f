"""All or nothing: a flood, and the limit beside the one that refuses it."""

from __future__ import annotations

from typing import Final

from slidegate.core import Bucket, Limit, new_window
from slidegate.core.demand import judge_all

from .paper import Paper, Picture, Scale

SMALL: Final = Limit(5, "10s")
LARGE: Final = Limit(100, "1h")
REQUESTS: Final = 50


def spent_one_by_one() -> tuple[int, int]:
    """Return the units in both windows where each limit is asked and charged by itself, the large one first."""
    large, small = new_window(LARGE), new_window(SMALL)
    for _ in range(REQUESTS):
        if large.spend(0, LARGE.amount, 1)[3] == 0:
            small.spend(0, SMALL.amount, 1)
    return large.spent, small.spent


def spent_together() -> tuple[int, int]:
    """Return the units in both windows where one demand asks for both."""
    large, small = new_window(LARGE), new_window(SMALL)
    bucket = Bucket("both", (LARGE, SMALL))
    for _ in range(REQUESTS):
        judge_all([(bucket, "client", 1)], [large, small], 0)
    return large.spent, small.spent


def _draw_demands(paper: Paper) -> None:
    across = Scale(0, REQUESTS, 84, 276)
    ways = (("One limit after the other", spent_one_by_one(), "over"), ("One demand", spent_together(), "ours"))
    for row, (name, spent, colour) in enumerate(ways):
        top = 42 + 96 * row
        paper.text(12, top + 12, name, colour, bold=True)
        for place, (limit, units) in enumerate(zip((LARGE, SMALL), spent, strict=True)):
            y = top + 24 + 28 * place
            paper.text(12, y + 14, str(limit))
            paper.box((84, y), (across(units) - 84, 20), colour, round=3)
            paper.text(across(units) + 8, y + 14, f"{units} spent")


def pictures() -> list[Picture]:
    """Return the picture of the page about demands."""
    apart, together = spent_one_by_one(), spent_together()
    return [
        Picture(
            "all-or-nothing",
            f"{REQUESTS} requests at once, held to two limits",
            f"Where each limit is charged by itself, {LARGE} has {apart[0]} units spent and {SMALL} {apart[1]}: most "
            f"were charged for requests that did not pass. In one demand both have {together[0]} and {together[1]}.",
            232,
            _draw_demands,
        )
    ]
