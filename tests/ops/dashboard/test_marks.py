"""Marks tell each happening once, whenever workers read of it."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slidegate import RateLimitMiddleware, Rule
from slidegate.ops.dashboard.marks import described, marks_by_step, marks_of
from slidegate.ops.dashboard.snapshots import Snapshots
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ...asgi import hello
from ..shared_rows import START_US, SharedRows, limiter_on


def event(kind: str, at: float, until_at: float = 0, **details: str) -> dict[str, Any]:
    if until_at:
        details["until"] = str(datetime.fromtimestamp(until_at, UTC))
    return {"kind": kind, "at": at, "details": {"key": "", "by": "", **details}}


def action(kind: str, target: str, at: float, until_at: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "target": target, "at": at, "by": "ann", "until_at": until_at}


def test_what_happened_is_told_once_however_many_workers_report_it() -> None:
    actions = [
        action("ban", "192.0.2.1", 100.0, 900.0),
        action("override", "api", 107.0, 900.0),
        action("unban", "192.0.2.9", 108.0),
        action("override", "*", 120.0, 900.0),
        action("restore", "*", 122.0),
    ]
    events = [
        event("switched_on", 131.0, 900.0, by="ann"),
        event("switched_off", 121.0, 900.0, by="ann"),
        event("banned", 100.2, 900.0, key="192.0.2.1", by="ann"),
        event("banned", 103.0, 800.0, key="192.0.2.2", by="scanning"),
        event("limit_overridden", 107.4, 900.0, limit="api", by="ann"),
        event("limit_overridden", 145.0, 900.0, limit="api", by="ann"),
        event("store_recovered", 119.0),
        event("store_failed", 112.1),
        event("store_failed", 111.0),
        event("refused", 112.0, key="192.0.2.3"),
        event("config_reloaded", 130.0),
        event("limit_restored", 901.0, 900.0, limit="api", by="ann"),
    ]
    marks = marks_of(events, actions)
    assert [(mark.kind, mark.text) for mark in marks] == [
        ("ban", "192.0.2.1 banned by ann"),
        ("ban", "192.0.2.2 banned by scanning"),
        ("change", "api changed by ann"),
        ("outage", "the store fails"),
        ("outage", "the store answers"),
        ("change", "all workers switched off by ann"),
        ("change", "all workers switched on by ann"),
        ("change", "a configuration file is reloaded"),
        ("change", "api restored"),
    ]
    by_step = marks_by_step(marks, 100.0, 5.0, 3)
    assert {step: [mark.at for mark in found] for step, found in by_step.items()} == {
        0: [100.0, 103.0],
        1: [107.0],
        2: [111.0],
    }


CHANGES = st.lists(st.tuples(st.sampled_from(["api", "*"]), st.integers(70, 900), st.booleans()), max_size=5)


@given(CHANGES, st.lists(st.integers(0, 60), max_size=4))
def test_each_change_and_its_end_is_one_mark_whenever_a_worker_reads_them(
    changes: list[tuple[str, int, bool]], delays_s: list[int]
) -> None:
    actions, events, expected, at = list[dict[str, Any]](), list[dict[str, Any]](), 0, 1_000.0
    for target, length_s, is_restored in changes:
        until_at = end_at = at + length_s
        actions.append(action("override", target, at, until_at))
        if is_restored:
            end_at = at + 65
            actions.append(action("restore", target, end_at))
        begun, ended = ("switched_off", "switched_on") if target == "*" else ("limit_overridden", "limit_restored")
        for delay_s in delays_s:
            events.append(event(begun, at + delay_s, until_at, by="ann", limit=target.strip("*")))
            events.append(event(ended, end_at + delay_s, until_at, by="ann", limit=target.strip("*")))
        expected += 1 + bool(is_restored or delays_s)
        at += 2_000
    assert len(marks_of(events, actions)) == expected


async def test_the_events_of_real_workers_are_recognised_as_what_an_operator_did() -> None:
    clock = FakeClock(START_US)
    rows = SharedRows(clock)
    limiters = [limiter_on(rows), limiter_on(rows)]
    rules = [Rule("*", "5/minute", name="api")]
    apps = [RateLimitMiddleware(hello, limiter=limiter, rules=rules) for limiter in limiters]
    for app in apps:
        Statistics.of(app.limiter)
    await limiters[0].override("api", "2/minute", "1h", by="ann")
    await limiters[0].ban("192.0.2.1", "1h", by="ann")
    clock.advance("40s")
    for limiter in limiters:
        await limiter.overrides()
        await Statistics.of(limiter).publish()
    snapshots = Snapshots(limiters[0])
    events = await snapshots.events.get()
    assert sorted(event["kind"] for event in events) == ["banned", "limit_overridden", "limit_overridden"]
    marks = marks_of(events, await snapshots.history.get())
    assert [mark.text for mark in marks] == ["192.0.2.1 banned by ann", "api changed by ann"]


def test_of_many_marks_of_one_step_the_first_are_named_and_the_others_counted() -> None:
    marks = marks_of([], [action("ban", f"192.0.2.{number}", 100.0 + number) for number in range(9)])
    assert described(marks).endswith("; 6 more")
    assert described(()) == ""
