"""Changed limits without a middleware: what is refused, what a store keeps, and what applies while it is away."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import ConfigurationError, Limiter, MemoryStore, Quota
from slidegate.core import AnyLimit, Bucket, Concurrency, StoreUnavailable, parse_limits
from slidegate.core.store import CHANGED_LIMITS, StatsRow
from slidegate.httpx import LimitedTransport
from slidegate.limiter import Override, overrides
from slidegate.limiter.inspect import BucketCaller
from slidegate.limiter.named_limits import NamedLimit
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock, RecordingObserver

from ..ops.shared_rows import SharedRows
from ..redis_servers import AT_REDIS
from ..virtual_time import turns

HOUR_US = 3_600_000_000
LIMITS: dict[str, str | AnyLimit] = {
    "api": "10/minute",
    "hourly": "10/hour",
    "calm": "5/minute @5",
    "plan": Quota("100/month"),
    "api-concurrency": Concurrency(4),
}
FIXED = "a function returns it"


class Worker:
    """A limiter on rows that others can write, with limits of its own, and its events."""

    def __init__(self, rows: SharedRows | None = None, *, secret: str | None = None, **limits: str | AnyLimit) -> None:
        self.rows, self.heard, self.named = rows or SharedRows(), RecordingObserver(), list[NamedLimit]()
        store = MemoryStore(clock=self.rows.clock)
        store.shared_stats = self.rows
        self.limiter = Limiter(store, observers=[self.heard], secret=secret)
        self.changes = self.limiter.engine.overrides
        if limits:
            self.limiter.engine.register(self)
        for name, limit in limits.items():
            self.add(name, limit)

    def add(self, name: str, limit: str | AnyLimit, **more: Any) -> None:
        configured = parse_limits(limit)[0] if isinstance(limit, str) else limit
        self.named.append(NamedLimit(name, configured.own(), configured, f"rule {len(self.named)}", **more))
        self.changes.register(self.named[-1:])

    def buckets(self) -> list[Bucket]:
        return []

    def limits_by_name(self) -> list[NamedLimit]:
        return self.named

    def begin_anew(self) -> None: ...

    @property
    def changed(self) -> dict[str, int]:
        """The amounts that differ from those in code."""
        return {one.name: one.limit.amount for one in self.named if one.limit.amount != one.configured.amount}

    @property
    def known(self) -> dict[str, str]:
        return {name: one.limit for name, one in self.changes.known.items()}

    async def change(self, name: str = "api", limit: str = "20/minute", duration: str = "1h") -> Override:
        return await self.limiter.override(name, limit, duration, reason="why", by="ann")

    async def look(self) -> None:
        """Look as a question does when the time has come for it."""
        self.changes._next_us = 0
        await self.limiter.hit("k", "5/minute")
        await turns(20)


@pytest.fixture
def worker() -> Worker:
    return Worker(**LIMITS)


NAMES = st.sampled_from([*LIMITS, "plans", "*", "apy"]) | st.text(max_size=6)
AMOUNTS = st.integers(0, 120).map(str) | st.sampled_from(["", "-1", "2147483648", "٣"])
ENDS = st.sampled_from(["", "/minute", "/hour", "/1m", " per 60s", "/minute @5", "/month", "/week", "; 5/s", "/"])
TEXTS = st.tuples(AMOUNTS, ENDS).map("".join) | st.sampled_from(["off", " 7 ", "burst: 5/minute"]) | st.text(max_size=8)


@example("api", " 100 per 60s ", 2)
@example("calm", "9/minute @5", 2)
@example("plan", "1000/month", 2)
@example("api-concurrency", "40", 2)
@given(NAMES, TEXTS, st.sampled_from([0, 2]))
async def test_any_name_and_text_is_refused_before_writing_or_in_effect_in_every_worker(
    name: str, text: str, asked: int
) -> None:
    first = Worker(**LIMITS)
    second, script = Worker(first.rows, **LIMITS), Worker(first.rows)
    for one in (first, second):
        one.add("plans", "10/minute", fixed=FIXED)
        await one.changes.look()
    before = dict(first.rows.rows)
    try:
        made = await (first, second, script)[asked].change(name, text)
    except ConfigurationError:
        assert (first.rows.rows, first.changed) == (before, {})
        return
    assert await first.limiter.overrides() == [made]
    assert (made.workers, made.until - made.since) == (2, timedelta(hours=1))
    assert (made.since_us, made.until_us) == (first.rows.clock(), first.rows.clock() + HOUR_US)
    for one in (first, second):
        await one.changes.look()
        if name == "*":
            assert not one.limiter.engine.counts
        else:
            assert one.known == {name: made.limit}
            (own,) = [limit for limit in one.named if limit.name == name]
            assert own.limit.amount == int(made.limit.partition("/")[0])
            changed = own.limit.own()
            changed.become(own.configured.amount)
            assert changed == own.configured


async def test_workers_are_counted_by_their_rows_until_they_end_or_have_been_gone_for_thirty_seconds() -> None:
    script = Worker()
    running = [Worker(script.rows, api="10/minute") for _ in range(3)]
    other = Worker(script.rows, else_="10/minute")
    for one in (*running, other):
        await one.changes.look()
    assert (await script.change()).workers == 3
    assert (await running[0].change()).workers == 3, "one of them asks"
    assert [(one.workers, one.limit) for one in await script.limiter.overrides()] == [(3, "20/1m")]
    assert {tuple(one.limits.items()) for one in await script.limiter.workers()} == {
        (("api", "10/1m"),),
        (("else_", "10/1m"),),
    }
    await running[0].limiter.close()
    assert (await script.change()).workers == 2
    script.rows.clock.advance("30s")
    assert (await script.change()).workers == 0


async def test_a_worker_writes_its_row_every_ten_seconds_and_at_once_if_it_has_other_limits(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(overrides, "monotonic", lambda: clock[0])
    for clock[0], written in ((100.0, 1), (109.9, 1), (110.0, 2), (110.5, 2)):
        await worker.changes.look()
        assert worker.rows.writes == written
    worker.add("later", "5/minute")
    await worker.changes.look()
    assert worker.rows.writes == 3
    assert "later" in (await Worker(worker.rows).limiter.workers())[0].limits
    worker.limiter.engine.rows.begin_anew()
    await worker.changes.look()
    assert worker.rows.writes == 4, "a child of fork is another worker"


async def test_without_a_worker_any_name_is_accepted_and_one_that_starts_takes_it() -> None:
    script = Worker()
    assert (await script.change("calm", "7/minute")).workers == 0
    assert (await script.change("apy", "5/minute")).workers == 0
    late = Worker(script.rows, calm="5/minute")
    await late.changes.look()
    assert late.changed == {"calm": 7}
    assert late.heard.kinds == ["limit_overridden"]


WORKER_ROW = {"version": 2, "secret": "", "limits": {"api": "10/1m"}, "fixed": {}}
CHANGE_ROW = {"name": "calm", "limit": "6/minute", "by": "", "reason": "", "since_us": 0, "until_us": 2**51}
ODD_WORKERS = [
    {"version": 3},
    {"limits": ["api", "10/1m"]},
    {"limits": {"api": ["10/1m"]}},
    {"limits": {"api": "10 a m"}},
]
ODD_CHANGES = [{"limit": "6 a minute"}, {"limit": 6}, {"limit": "off"}, {"name": 7}, {"name": "*"}, {"later": 1}]
UNREADABLE = [b"", b"\xff", b"[]", b"[" * 100_000, b'{"version": 2}']


@pytest.mark.parametrize(
    ("number", "value"),
    [
        *[(number, value) for number in (0, overrides.WORKER) for value in UNREADABLE],
        *[(overrides.WORKER, json.dumps(WORKER_ROW | odd).encode()) for odd in ODD_WORKERS],
        *[(0, json.dumps(CHANGE_ROW | odd).encode()) for odd in ODD_CHANGES],
    ],
)
async def test_a_row_that_cannot_be_read_is_no_worker_and_no_change(worker: Worker, number: int, value: bytes) -> None:
    await worker.rows.write(b"stranger", StatsRow(CHANGED_LIMITS, number, value, HOUR_US))
    assert await worker.limiter.workers() == []
    assert (await worker.change()).workers == 1
    assert worker.changed == {"api": 20}
    assert worker.limiter.engine.counts


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRETS = ["0123456789abcdef", "fedcba9876543210", None]


@pytest.mark.parametrize("own", SECRETS)
@pytest.mark.parametrize("other", SECRETS)
async def test_a_worker_reports_once_that_others_have_another_secret(own: str | None, other: str | None) -> None:
    first = Worker(secret=own)
    await first.changes.look()
    second = Worker(first.rows, secret=other)
    for _ in range(3):
        second.changes.due_s = 0.0
        await second.changes.look()
    differ = own != other
    assert second.heard.kinds == ["secret_differs"] * differ
    assert [one.same_secret for one in await second.limiter.workers()] == [not differ]
    assert all("set the same SLIDEGATE_SECRET" in event.message for event in second.heard.events)
    values = [value for value, _ in first.rows.rows.values()]
    assert not any(secret.encode() in value for secret in SECRETS if secret for value in values)


async def test_the_limits_of_functions_blocks_and_transports_are_changed_as_those_of_rules() -> None:
    limiter = Limiter()

    @limiter.limited("5/minute", key="k", rule="decorated")
    async def decorated() -> None:
        """Do nothing."""

    block = limiter.limited("5/minute", key="k", rule="block")
    async with block:
        pass
    transport = LimitedTransport(
        limits="5/minute", limiter=limiter, transport=httpx.MockTransport(lambda _: httpx.Response(200)), wait="1ms"
    )
    assert {one.name for one in limiter.limits() if one.changeable} == {"decorated", "block", "outbound"}
    for name in ("decorated", "block", "outbound"):
        await limiter.override(name, "2/minute", "1h")

    async def enter() -> None:
        async with block:
            pass

    async with httpx.AsyncClient(transport=transport) as client:
        for call, passes in ((decorated, 2), (enter, 1), (lambda: client.get("http://a.example/"), 2)):
            for _ in range(passes):
                await call()
            with pytest.raises(Exception, match=r"limit|room"):
                await call()
    assert [str(one.limit) for one in limiter.limits()] == ["2/1m"] * 3
    del decorated, call
    assert "decorated" not in {one.name for one in limiter.limits()}


def test_a_thread_without_an_event_loop_looks_when_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "INTERVAL_US", 0)
    limiter, script = (Limiter(LmdbStore(tmp_path), deadline="20s") for _ in range(2))
    calls = list[int]()
    job = limiter.limited("5/minute", key="k", rule="job")(lambda: calls.append(1))
    with limiter.sync, script.sync:
        job()
        assert asyncio.run(script.override("job", "2/minute", "1h")).workers == 1
        job()
        with pytest.raises(Exception, match="limit"):
            job()
    assert len(calls) == 2


@pytest.fixture
async def pair(kind: str, url: str) -> AsyncIterator[tuple[Limiter, Limiter]]:
    """A limiter that counts, and one from which limits are changed; with a memory store they are the same."""
    async with Limiter.from_url(url, deadline="20s") as first, Limiter.from_url(url, deadline="20s") as second:
        yield (first, first if kind == "memory" else second)


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_off_lets_everything_pass_counts_nothing_and_is_reported_once(
    pair: tuple[Limiter, Limiter], caplog: pytest.LogCaptureFixture
) -> None:
    limiter, operator = pair
    heard = RecordingObserver()
    limiter.observe(heard)
    for _ in range(2):
        await limiter.hit("k", "1/minute")
    made = await operator.override("*", "off", "10m", reason="a wrong rule", by="ann")
    for _ in range(3):
        await limiter.engine.overrides.look()
    assert all([(await limiter.hit("k", "1/minute")).allowed for _ in range(5)])
    assert (await limiter.charge("k", "1/minute", 50)).allowed
    assert (await limiter.peek("k", "1/minute")).allowed
    async with limiter.limited("1/minute", key="k"), limiter.limited("1/minute", key="k"):
        pass
    assert [(one.name, one.limit, one.reason) for one in await operator.overrides()] == [("*", "off", "a wrong rule")]
    assert [event.kind for event in heard.events if event.kind.startswith("switched")] == ["switched_off"]
    assert caplog.text.count("switched_off: slidegate is off until ") == len({limiter, operator})
    assert heard.events[-1].details == {"by": "ann", "reason": "a wrong rule", "until": made.until}
    assert await operator.restore("*")
    assert not await operator.restore("*")
    await limiter.engine.overrides.look()
    assert heard.events[-1].kind == "switched_on"
    decision = await limiter.peek("k", "60/minute")
    assert (decision.allowed, decision.remaining) == (True, 58), "what was asked meanwhile was not counted"
    assert not (await limiter.hit("k", "1/minute")).allowed


async def test_off_ends_by_itself_and_what_waits_passes(worker: Worker) -> None:
    await worker.limiter.override("*", "off", "10m")
    assert (await worker.limiter.hit("k", "1/minute")).binding is None
    worker.rows.clock.advance("10m")
    await worker.changes.look()
    assert worker.heard.kinds == ["switched_off", "switched_on"]
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            async with worker.limiter.limited("1/minute", key="k", wait="10m"):
                pass

        group.start_soon(wait)
        group.start_soon(wait)
        await until(lambda: worker.limiter.queued)
        with anyio.fail_after(20):
            await worker.limiter.override("*", "off", "10m")


async def test_the_last_writer_wins_and_every_worker_reports_both_amounts(worker: Worker) -> None:
    other = Worker(worker.rows, **LIMITS)
    await worker.change(limit="20/minute")
    await other.changes.refresh()
    made = await other.change(limit="30/minute")
    await worker.changes.refresh()
    assert worker.known == other.known == {"api": "30/1m"}
    assert [await other.limiter.restore("api") for _ in range(2)] == [True, False]
    await worker.changes.refresh()
    assert worker.known == other.known == worker.changed == other.changed == {}
    assert worker.heard.kinds == ["limit_overridden", "limit_overridden", "limit_restored"]
    why = {"limit": "api", "by": "ann", "reason": "why", "until": made.until}
    amounts = ((10, 20), (20, 30), (30, 10))
    for each in (worker, other):
        assert [event.details for event in each.heard.events] == [
            why | {"was": was, "amount": now} for was, now in amounts
        ]


@pytest.mark.parametrize("reason", ["", "why"])
async def test_no_message_ends_in_a_colon_and_none_is_about_a_limit_that_never_changed(
    worker: Worker, reason: str
) -> None:
    for name, limit in (("api", "10/minute"), ("api", "9/minute"), ("*", "off")):
        await worker.limiter.override(name, limit, "1h", reason=reason, by="root")
        assert await worker.limiter.restore(name)
    who = f"changed by root{': why' * bool(reason)}"
    assert [re.sub(r"until [-\dT:]+Z", "until then", event.message) for event in worker.heard.events] == [
        f"limit 'api' is 9 until then, and was 10; {who}",
        f"limit 'api' is 10 again, and was 9; {who}",
        f"slidegate is off until then: every request passes; {who}",
        "slidegate is on again",
    ]


async def test_each_limit_of_a_name_takes_a_change_of_its_window_and_a_worker_says_why_others_keep_theirs(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    for limit, fixed in (("10/minute", ""), ("10/hour", ""), ("10/minute", FIXED)):
        worker.add("several", limit, fixed=fixed)
    script = Worker(worker.rows)
    for name, limit in (("apy", "5/minute"), ("calm", "500/hour"), ("several", "7/minute")):
        await script.change(name, limit)
    for _ in range(3):
        await worker.changes.refresh()
    logged = [record.getMessage() for record in caplog.records if "not applied" in record.getMessage()]
    assert [line.partition("limit ")[2].partition(", and its")[0] for line in logged] == [
        "'calm': in the code it is '5/1m @5'",
        "'several': in the code it is '10/1h'",
    ]
    assert [one.limit.amount for one in worker.named if one.name == "several"] == [7, 10, 10]
    assert (worker.heard.kinds, worker.changed) == (["limit_overridden"], {"several": 7})


async def until(holds: Callable[[], object]) -> None:
    """Wait for what questions begin."""
    with anyio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("odd")])
async def test_it_is_over_in_time_also_while_the_store_is_away(
    worker: Worker, error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*asked: object) -> Any:
        raise error

    await worker.change(duration="1h")
    await worker.change("calm", "6/minute", duration="2h")
    with monkeypatch.context() as patched:
        patched.setattr(worker.rows, "read", fail)
        for minutes, names in (("59m", {"api", "calm"}), ("1m", {"calm"})):
            worker.rows.clock.advance(minutes)
            await worker.look()
            assert set(worker.known) == names, "the last that is known applies"
        for command in (worker.changes.refresh(), worker.limiter.overrides()):
            with pytest.raises(type(error)):
                await command
    assert ("changed limits cannot be read" in caplog.text) is isinstance(error, RuntimeError)
    for minutes, names in (("59m", {"calm"}), ("1m", set())):
        worker.rows.clock.advance(minutes)
        await worker.look()
        assert set(worker.known) == names


async def test_a_worker_looks_twice_a_second_while_it_is_asked_and_never_after_its_end(worker: Worker) -> None:
    other = Worker(worker.rows, **LIMITS)
    await other.look()
    await worker.change()
    for us, expected in ((499_999, {}), (1, {"api": "20/1m"}), (HOUR_US, {})):
        worker.rows.clock.advance(us=us)
        await other.limiter.hit("k", "5/minute")
        await turns(20)
        assert other.known == expected
    await other.limiter.close()
    assert len(await worker.limiter.workers()) == 0, "its row has ended with it"


async def test_a_look_that_is_under_way_at_the_end_leaves_no_row(worker: Worker) -> None:
    write, goes_on = worker.rows.write, anyio.Event()

    async def slow_write(name: bytes, row: StatsRow) -> None:
        if row.value:
            await goes_on.wait()
        await write(name, row)

    worker.rows.write = slow_write  # type: ignore[method-assign]
    await worker.look()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.limiter.close)
        await turns(20)
        goes_on.set()
    assert await Worker(worker.rows).limiter.workers() == []


def on_no_loop(work: Any) -> Any:
    with pytest.raises(StopIteration) as done:
        work.send(None)
    return done.value.value


@pytest.mark.parametrize("run", [asyncio.run, on_no_loop])
def test_a_store_of_one_process_keeps_changes_there_and_ends_them(run: Callable[[Any], Any]) -> None:
    clock = FakeClock(1_800_000_000_000_000)
    limiter = Limiter(MemoryStore(clock=clock))
    caller = BucketCaller(Bucket("api", parse_limits("10/minute")))
    limiter.engine.register(caller)
    (own,) = caller.limits_by_name()
    assert not limiter.engine.overrides.may_change, "nothing is looked at where nothing is changed"
    for amount in (5, 6):
        assert run(limiter.override("api", f"{amount}/minute", "1h")).workers == 1
        assert own.limit.amount == amount
    clock.advance("1h")
    limiter.engine.overrides._next_us = 0
    run(limiter.hit("k", "5/minute"))
    assert own.limit.amount == 10
    assert run(limiter.overrides()) == run(limiter.workers()) == []
    for ends in (limiter.engine.forget, lambda: run(limiter.restore("api"))):
        run(limiter.override("api", "7/minute", "1h"))
        assert own.limit.amount == 7
        ends()
        assert own.limit.amount == 10


def hold_reads(worker: Worker) -> list[anyio.Event]:
    """Let the next two reads return when their event is set; each has read before."""
    read, waits = worker.rows.read, [anyio.Event(), anyio.Event()]
    left = [*waits]

    async def slow_read(rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        rows = await read(rollup, first, last)
        if left:
            await left.pop(0).wait()
        return rows

    worker.rows.read = slow_read  # type: ignore[method-assign]
    return waits


async def test_a_look_that_began_before_a_change_takes_nothing_back(worker: Worker) -> None:
    reads = hold_reads(worker)
    reads[1].set()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.changes.refresh)
        await anyio.lowlevel.checkpoint()
        await worker.change()
        reads[0].set()
    assert worker.known == {"api": "20/1m"}
    assert worker.heard.kinds == ["limit_overridden"]


async def test_a_command_gets_what_the_store_says_although_a_look_has_begun_meanwhile(worker: Worker) -> None:
    await Worker(worker.rows).change()
    reads = hold_reads(worker)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.changes.refresh)  # that of a command
        await anyio.lowlevel.checkpoint()
        group.start_soon(worker.changes.refresh)  # that of the timer
        reads[0].set()
        await until(lambda: worker.known == {"api": "20/1m"})
        reads[1].set()


def test_a_thread_with_an_older_read_takes_nothing_back_from_one_with_a_newer_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker(api="10/minute")
    operator, threads = Worker(worker.rows), list[threading.Thread]()
    api = worker.named[0].limit
    become = type(api).become

    async def change_and_read() -> None:
        await operator.change(limit="30/minute")
        await worker.changes.refresh()

    def slow_become(limit: Any, amount: int) -> None:
        if not threads:  # this is the older read, which another thread overtakes
            threads.append(threading.Thread(target=lambda: asyncio.run(change_and_read())))
            threads[0].start()
            threads[0].join(0.5)  # it waits for this thread, or has ended
        become(limit, amount)

    asyncio.run(operator.change(limit="20/minute"))
    monkeypatch.setattr(type(api), "become", slow_become)
    asyncio.run(worker.changes.refresh())
    threads[0].join()
    assert (worker.known, api.amount) == ({"api": "30/1m"}, 30)
