"""The cost of one record, one amount and one hit: `MetricWindow`, `Series`, `RollingTotals`, `HotKeys`.

Every round starts with empty windows, and time goes on with every call. The benchmark ends with an error if adding to
eight totals costs more than twice as much as adding to any one of them.
"""

from __future__ import annotations

import asyncio
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from itertools import cycle
from statistics import median

from slidegate.core import HotKeys, MetricWindow, RollingTotals
from slidegate.core.statistics.series import MAX_NOTED, Outcome, Series

from .measure import Candidate, compared, rounds
from .report.tables import Table

CALLS = 100_000
MINUTE_US = 60_000_000
WINDOWS_US = [minutes * MINUTE_US for minutes in (5, 10, 30, 60, 180, 360, 720, 1_440)]

Call = Callable[[int], object]
"""Does one thing at a moment in microseconds."""


def candidate(fresh: Callable[[], Call], step_us: int, calls: int = CALLS) -> Candidate:
    async def run() -> float:
        call = fresh()
        moments_us = range(10**15, 10**15 + calls * step_us, step_us)
        started_s = time.perf_counter()
        for now_us in moments_us:
            call(now_us)
        return (time.perf_counter() - started_s) / calls * 1_000_000

    return run


def nothing() -> Call:
    return lambda now_us: None


def blocked() -> Call:
    window = MetricWindow(slices=60, slice_us=1_000_000)
    return lambda now_us: window.record(now_us, "block")


def passed() -> Call:
    window = MetricWindow(slices=60, slice_us=1_000_000)
    return lambda now_us: window.record(now_us, "pass", rt_us=1_234)


def answered() -> Call:
    window = MetricWindow(slices=60, slice_us=1_000_000)
    return lambda now_us: window.record(now_us, "pass", "success", "2xx", rt_us=1_234)


def one_by_one() -> Call:
    window = MetricWindow(slices=60, slice_us=1_000_000)
    return lambda now_us: window.record(now_us, "pass", "success", "2xx", rt_us=now_us % 10_007)


def buffered() -> Call:
    window, what = Series(), Outcome("pass", "success", "2xx", rt=True)
    return lambda now_us: window.note(what, now_us - now_us % 10_007, now_us)


def buffered_block() -> Call:
    window, what = Series(), Outcome("block", "4xx")
    return lambda now_us: window.note(what, now_us, now_us)


def fold() -> Call:
    window, what = Series(), Outcome("pass", "success", "2xx", rt=True)
    full = [(what, at, at + at * 71 % 10_007) for at in range(10**15, 10**15 + MAX_NOTED)]

    def call(now_us: int) -> None:
        window.noted[:] = full
        window.fold()

    return call


def read(window: MetricWindow) -> Callable[[], Call]:
    return lambda: lambda now_us: window.read(10**15)


def add(*windows_us: int) -> Callable[[], Call]:
    def fresh() -> Call:
        totals = RollingTotals(MINUTE_US, windows_us)
        return lambda now_us: totals.add(now_us, -1_999)

    return fresh


def read_totals() -> Call:
    totals = RollingTotals(MINUTE_US, WINDOWS_US)
    return totals.completed


def hit(count: int) -> Callable[[], Call]:
    def fresh() -> Call:
        keys, names = HotKeys(1_000, 100, "5s"), cycle([f"client:{number}" for number in range(count)])
        return lambda now_us: keys.hit(next(names), now_us)

    return fresh


def full_window() -> MetricWindow:
    window = MetricWindow(slices=60, slice_us=1_000_000)
    for number in range(6_000):
        window.record(10**15 - number * 10_000, "pass", "success", "2xx", rt_us=number * 7)
    return window


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=9)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure a record, an amount and a hit."""
    base = "calling a function that does nothing"
    # 100 us apart, so that a slice of a second begins every 10,000 calls.
    metrics = {
        base: candidate(nothing, 100),
        "record: block": candidate(blocked, 100),
        "record: pass and response time": candidate(passed, 100),
        "record: pass, success, 2xx and response time": candidate(answered, 100),
        "the same, every call in a new slice": candidate(answered, 1_000_000, CALLS // 10),
        "read 60 full slices": candidate(read(full_window()), 100, CALLS // 100),
    }
    single = "record: pass, success, 2xx and both times, one by one"
    noted = {
        single: candidate(one_by_one, 100),
        "note: the same, with its part of the folds": candidate(buffered, 100),
        "note: block and 4xx, with its part of the folds": candidate(buffered_block, 100),
        f"fold {MAX_NOTED} records": candidate(fold, 100, CALLS // 100),
    }
    day = "add, one window of a day"
    amounts = {
        day: candidate(add(WINDOWS_US[-1]), 10_000),
        "add, one window of five minutes": candidate(add(WINDOWS_US[0]), 10_000),
        "add, eight windows": candidate(add(*WINDOWS_US), 10_000),
        "add, eight windows, every call in a new slice": candidate(add(*WINDOWS_US), MINUTE_US),
        "add, eight windows, every call a day later": candidate(add(*WINDOWS_US), 1_440 * MINUTE_US, CALLS // 100),
        "read eight windows": candidate(read_totals, 10_000),
    }
    hits = {
        base: candidate(nothing, 100),
        "hit, 10 keys in turn": candidate(hit(10), 100),
        "hit, 1,000 keys in turn": candidate(hit(1_000), 100),
        "hit, every key a new one": candidate(hit(CALLS), 100),
    }
    titled = {"MetricWindow": metrics, "Series": noted, "RollingTotals": amounts, "HotKeys, 1,000 places": hits}
    baselines = {**dict.fromkeys(list(noted)[1:3], single), **dict.fromkeys(list(amounts)[1:3], day)}
    for name, candidates in titled.items():
        taken = asyncio.run(rounds(candidates, options.rounds))
        yield compared(name, taken, baselines)
        if candidates is amounts:
            check(taken)


def check(taken: dict[str, list[float]]) -> None:
    """End with an error where eight windows cost more than twice one."""
    for single in ("add, one window of a day", "add, one window of five minutes"):
        pairs = zip(taken["add, eight windows"], taken[single], strict=True)
        if median(eight / one for eight, one in pairs) > 2:
            raise SystemExit(f"eight windows cost more than twice what {single[5:]} costs")
