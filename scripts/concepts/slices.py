"""Why k + 1 slices: how many slices a window touches, and a gate that forgets one of them."""

from __future__ import annotations

from typing import Final

from .gates import AMOUNT, TICKS, Slots, Takes, all_slots, classic_slots, greedy
from .paper import Paper, Picture, Scale

FEW: Final = 4
"""k, small enough to be drawn."""
SLICE: Final = TICKS // FEW


def touched(start_tick: int) -> range:
    """Return the slices that the window from a tick on touches."""
    return range(start_tick // SLICE, (start_tick + TICKS - 1) // SLICE + 1)


def starts() -> tuple[int, int]:
    """Return ticks of the first slice: where a window begins that touches the fewest slices, and the most."""
    by_number = sorted(range(SLICE), key=lambda tick: (len(touched(tick)), tick))
    return by_number[0], by_number[-1]


def worst_pair(takes: Takes) -> tuple[int, int, int]:
    """Return (tick, ticks, units) of the shortest span that begins with the first units and holds most of a window."""
    first = takes[0].tick
    inside = [(tick, units) for tick, units in takes if tick < first + TICKS]
    return first, inside[-1][0] - first + 1, sum(units for _, units in inside)


def _draw_touched(paper: Paper) -> None:
    across = Scale(0, 6 * SLICE, 12, 348)
    for row, start_tick in enumerate(starts()):
        top = 66 + 104 * row
        hit = touched(start_tick)
        for number in range(6):
            colour = "soft" if number in hit else "line"
            left, right = across(number * SLICE), across((number + 1) * SLICE)
            paper.box((left + 1, top), (right - left - 2, 36), colour, outline=colour == "line")
        paper.span(across(start_tick), across(start_tick + TICKS), top + 18, "ours")
        paper.text(12, top - 10, f"This window touches {len(hit)} slices", bold=True)
        said = "begins with a slice" if start_tick == 0 else "begins late in a slice"
        paper.text(12, top + 56, f"W = {FEW} slices, {said}", "faint")


def _draw_slots(paper: Paper) -> None:
    first = SLICE - 1
    gates: list[tuple[str, Slots, str]] = [
        (f"k = {FEW} slots", classic_slots(FEW), "over"),
        (f"k + 1 = {FEW + 1} slots", all_slots(FEW), "ours"),
    ]
    across = Scale(0, 6 * SLICE, 12, 348)
    for row, (name, gate, colour) in enumerate(gates):
        top = 42 + 156 * row
        takes = greedy(gate, first, 5 * SLICE)
        base = top + 84
        start, ticks, units = worst_pair(takes)
        share = "1 slice" if ticks == 1 else f"{ticks / TICKS:.0%} of W"
        held = f"{units} within {share}" if units > AMOUNT else f"{units} in any window"
        paper.text(12, top + 12, f"{name}: {held}", colour, bold=True)
        for number in range(7):
            paper.line((across(number * SLICE), base), (across(number * SLICE), base + 8), "faint")
        paper.line((12, base), (348, base), "faint")
        for tick, _ in takes:
            paper.box((across(tick) - 5, base - 50), (10, 50), colour)
            paper.text(across(tick) + (9 if tick < 5 * SLICE else -9), base - 36, str(AMOUNT),
                       anchor="start" if tick < 5 * SLICE else "end")  # fmt: skip
        paper.span(across(start), across(start + TICKS), base + 22, "text")
        paper.text(across(start + TICKS / 2), base + 42, "W", "faint", anchor="middle")


def pictures() -> list[Picture]:
    """Return the pictures of the page about slices."""
    fewest, most = (len(touched(start)) for start in starts())
    _, ticks, units = worst_pair(greedy(classic_slots(FEW), SLICE - 1, 5 * SLICE))
    _, _, kept = worst_pair(greedy(all_slots(FEW), SLICE - 1, 5 * SLICE))
    return [
        Picture(
            "slices-touched",
            "How many slices a window touches",
            f"A window as long as {FEW} slices touches {fewest} of them where it begins with a slice, "
            f"and {most} where it begins with the last moment of one.",
            244,
            _draw_touched,
        ),
        Picture(
            "slices-kept",
            f"{AMOUNT} per window, spent at once, late in a slice",
            f"With {FEW} slots the first burst is forgotten too early: {units} units pass within "
            f"{ticks / TICKS:.0%} of the window. With {FEW + 1} slots any window holds {kept} at most.",
            348,
            _draw_slots,
        ),
    ]
