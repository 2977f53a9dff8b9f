"""The two rings: the times of units and the counts of slices, and the bytes that each takes."""

from __future__ import annotations

from functools import cache
from math import log10
from typing import Final

from slidegate.core import Limit, new_window
from slidegate.core.windows.codec import pack_window

from .paper import Paper, Picture, Scale

SECOND_US: Final = 1_000_000
TIMED: Final = Limit(5, "1m")
COUNTED: Final = Limit(100, "1m", resolution=6)
ARRIVALS_S: Final = (4, 11, 26, 38, 51)
BURSTS_S: Final = ((4, 25), (17, 10), (26, 30), (38, 15), (51, 20))
RESOLUTIONS: Final = (10, 64, 600)
AMOUNTS: Final = tuple(round(10 ** (step / 12)) for step in range(61))  # 1 to 100,000, evenly on the sheet


def leaves_s(limit: Limit, spent: tuple[tuple[int, int], ...]) -> int:
    """Return the second at which the oldest of some units have left."""
    window = new_window(limit)
    for second, units in spent:
        window.add(second * SECOND_US, units)
    return window.leaves_us // SECOND_US


@cache
def packed_bytes(amount: int, resolution: int) -> int:
    """Return the bytes that a store keeps of a window whose units came evenly and are all spent."""
    limit = Limit(amount, "1h", resolution=resolution)
    window = new_window(limit)
    if limit.exact:
        for number in range(amount):
            window.add(limit.window_us * (number + 1) // amount)
    else:
        for number in range(limit.slices + 1):
            window.add(limit.slice_us * (number + 1) - 1, amount // (limit.slices + 1) or 1)
    return len(pack_window(window))


def _draw_rings(paper: Paper) -> None:
    across = Scale(0, 80, 12, 348)
    for row, limit in enumerate((TIMED, COUNTED)):
        top, base = 42 + 148 * row, 42 + 148 * row + 96
        oldest = leaves_s(limit, tuple((second, 1) for second in ARRIVALS_S) if limit.exact else BURSTS_S)
        what = f"{limit.amount} times" if limit.exact else f"{limit.slices + 1} counts"
        paper.text(12, top + 12, f"{limit}: {what}", bold=True)
        paper.line((12, base), (348, base), "faint")
        if limit.exact:
            for second in ARRIVALS_S:
                paper.line((across(second), base), (across(second), base - 40), "ours", width=2)
                paper.dot((across(second), base - 40), 5, "ours")
            from_s = float(ARRIVALS_S[0])
        else:
            slice_s = limit.slice_us // SECOND_US
            counts = {second // slice_s: units for second, units in BURSTS_S}
            for number in range(limit.slices + 1):
                left = across(number * slice_s)
                units = counts.get(number, 0)
                paper.box((left + 1, base - 4 - units), (across(slice_s) - across(0) - 2, 4 + units), "ours")
                paper.text(left + 21, base - 10 - units, str(units), anchor="middle")
            from_s = 0.0
        paper.span(across(from_s), across(oldest), base + 14, "text")
        said = "W" if limit.exact else "W and a slice"
        paper.text(across(from_s + 2), base + 34, f"{said}: the oldest leave at {oldest} s", "faint")


def _draw_memory(paper: Paper) -> None:
    across, up = Scale(0, 5, 60, 308), Scale(1, 4, 232, 48)
    for power in range(1, 5):
        paper.line((60, up(power)), (308, up(power)), "line")
        paper.text(54, up(power) + 4, f"{10**power:,}", "faint", anchor="end")
    for power in range(6):
        paper.text(across(power), 252, ("1", "10", "100", "1k", "10k", "100k")[power], "faint", anchor="middle")
    for resolution, colour in zip(RESOLUTIONS, ("other", "ours", "over"), strict=True):
        points = [(across(log10(amount)), up(log10(packed_bytes(amount, resolution)))) for amount in AMOUNTS]
        paper.path(points, colour)
        paper.text(314, points[-1][1] + 4, f"@{resolution}", "text")
    paper.text(184, 272, "units spent in the window", "faint", anchor="middle")


def pictures() -> list[Picture]:
    """Return the pictures of the page about the two rings."""
    timed = leaves_s(TIMED, tuple((second, 1) for second in ARRIVALS_S))
    counted = leaves_s(COUNTED, BURSTS_S)
    most = {resolution: max(packed_bytes(amount, resolution) for amount in AMOUNTS) for resolution in RESOLUTIONS}
    final = {resolution: packed_bytes(AMOUNTS[-1], resolution) for resolution in RESOLUTIONS}
    return [
        Picture(
            "rings",
            "A ring of times, and a ring of counts",
            f"{TIMED} keeps the times of {TIMED.amount} units; the oldest, of {ARRIVALS_S[0]} s, leaves at {timed} s. "
            f"{COUNTED} keeps {COUNTED.slices + 1} counts; the oldest slice leaves at {counted} s.",
            338,
            _draw_rings,
        ),
        Picture(
            "memory",
            "Bytes of one window, by resolution",
            "However many units are spent, a window takes a bounded number of bytes. "
            + "; ".join(
                f"resolution {resolution}: at most {most[resolution]:,} bytes, {final[resolution]:,} at "
                f"{AMOUNTS[-1]:,} units"
                for resolution in RESOLUTIONS
            )
            + ".",
            284,
            _draw_memory,
        ),
    ]
