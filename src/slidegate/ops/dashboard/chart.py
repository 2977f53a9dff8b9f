"""The curve of requests as SVG, drawn on the server: what passed and what was refused, stacked, with bans and changes.

The drawing stretches to the width of its place; texts are in drawings of their own that do not, placed by percentages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final, NamedTuple, TypeAlias

from markupsafe import Markup

from ...limiter import Action
from ..statistics import EVERY_S, LoggedEvent, Stats, Traffic

HEIGHT: Final = 150
MAX_TICKS: Final = 5
MAX_POINTS: Final = 72
"""How many steps a window has at most."""
SERIES: Final = {"passed": "passed", "limited": "limited", "by bans": "banned", "by lists": "blocked"}
"""The series from the lowest to the highest, and their counts."""
_APART_S: Final = (10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 86_400)
"""The distances of labels on the time axis."""
_BESIDE: Final = {"ban": 0.3, "change": 0.7}
"""Where in its step a mark of each kind is, so that both are seen."""
_KINDS: Final = {"ban": "ban", "override": "change", "restore": "change"}
"""The marks of what operators do."""
Line: TypeAlias = Sequence[float]


class Counts(NamedTuple):
    """What was counted in a window.

    Attributes:
        window: The window, one of `WINDOWS`.
        stats: The counts, with at most `MAX_POINTS` steps.
        start_at: When the first step began, in Unix time.
        at: When they were read.
    """

    window: str
    stats: Stats
    start_at: float
    at: float

    @property
    def seen_s(self) -> float:
        """For how long workers have counted, as far as it is in the window: the time that rates are of."""
        return max(self.stats.seen_us / 1_000_000, EVERY_S)


class Mark(NamedTuple):
    """Something that happened.

    Attributes:
        at: When, in Unix time.
        kind: ``ban`` or ``change``.
    """

    at: float
    kind: str


class Curve(NamedTuple):
    """A curve with its legend.

    Attributes:
        title: What is drawn, with the unit.
        legend: The class and the name of each series and mark that is drawn.
        drawing: The SVG.
    """

    title: str
    legend: list[tuple[str, str]]
    drawing: Markup


def merged(stats: Stats) -> Stats:
    """Return counts with at most `MAX_POINTS` steps: some that follow each other together."""
    together = ceil(len(stats.steps) / MAX_POINTS)
    if together == 1:
        return stats
    steps = []
    for first in range(0, len(stats.steps), together):
        step = Traffic()
        for one in stats.steps[first : first + together]:
            step.add(one)
        steps.append(step)
    return stats._replace(steps=steps, step_us=stats.step_us * together)


def marks_of(history: Iterable[Action], events: Iterable[LoggedEvent]) -> list[Mark]:
    """Return when somebody was banned, and when a limit or a file was changed.

    What operators do is in the history: workers tell events of it later, when they read the store.
    """
    marks = []
    for action in history:
        if action.kind in _KINDS:
            marks.append(Mark(action.at_us / 1_000_000, _KINDS[action.kind]))
    for event in events:
        if event.kind == "config_reloaded":
            marks.append(Mark(event.time_us / 1_000_000, "change"))
        elif event.kind == "banned" and event.details["ban_level"] != "0":  # by a policy
            marks.append(Mark(event.time_us / 1_000_000, "ban"))
    return marks


def curve_of(counts: Counts, marks: Iterable[Mark]) -> Curve:
    """Return the curve of some counts, with what happened in their time."""
    _, stats, start_at, at = counts
    step_s = stats.step_us / 1_000_000
    lengths_s = _lengths_s(len(stats.steps), step_s, at - start_at)
    lines = _stacked(stats, lengths_s)
    unit, unit_s = _unit_of(lines)
    lines = [[value * unit_s for value in line] for line in lines]
    axis = _axis_of(lines)
    steps = len(lengths_s)
    areas, legend = "", []
    for number, (name, count) in enumerate(SERIES.items()):
        if number == 0 or any(getattr(step, count) for step in stats.steps[:steps]):
            areas = _area(f"s{number}", lines[number], axis) + areas  # the lower ones are drawn last
            legend.append((f"s{number}", name))
    by_step = {(int((one.at - start_at) // step_s), one.kind) for one in marks}
    drawn = [(step, kind) for step, kind in sorted(by_step) if 0 <= step < steps]
    legend += [(kind, kind) for kind in sorted({kind for _, kind in drawn})]
    lines_of_marks = [f'<path class="mark {kind}" d="M{step + _BESIDE[kind]} 0V{HEIGHT}"/>' for step, kind in drawn]
    title = f"Requests per {unit}"
    lines_svg = (
        f'<svg class="lines" viewBox="0 0 {max(steps, 1)} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}">{_grid(axis, steps)}{areas}{"".join(lines_of_marks)}</svg>'
    )
    labels = _time_labels(start_at, step_s * max(steps, 1))
    return Curve(title, legend, Markup(_value_labels(axis) + lines_svg + labels))


def _lengths_s(steps: int, step_s: float, whole_s: float) -> list[float]:
    """Return for how long each step that is drawn was counted; the last one is still running.

    Workers write every five seconds. A running step of five seconds is left out, because most of it is not written yet.
    """
    done = [step_s] * (steps - 1)
    if steps and step_s > EVERY_S:
        running_s = whole_s - step_s * (steps - 1)
        done.append(min(max(running_s, EVERY_S), step_s))
    return done


def _stacked(stats: Stats, lengths_s: Sequence[float]) -> list[Line]:
    """Return the rate of each series by step, on top of those before it."""
    lines: list[Line] = []
    below = [0.0] * len(lengths_s)
    for count in SERIES.values():
        counts = [getattr(step, count) for step in stats.steps]
        below = [low + one / length_s for low, one, length_s in zip(below, counts, lengths_s, strict=False)]
        lines.append(below)
    return lines


def _unit_of(lines: Sequence[Line]) -> tuple[str, int]:
    """Return the first unit in which the largest rate is 1 or more; of no requests at all the first one."""
    most = max(lines[-1], default=0) or 1
    for unit, unit_s in (("second", 1), ("minute", 60)):
        if most * unit_s >= 1:
            return unit, unit_s
    return "hour", 3_600


def _area(name: str, line: Line, axis: _Axis) -> str:
    points = [f"{step + 0.5} {_y(value, axis)}" for step, value in enumerate(line)]
    if not points:
        return ""
    path = f"M{'L'.join(points)}h0"  # a lone value is a line of no length, which round ends make a dot
    return f'<path class="area {name}" d="{path}V{HEIGHT}H0.5z"/><path class="line {name}" d="{path}"/>'


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


def _axis_of(lines: Sequence[Line]) -> _Axis:
    """Return the axis for some lines: its ticks are 1, 2 or 5 times a power of ten apart, at most four times."""
    most = max(lines[-1], default=0) or 1
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


def _grid(axis: _Axis, steps: int) -> str:
    lines = [f'<path class="grid" d="M0 {_y(value, axis)}h{max(steps, 1)}"/>' for value in axis.ticks()]
    return "".join(lines)


def _value_labels(axis: _Axis) -> str:
    """Return the drawing of the labels of the axis of values."""
    texts = []
    for value in axis.ticks():
        texts.append(f'<text x="100%" y="{100 - 100 * value / axis.top:.4g}%">{value:.6g}</text>')
    return f'<svg class="ys" aria-hidden="true">{"".join(texts)}</svg>'


def _time_labels(start_at: float, whole_s: float) -> str:
    """Return the drawing of the labels of the time axis: round times, at most five, none of them at an edge."""
    apart_s = next((one for one in _APART_S if whole_s / one <= MAX_TICKS), _APART_S[-1])
    form = "%H:%M:%S"
    if apart_s >= 60:
        form = "%H:%M"
    texts = []
    at = ceil(start_at / apart_s) * apart_s
    while at <= start_at + whole_s:
        percent = 100 * (at - start_at) / whole_s
        if 4 <= percent <= 96:
            when = datetime.fromtimestamp(at, UTC)
            texts.append(f'<text x="{percent:.4g}%" y="12" data-at="{at}">{when:{form}}</text>')
        at += apart_s
    return f'<svg class="xs" aria-hidden="true">{"".join(texts)}</svg>'
