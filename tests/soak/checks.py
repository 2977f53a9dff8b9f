"""Finds broken promises in what was seen from outside. Each check returns one sentence for each thing that it found.

A client knows only when it sent a request and when the answer came, and the decision lies between. So a check counts
what must have happened: requests whose whole span lies inside a window were decided inside it. It never accuses
wrongly, and the shorter the spans are, the less escapes it.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

CLOCKS_S: Final = 0.004
"""By how much a window may look shorter, because the server reads another clock."""
MOST_GROWTH_MIB: Final = 4.0
"""How much more memory a worker may hold in the last quarter of its life than in the one before."""
MORE_TASKS: Final = 4
MORE_FILES: Final = 6
"""How many tasks and files of its own a store may have once it was asked, such as its connection and who reads it."""


class Promise(NamedTuple):
    """One rule of the application: at most `amount` in any window of one key."""

    path: str
    amount: int
    window_s: int
    name: str
    shared: bool = False
    """Whether all clients share one window."""


PROMISES: Final = (
    Promise("/counts", 40, 2, "counts"),
    Promise("/exact", 8, 2, "exact"),
    Promise("/stream", 12, 1, "stream"),
    Promise("/maybe", 20, 2, "maybe"),
    Promise("/wait", 5, 1, "wait"),
    Promise("*", 400, 1, "service", shared=True),
)


class Answer(NamedTuple):
    """One answer. The decision was made at some moment from `sent_s` to `received_s`, by the clock of this machine."""

    client: str
    path: str
    status: int
    sent_s: float
    received_s: float
    banned: bool = False
    retry_after_s: int = 0
    """Whole seconds, rounded up."""

    @property
    def admitted(self) -> bool:
        """Whether the middleware let the request through to the application, which answers 200 or 404."""
        return self.status in (200, 404)


class Sample(NamedTuple):
    at_s: float
    rss_mib: float
    tasks: int
    files: int


def broken_bounds(answers: Iterable[Answer]) -> list[str]:
    spans: dict[tuple[Promise, str], list[tuple[float, float]]] = defaultdict(list)
    for answer in answers:
        for promise in PROMISES:
            # The rule of /maybe counts what is answered with 200; those that apply to every path count all.
            if promise.shared and answer.admitted:
                spans[promise, "everybody"].append((answer.sent_s, answer.received_s))
            elif promise.path == answer.path and answer.status == 200:
                spans[promise, answer.client].append((answer.sent_s, answer.received_s))
    found = []
    for (promise, who), held in spans.items():
        most, at_s = most_inside(held, promise.window_s - CLOCKS_S)
        if most > promise.amount:
            limit = f"{promise.amount}/{promise.window_s}s"
            found.append(f"{promise.name}: {who} got {most} through in one window of {limit}, at {at_s:.3f} s")
    return found


def most_inside(
    spans: Iterable[tuple[float, float]], window_s: float, begins: Callable[[float], bool] = lambda at_s: True
) -> tuple[int, float]:
    """Return the most spans that lie inside one window of a length that may begin then, and when it begins."""
    in_order = sorted(spans)
    ends: list[float] = []  # of the spans that begin inside the window, sorted
    most, at_s, next_one = 0, 0.0, 0
    for start_s, end_s in in_order:
        while next_one < len(in_order) and in_order[next_one][0] <= start_s + window_s:
            insort(ends, in_order[next_one][1])
            next_one += 1
        count = bisect_right(ends, start_s + window_s)
        if count > most and begins(start_s):
            most, at_s = count, start_s
        del ends[bisect_left(ends, end_s)]
    return most, at_s


def lost_bans(answers: Iterable[Answer], lag_s: float = 0.0) -> list[str]:
    """Find requests that passed while an earlier answer, by a clock `lag_s` late, bans their client."""
    known: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    in_order = sorted(answers, key=lambda answer: answer.received_s)
    for answer in in_order:
        if answer.banned:
            # The seconds are rounded up, and were true when the decision was made, at the earliest when it was sent.
            until_s = answer.sent_s + answer.retry_after_s - 1 - CLOCKS_S - lag_s
            from_s, latest_s = known[answer.client]  # since when it is known, and until when it lasts at least
            from_s.append(answer.received_s)
            latest_s.append(max(until_s, latest_s[-1]) if latest_s else until_s)
    found = []
    for answer in in_order:
        if answer.admitted and answer.client in known:
            from_s, latest_s = known[answer.client]
            earlier = bisect_left(from_s, answer.sent_s)
            left_s = latest_s[earlier - 1] - answer.received_s if earlier else 0.0
            if left_s > 0:
                found.append(f"ban: {answer.client} passed at {answer.received_s:.3f} s, {left_s:.3f} s too early")
    return found


def grown(name: str, samples: Sequence[Sample]) -> list[str]:
    """Find a worker whose memory grew from the third quarter of its life to the last one."""
    quarter = len(samples) // 4
    if quarter < 2:
        return []
    third, last = samples[-2 * quarter : -quarter], samples[-quarter:]
    growth_mib = median(sample.rss_mib for sample in last) - median(sample.rss_mib for sample in third)
    return [f"memory: {name} grew by {growth_mib:.1f} MiB at the end"] if growth_mib > MOST_GROWTH_MIB else []


def leaked(name: str, first: Sample, last: Sample) -> list[str]:
    """Find tasks and files that a worker still has when nobody asks it any more."""
    found = []
    if last.tasks > first.tasks + MORE_TASKS:
        found.append(f"tasks: {name} had {first.tasks} when it started and has {last.tasks} at rest")
    if last.files > first.files + MORE_FILES:
        found.append(f"files: {name} had {first.files} open when it started and has {last.files} at rest")
    return found
