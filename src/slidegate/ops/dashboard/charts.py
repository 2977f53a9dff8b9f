"""Charts as SVG, drawn on the server: colours are CSS classes, and browsers show titles as tooltips.

Drawings stretch to the width of their place; texts are in drawings of their own that do not, placed by percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from ..statistics import EVERY_S

HEIGHT: Final = 150
NOTHING: Final = "\u2013"
"""What is shown for no value."""
MAX_TICKS: Final = 5
_STEPS_S: Final = (10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600)
"""The distances of ticks on the time axis."""

Values = Sequence[float | None]


class Chart(NamedTuple):
    """A chart with its legend and its values as a table.

    Attributes:
        title: What is drawn, with the unit.
        start_at: When the first step began, in Unix time.
        step_s: The length of a step.
        names: The names of the series; the class of the n-th is the letter `kind` and n.
        kind: ``"s"`` for stacked areas, ``"l"`` for lines.
        drawing: The SVG.
        rows: The time of each step, and its values as text.
    """

    title: str
    start_at: float
    step_s: float
    names: tuple[str, ...]
    kind: str
    drawing: Markup
    rows: list[tuple[str, list[str]]]


def requests(stats: Mapping[str, Any], text: Callable[[float | None], str]) -> Chart:
    """Return the chart of requests per second: passed, limited, refused by bans and by lists, unanswered, stacked."""
    fields = {"passed": "passed", "limited": "limited", "by bans": "banned", "by lists": "blocked"}
    fields["unavailable"] = "unavailable"
    steps = drawn_steps(stats)
    series = {name: [step[field] / length_s for step, length_s in steps] for name, field in fields.items()}
    return _chart("Requests per second", stats, series, text, is_stacked=True)


def times(stats: Mapping[str, Any], text: Callable[[float | None], str]) -> Chart:
    """Return the chart of the times until the last byte."""
    fields = {"median": "p50_ms", "p95": "p95_ms"}
    series = {name: [step[field] for step, _ in drawn_steps(stats)] for name, field in fields.items()}
    return _chart("Time to the last byte, in ms", stats, series, text, is_stacked=False)


def drawn_steps(stats: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], float]]:
    """Return the steps that are drawn, each with its length in seconds; the last one is still running.

    Workers write every five seconds. A running step of five seconds is left out, because most of it is not written yet.
    """
    steps, step_s = stats["steps"], stats["step_s"]
    if step_s <= EVERY_S:
        return [(step, step_s) for step in steps[:-1]]
    running_s = stats["at"] - stats["start_at"] - step_s * (len(steps) - 1)
    lengths = [*[step_s] * (len(steps) - 1), min(max(running_s, EVERY_S), step_s)]
    return list(zip(steps, lengths, strict=False))


def meter(used: float, amount: float) -> Markup:
    """Return a bar of what is spent: amber from 80 %, red when nothing is left."""
    share = min(used / amount, 1)
    state = " full" if share >= 1 else " near" if share >= 0.8 else ""
    return Markup(
        f'<svg class="meter{state}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="M0 0h{100 * share:.3g}v8H0z"/></svg>'
    )


def _chart(
    title: str,
    stats: Mapping[str, Any],
    series: Mapping[str, Values],
    text: Callable[[float | None], str],
    *,
    is_stacked: bool,
) -> Chart:
    names, lines = tuple(series), list(series.values())
    kind = "s" if is_stacked else "l"
    shown = list(_stacked(lines)) if is_stacked else lines
    top, tick = _scale(max((value for line in shown for value in line if value is not None), default=0))
    wide = max(len(lines[0]), 1)  # each step is one wide
    parts = [f'<path class="grid" d="M0 {_y(number * tick, top)}h{wide}"/>' for number in range(round(top / tick) + 1)]
    for place in reversed(range(len(shown))):
        if any(lines[place]):
            parts += _drawn(f"{kind}{place}", shown[place], top, is_area=is_stacked)
    rows = [(_clock(stats, place), [text(line[place]) for line in lines]) for place in range(len(lines[0]))]
    for place, (when, texts) in enumerate(rows):
        told = ", ".join(
            f"{name} {value}" for name, value in zip(names, texts, strict=True) if value not in ("0", NOTHING)
        )
        parts.append(f'<rect x="{place}"><title>{when}: {told or "none"}</title></rect>')
    drawing = (
        f'<svg class="ys" aria-hidden="true">{"".join(_labels(top, tick))}</svg><svg class="lines" viewBox="0 0 {wide} '
        f'{HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{title}">{"".join(parts)}</svg>'
        f'<svg class="xs" aria-hidden="true">{"".join(_times(stats, len(rows)))}</svg>'
    )
    return Chart(title, stats["start_at"], stats["step_s"], names, kind, Markup(drawing), rows)


def _stacked(lines: Iterable[Values]) -> Iterator[list[float]]:
    below: list[float] | None = None
    for line in lines:
        below = [(value or 0) + under for value, under in zip(line, below or [0.0] * len(line), strict=True)]
        yield below


def _drawn(name: str, line: Values, top: float, *, is_area: bool) -> Iterator[str]:
    """Yield the path of a series; steps without a value are gaps."""
    path, is_open = "", False
    for place, value in enumerate(line):
        if value is not None:
            # A lone value is a line of no length, which round ends make a dot.
            path += f"{'L' if is_open else 'M'}{place + 0.5} {_y(value, top)}{'' if is_open else 'h0'}"
        is_open = value is not None
    if path and is_area:
        yield f'<path class="area {name}" d="{path}V{HEIGHT}H0.5z"/>'
    if path:
        yield f'<path class="line {name}" d="{path}"/>'


def _scale(most: float) -> tuple[float, float]:
    """Return the top of the axis and the distance of its ticks: 1, 2 or 5 times a power of ten, at most four times."""
    least = (most or 1) / 4
    power = 10.0 ** floor(log10(least))
    tick = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)
    return ceil((most or 1) / tick - 1e-9) * tick, tick


def _y(value: float, top: float) -> str:
    return f"{HEIGHT - HEIGHT * value / top:.4g}"


def _labels(top: float, tick: float) -> Iterator[str]:
    for number in range(round(top / tick) + 1):
        yield f'<text x="100%" y="{100 - 100 * number * tick / top:.4g}%">{number * tick:.6g}</text>'


def _clock(stats: Mapping[str, Any], place: int) -> str:
    return f"{datetime.fromtimestamp(stats['start_at'] + place * stats['step_s'], UTC):%H:%M:%S}"


def _times(stats: Mapping[str, Any], count: int) -> Iterator[str]:
    """Yield the labels of the time axis: round times, at most five."""
    start_at, whole_s = stats["start_at"], stats["step_s"] * max(count, 1)
    apart_s = next((one for one in _STEPS_S if whole_s / one <= MAX_TICKS), 86_400)
    at = ceil(start_at / apart_s) * apart_s
    while at <= start_at + whole_s:
        share = 100 * (at - start_at) / whole_s
        if 4 <= share <= 96:
            form = "%H:%M" if apart_s >= 60 else "%H:%M:%S"
            yield f'<text x="{share:.4g}%" y="12" data-at="{at}">{datetime.fromtimestamp(at, UTC):{form}}</text>'
        at += apart_s
