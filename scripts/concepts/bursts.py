"""Fixed against sliding windows: the burst at the boundary, and the worst burst of six ways to count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .gates import AMOUNT, GATES, OURS, TICK_US, TICKS, FixedWindow, Gate, all_slots, greedy, worst_bursts
from .paper import Paper, Picture, Scale, steps

SHOWN_TICKS: Final = 5 * TICKS // 2
PANEL: Final = (158, 104)


def in_the_last_window(gate: Gate) -> list[tuple[float, float]]:
    """Return (seconds, units that passed in the minute up to then) of a client that comes just before a boundary."""
    takes = greedy(gate, TICKS - 1, SHOWN_TICKS)
    changes = sorted({tick + later for tick, _ in takes for later in (0, TICKS)})
    course = [(0.0, 0.0)]
    for tick in changes:
        if tick <= SHOWN_TICKS:
            held = sum(units for at, units in takes if tick - TICKS < at <= tick)
            course.append((tick * TICK_US / 1e6, float(held)))
    return course


def most_held(gate: Gate) -> int:
    """Return the most units that such a client gets through within one window."""
    return int(max(units for _, units in in_the_last_window(gate)))


def _draw_boundary(paper: Paper) -> None:
    end_s = SHOWN_TICKS * TICK_US / 1e6
    across = Scale(0, end_s, 44, 348)
    rows: tuple[tuple[str, Callable[[], Gate], str], ...] = (
        ("fixed window", FixedWindow, "over"),
        ("slidegate", all_slots, "ours"),
    )
    for place, (name, gate, colour) in enumerate(rows):
        top = 44 + 150 * place
        up = Scale(0, 2 * AMOUNT, top + 116, top + 26)
        course = in_the_last_window(gate())
        paper.text(44, top + 10, f"{name}: {most_held(gate())} in one minute", colour, bold=True)
        for units in (0, AMOUNT, 2 * AMOUNT):
            limit = units == AMOUNT
            paper.line((44, up(units)), (348, up(units)), "faint" if limit else "line", dashed=limit)
            paper.text(38, up(units) + 4, str(units), "faint", anchor="end")
        for minute in (60, 120):
            paper.line((across(minute), up(0)), (across(minute), up(2 * AMOUNT)), "line")
        paper.path([(across(at_s), up(units)) for at_s, units in steps(course, end_s)], colour)
    for second in (0, 60, 120):
        paper.text(across(second), 332, f"{second} s", "faint", anchor="middle")


def _draw_worst(paper: Paper) -> None:
    for place, name in enumerate(GATES):
        left, top = 12 + 178 * (place % 2), 42 + 152 * (place // 2)
        most = worst_bursts(name)
        colour = "ours" if name in OURS else "over"
        across = Scale(0, 2 * TICKS, left, left + PANEL[0])
        up = Scale(0, 3 * AMOUNT, top + 22 + PANEL[1], top + 22)
        paper.text(left, top + 12, f"{name}: {most[TICKS]}", colour, bold=True)
        paper.box((left, up(3 * AMOUNT)), PANEL, "line", outline=True)
        paper.line((left, up(AMOUNT)), (left + PANEL[0], up(AMOUNT)), "faint", dashed=True)
        paper.line((across(TICKS), up(0)), (across(TICKS), up(3 * AMOUNT)), "faint", dashed=True)
        paper.text(left + PANEL[0] - 4, up(AMOUNT) + 16, str(AMOUNT), "faint", anchor="end")
        paper.path([(across(span), up(units)) for span, units in enumerate(most)], colour)
    for place in (0, 1):
        left = 12 + 178 * place
        paper.text(left, 494, "0", "faint")
        paper.text(left + PANEL[0] / 2, 494, "1 min", "faint", anchor="middle")
        paper.text(left + PANEL[0], 494, "2 min", "faint", anchor="end")


def pictures() -> list[Picture]:
    """Return the pictures of the page about fixed and sliding windows."""
    numbers = ", ".join(f"{name.lower()} {worst_bursts(name)[TICKS]}" for name in GATES)
    return [
        Picture(
            "boundary",
            f"{AMOUNT} a minute: units in the last minute",
            f"A client spends {AMOUNT} units just before the minute is full, and whatever it gets afterwards. A fixed "
            f"window lets {most_held(FixedWindow())} through within one minute, slidegate never more than "
            f"{most_held(all_slots())}.",
            344,
            _draw_boundary,
        ),
        Picture(
            "worst-bursts",
            f"{AMOUNT} a minute: most units by length of time",
            "Six ways to count, each with the most units that it lets through in spans of up to two minutes, from an "
            f"idle start at the worst moment. In one minute: {numbers}.",
            506,
            _draw_worst,
        ),
    ]
