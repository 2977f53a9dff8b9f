"""Statistics of all workers: exact sums whichever write fails and whichever worker is killed; bounds; events."""

import asyncio
import gc
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import ConfigurationError, Limit, Limiter, RateLimitMiddleware, StoreError, everyone
from slidegate.core import Bucket, Decision, Reason
from slidegate.core.windows.histogram import BUCKETS
from slidegate.events import Event, Outcome
from slidegate.limiter.rows import MAX_BYTES
from slidegate.ops import statistics as ops_statistics
from slidegate.ops.statistics import (
    ALIVE_S,
    EVERY_S,
    MAX_CLIENTS,
    MAX_EVENTS,
    MAX_REFUSALS,
    MAX_SERIES,
    OTHER,
    PART,
    STEPS,
    Statistics,
    Stats,
    Traffic,
)
from slidegate.testing import RecordingObserver

from ..asgi import page
from ..racing import THREADS, race
from ..virtual_time import VirtualTime, turns_during
from .shared_rows import SharedRows, worker_of

SECOND_US = 1_000_000
EVERYONE = Limiter().key_for(everyone.of())


def passed(*rules: str, key: str = EVERYONE) -> Outcome:
    """Return the outcome of a request that some rules have admitted."""
    checks = tuple((Bucket(rule, [Limit(5, "1m")]), key, 1) for rule in rules)
    return Outcome([Decision(True, Reason.OK, 0, checks)], None, (), "GET /a", 200, "success", 0, 1_000)


def refused(*rules: str, key: str = EVERYONE, reason: Reason = Reason.LIMITED) -> Outcome:
    """Return the outcome of a request that some rules have refused."""
    checks = tuple((Bucket(rule, [Limit(5, "1m")]), key, 1) for rule in rules)
    has_limits = reason is not Reason.BANNED
    refusal = Decision(False, reason, 0, checks, [(5, 1, 0, 1)] * len(rules) if has_limits else ())
    return Outcome([refusal], refusal, (), "(no route)", 429 if has_limits else 403, "refused", 0, 1_000)


PASSED, REFUSED = passed("api"), refused("api")
OUTCOMES = {
    "passed": PASSED,
    "refused": REFUSED,
    "banned": refused("api", reason=Reason.BANNED),
    "blocked": refused("api", "all", reason=Reason.BLOCKED),
    "exceptions": replace(passed("api", "all"), ended="exception", status=500, route="GET /b"),
    "cancelled": replace(REFUSED, status=0, ended="cancelled", route="GET /a"),
    "shadow_refused": replace(PASSED, shadow_rules=("trial",)),
}


@pytest.fixture
def rows() -> SharedRows:
    return SharedRows()


@pytest.fixture
def statistics(rows: SharedRows) -> Iterator[Statistics]:
    limiter, statistics = worker_of(rows)
    yield statistics
    limiter.sync.close()


def traffic_of_each(count: int) -> Traffic:
    values: dict[str, Any] = dict.fromkeys(OUTCOMES, count)
    return Traffic(**values)


def counts(traffic: Traffic) -> dict[str, int]:
    return {name: count for name in OUTCOMES if (count := getattr(traffic, name))}


# -- sums --------------------------------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """Requests that were written at a moment of the store's clock."""

    at_us: int
    name: str


def expected(written: list[Counted], now_us: int, window_us: int) -> tuple[Counter[str], int, int]:
    """Return the sums of a window, the length of its steps and their number: the model of a read."""
    step_us = next(step_us for step_us, kept in STEPS.values() if window_us <= step_us * kept)
    steps = -(-window_us // step_us)
    found = Counter[str]()
    for at_us, name in written:
        if at_us // step_us > now_us // step_us - steps:
            outcome = OUTCOMES[name]
            found["passed"] += outcome.allowed
            found["refused"] += outcome.ended == "refused"
            if name not in ("passed", "refused"):
                found[name] += 1
    return +found, step_us, steps


moves = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 2]),  # the worker
        st.sampled_from([*OUTCOMES, "passed", "end", "end", "end", "end", "kill", "fail", "1", "2", "3", "4", "5"]),
        st.sampled_from([0, 0, 1, 5, 60, 300, 3_600]) | st.integers(0, 400),
    ),
    max_size=40,
)


class Fleet:
    """Three workers on one store, and what each has written or not."""

    def __init__(self) -> None:
        self.rows = SharedRows()
        self.workers = [worker_of(self.rows)[1] for _ in range(3)]
        self.unwritten: list[list[str]] = [[], [], []]
        self.written: list[Counted] = []

    async def move(self, at: int, move: str) -> None:
        if move in OUTCOMES:
            self.workers[at].request(OUTCOMES[move])
            self.unwritten[at].append(move)
        elif move == "kill":
            self.unwritten[at].clear()
            self.workers[at] = worker_of(self.rows)[1]
        elif move == "fail":
            self.rows.is_failing = True
            with pytest.raises(StoreError):
                await self.workers[at].publish()
            self.rows.is_failing = False
        else:
            self.rows.failing_writes = int(move) if move.isdecimal() else 0
            await self.publish(at)
            await self.workers[at].end()

    async def publish(self, at: int) -> None:
        self.written += [Counted(self.rows.clock(), name) for name in self.unwritten[at]]
        self.unwritten[at].clear()
        for _ in range(self.rows.failing_writes):
            with pytest.raises(StoreError):
                await self.workers[at].publish()
            self.rows.clock.advance("7s")
        await self.workers[at].publish()


async def sums_agree(found: Stats, total: Counter[str], others: list[Statistics], window: str) -> None:
    """Check that steps, rules and routes add up to the total, and that every worker reads the same."""
    assert counts(found.total) == total
    assert sum((Counter(counts(step)) for step in found.steps), Counter[str]()) == total
    assert found.total.times.count == total["passed"]
    assert sum(one.passed for one in found.routes.values()) == total["passed"]
    assert sum(one.cancelled for one in found.routes.values()) == total["cancelled"]
    for name, one in found.rules.items():
        assert counts((await others[0].read(window, rule=name)).total) == counts(one)
    for name, one in found.routes.items():
        assert counts((await others[1].read(window, route=name)).total) == counts(one)


@settings(deadline=None)
@given(moves, st.sampled_from(["5s", "1m", "5m", "10m", "1h", "3h", "24h"]))
def test_sums_survive_failed_writes_and_killed_workers(made: list[tuple[int, str, int]], window: str) -> None:
    async def play() -> None:
        fleet = Fleet()
        for at, move, pause_s in made:
            fleet.rows.clock.advance(us=pause_s * SECOND_US)
            await fleet.move(at, move)
        for at in range(3):
            await fleet.publish(at)
        found = await fleet.workers[0].read(window)
        total, step_us, steps = expected(fleet.written, fleet.rows.clock(), parse(window))
        assert (found.step_us, len(found.steps)) == (step_us, steps)
        await sums_agree(found, total, fleet.workers[1:], window)

    asyncio.run(play())


def parse(window: str) -> int:
    return int(window[:-1]) * {"s": 1, "m": 60, "h": 3_600}[window[-1]] * SECOND_US


@pytest.mark.parametrize("back_s", [1, 60, 7_200])
async def test_a_step_back_of_the_clock_loses_no_request(back_s: int, rows: SharedRows, statistics: Statistics) -> None:
    statistics.request(PASSED)
    await statistics.publish()
    rows.clock.set(rows.clock() - back_s * SECOND_US)
    for _ in range(3):
        statistics.request(PASSED)
        rows.clock.advance("6s")
        await statistics.publish()
    assert (await statistics.read("1m")).total.passed >= 3
    assert (await statistics.read("24h")).total.passed in (3, 4)


async def test_a_request_counts_in_the_slice_in_which_it_is_written(rows: SharedRows, statistics: Statistics) -> None:
    statistics.request(PASSED)
    rows.clock.advance("12s")
    found = await statistics.read("1m")
    assert [step.passed for step in found.steps] == [0] * 11 + [1]
    assert found.start_us == (rows.clock() // found.step_us - 11) * found.step_us
    rows.clock.advance("61s")
    assert [(await statistics.read(window)).total.passed for window in ("1m", "5m", "1h")] == [0, 1, 1]


async def test_quantiles_are_within_five_percent(statistics: Statistics) -> None:
    for percent in range(1, 101):
        statistics.request(replace(PASSED, duration_us=percent * 1_000))
        statistics.request(replace(REFUSED, duration_us=10**7))
    total = (await statistics.read()).total
    for found, exact_us in ((total.p50_us, 50_000), (total.p95_us, 95_000), (total.p99_us, 99_000)):
        assert found == pytest.approx(exact_us, rel=0.05)
    assert (Traffic().p50_us, Traffic().p95_us, Traffic().p99_us) == (None, None, None)


async def test_refusals_without_a_route_count_for_their_rule(statistics: Statistics) -> None:
    statistics.request(replace(PASSED, route="(no route)"))
    statistics.request(REFUSED)
    statistics.request(replace(refused("tight"), route="GET /a"))
    found = await statistics.read()
    by_route = {name: (one.passed, one.refused) for name, one in found.routes.items()}
    assert by_route == {"(no route)": (1, 0), "GET /a": (0, 1)}
    assert {name: (one.passed, one.refused) for name, one in found.rules.items()} == {"api": (1, 1), "tight": (0, 1)}
    assert found.total.refused == 2


async def test_questions_that_were_counted_before_count_for_those_that_admit_or_refuse_now(
    statistics: Statistics,
) -> None:
    checks = passed("api", "all").decisions[0].checks
    once, further = replace(PASSED, decisions=[Decision(True, Reason.OK, 0, checks)]), passed("other").decisions
    refusal = Decision(False, Reason.LIMITED, 0, checks, [(5, 1, 0, 1), (1, 1, 0, 0)])
    for outcome in (
        once,
        replace(once, decisions=[*once.decisions, *further]),
        replace(REFUSED, decisions=[refusal], refusal=refusal),
    ):
        statistics.request(outcome)
    by_rule = {name: (one.passed, one.refused) for name, one in (await statistics.read()).rules.items()}
    assert by_rule == {"api": (2, 1), "all": (2, 0), "other": (1, 0)}


async def test_a_write_that_is_cancelled_is_repeated(rows: SharedRows, statistics: Statistics) -> None:
    for _ in range(3 * PART):
        statistics.request(PASSED)
    for after in range(30):
        task = asyncio.create_task(statistics.publish())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        rows.clock.advance("3s")
    assert (await statistics.read("5m")).total.passed == 3 * PART


async def test_reads_at_the_same_time_count_nothing_twice(statistics: Statistics) -> None:
    for _ in range(300):
        statistics.request(PASSED)
    found = await asyncio.gather(*(statistics.read() for _ in range(5)))
    assert {one.total.passed for one in found} == {300}


@pytest.mark.parametrize("window", ["25h", "1441m", 86_401])
async def test_a_window_of_more_than_a_day_is_an_error(window: str | int, statistics: Statistics) -> None:
    with pytest.raises(ConfigurationError, match='longer than the stats kept; expected at most 24h, for example "6h"'):
        await statistics.read(window)


# -- the observer ------------------------------------------------------------------------------------------------------


def test_a_limiter_has_one_statistics_which_lives_as_long() -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)
    assert Statistics.of(limiter) is statistics
    assert Statistics.of(Limiter()) is not statistics
    gone = weakref.ref(limiter)
    del limiter, statistics
    gc.collect()
    assert gone() is None


async def test_calls_without_http_are_not_counted() -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)
    await limiter.hit("user:1", "1/minute")
    await limiter.hit("user:1", "1/minute")
    assert counts((await statistics.read()).total) == {}


def test_threads_lose_no_request_and_series_are_bounded() -> None:
    kinds = RecordingObserver()
    limiter = Limiter(observers=[kinds])
    statistics, rounds = Statistics.of(limiter), 2 * MAX_SERIES

    def ask(number: int, thread: int) -> None:
        statistics.request(replace(passed("rule"), route=f"GET /{number}"))

    race(ask, rounds)
    found = asyncio.run(statistics.read())
    assert len(found.routes) == MAX_SERIES + 1
    assert found.total.passed == THREADS * rounds
    assert found.routes[OTHER].passed == found.rules[OTHER].passed == THREADS * (rounds - MAX_SERIES)
    assert kinds.kinds == ["series_full"]


def test_pending_outcomes_and_clients_are_bounded(statistics: Statistics) -> None:
    total = 12_000
    for number in range(total):
        statistics.request(passed("api", key=f"user:{number}"))
        if number % 1_700 == 0:
            asyncio.run(statistics.publish())
        assert (len(statistics._pending) < PART, len(statistics._known) <= MAX_CLIENTS + PART) == (True, True)
    assert len(statistics._fresh_clients) <= MAX_CLIENTS
    assert asyncio.run(statistics.read()).total.passed == total
    assert all(len(series) <= 2 * MAX_CLIENTS for series in statistics._current.values())


async def test_others_run_while_ten_thousand_requests_are_folded_and_written(statistics: Statistics) -> None:
    for number in range(10_000):
        statistics._pending.append(replace(PASSED, route=f"GET /{number % MAX_SERIES}"))
    assert await turns_during(statistics.publish()) >= 10_000 // PART


def test_a_forked_child_begins_anew(rows: SharedRows, statistics: Statistics) -> None:
    statistics.request(PASSED)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            statistics.request(REFUSED)
            asyncio.run(statistics.publish())
            found = asyncio.run(statistics.read())
            os.write(write, json.dumps([counts(found.total), len(found.workers)]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(os.read(read, 100)) == [{"refused": 1}, 1]
    assert counts(asyncio.run(statistics.read()).total) == {"passed": 1}


def test_a_child_that_is_forked_while_a_thread_counts_does_not_hang(statistics: Statistics) -> None:
    with statistics._counting:
        child = os.fork()
        if not child:
            try:
                statistics.request(PASSED)
                assert asyncio.run(statistics.read()).total.passed == 1
            except BaseException:
                os._exit(1)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


async def test_a_reset_of_a_memory_store_leaves_nothing_to_read() -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)
    statistics.request(refused("api", key="user:ann"))
    assert (await statistics.read()).total.refused == 1
    limiter.engine.forget()
    assert counts((await statistics.read()).total) == {}
    assert (await statistics.clients(), await statistics.events()) == ([], [])
    statistics.request(PASSED)
    assert counts((await statistics.read()).total) == {"passed": 1}


# -- when it writes ----------------------------------------------------------------------------------------------------


async def test_an_idle_worker_writes_nothing(rows: SharedRows, statistics: Statistics) -> None:
    time = VirtualTime(rows.clock)
    statistics.request(PASSED)
    assert rows.writes == 0
    await asyncio.sleep(EVERY_S + 0.1)
    assert rows.writes == len(STEPS) + 1
    await asyncio.sleep(3_600)
    assert rows.writes == len(STEPS) + 1
    assert time.passed_s == pytest.approx(3_605.1)
    statistics.event(Event("banned", "somebody"))
    await asyncio.sleep(EVERY_S + 0.1)
    assert rows.writes == len(STEPS) + 2, "only the row of the worker has changed"


@given(st.floats(0, 5))
async def test_each_slice_gets_one_write_so_that_a_chart_has_no_gaps(phase_s: float) -> None:
    rows = SharedRows()
    rows.clock.advance(us=round(phase_s * 1_000_000))
    limiter, statistics = worker_of(rows)
    with pytest.MonkeyPatch.context() as patched:
        time = VirtualTime(rows.clock)
        patched.setattr(ops_statistics, "monotonic", lambda: time.passed_s)
        for _ in range(120):
            statistics.request(PASSED)
            await asyncio.sleep(0.5)
    slices = [number for kind, number, _ in rows.rows if kind == next(iter(STEPS))]
    assert slices == [*range(slices[0], slices[0] + len(slices))]
    assert len(slices) >= 11
    await limiter.close()


async def test_a_worker_retries_every_five_seconds_and_says_so_once_a_minute(
    rows: SharedRows, statistics: Statistics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = VirtualTime(rows.clock)
    monkeypatch.setattr(ops_statistics, "monotonic", lambda: time.passed_s)
    rows.is_failing = True
    statistics.request(PASSED)
    await asyncio.sleep(59)
    assert [record.message for record in caplog.records] == [
        "slidegate: statistics were not written and will be retried: away"
    ]
    rows.is_failing = False
    await asyncio.sleep(EVERY_S + 0.1)
    _, other = worker_of(rows)
    assert (await other.read()).total.passed == 1


async def test_a_worker_whose_limiter_is_closed_rests(rows: SharedRows, caplog: pytest.LogCaptureFixture) -> None:
    VirtualTime(rows.clock)
    limiter, statistics = worker_of(rows)
    await limiter.close()
    statistics.request(PASSED)
    rows.is_failing = True
    await asyncio.sleep(20)
    assert (caplog.messages, statistics._loop) == ([], None)


async def test_a_write_does_not_run_in_the_context_of_a_request(
    rows: SharedRows, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    VirtualTime(rows.clock)
    span, spans = ContextVar("span", default=""), list[str]()

    def time() -> int:
        spans.append(span.get())
        return rows.clock()

    monkeypatch.setattr(rows, "time", time)
    span.set("of a request")
    statistics.request(PASSED)
    await asyncio.sleep(EVERY_S + 0.1)
    assert spans == [""]


async def test_a_request_during_a_write_is_written_next(rows: SharedRows, statistics: Statistics) -> None:
    VirtualTime(rows.clock)
    statistics.request(PASSED)
    writing = asyncio.create_task(statistics.publish())
    for _ in range(40):
        statistics.request(PASSED)
        await asyncio.sleep(0)
    await writing
    await asyncio.sleep(2 * EVERY_S + 0.1)
    _, other = worker_of(rows)
    assert (await other.read()).total.passed == 41


def test_another_loop_goes_on_where_the_first_was_closed(rows: SharedRows, statistics: Statistics) -> None:
    async def serve(seconds: float) -> None:
        VirtualTime(rows.clock)
        statistics.request(PASSED)
        await asyncio.sleep(seconds)

    asyncio.run(serve(1))
    statistics.request(PASSED)
    asyncio.run(statistics.publish())
    asyncio.run(serve(EVERY_S + 0.1))
    _, other = worker_of(rows)
    assert asyncio.run(other.read()).total.passed == 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_event_loop_reads_and_ends(backend: str) -> None:
    async def serve() -> None:
        limiter = Limiter()
        statistics = Statistics.of(limiter)
        for _ in range(PART + 1):
            statistics.request(PASSED)
        assert (await statistics.read()).total.passed == PART + 1
        statistics.request(PASSED)
        await statistics.end()
        assert (await statistics.read()).total.passed == PART + 2
        await limiter.close()

    anyio.run(serve, backend=backend)


def test_threads_without_a_loop_write_at_the_end(rows: SharedRows) -> None:
    limiter, statistics = worker_of(rows)
    thread = threading.Thread(target=statistics.request, args=(PASSED,))
    thread.start()
    thread.join()
    limiter.sync.close()
    _, other = worker_of(rows)
    assert asyncio.run(other.read()).total.passed == 1


async def test_an_end_that_the_store_does_not_answer_is_logged(
    rows: SharedRows, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, statistics = worker_of(rows)
    statistics.request(PASSED)
    rows.is_failing = True
    await limiter.close()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_end_of_a_server_writes_the_last_statistics(rows: SharedRows, statistics: Statistics) -> None:
    limiter, _ = worker_of(rows)
    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware])) as client:
        client.get("/item")
        assert {kind for kind, _, _ in rows.rows} == {"limits"}, "no statistics yet, but the row of the worker"
    found = asyncio.run(statistics.read())
    assert (found.total.passed, len(found.workers)) == (1, 1)


def test_an_application_that_closes_its_limiter_logs_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter.from_url(f"lmdb://{tmp_path / 'counts'}")
    Statistics.of(limiter)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await limiter.close()

    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware], lifespan=lifespan)) as client:
        client.get("/item")
    assert caplog.messages == []


# -- rows --------------------------------------------------------------------------------------------------------------


def unpackable_text() -> str:
    """Return random characters, which JSON writes as twelve bytes each and which cannot be compressed well."""
    return "".join(chr(0x20000 + int.from_bytes(os.urandom(2)) % 0xA6D0) for _ in range(300))


async def test_the_largest_rows_fit(rows: SharedRows, statistics: Statistics) -> None:
    bounds = [10 * 11**step // 10**step for step in range(BUCKETS)]
    for number in range(MAX_SERIES + 1):
        rules = tuple(f"{rule:02}{number:03}".ljust(64, "r") for rule in range(10))
        statistics._fresh[rules, f"GET /{number}".ljust(256, "x")] = traffic = traffic_of_each(10**9)
        for time_us in bounds:
            traffic.times.count_one(time_us)
    for number in range(2 * MAX_EVENTS):
        details = {f"{number}-{name}": unpackable_text() for name in range(20)}
        statistics.event(Event("banned" if number % 2 else "shadow_refused", unpackable_text(), details))
    await statistics.publish()
    sizes = {kind: len(value) for (kind, _, _), (value, _) in rows.rows.items()}
    assert max(sizes.values()) < MAX_BYTES, sizes


# -- workers, clients, events ------------------------------------------------------------------------------------------


async def test_workers_are_listed_until_they_end_or_are_silent(rows: SharedRows, statistics: Statistics) -> None:
    limiter, other = worker_of(rows)
    other.request(PASSED)
    await other.publish()
    rows.clock.advance("7s")
    found = (await statistics.read()).workers
    assert sorted(worker.age_s for worker in found) == [0.0, 7.0]
    assert len({worker.name for worker in found}) == 2
    assert {worker.pid for worker in found} == {os.getpid()}
    await other.end()
    assert len((await statistics.read()).workers) == 1
    other.request(PASSED)
    await other.publish()
    rows.clock.advance(us=int(ALIVE_S) * SECOND_US)
    assert [worker.age_s for worker in (await statistics.read()).workers] == [0.0]
    await limiter.close()


async def test_the_busiest_clients_are_those_of_all_workers_in_five_minutes(
    rows: SharedRows, statistics: Statistics
) -> None:
    _, other = worker_of(rows)
    for at, (worker, outcome, requests) in enumerate(
        [
            (statistics, passed("api", key="user:ann"), 3),
            (other, refused("api", key="user:ann"), 2),
            (other, refused("api", key="user:bob", reason=Reason.BANNED), 4),
            (statistics, passed("api", key=EVERYONE), 9),
        ]
    ):
        for _ in range(requests):
            worker.request(outcome)
        await worker.publish()
        rows.clock.advance("1m") if at == 1 else None
    assert await statistics.clients() == [("user:ann", 5, 2, 0), ("user:bob", 4, 4, 4)]
    assert await other.clients(limit=1) == [("user:ann", 5, 2, 0)]
    rows.clock.advance("4m")
    assert await statistics.clients() == [("user:bob", 4, 4, 4)]


async def test_a_client_counts_once_for_a_request_that_several_rules_count(statistics: Statistics) -> None:
    api, other = Bucket("api", [Limit(5, "1m")]), Bucket("other", [Limit(5, "1m")])
    shared = Limiter().key_for(everyone.of())
    inner = Decision(True, Reason.OK, 0, ((api, "user:ann", 1), (other, shared, 1)))
    statistics.request(replace(PASSED, decisions=(inner, Decision(True, Reason.OK, 0, ((other, "user:ann", 1),)))))
    assert await statistics.clients() == [("user:ann", 1, 0, 0)]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 40), st.integers(MAX_CLIENTS // 2, 3 * MAX_CLIENTS))
def test_a_busy_client_is_found_among_any_number_of_others(requests: int, others: int) -> None:
    async def play() -> None:
        _, statistics = worker_of(SharedRows())
        for number in range(others):
            if number % (others // requests) == 0:
                statistics.request(passed("api", key="busy"))
            statistics.request(passed("api", key=f"user:{number}"))
        (first, *_) = await statistics.clients()
        assert first.key == "busy" or first.requests == 1
        assert first.requests <= -(-others // (others // requests))

    asyncio.run(play())


async def test_events_of_all_workers_are_the_newest_first_and_escaped(rows: SharedRows, statistics: Statistics) -> None:
    _, other = worker_of(rows)
    for at, worker in enumerate((statistics, other, statistics)):
        worker.event(Event("banned", f"{at}\n" * 200, {"key": "a\x1b[0m", "until": 5, "path": "x" * 999}, at + 1))
    other.request(replace(refused("api", key="user:ann"), began_us=10))
    await other.publish()
    found = await statistics.events()
    assert [(event.kind, event.time_us) for event in found] == [
        ("refused", 1_010),
        *[("banned", at) for at in (3, 2, 1)],
    ]
    assert len({event.worker for event in found}) == 2
    assert found[0].details == {
        **{"key": "user:ann", "rule": "api", "by": "", "reason": "limited"},
        **{"route": "(no route)", "status": "429"},
    }
    for event in found:
        assert all(len(text) <= 256 and text.isprintable() for text in (event.message, *event.details.values()))
    assert found[1].details["key"] == "a\\x1b[0m"
    assert await other.events(limit=1) == found[:1]


async def test_a_flood_of_refusals_does_not_displace_other_events(statistics: Statistics) -> None:
    statistics.event(Event("banned", "somebody", {}, 1))
    for number in range(1_000):
        statistics.request(replace(REFUSED, began_us=number))
        statistics.event(Event("shadow_refused", "would have", {}, number))
    found = Counter(event.kind for event in await statistics.events(1_000))
    assert (found["banned"], found["refused"] + found["shadow_refused"]) == (1, MAX_REFUSALS)


@pytest.mark.parametrize("limit", [0, 1_001, "9", True])
@pytest.mark.parametrize("what", ["clients", "events"])
async def test_a_limit_out_of_range_is_an_error(what: str, limit: Any, statistics: Statistics) -> None:
    with pytest.raises(ConfigurationError, match=f"{what}: limit: expected a whole number from 1 to 1000"):
        await getattr(statistics, what)(limit)
