"""What was counted in a window, and the curve of it: passed and refused, stacked, with what happened.

A template draws the curve, in steps from left to right, and percentages of the axis from the top to the bottom.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log10
from typing import Final, NamedTuple, TypeAlias

from ...core import Ban
from ..statistics import EVERY_S, LoggedEvent, Stats
from .texts import grouped

SERIES: Final = ("passed", "limited", "banned", "blocked")
"""The counts that are drawn, from the lowest to the highest; the class of the n-th is ``s`` and n."""
_TOPS: Final = (1, 2, 4, 6, 8, 10)
"""What the top of the axis of values may be, times a power of ten: half of it is a round number, too."""
MARKS: Final = {
    "limit_overridden": "change",
    "limit_restored": "change",
    "switched_off": "change",
    "switched_on": "change",
    "config_reloaded": "change",
    "list_reloaded": "change",
    "store_failed": "outage",
    "store_recovered": "outage",
    "started": "start",
}
"""The marks of events, by their kind."""


class Counts(NamedTuple):
    """What was counted in a window.

    Attributes:
        window: The window as it was asked for.
        start_at: When the first step began, in Unix time.
        at: When they were read.
    """

    window: str
    stats: Stats
    start_at: float
    at: float

    @property
    def step_s(self) -> float:
        """The length of a step."""
        return self.stats.step_us / 1_000_000

    @property
    def seen_s(self) -> float:
        """The part of the window in which workers have counted, by which rates are divided."""
        return max(self.stats.seen_us / 1_000_000, EVERY_S)

    def with_starts(self, events: Iterable[LoggedEvent]) -> list[LoggedEvent]:
        """Return events, and when the workers of now began to count."""
        logged = [*events]
        for worker in self.stats.workers:
            at_us = int((self.at - worker.counting_s) * 1_000_000)
            logged.append(LoggedEvent("started", f"{worker.name} began to count", at_us, {}, worker.name))
        return logged


Mark: TypeAlias = tuple[float, str]
"""When, in Unix time, something happened: a ``ban``, a ``change``, an ``outage`` or the ``start`` of a worker."""


class Curve(NamedTuple):
    """A curve of requests per minute.

    Attributes:
        top: The rate at the top.
        steps: How many steps it has.
        lines: The path of each series by its class, the highest first, as lower ones are drawn above it.
        marks: The steps in which something happened, each with the kind of that.
    """

    top: float
    steps: int
    lines: dict[str, str]
    marks: list[tuple[int, str]]


def marks_of(bans: Iterable[Ban], events: Iterable[LoggedEvent]) -> list[Mark]:
    """Return when the bans in force began, something changed, the store failed, and workers began."""
    marks = [(ban.since_us / 1_000_000, "ban") for ban in bans]
    for alike in grouped(events):
        kind = MARKS.get(alike[0].kind, "")
        if kind == "change":  # when the first worker had it
            alike = alike[-1:]
        marks += [(event.time_us / 1_000_000, kind) for event in alike if kind]
    return marks


def curve_of(counts: Counts, marks: Iterable[Mark]) -> Curve:
    """Return the curve of some counts, with what happened in their time."""
    rates = _stacked_rates(counts)
    step_count = len(rates[0])
    highest = max(rates[-1], default=0)
    power = 10.0 ** floor(log10(highest or 1))
    # A product may be a rounding error below the value that it stands for.
    top = next(factor * power for factor in _TOPS if factor * power >= highest * 0.999999)
    lines = {}
    for number in reversed(range(len(SERIES))):
        # A series without requests would hide the one below it.
        if number == 0 or rates[number] != rates[number - 1]:
            points = [f"{step + 0.5} {100 - 100 * rate / top:.4g}" for step, rate in enumerate(rates[number])]
            lines[f"s{number}"] = f"M{'L'.join(points)}h0"  # round ends make a dot of a lone value
    places = {(int((at - counts.start_at) // counts.step_s), kind) for at, kind in marks}
    marked = sorted((step, kind) for step, kind in places if 0 <= step < step_count)
    return Curve(top, step_count, lines, marked)


def _stacked_rates(counts: Counts) -> list[list[float]]:
    """Return the requests per minute of each series by step, on top of those before it."""
    steps = counts.stats.steps
    step_s = counts.step_s
    # Workers write every five seconds: most of a running step of five seconds is not written yet.
    if step_s == EVERY_S:
        steps = steps[:-1]
    rates = []
    sums = [0.0] * len(steps)
    for count in SERIES:
        for number, step in enumerate(steps):
            since_s = counts.at - counts.start_at - number * step_s
            sums[number] += 60 * getattr(step, count) / min(max(since_s, EVERY_S), step_s)  # the last step still runs
        rates.append([*sums])
    return rates
