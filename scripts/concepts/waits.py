"""Retry-After: when how many units leave, and how long each cost has to wait for that."""

from __future__ import annotations

from typing import Final

from slidegate.core import CounterWindow

from .paper import Paper, Picture, Scale, steps

SECOND_US: Final = 1_000_000
AMOUNT: Final = 10
SPENT: Final = ((5, 3), (25, 7))
ASKED_S: Final = 30
COSTS: Final = (1, 3, 4, 10)


def window() -> CounterWindow:
    """Return a window of a minute in six slices, in which everything is spent."""
    made = CounterWindow(6, 10 * SECOND_US)
    for second, units in SPENT:
        made.add(second * SECOND_US, units)
    return made


def waits_s() -> dict[int, int]:
    """Return the wait of each cost, in seconds."""
    return {cost: window().wait_us(ASKED_S * SECOND_US, AMOUNT - cost) // SECOND_US for cost in COSTS}


def fields() -> tuple[int, int, int]:
    """Return what the header fields say at the time of the refusal: r, t, and when everything has left, in seconds."""
    made = window()
    more_s = made.leaves_us // SECOND_US - ASKED_S
    all_s = (made.newest_us + made.slice_count * made.slice_us) // SECOND_US - ASKED_S
    return AMOUNT - made.total(ASKED_S * SECOND_US), more_s, all_s


def _draw_waits(paper: Paper) -> None:
    across, up = Scale(0, 100, 34, 342), Scale(0, 10, 196, 50)
    course = [(0.0, 0.0)]
    for second in range(1, 101):
        held = sum(units for at, units in SPENT if at <= second)
        left = window().total(second * SECOND_US) if second >= SPENT[-1][0] else held
        if left != course[-1][1]:
            course.append((float(second), float(left)))
    for units in (0, 5, 10):
        paper.line((34, up(units)), (348, up(units)), "line")
        paper.text(28, up(units) + 4, str(units), "faint", anchor="end")
    paper.line((across(ASKED_S), up(0)), (across(ASKED_S), 292), "faint", dashed=True)
    paper.path([(across(second), up(units)) for second, units in steps(course, 100)], "ours", width=3)
    for second in (0, ASKED_S, 70, 90):
        paper.text(across(second), 214, f"{second} s", "faint", anchor="middle")
    for row, (cost, wait_s) in enumerate(waits_s().items()):
        y = 236 + 18 * row
        paper.span(across(ASKED_S), across(ASKED_S + wait_s), y, "text")
        paper.text(across(ASKED_S) - 8, y + 4, f"cost {cost}", anchor="end")
        paper.text(across(ASKED_S + wait_s) + 8, y + 4, f"{wait_s} s")


def pictures() -> list[Picture]:
    """Return the picture of the page about Retry-After."""
    said = ", ".join(f"a cost of {cost} {wait_s} s" for cost, wait_s in waits_s().items())
    return [
        Picture(
            "waits",
            f"{AMOUNT} a minute: units in the window, and waits",
            f"{SPENT[0][1]} units are spent at {SPENT[0][0]} s and {SPENT[1][1]} at {SPENT[1][0]} s. "
            f"Asked at {ASKED_S} s, the wait is exact for each cost: {said}.",
            306,
            _draw_waits,
        )
    ]
