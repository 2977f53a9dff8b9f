"""What was counted in a window, and the curve of it as SVG: passed and refused, stacked, with bans and changes.

The drawing stretches to the width of its place; texts are in drawings of their own that do not, placed by percentages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import Final, NamedTuple

from markupsafe import Markup

from ...core import Ban
from ...limiter import Action
from ..slices import CLIENTS, STEPS
from ..statistics import EVERY_S, Stats, Traffic
from ..stats_rows import Steps

HEIGHT: Final = 150
MAX_POINTS: Final = 72
"""How many steps a window has at most."""
SERIES: Final = ("passed", "limited", "banned", "blocked")
"""The counts that are drawn, from the lowest to the highest; the class of the n-th is ``s`` and n."""
_APART_S: Final = {"5m": 60, "1h": 900, "6h": 7_200, "24h": 21_600}
"""The distance of labels on the time axis, by window."""
_TOPS: Final = (1, 2, 4, 6, 8, 10)
"""What the top of the axis of values may be, times a power of ten: half of it is a round number, too."""
_BESIDE: Final = {"ban": 0.3, "change": 0.7}
"""Where in its step a mark of each kind is, so that both are seen."""
_KINDS: Final = {"ban": "ban", "override": "change", "restore": "change"}
"""The marks of what operators do."""


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
    """A curve.

    Attributes:
        unit: The unit of time of its rates.
        drawing: The SVG.
    """

    unit: str
    drawing: Markup


def steps_of_clients(steps: Steps, now_us: int) -> Steps:
    """Return the slices of the time for which clients are counted: the running minute and the four before it."""
    client_us, kept = STEPS[CLIENTS]
    first_us = max(now_us // client_us - kept + 1, 0) * client_us
    return steps._replace(number=now_us // steps.step_us - first_us // steps.step_us + 1)


def merged(stats: Stats) -> Stats:
    """Return counts with at most `MAX_POINTS` steps: some that follow each other together."""
    length = ceil(len(stats.steps) / MAX_POINTS)
    if length == 1:
        return stats
    steps = []
    for first in range(0, len(stats.steps), length):
        step = Traffic()
        for one in stats.steps[first : first + length]:
            step.add(one)
        steps.append(step)
    return stats._replace(steps=steps, step_us=stats.step_us * length)


def marks_of(history: Iterable[Action], bans: Iterable[Ban]) -> list[Mark]:
    """Return when operators banned somebody or changed a limit, and when the bans of policies began."""
    marks = [Mark(one.at_us / 1_000_000, _KINDS[one.kind]) for one in history if one.kind in _KINDS]
    return marks + [Mark(ban.since_us / 1_000_000, "ban") for ban in bans if ban.level]


def curve_of(counts: Counts, marks: Iterable[Mark]) -> Curve:
    """Return the curve of some counts, with what happened in their time."""
    step_s = counts.stats.step_us / 1_000_000
    rates = _stacked(counts.stats.steps, _lengths_s(counts, step_s))
    unit, unit_s = _unit_of(max(rates[-1], default=0))
    top = _top_of(max(rates[-1], default=0) * unit_s)
    steps = max(len(rates[0]), 1)
    parts = [f'<path class="grid" d="M0 {_y(share)}h{steps}"/>' for share in (0, 0.5, 1)]
    for number in reversed(range(len(SERIES))):  # the lower ones are drawn last
        if number == 0 or rates[number] != rates[number - 1]:
            parts.append(_area(f"s{number}", [rate * unit_s / top for rate in rates[number]]))
    by_step = {(int((one.at - counts.start_at) // step_s), one.kind) for one in marks}
    for step, kind in sorted(by_step):
        if 0 <= step < len(rates[0]):
            parts.append(f'<path class="mark {kind}" d="M{step + _BESIDE[kind]} 0V{HEIGHT}"/>')
    drawing = (
        f'<svg class="ys" aria-hidden="true">{"".join(_value_labels(top))}</svg>'
        f'<svg class="lines" viewBox="0 0 {steps} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="Requests per {unit}">{"".join(parts)}</svg>'
        f'<svg class="xs" aria-hidden="true">{"".join(_time_labels(counts, step_s * steps))}</svg>'
    )
    return Curve(unit, Markup(drawing))


def _lengths_s(counts: Counts, step_s: float) -> list[float]:
    """Return for how long each step that is drawn was counted; the last one is still running.

    Workers write every five seconds. A running step of five seconds is left out, because most of it is not written yet.
    """
    done = [step_s] * (len(counts.stats.steps) - 1)
    if step_s == EVERY_S:
        return done
    running_s = counts.at - counts.start_at - sum(done)
    return [*done, min(max(running_s, EVERY_S), step_s)]


def _stacked(steps: Sequence[Traffic], lengths_s: Sequence[float]) -> list[list[float]]:
    """Return the rates of each series by step, on top of those before it."""
    lines = []
    below = [0.0] * len(lengths_s)
    for count in SERIES:
        for place, length_s in enumerate(lengths_s):
            below[place] += getattr(steps[place], count) / length_s
        lines.append([*below])
    return lines


def _unit_of(rate: float) -> tuple[str, int]:
    """Return the first unit in which something happens once, with its seconds."""
    if not rate or rate >= 1:
        return "second", 1
    if rate >= 1 / 60:
        return "minute", 60
    return "hour", 3_600


def _top_of(rate: float) -> float:
    """Return the top of an axis that reaches a rate."""
    power = 10.0 ** floor(log10(rate or 1))
    return next(factor * power for factor in _TOPS if factor * power >= rate * 0.999999)


def _y(share: float) -> str:
    return f"{HEIGHT * (1 - share):.4g}"


def _area(name: str, shares: Iterable[float]) -> str:
    """Return the drawing of a series, given the shares of the axis that its values have."""
    points = [f"{step + 0.5} {_y(share)}" for step, share in enumerate(shares)]
    if not points:
        return ""
    path = f"M{'L'.join(points)}h0"  # a lone value is a line of no length, which round ends make a dot
    return f'<path class="area {name}" d="{path}V{HEIGHT}H0.5z"/><path class="line {name}" d="{path}"/>'


def _value_labels(top: float) -> Iterator[str]:
    for share in (0, 0.5, 1):
        yield f'<text x="100%" y="{100 - 100 * share:g}%">{top * share:.6g}</text>'


def _time_labels(counts: Counts, whole_s: float) -> Iterator[str]:
    """Yield the labels of round times, none of them at an edge."""
    apart_s = _APART_S[counts.window]
    at = ceil(counts.start_at / apart_s) * apart_s
    while at <= counts.start_at + whole_s:
        percent = 100 * (at - counts.start_at) / whole_s
        if 4 <= percent <= 96:
            yield f'<text x="{percent:.4g}%" y="12" data-at="{at}">{datetime.fromtimestamp(at, UTC):%H:%M}</text>'
        at += apart_s
