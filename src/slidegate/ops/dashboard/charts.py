"""Charts as SVG, drawn on the server: colours are CSS classes, and browsers show titles as tooltips.

Drawings stretch to the width of their place; texts are in drawings of their own that do not, placed by percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple, TypeAlias

from markupsafe import Markup, escape

from ...core.logs import escaped
from ..statistics import EVERY_S
from .marks import Mark, described, marks_by_step

HEIGHT: Final = 150
NOTHING: Final = "\u2013"
"""What is shown for no value."""
MAX_TICKS: Final = 5
NEAR: Final = 0.8
"""From which share of a limit a bar is amber."""
_STEPS_S: Final = (10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600)
"""The distances of ticks on the time axis."""
_BESIDE: Final = {"ban": 0.2, "change": 0.5, "outage": 0.8}
"""Where in its step a mark of each kind is, so that several are seen."""
_COUNTED: Final = {
    "passed": "passed",
    "limited": "limited",
    "by bans": "banned",
    "by lists": "blocked",
    "unavailable": "unavailable",
}
_TIMES: Final = {"median": "p50_ms", "p95": "p95_ms"}
"""The names of the series of each chart, and their fields in a step."""

Values: TypeAlias = Sequence[float | None]
Texts: TypeAlias = Callable[[float | None], str]


class Row(NamedTuple):
    """A step of a chart as a row of its table.

    Attributes:
        when: When it began.
        texts: Its values.
        happened: What happened in it.
    """

    when: str
    texts: list[str]
    happened: str


class Chart(NamedTuple):
    """A chart with its legend and its values as a table.

    Attributes:
        title: What is drawn, with the unit.
        start_at: When the first step began, in Unix time.
        step_s: The length of a step.
        names: The names of the series; the class of the n-th is the letter `kind` and n.
        shown: The numbers of those in the legend: the first one, and those that have values.
        kind: ``"s"`` for stacked areas, ``"l"`` for lines.
        drawing: The SVG.
        rows: The steps.
        marks: The kinds of marks that are drawn.
    """

    title: str
    start_at: float
    step_s: float
    names: tuple[str, ...]
    shown: tuple[int, ...]
    kind: str
    drawing: Markup
    rows: list[Row]
    marks: tuple[str, ...]


def requests(stats: Mapping[str, Any], text: Texts, marks: Iterable[Mark] = ()) -> Chart:
    """Return the chart of requests per second: passed, limited, refused by bans and by lists, unanswered, stacked."""
    series: dict[str, Values] = {}
    steps = drawn_steps(stats)
    seen_from_s = stats["at"] - stats["seen_s"] - stats["start_at"]
    unseen = max(int(seen_from_s // stats["step_s"]), 0)  # nobody counted in the first steps
    for name, field in _COUNTED.items():
        rates = [step[field] / length_s for step, length_s in steps[unseen:]]
        series[name] = [None] * (len(steps) - len(rates)) + rates
    return _chart("Requests per second", stats, series, text, marks, is_stacked=True)


def times(stats: Mapping[str, Any], text: Texts, marks: Iterable[Mark] = ()) -> Chart:
    """Return the chart of the times until the last byte."""
    series: dict[str, Values] = {}
    for name, field in _TIMES.items():
        series[name] = [step[field] for step, _ in drawn_steps(stats)]
    return _chart("Time to the last byte, in ms", stats, series, text, marks, is_stacked=False)


def drawn_steps(stats: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], float]]:
    """Return the steps that are drawn, each with its length in seconds; the last one is still running.

    Workers write every five seconds. A running step of five seconds is left out, because most of it is not written yet.
    """
    steps, step_s = stats["steps"], stats["step_s"]
    found = [(step, step_s) for step in steps[:-1]]
    if step_s > EVERY_S and steps:
        running_s = stats["at"] - stats["start_at"] - step_s * (len(steps) - 1)
        found.append((steps[-1], min(max(running_s, EVERY_S), step_s)))
    return found


def meter(used: float, amount: float) -> Markup:
    """Return a bar of what is spent: amber from 80 %, red when nothing is left."""
    share = min(used / amount, 1)
    state = ""
    if share >= 1:
        state = " full"
    elif share >= NEAR:
        state = " near"
    return Markup(
        f'<svg class="meter{state}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="M0 0h{100 * share:.3g}v8H0z"/></svg>'
    )


# -- a drawing: the grid below, areas and lines from the last to the first, marks, and a tooltip for each step ---------


def _chart(
    title: str,
    stats: Mapping[str, Any],
    series: Mapping[str, Values],
    text: Texts,
    marks: Iterable[Mark],
    *,
    is_stacked: bool,
) -> Chart:
    names, lines = tuple(series), list(series.values())
    kind, shown = "l", lines
    if is_stacked:
        kind, shown = "s", _stacked(lines)
    top, tick = _scale(_most(shown))
    count = len(lines[0])
    wide = max(count, 1)  # each step is one wide
    of_steps = marks_by_step(marks, stats["start_at"], stats["step_s"], count)
    rows = []
    for place in range(count):
        texts = [text(line[place]) for line in lines]
        rows.append(Row(_clock(stats, place), texts, described(of_steps.get(place, ()))))
    parts = [f'<path class="grid" d="M0 {_y(y, top)}h{wide}"/>' for y in _ticks(top, tick)]
    for place in reversed(range(len(shown))):
        if any(lines[place]):
            parts += _drawn(f"{kind}{place}", shown[place], top, is_area=is_stacked)
    parts += _drawn_marks(of_steps)
    for place, row in enumerate(rows):
        parts.append(f'<rect x="{place}"><title>{_tooltip(names, row)}</title></rect>')
    drawing = (
        f'<svg class="ys" aria-hidden="true">{"".join(_labels(top, tick))}</svg><svg class="lines" viewBox="0 0 {wide} '
        f'{HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{title}">{"".join(parts)}</svg>'
        f'<svg class="xs" aria-hidden="true">{"".join(_times(stats, count))}</svg>'
    )
    kinds = sorted({mark.kind for found in of_steps.values() for mark in found})
    legend = tuple(place for place, line in enumerate(lines) if place == 0 or any(line))
    return Chart(title, stats["start_at"], stats["step_s"], names, legend, kind, Markup(drawing), rows, tuple(kinds))


def _most(lines: Sequence[Values]) -> float:
    most = 0.0
    for line in lines:
        for value in line:
            most = max(most, value or 0)
    return most


def _stacked(lines: Iterable[Values]) -> list[Values]:
    found: list[Values] = []
    for line in lines:
        if found:
            line = [_sum(value, below) for value, below in zip(line, found[-1], strict=True)]
        found.append(line)
    return found


def _sum(value: float | None, below: float | None) -> float | None:
    if value is None or below is None:
        return None
    return value + below


def _drawn(name: str, line: Values, top: float, *, is_area: bool) -> Iterator[str]:
    """Yield the path of a series; steps without a value are gaps."""
    path, is_open, first = "", False, None
    for place, value in enumerate(line):
        if value is None:
            is_open = False
            continue
        if first is None:
            first = place + 0.5
        point = f"{place + 0.5} {_y(value, top)}"
        if is_open:
            path += f"L{point}"
        else:
            path += f"M{point}h0"  # a lone value is a line of no length, which round ends make a dot
        is_open = True
    if path and is_area:
        yield f'<path class="area {name}" d="{path}V{HEIGHT}H{first}z"/>'
    if path:
        yield f'<path class="line {name}" d="{path}"/>'


def _drawn_marks(of_steps: Mapping[int, Sequence[Mark]]) -> Iterator[str]:
    for place, marks in sorted(of_steps.items()):
        for kind in sorted({mark.kind for mark in marks}):
            yield f'<path class="mark {kind}" d="M{place + _BESIDE[kind]} 0V{HEIGHT}"/>'


def _tooltip(names: Iterable[str], row: Row) -> str:
    values = []
    for name, value in zip(names, row.texts, strict=True):
        if value not in ("0", NOTHING):
            values.append(f"{name} {value}")
    text = f"{row.when}: {', '.join(values) or 'none'}"
    if row.happened:
        text += f"; {escaped(row.happened, 200)}"
    return escape(text)


def _scale(most: float) -> tuple[float, float]:
    """Return the top of the axis and the distance of its ticks: 1, 2 or 5 times a power of ten, at most four times."""
    least = (most or 1) / 4
    power = 10.0 ** floor(log10(least))
    tick = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)
    return ceil((most or 1) / tick - 1e-9) * tick, tick


def _ticks(top: float, tick: float) -> list[float]:
    return [number * tick for number in range(round(top / tick) + 1)]


def _y(value: float, top: float) -> str:
    return f"{HEIGHT - HEIGHT * value / top:.4g}"


def _labels(top: float, tick: float) -> Iterator[str]:
    for value in _ticks(top, tick):
        yield f'<text x="100%" y="{100 - 100 * value / top:.4g}%">{value:.6g}</text>'


def _clock(stats: Mapping[str, Any], place: int) -> str:
    return f"{datetime.fromtimestamp(stats['start_at'] + place * stats['step_s'], UTC):%H:%M:%S}"


def _times(stats: Mapping[str, Any], count: int) -> Iterator[str]:
    """Yield the labels of the time axis: round times, at most five."""
    start_at, whole_s = stats["start_at"], stats["step_s"] * max(count, 1)
    apart_s = next((one for one in _STEPS_S if whole_s / one <= MAX_TICKS), 86_400)
    form = "%H:%M:%S"
    if apart_s >= 60:
        form = "%H:%M"
    at = ceil(start_at / apart_s) * apart_s
    while at <= start_at + whole_s:
        share = 100 * (at - start_at) / whole_s
        if 4 <= share <= 96:
            yield f'<text x="{share:.4g}%" y="12" data-at="{at}">{datetime.fromtimestamp(at, UTC):{form}}</text>'
        at += apart_s
