"""The stats of all workers: sums and ages, also with store failures, forks and clocks that step."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import Counter
from threading import get_ident
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import Limiter, StoreError
from slidegate.core import Reason
from slidegate.core.store import StatsRow
from slidegate.limiter.observers import Outcome
from slidegate.stats import Statistics, Traffic
from slidegate.stats.publisher import ALIVE_US
from slidegate.stats.recorder import MAX_SERIES
from slidegate.stats.report import RecentStats, Span
from slidegate.stats.rows import VERSION, WORKERS, unpacked

from ..virtual_time import turns_during
from .shared_store import Board, Staff

PASS = Outcome(True, Reason.OK, (), (), "", 200, "success", 0, 0, None, ())
BLOCK = PASS._replace(allowed=False, reason=Reason.LIMITED, status=429, ended="refused")
BANNED = BLOCK._replace(reason=Reason.BANNED, status=403)
SECOND_US = 1_000_000
KINDS = {"passed": PASS, "refused": BLOCK, "banned": BANNED}
SERIES = [(("api",), "GET /a"), (("api", "all"), "GET /b"), ((), "(no route)")]


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def ann(board: Board) -> Staff:
    return Staff(board)


@pytest.fixture
def bob(board: Board) -> Staff:
    return Staff(board)


def note(staff: Staff, outcome: Outcome, series: tuple[tuple[str, ...], str] = SERIES[0], took_us: int = 1_000) -> None:
    rules, route = series
    began_us = staff.clock() - took_us
    staff.recording.request(outcome._replace(rules=rules, route=route, began_us=began_us, duration_us=took_us))


async def written(board: Board, times: int) -> None:
    """Wait until the store was written the given number of times."""
    for _ in range(60_000):
        if board.writings >= times:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{board.writings} writings, not {times}")


def counts(traffic: Traffic) -> tuple[int, int, int]:
    return traffic.passed, traffic.refused, traffic.banned


moves = st.lists(
    st.tuples(
        st.integers(0, 2),  # the worker
        st.sampled_from(["passed", "refused", "banned", "publish", "close", "kill"]),
        st.sampled_from(SERIES),
        st.one_of(st.integers(0, 3), st.integers(0, 400), st.integers(0, 20_000)),  # seconds until then
    ),
    max_size=40,
)


@settings(deadline=None)
@given(
    moves,
    st.sampled_from(["1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h"]),
    st.lists(st.integers(-(10**10), 10**10) | st.just(0), min_size=3, max_size=3),
)
def test_the_sum_is_exact_after_every_worker_has_published(given_as: Any, window: str, ahead_us: list[int]) -> None:
    """With arbitrary clocks, a killed worker loses at most its unpublished counts."""

    async def play() -> None:
        board = Board()
        staff = [Staff(board, ahead) for ahead in ahead_us]
        unpublished: list[list[Any]] = [[], [], []]
        written: list[Any] = []
        published_us, killed_us = dict[int, int](), list[int]()
        for place, what, series, pause_s in given_as:
            board.clock.advance(us=pause_s * SECOND_US)
            worker = staff[place]
            if what in KINDS:
                note(worker, KINDS[what], series)
                unpublished[place].append((board.clock(), what, series))
            elif what == "kill":
                unpublished[place].clear()
                staff[place] = Staff(board, ahead_us[place])
                killed_us += [published_us.pop(place)] if place in published_us else []
            else:
                published_us |= {place: board.clock()}
                await (worker.publisher.publish() if what == "publish" else worker.publisher.end())
                written += unpublished[place]
                unpublished[place].clear()
                if what == "close":
                    del published_us[place]
                    staff[place] = Staff(board, ahead_us[place])
        for worker in staff:
            await worker.publisher.publish()
        written += [one for some in unpublished for one in some]
        found = await staff[0].statistics.stats_all(window)
        span_us = found.total.seen.span_us
        now_us, step_us = board.clock(), Span.of(window).step_us
        sure = [one for one in written if one[0] > now_us - span_us + 2 * step_us]
        maybe = [one for one in written if one[0] > now_us - span_us - 2 * step_us]
        least, most = Counter(what for _, what, _ in sure), Counter(what for _, what, _ in maybe)
        passed, refused, banned = counts(found.total)
        assert least["passed"] <= passed <= most["passed"]
        assert least["banned"] <= banned <= most["banned"]
        assert least["refused"] + least["banned"] <= refused <= most["refused"] + most["banned"]
        if len(sure) == len(maybe):
            by_rule = Counter(rule for _, what, (rules, _) in sure if what == "passed" for rule in rules)
            assert {rule: each.passed for rule, each in found.rules.items() if each.passed} == by_rule
            by_route = Counter(route for _, what, (_, route) in sure if what == "passed")
            assert {route: each.passed for route, each in found.routes.items() if each.passed} == by_route
            assert found.total.seen.rt.count == passed
        chart = await staff[0].statistics.chart_all(window)
        assert [sum(point[place] for point in chart.points) for place in range(3)] == [passed, refused, banned]
        assert len(chart.points) <= 288
        others = await staff[1].statistics.stats_all(window)
        assert counts(others.total) == (passed, refused, banned), "every worker sees the same"
        listed = 3 + sum(now_us - last_us < ALIVE_US for last_us in killed_us)
        assert len(found.workers) == listed, "one that was killed is listed for 45 s"

    asyncio.run(play())


async def test_published_stats_age_out_with_their_slices_and_the_dead_leave_the_list_before(
    board: Board, ann: Staff, bob: Staff
) -> None:
    note(ann, PASS)
    await ann.publisher.publish()
    board.clock.advance(us=7 * SECOND_US)
    found = await bob.statistics.stats_all("1m")
    assert [(worker.here, worker.age_s, worker.pid) for worker in found.workers] == [
        (True, 0.0, os.getpid()),
        (False, 7.0, os.getpid()),
    ]
    assert len({worker.name for worker in found.workers}) == 2
    board.clock.advance(us=ALIVE_US - 7 * SECOND_US)
    found = await bob.statistics.stats_all("1m")
    assert ([worker.here for worker in found.workers], found.total.passed) == ([True], 1)
    board.clock.advance(us=20 * SECOND_US)
    assert [(await bob.statistics.stats_all(window)).total.passed for window in ("1m", "5m")] == [0, 1]
    board.clock.advance("25h")
    assert all(until_us <= board.clock() for _, until_us in board.rows.values()), "every row has an end"


async def test_what_was_published_is_not_written_again(board: Board, ann: Staff) -> None:
    note(ann, PASS)
    await ann.publisher.publish()
    board.rows.clear()
    await ann.publisher.publish()
    assert [rollup for rollup, _, _ in board.rows] == [WORKERS]


async def test_sections_are_those_of_other_live_workers_as_they_were_published(
    board: Board, ann: Staff, bob: Staff
) -> None:
    events = [{"at": 1.5, "kind": "<script>"}]
    ann.publish_section("events", events)
    bob.publish_section("events", "bob")
    for staff in (ann, bob):
        await staff.publisher.publish()
    ((worker, value),) = await bob.sections("events")
    assert (worker.here, value) == (False, events)
    assert [value for _, value in await ann.sections("events")] == ["bob"]
    assert await bob.sections("nobody") == []
    for _ in range(2):
        await ann.publisher.end()
        assert await bob.sections("events") == []
    assert [value for _, value in await ann.sections("events")] == ["bob"]
    board.clock.advance(us=ALIVE_US)
    assert await ann.sections("events") == []


async def test_a_section_that_cannot_be_published_is_left_out(board: Board, ann: Staff, bob: Staff) -> None:
    for value in (object(), ZeroDivisionError):
        ann.publish_section("events", value)
        note(ann, PASS)
        await ann.publisher.publish()
        assert await bob.sections("events") == []
    assert (await bob.statistics.stats_all("1m")).total.passed == 2


async def test_a_store_that_is_away_loses_nothing_but_time(board: Board, ann: Staff, bob: Staff) -> None:
    board.failing = True
    for _ in range(100):
        note(ann, PASS)
        with pytest.raises(StoreError):
            await ann.publisher.publish()
        board.clock.advance("7s")
    board.failing = False
    await ann.publisher.publish()
    assert [(await bob.statistics.stats_all(window)).total.passed for window in ("5m", "1h", "24h")] == [42, 100, 100]
    board.failing = True
    with pytest.raises(StoreError):
        await bob.statistics.stats_all("1m")
    note(ann, PASS)
    await ann.publisher.end()  # does not raise


@pytest.mark.parametrize("step_us", [3_000_000, 20_000_000, 3_600_000_000, -3_600_000_000])
async def test_a_clock_that_is_set_leaves_nothing_twice(step_us: int, board: Board, ann: Staff, bob: Staff) -> None:
    for _ in range(3):
        note(ann, PASS)
        await ann.publisher.publish()
        board.clock.advance("5s")

    board.clock.advance(us=max(step_us, 0))  # the store's clock steps, but not those of the workers
    ann.ahead_us = bob.ahead_us = -step_us
    if step_us < 0:
        board.clock.set(board.clock() + step_us)
    await ann.publisher.publish()
    assert (await bob.statistics.stats_all("1m")).total.passed == 3
    assert (await bob.statistics.stats_all("24h")).total.passed == 3


async def test_a_store_of_this_process_has_one_worker_and_publishes_nothing() -> None:
    limiter = Limiter()
    statistics = Statistics(limiter)
    began_us = limiter.engine.now_us()
    limiter.engine.observers.request(PASS._replace(rules=("api",), route="GET /a", began_us=began_us))
    found = await statistics.stats_all("24h")
    assert [worker.here for worker in found.workers] == [True]
    assert (found.total.passed, found.rules["api"].passed) == (1, 1)
    chart, same = statistics.chart("1h", rule="api"), await statistics.chart_all("1h", route="GET /a")
    assert sum(point.passed for point in chart.points) == sum(point.passed for point in same.points) == 1
    for other in ({"rule": "other"}, {"route": "GET /b"}):
        assert sum(point.passed for point in statistics.chart("1h", **other).points) == 0
    await limiter.close()


async def test_it_publishes_by_itself_while_a_loop_runs_and_goes_on_after_failures(board: Board, ann: Staff) -> None:
    ann.publisher.interval_s = 0.001
    note(ann, PASS)
    await written(board, 3)
    board.failing = True
    await asyncio.sleep(0.01)
    board.failing = False
    await written(board, board.writings + 3)
    await ann.publisher.end()
    after = board.writings
    await asyncio.sleep(0.01)
    assert board.writings == after


async def test_others_run_between_two_series_while_it_publishes(board: Board, ann: Staff) -> None:
    for number in range(MAX_SERIES):
        note(ann, PASS, (("api",), f"GET /{number}"))
    turns = await turns_during(ann.publisher.publish())
    slices = 3  # slices of five seconds, a minute and five minutes
    assert turns >= MAX_SERIES * (1 + slices)


async def test_sums_of_all_workers_are_made_in_a_thread(ann: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    for name in ("stats", "chart"):
        method = getattr(RecentStats, name)

        def noted(*given: Any, method: Any = method) -> Any:
            threads.append(get_ident())
            return method(*given)

        monkeypatch.setattr(RecentStats, name, noted)
    note(ann, PASS)
    assert (await ann.statistics.stats_all("24h")).total.passed == 1
    assert sum(point.passed for point in (await ann.statistics.chart_all("24h")).points) == 1
    assert len(threads) == 2
    assert get_ident() not in threads


def test_it_goes_on_with_another_loop_when_the_first_has_ended(board: Board, ann: Staff) -> None:
    async def serve(route: str) -> None:
        ann.publisher.interval_s = 0.001
        note(ann, PASS, (("api",), route))
        ann.publisher.interval_s = 3_600.0  # no write is due before this loop ends
        await written(board, board.writings + 1)

    asyncio.run(serve("GET /a"))
    asyncio.run(serve("GET /b"))
    assert ann.statistics.stats("1m").total.passed == 2


def test_a_child_of_fork_is_another_worker_and_counts_from_nothing(ann: Staff) -> None:
    note(ann, PASS)
    parent = ann.publisher.worker
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            note(ann, BLOCK)
            seen = ann.statistics.stats("1m").total
            os.write(write, f"{ann.publisher.worker != parent} {seen.passed} {seen.refused}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"True 0 1"
    assert ann.publisher.worker == parent
    assert ann.statistics.stats("1m").total.passed == 1


@given(st.binary(max_size=200))
def test_any_bytes_are_a_row_or_none(row: bytes) -> None:
    for wrong in (row, bytes([VERSION]) + row, bytes([VERSION]) + zlib.compress(row)):
        assert all(isinstance(name, tuple) for name, _ in unpacked(wrong))


@pytest.mark.parametrize(
    "line",
    [
        "[",
        "7",
        "[]",
        "[" * 100_000,
        '[["api"],"",[],{},[0,null,[]]]',
        '[["api"],"",{"pass":1e999},[0,null,[]]]',
        '[["api"],"",[],[0,null,[]]]',
    ],
)
def test_a_row_is_read_up_to_what_cannot_be_read_and_names_no_bucket_that_does_not_exist(line: str) -> None:
    good = '[["api"],"GET /",{"pass":2},[9,3,[[0,1],[9999,1],[-1,5]]]]'
    row = zlib.compress(f"{good}\n{line}\n{good}".encode())
    ((name, some),) = unpacked(bytes([VERSION]) + row)
    assert name == (("api",), "GET /")
    assert (some.events, some.rt.buckets, some.rt.quantile(1)) == ({"pass": 2}, {0: 1}, 5)
    assert list(unpacked(bytes([VERSION - 1]) + row)) == []


@pytest.mark.parametrize(
    "value",
    ['{"at_us": "x"}', '{"at_us": null}', '{"at_us": 1e999}', '{"pid": []}', "[]", "7", "{", "[" * 9**5, "\xff"],
)
async def test_a_worker_or_a_section_that_cannot_be_read_is_passed_by(
    value: str, board: Board, ann: Staff, bob: Staff
) -> None:
    await bob.publisher.publish()
    row = StatsRow("workers", 0, value.encode("latin-1"), ALIVE_US)
    await board.write(b"stranger", [row, row._replace(rollup="s-events")])
    if value in ("{", "[" * 9**5, "\xff"):
        await board.write(bob.publisher.worker, [row._replace(rollup="s-events")])
    assert [worker.here for worker in (await ann.statistics.stats_all("1m")).workers] == [True, False]
    assert await ann.sections("events") == []
