"""Changed limits without a middleware: what is refused, what a store keeps, and what applies while it is away.

And what operators have done: the latest 200 actions, read by name, and never in the way of an action.
"""

import asyncio
import json
import logging
import math
import re
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from starlette.responses import PlainTextResponse

from slidegate import ConfigurationError, Limiter, RateLimitExceeded, RateLimitMiddleware, Rule
from slidegate.core import Bucket, SharedRow, StoreUnavailable
from slidegate.core.errors import closest
from slidegate.limiter import Override, refresh, workers
from slidegate.limiter.named_limits import NamedLimit, parse_one
from slidegate.limiter.overrides import LIMITS as CHANGED_LIMITS
from slidegate.limiter.rows import HISTORY, MOST
from slidegate.limiter.workers import WORKERS, Publication, PublishedRule, rules_of
from slidegate.testing import FakeClock, RecordingObserver, limits_off

from ..asgi import PEER, call, hello
from ..contract.programs import SECOND_US
from ..drawing import examples
from ..ops.shared_rows import SharedRows, limiter_on
from ..virtual_time import OnALoop, turns

T = TypeVar("T")
LIMITS = {
    "api": (10, "/1m"),
    "hourly": (10, "/1h"),
    "calm": (5, "/1m @5"),
    "daily": (10, "/1d"),
    "plan": (100, "/month"),
    "api-concurrency": (4, ""),
    "plans": (10, "/1m"),
}
WRITTEN = {name: f"{amount}{window}" for name, (amount, window) in LIMITS.items()}
FIXED = {"plans"}
SPELLED = {"/1d": "/day"}
"""How users write a window that is a word of quotas, too."""
SECRETS = ["0123456789abcdef", "fedcba9876543210", None]


class Rows(SharedRows):
    """The rows of all workers; reads fail with an error, or return what they have read when an event is set."""

    error: Exception | None = None
    returns: asyncio.Event | None = None

    async def read(self, kind: str, first: int, last: int, deadline_s: float = 0) -> list[tuple[int, bytes, bytes]]:
        if self.error is not None:
            raise self.error
        found, returns, self.returns = await super().read(kind, first, last), self.returns, None
        if returns is not None:
            await returns.wait()
        return found


class Worker:
    """A limiter on the rows of all workers; and what the model says of it: what it knows, when it looks and writes."""

    def __init__(self, rows: Rows, *names: str, secret: str | None = None) -> None:
        self.observer, self.named, self.secret = RecordingObserver(), list[NamedLimit](), secret
        self.limiter = limiter_on(rows, observers=[self.observer], secret=secret)
        self.changes = self.limiter.engine.overrides
        self.knows, self.began = dict[str, Override](), dict[str, int]()
        self.looks_us = self.writes_us = self.differs_us = self.reads = self.applied = self.differences = 0
        if names:
            self.limiter.engine.register(self)
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        configured = parse_one(WRITTEN[name])
        self.named.append(NamedLimit(name, configured.mutable_copy(), configured, f"rule {name}", name not in FIXED))
        self.changes.register(self.named[-1:])
        self.began[name] = self.amount_of(name)

    def buckets(self) -> list[Bucket]:
        return []

    def restart(self) -> None: ...

    def limits_by_name(self) -> list[NamedLimit]:
        return self.named

    def published(self) -> list[PublishedRule]:
        return rules_of(self.named)

    async def update(self) -> None:
        await self.limiter.engine.refresher.refresh()
        await self.limiter.engine.workers.write(30.0)

    @property
    def row(self) -> bytes:
        """The name of its row, another one in a child of fork."""
        return self.limiter.engine.rows.worker

    @property
    def is_off(self) -> bool:
        return "*" in self.knows

    @property
    def ends_us(self) -> int:
        return min((one.until_us for one in self.knows.values()), default=0)

    async def change(self, name: str, limit: str, seconds: int = 3_600) -> Override:
        return await self.limiter.override(name, limit, f"{seconds}s", reason="why", by="ann")

    def amount_of(self, name: str) -> int:
        """Return the amount of the override that it knows, if that applies; else that in code."""
        amount = amount_by(self.knows[name].limit, name) if name in self.knows else None
        return LIMITS[name][0] if amount is None else amount


def limits_of(published: Publication) -> dict[str, tuple[str, bool]]:
    return {one.name: (one.limit, one.by_function) for one in published.rules if one.limit}


def amount_by(text: str, name: str) -> int | None:
    """Return the amount of an override of a limit; None if the limit is fixed, or has another window."""
    window, other = LIMITS.get(name, ("", ""))[1], text.lstrip("0123456789")
    is_applied = (
        name in LIMITS and name not in FIXED and other in (window, window.partition(" @")[0], SPELLED.get(window))
    )
    return int(text.removesuffix(other)) if is_applied else None


DUE = st.sampled_from(["", "looks_us", "writes_us", "ends_us", "differs_us"])
ERRORS = st.sampled_from([None, None, None, None, StoreUnavailable("away"), RuntimeError("odd")])
NUMBERS = st.integers(0, 11)
NAMES = st.sampled_from([*LIMITS, "*", "apy"])
AMOUNTS = st.integers(0, 120).map(str) | st.sampled_from(["", "-1", "2147483648", "٣"])
ENDS = st.sampled_from(
    ["", "/minute", "/hour", "/1m", " per 60s", "/minute @5", "/month", "/week", "/day", "; 5/s", "/"]
)
TEXTS = st.tuples(AMOUNTS, ENDS).map("".join) | st.sampled_from(["off", " 7 ", "burst: 5/minute"]) | st.text(max_size=8)
WINDOWS = [(name, text) for name, (_, window) in LIMITS.items() for text in {window, SPELLED.get(window, window)}]
GOOD = st.tuples(st.sampled_from(WINDOWS), st.integers(1, 99)).map(
    lambda drawn: (drawn[0][0], f"{drawn[1]}{drawn[0][1]}")
) | st.just(("*", "off"))
CHANGE_ROW = {
    "name": "calm",
    "limit": "6/minute",
    "by": "",
    "reason": "",
    "since_us": 0,
    "until_us": 2**51,
    "is_published": True,
}
ODD_FIELDS = [("limit", odd) for odd in ("6 a minute", 6, "off")] + [("name", odd) for odd in (7, "*")]
ODD_FIELDS += [(text, odd) for text in ("by", "reason") for odd in (None, 7)]
ODD_FIELDS += [(time, odd) for time in ("since_us", "until_us") for odd in (None, "9", True, -1, 2**70, math.inf)]
UNREADABLE = [(CHANGED_LIMITS, json.dumps({**CHANGE_ROW, field: odd}).encode()) for field, odd in ODD_FIELDS]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    max_leaves=4,
)
UNREADABLE += [(CHANGED_LIMITS, bad) for bad in (b"", b"\xff", b"[]", b"[" * 100_000, b"{}")]
UNREADABLE += [(WORKERS, b""), (WORKERS, b"of an hour ago")]


class Changes(OnALoop):
    """Workers that come and go, operators who change limits, and a store that fails or is slow, beside a model.

    The model is what the store has, and what each worker has read of it last.
    """

    @initialize()
    def begin(self) -> None:
        self.rows, self.patches, self.logged, self.is_odd = Rows(), pytest.MonkeyPatch(), list[str](), False
        for module in (refresh, workers):
            self.patches.setattr(module, "monotonic", lambda: self.rows.clock() / SECOND_US)
        self.patches.setattr(refresh, "log_failure", lambda text, *error: self.logged.append(text))
        self.stored = dict[str, Override]()
        self.present = dict[bytes, tuple[int, str | None, set[str]]]()
        self.workers, self.slow = [Worker(self.rows)], list[Any]()
        for index, (kind, value) in enumerate(UNREADABLE):  # they are no workers and no changes
            self.run(self.rows.write(bytes([index]), SharedRow(kind, 0, value, 10**12)))

    def teardown(self) -> None:
        self.patches.undo()
        for *_, returns, task in self.slow:
            returns.set()
            self.run(task)
        super().teardown()

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return self.rows.clock()

    def in_force(self) -> dict[str, Override]:
        return {name: override for name, override in self.stored.items() if override.until_us > self.now_us}

    def others(self, of: Worker) -> list[tuple[str | None, set[str]]]:
        """Return the secrets and names of other workers that wrote within a minute before the last one did."""
        there = {who: one for who, one in self.present.items() if one[0] > self.now_us}
        last_us = max((until_us for until_us, *_ in there.values()), default=0)
        others = {who: one for who, one in there.items() if who != of.row}
        return [(*one,) for until_us, *one in others.values() if last_us - until_us < 60 * SECOND_US]

    def published(self, one_worker: Worker) -> set[str]:
        return set(one_worker.began if one_worker.named else ()).union(*(names for _, names in self.others(one_worker)))

    def read(self, by: Worker) -> None:
        by.reads += 1
        by.applied, by.knows = by.reads, self.in_force()

    def look(self, by: Worker) -> None:
        if self.rows.error is not None:
            self.is_odd |= isinstance(self.rows.error, RuntimeError)
            by.knows = {name: one for name, one in by.knows.items() if one.until_us > self.now_us}
            return
        self.read(by)
        if self.now_us >= by.writes_us or by.row not in self.present:
            by.writes_us = self.now_us + 10 * SECOND_US
            self.present[by.row] = self.now_us + 86_400 * SECOND_US, by.secret, {*by.began}
            if self.now_us >= by.differs_us and any(secret != by.secret for secret, _ in self.others(by)):
                by.differences, by.differs_us = by.differences + 1, self.now_us + 600 * SECOND_US

    # -- what happens --------------------------------------------------------------------------------------------------

    def worker(self, number: int) -> Worker:
        return self.workers[number % len(self.workers)]

    @precondition(lambda self: len(self.workers) < 4)
    @rule(names=st.sets(st.sampled_from([*LIMITS])), secret=st.sampled_from(SECRETS))
    def a_worker_starts(self, names: set[str], secret: str | None) -> None:
        self.workers.append(Worker(self.rows, *sorted(names), secret=secret))

    @rule(number=NUMBERS, name=st.sampled_from([*LIMITS]))
    def a_limit_is_met(self, number: int, name: str) -> None:
        one = self.worker(number)
        if one.named and name not in one.began:
            one.add(name)

    @rule(asks=st.lists(st.tuples(NUMBERS, DUE, st.booleans(), st.integers(0, 3), ERRORS), min_size=1, max_size=8))
    def workers_are_asked(self, asks: list[tuple[int, str, bool, int, Exception | None]]) -> None:
        """They look twice a second, and write every ten seconds, or at once after a fork.

        They report once in ten minutes that others have another secret.
        """
        for number, due, is_early, forks, self.rows.error in asks:
            one = self.worker(number)
            self.rows.clock.set(max(getattr(one, due, 0) - is_early * SECOND_US // 4, self.now_us))
            if forks == 1:
                one.limiter.engine.rows.restart()
            self.run(one.limiter.hit("k", "5/minute"))
            self.run(turns())
            if self.now_us >= one.looks_us:
                one.looks_us = self.now_us + SECOND_US // 2
                self.look(one)
            self.every_worker_applies_what_it_knows_and_reports_each_amount_once()

    @precondition(lambda self: len(self.workers) > 1 and not self.slow)
    @rule(number=NUMBERS)
    def a_worker_ends(self, number: int) -> None:
        one = self.workers.pop(number % len(self.workers))
        self.run(one.limiter.close())
        self.present.pop(one.row, None)

    @rule(quarters=st.sampled_from([1, 1, 2, 4, 8, 39, 40, 120, 4 * 3_600]))
    def time_passes(self, quarters: int) -> None:
        self.rows.clock.advance(us=quarters * SECOND_US // 4)

    @rule(
        number=NUMBERS,
        change=GOOD | st.tuples(NAMES | st.text(max_size=6), TEXTS),
        seconds=st.sampled_from([1, 2, 3_600]),
    )
    def a_limit_is_changed(self, number: int, change: tuple[str, str], seconds: int) -> None:
        """It is refused, and nothing is written, or it is in effect."""
        one_worker, (name, text), before = self.worker(number), change, {**self.rows.rows}
        windows = "|".join(re.escape(window) for one, window in WINDOWS if one == name)
        good = "off" if name == "*" else f"[1-9][0-9]?({windows})" if windows or name in LIMITS else "nothing"
        published = self.published(one_worker)
        is_published = name == "*" or name in published
        is_refused = name in FIXED if is_published else bool(closest(name, sorted(published)))
        try:
            made = self.run(one_worker.change(name, text, seconds))
        except (ConfigurationError, StoreUnavailable, RuntimeError):
            assert self.rows.error or is_refused or not re.fullmatch(good, text)
            assert self.rows.rows == before
            return
        assert not is_refused
        assert (made.name, made.is_published) == (name, is_published)
        assert (made.since_us, made.until_us) == (self.now_us, self.now_us + seconds * SECOND_US)
        assert made.limit == "off" or int(made.limit.partition("/")[0]) == int(re.findall(r"\d+", text)[0])
        self.stored[name] = made
        self.read(one_worker)

    @rule(number=NUMBERS, name=NAMES)
    def a_limit_is_restored(self, number: int, name: str) -> None:
        one_worker, error = self.worker(number), self.rows.error
        if error is not None:
            with pytest.raises(type(error)):
                self.run(one_worker.limiter.restore(name))
            return
        is_changed = name in self.in_force()
        assert self.run(one_worker.limiter.restore(name)) is is_changed
        self.read(one_worker)
        if self.stored.pop(name, None):
            self.read(one_worker)

    @precondition(lambda self: self.rows.error is None)
    @rule(number=NUMBERS)
    def an_operator_lists_workers_and_changes(self, number: int) -> None:
        one_worker = self.worker(number)
        found = self.run(one_worker.limiter.overrides())
        self.read(one_worker)
        assert found == [one for _, one in sorted(self.in_force().items())]
        published = self.run(one_worker.limiter.published())
        assert sum(one.workers for one in published) == bool(one_worker.named) + len(self.others(one_worker))
        assert all(one.is_readable for one in published)
        found_rules = [(one.same_secret, limits_of(one)) for one in published]
        for secret, names in self.others(one_worker):
            expected = {name: (WRITTEN[name], name in FIXED) for name in names}
            assert (secret == one_worker.secret, expected) in found_rules

    @precondition(lambda self: self.rows.error is None)
    @rule(number=NUMBERS)
    def a_slow_read_begins(self, number: int) -> None:
        by, self.rows.returns = self.worker(number), asyncio.Event()
        by.reads += 1
        task = self.loop.create_task(by.limiter.engine.refresher.refresh())
        self.slow.append((by, by.reads, self.in_force(), self.rows.returns, task))
        self.run(turns())

    @precondition(lambda self: self.slow)
    @rule(number=NUMBERS)
    def a_slow_read_returns(self, number: int) -> None:
        """It takes nothing back that a later one has found."""
        by, read, found, returns, task = self.slow.pop(number % len(self.slow))
        returns.set()
        self.run(task)
        if read >= by.applied:
            by.applied, by.knows = read, found

    @invariant()
    def every_worker_applies_what_it_knows_and_reports_each_amount_once(self) -> None:
        for one in self.workers:
            assert one.changes.in_force == one.knows
            assert one.limiter.engine.counts is not one.is_off
            switched = [kind for kind in one.observer.kinds if kind.startswith("switched")]
            assert switched == ["switched_off", "switched_on"] * (len(switched) // 2) + ["switched_off"] * one.is_off
            for each in one.named:
                reported = [event.details for event in one.observer.events if event.details.get("limit") == each.name]
                amounts = [one.began[each.name], *(of["amount"] for of in reported)]
                assert amounts[-1] == each.limit.amount == one.amount_of(each.name)
                assert [of["was"] for of in reported] == amounts[:-1]
                assert all(was != now for was, now in pairwise(amounts))
                (copy := each.limit.mutable_copy()).become(each.configured.amount)
                assert copy == each.configured, "the amount alone has changed"
            differ = [event.message for event in one.observer.events if event.kind == "secret_differs"]
            assert ["set the same SLIDEGATE_SECRET" in message for message in differ] == [True] * one.differences

    @invariant()
    def workers_are_known_by_their_rows_which_hold_no_secret(self) -> None:
        ends = {who: ends_us for (kind, _, who), (_, ends_us) in self.rows.rows.items() if kind == WORKERS}
        known = {who: until_us for who, (until_us, *_) in self.present.items()}
        assert {who: ends[who] for who in ends.keys() & known.keys()} == known
        assert not any(secret.encode() in value for secret in SECRETS if secret for value, _ in self.rows.rows.values())
        assert self.logged == ["changed limits cannot be read"] * len(self.logged)
        assert bool(self.logged) is self.is_odd


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=examples(50))


def test_a_thread_without_an_event_loop_looks_when_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "STALE_NS", 0)
    limiter, script = (Limiter.from_url(f"lmdb://{tmp_path}", deadline="20s") for _ in range(2))
    job = limiter.limited("5/minute", key="k", rule="job")(lambda: True)
    with limiter.sync, script.sync:
        assert job()
        assert asyncio.run(script.override("job", "2/minute", "1h")).is_published
        assert job()
        with pytest.raises(RateLimitExceeded):
            job()


def test_a_thread_that_looks_looks_for_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh, "STALE_NS", 60 * 10**9)  # on a busy machine, too
    limiter, looks = Limiter.from_url(f"lmdb://{tmp_path}", deadline="20s"), list[int]()
    ask = limiter.engine.rows.ask

    def ask_beside_another(*given: Any) -> Any:
        looks.append(threading.get_ident())
        thread = threading.Thread(target=limiter.sync.hit, args=("k", "5/minute"))
        if len(looks) == 1:
            thread.start()
            thread.join()
        return ask(*given)

    monkeypatch.setattr(limiter.engine.rows, "ask", ask_beside_another)
    with limiter.sync:
        assert limiter.sync.hit("k", "5/minute").remaining == 3
    assert looks == [threading.get_ident()]


@pytest.mark.parametrize("still_reads", [False, True])
async def test_a_look_that_is_under_way_at_the_end_leaves_no_row(still_reads: bool) -> None:
    """Neither one that writes, nor one that reads, and writes then."""
    rows, has_read, goes_on = Rows(), asyncio.Event(), asyncio.Event()
    worker, write = Worker(rows, "api"), rows.write

    async def slow_write(name: bytes, row: SharedRow, deadline_s: float) -> None:
        if row.value:
            await goes_on.wait()
        await write(name, row)

    rows.write = slow_write  # type: ignore[method-assign]
    if still_reads:
        rows.returns = has_read
    await worker.limiter.hit("k", "5/minute")
    await turns()
    async with anyio.create_task_group() as group:
        group.start_soon(worker.limiter.engine.end)
        await turns()
        has_read.set()
        await turns(9)
        goes_on.set()
    await turns()
    assert await Worker(rows).limiter.published() == []


@pytest.mark.parametrize("exempt", [False, True])
async def test_a_held_answer_is_asked_for_again_whatever_has_refreshed_the_limits(
    monkeypatch: pytest.MonkeyPatch, exempt: bool
) -> None:
    """A read of another event loop, or a command of this process, may be faster than that of the request."""
    for name in ("STALE_NS", "EXPIRED_NS"):
        monkeypatch.setattr(refresh, name, 0)
    rows = Rows()
    limiter = limiter_on(rows)
    own = Rule("/", exempt=True) if exempt else Rule("/", "5/minute", key=lambda request: "all", name="api")
    app = RateLimitMiddleware(PlainTextResponse("hi"), limiter=limiter, rules=[own])
    assert (await call(app)).status == 200
    if exempt:
        await limiter.ban(PEER, "1h")
        assert (await call(app)).status == 403
    rows.returns = goes_on = asyncio.Event()
    asking = asyncio.create_task(call(app))
    await turns(3)
    if exempt:
        await limiter.override("*", "off", "1h")
    else:
        await limiter.override("api", "1/minute", "1h")
    goes_on.set()
    assert (await asking).status == (200 if exempt else 429)


def test_each_of_several_event_loops_reads_once_at_a_time() -> None:
    rows, reads = Rows(), list[int]()

    async def read(kind: str, *numbers: int, deadline_s: float = 0) -> list[Any]:
        reads.append(1)
        await asyncio.Event().wait()
        return []

    async def begin_to_read() -> None:
        worker.limiter.engine.refresher.read()
        await asyncio.sleep(0)

    rows.read = read  # type: ignore[method-assign, assignment]
    worker = Worker(rows)
    with asyncio.Runner() as one, asyncio.Runner() as other:
        for loop in (one, other) * 3:
            loop.run(begin_to_read())
        assert len(reads) == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_file_gives_and_takes_more_than_one_step_of_limits_on_each_event_loop(tmp_path: Path, backend: str) -> None:
    operator, worker = (Limiter.from_url(f"lmdb://{tmp_path}", deadline="20s") for _ in range(2))
    names = [f"limit_{number}" for number in range(2 * refresh.AT_ONCE)]
    rules = [Rule(f"/{name}", "5/minute", name=name) for name in names]
    app = RateLimitMiddleware(PlainTextResponse("hi"), limiter=worker, rules=rules)

    async def main() -> None:
        for name in names:
            await operator.override(name, "2/minute", "1h")
        for _ in range(100):
            if {one.limit.amount for one in worker.limits()} == {2} and await operator.published():
                break
            await call(app, f"/{names[0]}")
            await anyio.sleep(0.01)
        assert {one.limit.amount for one in worker.limits()} == {2}
        (published,) = await operator.published()
        assert {one.name for one in published.rules} >= {*names}
        for limiter in (operator, worker):
            await limiter.close()

    anyio.run(main, backend=backend)


async def test_an_error_in_applying_changes_is_logged_and_fails_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def err() -> None:
        raise RuntimeError("a bug")

    operator, worker = (Limiter.from_url(f"lmdb://{tmp_path}", deadline="20s") for _ in range(2))
    async with operator, worker:
        await operator.override("api", "5/minute", "1h")
        monkeypatch.setattr(worker.engine.overrides, "_changed", err)
        assert (await worker.hit("k", "5/minute")).allowed
        (record,) = caplog.records
        assert record.getMessage().startswith("slidegate: changed limits cannot be read: RuntimeError('a bug') (")


@pytest.mark.parametrize(("workers", "limits"), [(64, 100), (64, 300), (2, 1_000)])
async def test_no_step_between_requests_is_longer_with_many_workers_and_limits(
    workers: int, limits: int, calls: list[int]
) -> None:
    rows = Rows()
    names = [f"per-route_GET_items_{number}" for number in range(limits)]
    own, operator, *others = [Worker(rows, secret=SECRETS[number % 2]) for number in range(workers + 2)]
    for one in (own, *others):
        configured = [parse_one(f"{number}/1m") for number in range(1, limits + 1)]
        one.named += [NamedLimit(*each, each[1]) for each in zip(names, configured, strict=True)]
        one.limiter.engine.register(one)
        await one.update()
    changed = names[:: limits // 10]
    for name in changed:
        await operator.change(name, "7/minute")
    found: dict[str, Any] = {}
    for what, work in {
        "update": own.update,
        "workers": own.limiter.published,
        "change": partial(own.change, names[1], "9/minute"),
        "list": own.limiter.overrides,
    }.items():
        calls[:] = [0]
        await asyncio.sleep(0)
        found[what] = await work()
        assert max(calls) < 10_000, what
    assert own.observer.kinds.count("secret_differs") == 1
    assert sum(one.workers for one in found["workers"]) == workers + 1
    assert len(found["list"]) == len(changed) + 1


@settings(max_examples=examples(30))
@given(
    st.dictionaries(st.text(max_size=8).filter(lambda name: name not in CHANGE_ROW), JSON, max_size=3),
    st.dictionaries(st.text(max_size=8).filter(lambda name: name not in PublishedRule._fields), JSON, max_size=3),
)
def test_what_a_later_version_writes_besides_is_ignored(of_change: dict[str, Any], of_rule: dict[str, Any]) -> None:
    async def play() -> None:
        rows = Rows()
        worker, later = Worker(rows, "calm"), Worker(rows, "calm", secret=SECRETS[0])
        await later.update()
        for name, (value, until_us) in {**rows.rows}.items():  # its text, with more fields and lines
            if name[0] == workers.RULES:
                lines = [json.dumps({**json.loads(line), **of_rule}) for line in value.splitlines()]
                odd = [json.dumps(of_rule)] * (len(lines) > 1)
                rows.rows[name] = "\n".join(lines + odd).encode(), until_us
        await rows.write(b"of later", SharedRow(CHANGED_LIMITS, 0, json.dumps(CHANGE_ROW | of_change).encode(), 10**9))
        await worker.update()
        assert worker.named[0].limit.amount == 6
        assert [limits_of(one) for one in await worker.limiter.published()] == [{"calm": (WRITTEN["calm"], False)}] * 2
        assert [one.name for one in await worker.limiter.overrides()] == ["calm"]
        assert worker.observer.kinds.count("secret_differs") == 1

    asyncio.run(play())


def test_a_thread_with_an_older_read_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, threads = Rows(), list[threading.Thread]()
    worker, operator = Worker(rows, "api"), Worker(rows)
    api = worker.named[0].limit
    become = type(api).become

    async def change_and_read() -> None:
        await operator.change("api", "30/minute")
        await worker.limiter.engine.refresher.refresh()

    def slow_become(limit: Any, amount: int) -> None:
        if not threads:  # this is the older read, which another thread overtakes
            threads.append(threading.Thread(target=lambda: asyncio.run(change_and_read())))
            threads[0].start()
            threads[0].join(0.5)  # it waits for this thread, or has ended
        become(limit, amount)

    asyncio.run(operator.change("api", "20/minute"))
    monkeypatch.setattr(type(api), "become", slow_become)
    asyncio.run(worker.limiter.engine.refresher.refresh())
    threads[0].join()
    assert ([*worker.changes.in_force], api.amount) == (["api"], 30)


# -- what operators have done ------------------------------------------------------------------------------------------


async def test_the_latest_200_of_all_workers_are_kept() -> None:
    rows = SharedRows(FakeClock())
    limiters = [limiter_on(rows) for _ in range(3)]
    for number in range(300):
        rows.clock.advance("1s")
        await limiters[number % 3].ban(f"user:{number}", "1h")
    ends_us = [ends_us for name, (_, ends_us) in rows.rows.items() if name[0] == HISTORY]
    kept = sum(one > rows.clock() for one in ends_us)
    assert MOST <= kept < MOST + 20 * len(limiters)
    assert [one.target for one in await limiters[0].history()] == [f"user:{number}" for number in range(299, 99, -1)]


async def test_what_a_later_version_writes_is_read_by_name_or_left_out() -> None:
    rows = SharedRows(FakeClock())
    limiter = limiter_on(rows)
    await limiter.ban("user:ann", "1h")
    ((value, _),) = [row for name, row in rows.rows.items() if name[0] == HISTORY]
    said = json.loads(value)
    odd: list[Any] = [{**said, "more": [1], "target": "user:bob"}, {**said, "by": 7}, {**said, "at_us": "x"}, {}, [], 7]
    odd += [{**said, name: moment} for name in ("at_us", "until_us") for moment in (2**70, -1, 1e300, True, "1")]
    for number, one in enumerate(odd):
        await rows.write(bytes([255, number]), SharedRow(HISTORY, 0, json.dumps(one).encode(), 10**9))
    await rows.write(b"\xff\xff", SharedRow(HISTORY, 0, b"\xff", 10**9))
    read = await limiter.history()
    assert [one.target for one in read] == ["user:bob", "user:ann"]
    assert all(one.until and one.until > one.at for one in read)


async def test_a_ban_stands_if_the_history_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    class Full(SharedRows):
        async def write(self, *given: Any) -> None:
            raise StoreUnavailable("no room")

    limiter = limiter_on(Full(FakeClock()))
    with caplog.at_level(logging.WARNING, logger="slidegate"):
        await limiter.ban("user:ann", "1h", by="bob")
    assert await limiter.banned("user:ann")
    assert "the history lacks an action (ban user:ann by bob): no room" in caplog.text


@pytest.mark.parametrize("is_off", [False, True])
async def test_while_a_test_has_switched_limits_off_no_request_reads_what_operators_have_changed(is_off: bool) -> None:
    rows = Rows()
    app = RateLimitMiddleware(hello, limiter=limiter_on(rows))
    if is_off:  # by an operator, for an hour
        await app.limiter.override("*", "off", "1h")
    rows.read = Mock(wraps=rows.read)  # type: ignore[method-assign]
    with limits_off():
        rows.clock.advance("2m")
        assert (await call(app)).status == 200
        await turns()
    assert not rows.read.called
    await call(app)
    assert rows.read.called
