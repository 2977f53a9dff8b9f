"""Statistics of all workers: exact sums whichever write fails and whichever worker is killed; bounds; events."""

import asyncio
import gc
import json
import os
import random
import re
import shlex
import signal
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import BanPolicy, Limit, Limiter, RateLimit, RateLimitMiddleware, Rule, StoreError
from slidegate.core import Bucket, Check, Decision, Reason
from slidegate.core.bans.ban import Ban
from slidegate.events import Event, Outcome, Passed
from slidegate.limiter.rows import MAX_BYTES
from slidegate.ops import recent_events, slices, tally
from slidegate.ops import statistics as module
from slidegate.ops.metrics import PART, status_name
from slidegate.ops.slices import ALIVE_S, MAX_CLIENTS, STEPS, TOP_CLIENTS, WORKERS, decoded, encoded
from slidegate.ops.statistics import EVERY_S, LoggedEvent, Ranking, Statistics, Traffic
from slidegate.ops.tally import MAX_SERIES, OTHER, Tally
from slidegate.ops.traffic import MAX_NAMES, ClientTraffic
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.windows.histogram import BUCKETS

from ..asgi import PEER, call, page
from ..hurry import THREADS, race
from ..redis_servers import AT_REDIS
from ..served_by_workers import AMOUNT, NAME
from ..stores.forked import fork
from ..turns import interrupted, turning_locks
from ..virtual_time import VirtualTime, turns
from ..workers import PATIENCE_S, ask, serving
from .shared_rows import START_US, SharedRows, worker_of
from .test_metrics import Samples, parsed

SECOND_US = 1_000_000


@lru_cache(1_000)
def bucket_of(name: str) -> Bucket:
    return Bucket(name, [Limit(5, "1m")])


def checks_of(rules: Sequence[str], key: str) -> list[Sequence[Check]]:
    """Return the checks of some questions; a plus stands between two, and a rule may name a key of its own."""
    questions = " ".join(rules).split(" + ")
    named = [[rule.partition("@") for rule in question.split()] for question in questions]
    return [tuple((bucket_of(name), own or key, 1) for name, _, own in question) for question in named]


def passed(*rules: str, client: str = PEER, key: str = "", **changes: Any) -> Outcome:
    """Return the outcome of a request that some rules have admitted, by the client or by another key."""
    decisions = [Decision(True, Reason.OK, 0, checks) for checks in checks_of(rules, key or client)]
    return replace(Outcome(client, decisions, None, (), "GET /a", 200, False, 0, 1_000), **changes)


def refused(
    *rules: str,
    client: str = PEER,
    key: str = "",
    room: str = "",
    reason: Reason = Reason.LIMITED,
    ban: str = "",
    **changes: Any,
) -> Outcome:
    """Return the outcome of a request that some rules have refused before a route was found; one may have had room."""
    (checks,) = checks_of(rules, key or client)
    readings = [(1, 1, 0, 0) if rule == room else (5, 1, 0, 1) for rule in rules] if reason is Reason.LIMITED else ()
    maker = {Reason.BANNED: "abuse", Reason.BLOCKED: "blocklist"}.get(reason, "")
    banned = Ban(ban or client, "", maker, 1, 0, None) if reason is Reason.BANNED else None
    refusal = Decision(False, reason, 0, checks, readings, by=maker, ban=banned)
    return replace(Outcome(client, [refusal], refusal, (), "(no route)", 429, False, 0, 1_000), **changes)


def reported(outcome: Outcome) -> Outcome | Passed:
    """Return an outcome as a middleware reports it to an observer that takes `Passed`."""
    if outcome.failed or outcome.refusal is not None or outcome.shadow_rules or len(outcome.decisions) > 1:
        return outcome
    return outcome.client, outcome.decisions[0].checks, outcome.route, outcome.duration_us, outcome.status


PASSED, REFUSED = passed("api"), refused("api")
OUTCOMES = {
    "passed": PASSED,
    "refused": refused("api", client="192.0.2.1", key="user:ann"),
    "banned": refused("api", client="192.0.2.2", reason=Reason.BANNED, ban="192.0.2.0/24"),
    "blocked": refused("api", "all", client="192.0.2.2", reason=Reason.BLOCKED),
    "unavailable": refused("api", key="user:bob", reason=Reason.UNAVAILABLE, status=503),
    "exceptions": passed("api", "all", key="user:ann", failed=True, status=500, route="GET /b"),
    "shadow_refused": passed("api", client="192.0.2.1", shadow_rules=("trial",), observing_rules=("trial",)),
}


@pytest.fixture
def rows() -> SharedRows:
    return SharedRows()


@pytest.fixture
def statistics(rows: SharedRows) -> Iterator[Statistics]:
    limiter, statistics = worker_of(rows)
    yield statistics
    limiter.sync.close()


async def written(rows: SharedRows) -> int:
    """Return how many admitted requests another worker sees."""
    return (await worker_of(rows)[1].read()).total.passed


def counts(traffic: Traffic) -> Counter[str]:
    return +Counter({name: getattr(traffic, name) for name in OUTCOMES})


# -- sums --------------------------------------------------------------------------------------------------------------


def counts_of(name: str) -> Counter[str]:
    """Return what an outcome counts as: each is admitted or refused, and may be something else besides."""
    outcome = OUTCOMES[name]
    is_refused = not outcome.allowed and outcome.reason is not Reason.UNAVAILABLE
    return +Counter({name: 1, "passed": outcome.allowed, "refused": is_refused})


class Fleet:
    """Three workers on one store, and the model: what each has not written, and what was written when.

    Attributes:
        written: The store's time of each write, and the name of the outcome.
        seen_us: When each worker that has not ended wrote last.
    """

    def __init__(self) -> None:
        self.rows = SharedRows()
        self.workers = [worker_of(self.rows)[1] for _ in range(3)]
        self.unwritten: list[list[str]] = [[], [], []]
        self.written: list[tuple[int, str]] = []
        self.seen_us: dict[Statistics, int] = {}

    async def move(self, at: int, move: str, count: int) -> None:
        worker = self.workers[at]
        if move in OUTCOMES:
            self.request(at, move)
        elif move == "kill":
            self.unwritten[at].clear()
            self.workers[at] = worker_of(self.rows)[1]
        elif move == "fail":
            self.rows.is_failing = True
            with pytest.raises(StoreError):
                await worker.publish()
            self.rows.is_failing = False
        elif move == "cancel":
            writing = asyncio.create_task(worker.publish())
            for _ in range(count):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            await self.publish(at)
        elif move == "count meanwhile":
            writing = asyncio.create_task(worker.publish())
            for _ in range(count):
                self.request(at, "passed")
                await asyncio.sleep(0)
            await self.publish(at)
            await writing
        else:
            await self.publish(at, fails=count % 6 if move == "fail and end" else 0)
            await worker.end()
            del self.seen_us[worker]

    def request(self, at: int, name: str) -> None:
        self.workers[at].request(reported(OUTCOMES[name]))
        self.unwritten[at].append(name)

    async def publish(self, at: int, fails: int = 0) -> None:
        self.written += [(self.rows.clock(), name) for name in self.unwritten[at]]
        self.unwritten[at].clear()
        self.rows.failing_writes = fails
        while self.rows.failing_writes:  # some of those that are under way at the same time
            with pytest.raises(StoreError):
                await self.workers[at].publish()
            self.rows.clock.advance("7s")
        await self.workers[at].publish()
        self.seen_us[self.workers[at]] = self.rows.clock()

    def steps(self, step_us: int, count: int) -> list[Counter[str]]:
        """Return the sums of the latest steps of a length."""
        first, steps = self.rows.clock() // step_us - count + 1, [Counter[str]() for _ in range(count)]
        for at_us, name in self.written:
            if at_us // step_us >= first:
                steps[at_us // step_us - first] += counts_of(name)
        return steps

    def clients(self) -> dict[str, Counter[str]]:
        """Return the sums of the clients of the latest five minutes."""
        return self._sums_by(lambda outcome: {outcome.client})

    def keys(self) -> dict[str, Counter[str]]:
        """Return those of keys that are neither the client's nor everyone's."""
        return self._sums_by(lambda outcome: {check[1] for check in outcome.decisions[0].checks} - {outcome.client})

    def _sums_by(self, whose: Callable[[Outcome], set[str]]) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for at_us, name in self.written:
            if at_us // (60 * SECOND_US) > self.rows.clock() // (60 * SECOND_US) - 6:
                for key in whose(OUTCOMES[name]):
                    found[key] = found.get(key, Counter()) + counts_of(name)
        return found


def check_ranking(found: Ranking, sums: dict[str, Counter[str]]) -> None:
    """Check the counts of all clients, and the order of both lists."""
    names = ("passed", "refused", "banned", "blocked", "unavailable")
    assert {one.key: +Counter({name: getattr(one, name) for name in names}) for one in found.busiest} == {
        key: +Counter({name: one[name] for name in names}) for key, one in sums.items()
    }
    assert [one.requests for one in found.busiest] == sorted((one.requests for one in found.busiest), reverse=True)
    assert {one.key for one in found.refused} == {key for key, one in sums.items() if one["refused"]}
    assert [one.refused for one in found.refused] == sorted((one.refused for one in found.refused), reverse=True)
    assert all(sum(one.refused_by.values()) == one.refused for one in found.refused)


MOVES = [*OUTCOMES, "passed", "end", "end", "end", "kill", "fail", "cancel", "count meanwhile", "fail and end"]
PAUSES_S = st.sampled_from([0, 0, 1, 5, 60, 300, 3_600]) | st.integers(0, 400)
WINDOWS_S = {"5s": 5, "1m": 60, "5m": 300, "10m": 600, "1h": 3_600, "3h": 10_800, "24h": 86_400}


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from(MOVES), st.integers(1, 20), PAUSES_S)),
    st.sampled_from([*WINDOWS_S]),
)
def test_sums_survive_failed_writes_and_killed_workers(made: list[tuple[int, str, int, int]], window: str) -> None:
    async def play() -> None:
        fleet = Fleet()
        VirtualTime(fleet.rows.clock)  # on a slow machine no worker writes by itself meanwhile
        for at, move, count, pause_s in made:
            fleet.rows.clock.advance(us=pause_s * SECOND_US)
            await fleet.move(at, move, count)
        for at, unwritten in enumerate(fleet.unwritten):
            if unwritten:
                await fleet.publish(at)
        now_us, workers = fleet.rows.clock(), (await fleet.workers[0].read()).workers
        fleet.seen_us[fleet.workers[0]] = now_us
        ages_s = sorted((now_us - at_us) / SECOND_US for at_us in fleet.seen_us.values())
        assert sorted(one.age_s for one in workers) == [age_s for age_s in ages_s if age_s < ALIVE_S]
        assert (len({one.name for one in workers}), {one.pid for one in workers}) == (len(workers), {os.getpid()})
        await check_sums(fleet, window)
        clients = await fleet.workers[1].clients()
        check_ranking(clients, fleet.clients())
        check_ranking(await fleet.workers[2].keys(), fleet.keys())
        assert await fleet.workers[2].clients(limit=1) == Ranking(clients.busiest[:1], clients.refused[:1])

    asyncio.run(play())


async def check_sums(fleet: Fleet, window: str) -> None:
    """Check that steps, rules and routes add up to the total, and that all workers read the same at the same time."""
    first, second, third = fleet.workers
    found, other = await asyncio.gather(first.read(window), first.read(window))
    assert found == other
    window_us, now_us = WINDOWS_S[window] * SECOND_US, fleet.rows.clock()
    if window == "5m":  # and the running minute, as clients are counted
        window_us += now_us % (60 * SECOND_US) + 1
    step_us = next(step_us for step_us, kept in STEPS.values() if window_us <= step_us * kept)
    steps = fleet.steps(step_us, -(-window_us // step_us))
    assert [counts(step) for step in found.steps] == steps
    assert (found.step_us, found.start_us) == (step_us, (now_us // step_us - len(steps) + 1) * step_us)
    total = counts(found.total)
    assert total == sum(steps, Counter())
    statuses = [status_name(OUTCOMES[name].status) for at_us, name in fleet.written if at_us >= found.start_us]
    assert found.total.statuses == Counter(statuses)
    assert found.total.times.count == sum(one.passed for one in found.routes.values()) == total["passed"]
    for name, one in found.rules.items():
        assert counts((await second.read(window, rule=name)).total) == counts(one)
    for name, one in found.routes.items():
        assert counts((await third.read(window, route=name)).total) == counts(one)


# -- what workers count, write and show, line by line ------------------------------------------------------------------


class Workers:
    """Carries out the lines of a text: workers in a virtual time, of which the first two share a store."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock, self.caplog = FakeClock(START_US), caplog
        self.time = VirtualTime(self.clock)

    async def answer(self, line: str) -> str:
        words = [word.encode().decode("unicode_escape") for word in shlex.split(line)]
        more: dict[str, Any] = dict(word.split("=", 1) for word in words if "=" in word)
        more |= {name: int(value) for name, value in more.items() if value.isdigit()}
        more |= {name: Reason(value) for name, value in more.items() if name == "reason"}
        match [word for word in words if "=" not in word]:
            case ["workers"]:
                self.rows, alone = SharedRows(self.clock), Limiter()
                self.workers = [worker_of(self.rows), worker_of(self.rows), (alone, Statistics.of(alone))]
                self.limiter, self.statistics = self.workers[0]
                self.caplog.clear()
            case ["worker", number]:
                self.limiter, self.statistics = self.workers[int(number) - 1]
            case ["passed" | "refused" | "event" as what, *said]:
                self.count(what, *said, **more)
            case ["store", state]:
                self.rows.is_failing = state == "away"
            case ["sleep", seconds]:
                await asyncio.sleep(float(seconds))
            case ["back", seconds]:
                self.clock.set(self.clock() - int(seconds) * SECOND_US)
            case ["publish" | "close" as what]:
                await {"publish": self.statistics.publish, "close": self.limiter.close}[what]()
            case ["reset"]:
                self.limiter.engine.forget()
            case asked:
                return await self.shown(asked)
        return ""

    async def shown(self, asked: list[str]) -> str:
        match asked:
            case ["writes"]:
                return f"{self.rows.writes}, {'at rest' if self.statistics._due_in is None else 'more to come'}"
            case ["total", window]:
                return f"total {dict(counts((await self.statistics.read(window)).total))}"
            case ["read"]:
                found = await self.statistics.read()
                parts = {"total": found.total, **found.rules, **found.routes}
                return "\n".join(f"{name} {dict(counts(one))}" for name, one in parts.items())
            case ["quantiles"]:
                total = (await self.statistics.read()).total
                return f"{total.p50_us} {total.p95_us} {total.p99_us}"
            case ["clients" | "keys" as what]:
                return ranked(await getattr(self.statistics, what)())
            case ["events", *limit]:
                return listed(await self.statistics.events(*map(int, limit)))
            case ["log"]:
                said = [f"{record.levelname} {record.message}" for record in self.caplog.records]
                return re.sub(" at 0x.*", "", "\n".join(said))
        raise AssertionError(asked)

    def count(self, what: str, *words: str, times: int = 1, at: int = 0, **more: Any) -> None:
        for _ in range(times):
            if what == "event":
                self.statistics.event(Event(words[0], words[1], more, at))
            else:
                self.statistics.request(reported((passed if what == "passed" else refused)(*words, **more)))


def ranked(found: Ranking) -> str:
    lines = []
    for one in found.busiest:
        what = f"{one.requests} requests, {one.refused} refused {dict(sorted(one.refused_by.items())) or ''}".rstrip()
        place = found.refused.index(one) + 1 if one in found.refused else "-"
        lines.append(f"{one.key} ({place}): {what}; {one.rule} {dict(sorted(one.amounts.items()))}")
    return "\n".join(lines)


def listed(found: list[LoggedEvent]) -> str:
    """Return lines of events, and how often each comes, with numbers of their workers in the order of the list."""
    names, lines = [*dict.fromkeys(event.worker for event in found)], []
    for one, same in groupby(found):
        worker, number = names.index(one.worker) + 1, len([*same])
        lines.append(f"{one.time_us} {one.kind} {number} x, worker {worker}: {one.message} {one.details}")
    return "\n".join(lines)


def test_workers_count_write_and_show_as_the_text_says(
    texts: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def begin() -> Workers:
        return Workers(caplog)

    with asyncio.Runner() as runner:
        workers = runner.run(begin())
        monkeypatch.setattr(module, "monotonic", lambda: workers.time.passed_s)
        texts(Path(__file__).with_name("statistics.txt"), "> ", lambda line: runner.run(workers.answer(line)))


# -- the observer ------------------------------------------------------------------------------------------------------


def test_a_limiter_has_one_statistics_of_its_requests_alone_which_lives_as_long() -> None:
    limiter = Limiter()
    statistics = Statistics.of(limiter)
    assert Statistics.of(limiter) is statistics
    assert Statistics.of(Limiter()) is not statistics
    assert [bool(limiter.sync.hit("user:1", "1/minute")) for _ in range(2)] == [True, False]
    assert counts(asyncio.run(statistics.read()).total) == {}, "calls without HTTP are not counted"
    gone = weakref.ref(limiter)
    del limiter, statistics
    gc.collect()
    assert gone() is None


def test_threads_lose_no_request_and_series_are_bounded(rows: SharedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    most, rounds = 60, 80
    monkeypatch.setattr(tally, "MAX_SERIES", most)
    (limiter, statistics), kinds = worker_of(rows), RecordingObserver()
    limiter.observe(kinds)
    race(lambda number, thread: statistics.request(reported(passed("rule", route=f"GET /{number}"))), rounds)
    limiter.sync.close()
    found = asyncio.run(worker_of(rows)[1].read())
    assert len(found.routes) == most + 1
    assert found.total.passed == THREADS * rounds
    assert found.routes[OTHER].passed == found.rules[OTHER].passed == THREADS * (rounds - most)
    assert kinds.kinds == ["series_full"]


def test_of_two_threads_the_one_that_fills_the_series_tells(rows: SharedRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the race above: one has counted, and looks when the other has filled them."""
    monkeypatch.setattr(tally, "MAX_SERIES", 2)
    (limiter, statistics), kinds = worker_of(rows), RecordingObserver()
    limiter.observe(kinds)

    class Overtaken:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *error: object) -> None:
            lock.release()
            statistics._counting = lock
            statistics._pending.extend(reported(passed("rule", route=f"GET /{number}")) for number in range(9))
            statistics._count()

    lock = statistics._counting
    monkeypatch.setattr(statistics, "_counting", Overtaken())
    statistics._pending.append(reported(passed("rule")))
    statistics._count()
    assert kinds.kinds == ["series_full"]


def test_event_loops_of_two_threads_count_all() -> None:
    made = list[SharedRows]()

    def begin() -> tuple[Callable[[], None], Callable[[], None]]:
        rows = SharedRows()
        made.append(rows)
        _, statistics = worker_of(rows)

        async def act(requests: int) -> None:
            for _ in range(requests):
                statistics.request(reported(PASSED))
            await statistics.publish()

        asyncio.run(act(1))
        return lambda: asyncio.run(act(2)), lambda: asyncio.run(act(5))

    with turning_locks(module, slices):
        for point in interrupted(begin, ["ops/statistics.py", "ops/slices.py"]):
            _, reader = worker_of(made.pop())
            totals = [asyncio.run(reader.read(window)).total.passed for window in ("1m", "1h")]
            assert totals == [8, 8], point


def test_no_timer_is_set_in_the_event_loop_of_another_thread() -> None:
    def begin() -> list[Callable[[], None]]:
        statistics = Statistics.of(limiter)
        statistics.forget()

        async def note() -> None:
            statistics.event(Event("banned", "ann is banned"))

        return [lambda: asyncio.run(note(), debug=True)] * 2  # in debug mode a loop raises

    limiter = Limiter()
    assert len([*interrupted(begin, ["ops/statistics.py"], both=True)]) > 50


def test_what_clients_choose_is_bounded(statistics: Statistics) -> None:
    """However many clients and values of a header there are, refused or not."""
    total = 12_000
    for number in range(total):
        outcome = (refused if number % 3 == 0 else passed)("api", f"keyed@user:{number}", client=f"peer:{number}")
        statistics.request(reported(outcome))
        if number % 1_700 == 0:
            asyncio.run(statistics.publish())
        for counted in (statistics._tally.clients, statistics._tally.keys):
            assert max(len(counted), len(counted.totals)) <= MAX_CLIENTS
        assert len(statistics._pending) < PART
    found = asyncio.run(statistics.read()).total
    assert (found.passed, found.refused) == (total * 2 // 3, total // 3)
    assert all(len(counted) <= MAX_CLIENTS for counted in statistics._slices.current.values())


async def test_a_step_of_a_write_describes_the_clients_that_are_listed_and_not_all(statistics: Statistics) -> None:
    """1,000 clients at ten routes: a loop is not kept from its requests while their counts are added to a slice."""
    bucket, steps, calls = Bucket("api", [Limit(5, "1m")]), list[int](), Counter[str]()

    async def write() -> None:
        for number in range(10 * MAX_CLIENTS):
            client = f"peer:{number % MAX_CLIENTS}"
            statistics.request((client, [(bucket, client, 1)], f"GET /{number // MAX_CLIENTS}", 1_000, 200))
        writing = asyncio.ensure_future(statistics.publish())
        while not writing.done():
            calls.clear()
            await asyncio.sleep(0)
            steps.append(calls["call"])

    await write()  # so that the next counts are added to others
    sys.setprofile(lambda frame, event, arg: calls.update([event]))
    await write()
    sys.setprofile(None)
    assert 0 < max(steps) < 10_000
    assert [one.passed for one in (await statistics.clients(1)).busiest] == [20]


async def test_a_write_whose_answer_is_late_does_not_undo_a_later_one() -> None:
    rows = SharedRows()
    limiter, statistics = worker_of(rows)
    statistics.request(reported(PASSED))
    await statistics.publish()
    statistics.request(reported(PASSED))
    keep_row, is_written, goes_on = limiter.keep_row, asyncio.Event(), asyncio.Event()

    async def keep_row_and_answer_late(*row: Any) -> None:
        await keep_row(*row)
        limiter.keep_row = keep_row  # type: ignore[method-assign]
        is_written.set()
        await goes_on.wait()

    limiter.keep_row = keep_row_and_answer_late  # type: ignore[method-assign]
    slow = asyncio.create_task(statistics.publish())
    await is_written.wait()
    statistics.request(reported(PASSED))
    await statistics.publish()
    goes_on.set()
    await slow
    assert (await statistics.read("5m")).total.passed == 3
    assert (await statistics.read("1h")).total.passed == 3
    assert [one.passed for one in (await statistics.clients()).busiest] == [3]


async def test_a_write_of_many_rows_takes_as_long_as_that_of_one() -> None:
    class DistantRows(SharedRows):
        async def write(self, *row: Any) -> None:
            await asyncio.sleep(0.02)
            await super().write(*row)

    rows = DistantRows()
    time, (_, statistics) = VirtualTime(rows.clock), worker_of(rows)
    statistics.request(reported(PASSED))
    await statistics.publish()
    assert rows.writes >= 4
    assert time.passed_s == pytest.approx(0.02, abs=0.001)


async def test_others_run_while_thousands_are_counted(statistics: Statistics, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, count = [0], Tally.count

    def count_some(counts: Tally, requests: Iterable[Passed | Outcome]) -> list[Outcome]:
        assert statistics._counting.locked(), "threads count meanwhile"
        some = [*requests]
        counted[-1] += len(some)
        return count(counts, some)

    monkeypatch.setattr(Tally, "count", count_some)
    for number in range(10_000):
        statistics._pending.append(reported(passed("api", key=f"user:{number}", route=f"GET /{number % MAX_SERIES}")))
    publishing = asyncio.create_task(statistics.publish())
    while not publishing.done():
        await asyncio.sleep(0)
        counted.append(0)
    await publishing
    assert sum(counted) == 10_000
    assert max(counted) <= PART


def test_a_child_that_is_forked_while_a_thread_counts_starts_with_none(statistics: Statistics) -> None:
    statistics.request(PASSED)
    read, write = os.pipe()
    with statistics._counting:
        child = fork()
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


# -- when it writes ----------------------------------------------------------------------------------------------------


@given(st.floats(0, 5))
async def test_each_slice_gets_one_write_so_that_a_chart_has_no_gaps(phase_s: float) -> None:
    rows = SharedRows()
    rows.clock.advance(us=round(phase_s * 1_000_000))
    limiter, statistics = worker_of(rows)
    with pytest.MonkeyPatch.context() as patched:
        time = VirtualTime(rows.clock)
        patched.setattr(module, "monotonic", lambda: time.passed_s)
        for _ in range(120):
            statistics.request(PASSED)
            await asyncio.sleep(0.5)
    slices = [number for kind, number, _ in rows.rows if kind == next(iter(STEPS))]
    assert slices == [*range(slices[0], slices[0] + len(slices))]
    assert len(slices) >= 11
    await limiter.close()


async def test_a_write_is_in_no_context_of_a_request_and_one_that_comes_during_it_is_written_next(
    rows: SharedRows, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    span, spans = ContextVar("span", default=""), list[str]()

    async def during_a_write() -> int:
        spans.append(span.get())
        if len(spans) == 1:
            statistics.request(PASSED)
        return rows.clock()

    time = VirtualTime(rows.clock)
    monkeypatch.setattr(module, "monotonic", lambda: time.passed_s)
    monkeypatch.setattr(rows, "time", during_a_write)
    span.set("of a request")
    statistics.request(PASSED)
    await asyncio.sleep(2 * EVERY_S + 0.1)
    assert spans == ["", ""]
    assert await written(rows) == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rounds", [1, 2, *(pytest.param(rounds, marks=pytest.mark.all) for rounds in range(3, 7))])
def test_a_loop_that_ends_while_counts_are_written_says_nothing_and_another_goes_on(
    rounds: int,
    rows: SharedRows,
    statistics: Statistics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 1e-6)
    loop = asyncio.new_event_loop()
    loop.call_soon(statistics.request, PASSED)
    for _ in range(rounds):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert asyncio.run(written(rows)) <= 1
    asyncio.run(statistics.publish())
    assert asyncio.run(written(rows)) == 1, "nothing is lost"

    async def serve() -> None:
        VirtualTime(rows.clock)
        statistics.request(PASSED)
        await asyncio.sleep(1)

    asyncio.run(serve())
    assert asyncio.run(written(rows)) == 2
    statistics.forget()
    gc.collect()
    assert caplog.messages == []


async def test_a_write_that_is_under_way_at_the_end_leaves_no_worker(rows: SharedRows) -> None:
    VirtualTime(rows.clock)
    limiter, statistics = worker_of(rows)
    keep, begun, goes_on = limiter.keep_row, asyncio.Event(), asyncio.Event()

    async def slow_keep(kind: str, number: int, value: bytes, kept_us: int) -> None:
        if kind == WORKERS and not begun.is_set():
            begun.set()
            await goes_on.wait()
        await keep(kind, number, value, kept_us)

    limiter.keep_row = slow_keep  # type: ignore[method-assign]
    statistics.request(PASSED)
    await begun.wait()
    ending = asyncio.create_task(statistics.end())
    await turns(50)
    goes_on.set()
    await ending
    assert len((await worker_of(rows)[1].read()).workers) == 1, "the one that asks"


@pytest.mark.parametrize("closes", [False, True])
def test_the_end_of_a_server_writes_the_rest(closes: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limiter, other = [Limiter.from_url(f"lmdb://{tmp_path / 'counts'}") for _ in range(2)]
    first, second = map(Statistics.of, (limiter, other))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if closes:
            await limiter.close()

    middleware = Middleware(RateLimitMiddleware, limits="100/minute", limiter=limiter)
    with TestClient(Starlette(routes=[Route("/item", page)], middleware=[middleware], lifespan=lifespan)) as client:
        client.get("/item")
    found = asyncio.run(second.read())
    assert (found.total.passed, len(found.workers), first is second, caplog.messages) == (1, 1, False, [])
    limiter.sync.close()
    other.sync.close()


# -- rows, clients, events ---------------------------------------------------------------------------------------------


def unpackable_text() -> str:
    """Return random characters, which JSON writes as twelve bytes each and which cannot be compressed well."""
    return "".join(map(chr, random.choices(range(0x20000, 0x2A6D0), k=300)))


async def test_what_a_later_version_adds_to_rows_is_ignored(rows: SharedRows, statistics: Statistics) -> None:
    """Every object in every row has further fields, those within lists as well; none of them is read."""

    def with_further(value: Any) -> Any:
        if isinstance(value, list):
            return [with_further(one) for one in value]
        return {**value, "": None, "later": {"é": [1]}} if isinstance(value, dict) else value

    async def read() -> tuple[Any, ...]:
        stats = await reader.read("5m")
        return stats, await reader.clients(), await reader.keys(), await reader.events()

    _, reader = worker_of(rows)
    outcomes = passed("api", key="user:ann"), refused("api", client="192.0.2.1"), passed("api", failed=True)
    for outcome in outcomes:
        statistics.request(outcome)
    statistics.event(Event("banned", "bob is banned", {"key": "bob"}, START_US))
    await statistics.publish()
    before = await read()
    for name, (value, until_us) in rows.rows.items():
        rows.rows[name] = encoded(with_further(decoded(value))), until_us
    assert await read() == before
    keys, kinds = [{one.key for one in ranking.busiest} for ranking in before[1:3]], {event.kind for event in before[3]}
    assert counts(before[0].total) == {"passed": 2, "refused": 1, "exceptions": 1}
    assert (keys, kinds) == ([{"192.0.2.1", PEER}, {"user:ann"}], {"banned", "refused"})


async def test_events_are_written_again_only_if_there_are_new_ones(statistics: Statistics) -> None:
    statistics.request(REFUSED)
    statistics.event(Event("banned", "somebody"))
    await statistics.publish()
    assert not statistics._events.has_unwritten


async def test_bans_in_shadow_displace_bans_and_nothing_else(statistics: Statistics) -> None:
    for kind in ("config_reloaded", *["banned", "shadow_banned"] * recent_events.MAX_ALIKE):
        statistics.event(Event(kind, kind))
    half = recent_events.MAX_ALIKE // 2
    kinds = Counter(event.kind for event in await statistics.events(1_000))
    assert kinds == {"config_reloaded": 1, "banned": half, "shadow_banned": half}


async def test_the_largest_rows_fit(rows: SharedRows, statistics: Statistics) -> None:
    for number in range(MAX_SERIES + 1):
        rules = tuple(f"{rule:02}{number:03}".ljust(64, "r") for rule in range(10))
        statistics._tally.series[rules, f"GET /{number}".ljust(256, "x")] = traffic = Traffic(*[10**9] * 7)
        for step in range(BUCKETS):
            traffic.times.count_all([10 * 11**step // 10**step])
    for number in range(MAX_CLIENTS):
        names = [f"{rule:02}{number:03}".ljust(64, "r") for rule in range(MAX_NAMES)]
        by, routes = dict.fromkeys(names, 10**9), {f"GET /{name}".ljust(256, "x"): 10**9 for name in names}
        amounts = dict.fromkeys(names, "; ".join(["1000000000/31d"] * 10))
        others = {f"{2**32 - number - place:08x}": 10**9 for place in range(MAX_NAMES)}
        key, counts = unpackable_text()[:64], [10**9 + number] * 5
        client = ClientTraffic(*counts, key, amounts, by, by, routes, others)
        statistics._tally.clients[client.key] = client
    for number in range(5 * recent_events.MAX_ALIKE):
        details = {f"{number}-{name}": unpackable_text() for name in range(20)}
        kind = ("refused", "shadow_banned", "shadow_refused", "config_reloaded", "exceeded")[number % 5]
        statistics.event(Event(kind, unpackable_text(), details))
    await statistics.publish()
    sizes = {kind: len(value) for (kind, _, _), (value, _) in rows.rows.items()}
    assert len(sizes) == len(STEPS) + 1, "all but that of other keys"
    assert max(sizes.values()) < MAX_BYTES, sizes


@pytest.mark.parametrize("of", ["client", "key"])
async def test_as_many_busy_clients_and_refused_ones_as_a_row_has_are_found_among_thousands(
    statistics: Statistics, of: str
) -> None:
    """Also those that come when there are too many already."""
    for number in range(3 * MAX_CLIENTS):
        outcomes = [passed("api", **{of: f"other:{number}"})]
        if MAX_CLIENTS < number <= MAX_CLIENTS + TOP_CLIENTS:
            busy, stopped = passed("api", **{of: f"busy:{number}"}), refused("api", **{of: f"refused:{number}"})
            outcomes += [busy, busy, busy, stopped, stopped]
        for outcome in outcomes:
            statistics.request(reported(outcome))
    found = await getattr(statistics, f"{of}s")(2 * TOP_CLIENTS)
    times = [(one.key.partition(":")[0], one.requests) for one in found.each() if one.requests > 1 and one.key != PEER]
    assert Counter(times) == {("busy", 3): TOP_CLIENTS, ("refused", 2): TOP_CLIENTS}
    assert found.refused[0].key.startswith("refused")


# -- what is shown of requests -----------------------------------------------------------------------------------------


async def test_no_path_and_no_query_of_a_request_is_in_a_row(rows: SharedRows) -> None:
    """A path may be a secret, such as /reset/TOKEN: the template of the route is shown in its place."""
    limiter, statistics = worker_of(rows)
    app = Starlette(routes=[Route("/reset/{token}", page), Route("/limited/{token}", RateLimit("1/hour")(page))])
    rules = [
        Rule("/blocked/{rest:path}", block=True),
        Rule("/reset/{token}", "1/minute", name="reset"),
        Rule("*", "2/minute", shadow=True, name="trial"),
        Rule("*", "9/minute"),
    ]
    bans = BanPolicy("2/minute", signals={"refused": 1, "/.env/{rest:path}": 1})
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=limiter, bans=bans)
    for path in ("/reset/s3cret", "/limited/s3cret", "/blocked/s3cret", "/s3cret", "/.env/s3cret", "/reset/s3cret"):
        for client in ("192.0.2.1", "192.0.2.2"):
            for _ in range(3):
                await call(app, path, client=(client, 1), query_string=b"token=s3cret")
    await statistics.publish()
    found = [decoded(value) for (kind, _, _), (value, _) in rows.rows.items() if kind.startswith("stats")]
    assert "/reset/{token}" in str(found)
    assert "s3cret" not in str(found)


# -- four real uvicorn workers on one store: their statistics and metrics equal the counts of the client ---------------


SERVED = "tests.served_by_workers"
COUNT = 4


def send(site: str, requests: int, statuses: Counter[int]) -> set[int]:
    """Send requests and count their statuses, 0 without a response; return the workers that have admitted some."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(f"{site}/item"), range(requests)))
    statuses.update(0 if answer is None else answer.status_code for answer in answers)
    return {answer.json()["pid"] for answer in answers if answer is not None and answer.status_code == 200}


def when(url: str, is_there: Callable[[httpx.Response], bool], within_s: float = PATIENCE_S) -> httpx.Response:
    """Return an answer as soon as it is there: a request counts after its answer was sent, and is written later."""
    until_s = monotonic() + within_s
    while (answer := ask(url)) is None or not is_there(answer):
        assert monotonic() < until_s, answer and answer.text
        sleep(0.1)
    return answer


def figures(site: str, window: str = "24h", counted: list[int] | None = None) -> Any:
    """Return the statistics of all workers as one of them reads them, when it is up and all have written theirs."""
    within_s = PATIENCE_S if counted is None else 4 * EVERY_S  # a write is due within five seconds

    def is_there(answer: httpx.Response) -> bool:
        return answer.status_code == 200 and counted in (None, answer.json()["counted"])

    return when(f"{site}/stats/{window}", is_there, within_s).json()


def refusals(found: Samples) -> float:
    return found.value("slidegate_rule_requests_total", rule=NAME, outcome="refused")


def scraped(site: str, refused: int) -> Samples:
    """Scrape one worker for all when so many refusals are counted."""
    return parsed(when(f"{site}/metrics/", lambda answer: refusals(parsed(answer.text)) >= refused).text)


@pytest.mark.all
@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
def test_workers_sum_up_and_a_killed_one_loses_five_seconds(url: str, tmp_path: Path) -> None:
    statuses = Counter[int]()
    shared = [str(tmp_path / name) for name in ("first", "second")]
    for directory in shared:
        os.mkdir(directory)
    with serving(SERVED, url, COUNT, PROMETHEUS_MULTIPROC_DIR=shared[0]) as site:
        figures(site)
        pids = send(site, AMOUNT + 100, statuses)
        assert statuses == {200: AMOUNT, 429: 100}
        for window in ("5m", "1h", "24h"):
            found = figures(site, window, [AMOUNT, 100])
            assert found["steps"] == [AMOUNT, 100]
        assert {*found["workers"]} >= pids
        assert len(found["workers"]) <= COUNT
        assert found["clients"][0] == AMOUNT + 100
        metrics = scraped(site, 100)
        assert refusals(metrics) == metrics.value("slidegate_refusals_total") == 100
        assert metrics.value("slidegate_request_duration_seconds_count", route="GET /item") == AMOUNT
        assert (metrics.value("slidegate_store_up"), metrics.value("slidegate_active_permits")) == (1, 0)
    # At the end of the server every worker has written, and none is listed any more.
    with serving(SERVED, url, COUNT, PROMETHEUS_MULTIPROC_DIR=shared[1]) as site:
        found = figures(site)
        assert found["counted"] == [AMOUNT, 100]
        assert not {*found["workers"]} & pids
        send(site, 100, statuses)
        before = figures(site, counted=[AMOUNT, 200])
        with ThreadPoolExecutor(1) as beside:
            flood = beside.submit(send, site, 200, statuses)
            os.kill(before["workers"][-1], signal.SIGKILL)
            flood.result()
        send(site, 50, statuses)
        sleep(EVERY_S + 1)
        admitted, refused = figures(site)["counted"]
        assert admitted == statuses[200] == AMOUNT
        # The killed worker has lost at most what it had counted since its last write: a part of the flood.
        assert before["counted"][1] + 50 <= refused <= statuses[429] + statuses[0]
        # Its metrics are in files: nothing is lost, and it is counted once after it was replaced.
        answered = statuses[429] - 100
        assert answered <= refusals(scraped(site, answered)) <= answered + statuses[0]
