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
_APART_S: Final = (10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600)
"""The distances of labels on the time axis."""
_DAY_S: Final = 86_400
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


class Step(NamedTuple):
    """A step that is drawn.

    Attributes:
        counts: Its counts.
        length_s: For how long they were counted.
    """

    counts: Mapping[str, Any]
    length_s: float


class StepRow(NamedTuple):
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
    rows: list[StepRow]
    marks: tuple[str, ...]


def requests(stats: Mapping[str, Any], text: Texts, marks: Iterable[Mark] = ()) -> Chart:
    """Return the chart of requests per second: passed, limited, refused by bans and by lists, unanswered, stacked."""
    steps = drawn_steps(stats)
    seen_from_s = stats["at"] - stats["seen_s"] - stats["start_at"]
    unseen = max(int(seen_from_s // stats["step_s"]), 0)  # nobody counted in the first steps
    series: dict[str, Values] = {}
    for name, field in _COUNTED.items():
        rates: list[float | None] = [None] * min(unseen, len(steps))
        for step in steps[unseen:]:
            rates.append(step.counts[field] / step.length_s)
        series[name] = rates
    return _chart("Requests per second", stats, series, text, marks, is_stacked=True)


def times(stats: Mapping[str, Any], text: Texts, marks: Iterable[Mark] = ()) -> Chart:
    """Return the chart of the times until the last byte."""
    series: dict[str, Values] = {}
    for name, field in _TIMES.items():
        series[name] = [step.counts[field] for step in drawn_steps(stats)]
    return _chart("Time to the last byte, in ms", stats, series, text, marks, is_stacked=False)


def drawn_steps(stats: Mapping[str, Any]) -> list[Step]:
    """Return the steps that are drawn; the last one is still running.

    Workers write every five seconds. A running step of five seconds is left out, because most of it is not written yet.
    """
    steps, step_s = stats["steps"], stats["step_s"]
    found = [Step(counts, step_s) for counts in steps[:-1]]
    if step_s > EVERY_S and steps:
        running_s = stats["at"] - stats["start_at"] - step_s * (len(steps) - 1)
        found.append(Step(steps[-1], min(max(running_s, EVERY_S), step_s)))
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
    lines = list(series.values())
    steps = len(lines[0])
    of_steps = marks_by_step(marks, stats["start_at"], stats["step_s"], steps)
    rows = []
    for step in range(steps):
        texts = [text(line[step]) for line in lines]
        rows.append(StepRow(_clock(stats, step), texts, described(of_steps.get(step, ()))))
    kind, drawn = "l", lines
    if is_stacked:
        kind, drawn = "s", _stacked(lines)
    axis = _axis_of(drawn)
    parts = list(_grid(axis, steps))
    for number in reversed(range(len(lines))):
        if any(lines[number]):
            parts += _curve(f"{kind}{number}", drawn[number], axis, is_area=is_stacked)
    parts += _drawn_marks(of_steps)
    parts += _tooltips(tuple(series), rows)
    lines_svg = (
        f'<svg class="lines" viewBox="0 0 {max(steps, 1)} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}">{"".join(parts)}</svg>'
    )
    return Chart(
        title,
        stats["start_at"],
        stats["step_s"],
        names=tuple(series),
        shown=_legend(lines),
        kind=kind,
        drawing=Markup(_value_labels(axis) + lines_svg + _time_labels(stats, steps)),
        rows=rows,
        marks=_kinds(of_steps.values()),
    )


def _legend(lines: Sequence[Values]) -> tuple[int, ...]:
    """Return the numbers of the series in the legend: the first one, and those that have values."""
    return tuple(number for number, line in enumerate(lines) if number == 0 or any(line))


def _kinds(of_steps: Iterable[Iterable[Mark]]) -> tuple[str, ...]:
    """Return the kinds of the marks of all steps."""
    kinds: set[str] = set()
    for marks in of_steps:
        kinds.update(mark.kind for mark in marks)
    return tuple(sorted(kinds))


def _stacked(lines: Iterable[Values]) -> list[Values]:
    """Return each line on top of those before it."""
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


def _curve(name: str, line: Values, axis: _Axis, *, is_area: bool) -> Iterator[str]:
    """Yield the path of a series; steps without a value are gaps."""
    path, is_open, begin = "", False, 0.0
    for step, value in enumerate(line):
        if value is None:
            is_open = False
            continue
        point = f"{step + 0.5} {_y(value, axis)}"
        if not path:
            begin = step + 0.5
        if is_open:
            path += f"L{point}"
        else:
            path += f"M{point}h0"  # a lone value is a line of no length, which round ends make a dot
        is_open = True
    if not path:
        return
    if is_area:
        yield f'<path class="area {name}" d="{path}V{HEIGHT}H{begin}z"/>'
    yield f'<path class="line {name}" d="{path}"/>'


def _drawn_marks(of_steps: Mapping[int, Sequence[Mark]]) -> Iterator[str]:
    for step, marks in sorted(of_steps.items()):
        for kind in _kinds([marks]):
            yield f'<path class="mark {kind}" d="M{step + _BESIDE[kind]} 0V{HEIGHT}"/>'


def _tooltips(names: Sequence[str], rows: Iterable[StepRow]) -> Iterator[str]:
    """Yield for each step an area that shows its values, but those that are 0, and what happened in it."""
    for step, row in enumerate(rows):
        values = []
        for name, value in zip(names, row.texts, strict=True):
            if value not in ("0", NOTHING):
                values.append(f"{name} {value}")
        text = f"{row.when}: {', '.join(values) or 'none'}"
        if row.happened:
            text += f"; {escaped(row.happened, 200)}"
        yield f'<rect x="{step}"><title>{escape(text)}</title></rect>'


# -- the axes ----------------------------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """The axis of values.

    Attributes:
        top: The value at its top.
        tick: The distance of its ticks.
    """

    top: float
    tick: float

    def ticks(self) -> list[float]:
        """Return the values at its ticks, from 0 to the top."""
        return [number * self.tick for number in range(round(self.top / self.tick) + 1)]


def _axis_of(lines: Iterable[Values]) -> _Axis:
    """Return the axis for some lines: its ticks are 1, 2 or 5 times a power of ten apart, at most four times."""
    most = 0.0
    for line in lines:
        for value in line:
            most = max(most, value or 0)
    if not most:
        most = 1
    least = most / 4
    power = 10.0 ** floor(log10(least))
    tick = 10 * power
    for factor in (1, 2, 5):
        if factor * power >= least * 0.999999:
            tick = factor * power
            break
    return _Axis(ceil(most / tick - 1e-9) * tick, tick)


def _y(value: float, axis: _Axis) -> str:
    return f"{HEIGHT - HEIGHT * value / axis.top:.4g}"


def _grid(axis: _Axis, steps: int) -> Iterator[str]:
    for value in axis.ticks():
        yield f'<path class="grid" d="M0 {_y(value, axis)}h{max(steps, 1)}"/>'


def _value_labels(axis: _Axis) -> str:
    """Return the drawing of the labels of the axis of values."""
    texts = []
    for value in axis.ticks():
        texts.append(f'<text x="100%" y="{100 - 100 * value / axis.top:.4g}%">{value:.6g}</text>')
    return f'<svg class="ys" aria-hidden="true">{"".join(texts)}</svg>'


def _clock(stats: Mapping[str, Any], step: int) -> str:
    """Return when a step began."""
    return f"{_utc(stats['start_at'] + step * stats['step_s']):%H:%M:%S}"


def _time_labels(stats: Mapping[str, Any], steps: int) -> str:
    """Return the drawing of the labels of the time axis: round times, at most five, none of them at an edge."""
    start_at, whole_s = stats["start_at"], stats["step_s"] * max(steps, 1)
    apart_s = _DAY_S
    for one in _APART_S:
        if whole_s / one <= MAX_TICKS:
            apart_s = one
            break
    form = "%H:%M:%S"
    if apart_s >= 60:
        form = "%H:%M"
    texts = []
    at = ceil(start_at / apart_s) * apart_s
    while at <= start_at + whole_s:
        percent = 100 * (at - start_at) / whole_s
        if 4 <= percent <= 96:
            texts.append(f'<text x="{percent:.4g}%" y="12" data-at="{at}">{_utc(at):{form}}</text>')
        at += apart_s
    return f'<svg class="xs" aria-hidden="true">{"".join(texts)}</svg>'


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
