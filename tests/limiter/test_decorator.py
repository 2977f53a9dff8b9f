"""Limits around functions and blocks, and requests that wait: which are refused, in which order, for how long."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from slidegate import Decision, Limiter, MemoryStore, parse_limits
from slidegate.core import Bucket, Check, Concurrency, Reason
from slidegate.limiter.queues import LATE_S, Queues
from slidegate.testing import FakeClock

from ..drawing import examples
from ..redis_servers import until
from ..remote_stores import SlowStore
from ..stores.forked import fork
from ..virtual_time import OnALoop, VirtualTime, turns, use_virtual_time
from .test_limiter import ran


@pytest.fixture(params=[MemoryStore, SlowStore])
def real(request: pytest.FixtureRequest) -> Iterator[Limiter]:
    """A limiter by the time of the system."""
    made = Limiter(request.param(), deadline="60s")
    yield made
    made.sync.close()


def test_a_call_waits_for_its_turn_or_is_refused(real: Limiter) -> None:
    assert ran(4, real.limited("1/50ms", key="all", wait="20s")(lambda: 1)) == [1] * 4
    hourly = ran(2, real.limited("1/hour", key="hourly", wait="20s")(lambda: 1))
    assert hourly == [1, pytest.approx(3600, abs=10)], "longer than it may wait"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_functions_are_limited_and_wait_on_both_kinds_of_loops(backend: str) -> None:
    @Limiter().limited("1/50ms", key="all", wait="20s")
    async def tick() -> int:
        return 1

    async def main() -> list[int]:
        return [await tick(), await tick()]

    assert anyio.run(main, backend=backend) == [1, 1]


async def test_a_call_overtakes_none_that_waits_though_there_is_room_for_it() -> None:
    limiter, order = Limiter(MemoryStore(clock=VirtualTime().clock)), list[str]()

    async def call(name: str, cost: int) -> None:
        async with limiter.limited("2/second", key="all", cost=cost, wait="9s"):
            order.append(name)

    calls = []
    for name, cost in (("first", 1), ("large", 2), ("small", 1)):
        calls.append(asyncio.create_task(call(name, cost)))
        await turns()
    await asyncio.gather(*calls)
    assert order == ["first", "large", "small"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of POSIX")
def test_a_thread_that_is_interrupted_in_its_wait_is_charged_nothing(real: Limiter) -> None:
    waiting = real.limited("1/hour", key="all", wait="2h", rule="hourly")(lambda: 1)
    waiting()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            waiting()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    while real.engine.queues.waiting:  # its event loop notices a moment later
        time.sleep(0.001)
    seen = real.sync.peek("all", "1/hour", rule="hourly")
    assert seen.retry_after_us <= 3_600_000_000


# -- requests that wait: in which order, for how long, how many, and what becomes of those that leave ------------------


KEY = "everyone"
NAME = ("answers", KEY)
WAIT_MAX = 4
US = 0.000_001


@dataclass(eq=False)
class Waiting:
    """A request, and what has become of it."""

    tenant: str
    cost: int
    came_s: float
    until_s: float
    task: asyncio.Task[None] = field(init=False)
    is_gone: bool = False
    is_refused_for_others: bool = False
    decision: Decision | None = None
    ended_s: float | None = None


class Line(OnALoop):
    """Requests for permits, and for units of a window, that share one queue.

    The model is a list of those that wait. The one that asks is always the oldest of them, or of the tenant with the
    fewest permits, whose client is there.
    """

    @initialize(units=st.integers(1, 4), permits=st.integers(1, 3), is_fair=st.booleans())
    def begin(self, units: int, permits: int, is_fair: bool) -> None:
        self.time = self.run(use_virtual_time())
        self.store, self.queues = MemoryStore(clock=self.time.clock), Queues()
        self.buckets = Bucket(NAME[0], parse_limits(f"{units}/s")), Bucket(NAME[0], [Concurrency(permits)])
        self.units, self.is_fair = units, is_fair
        self.line: list[Waiting] = []
        self.inside: list[Waiting] = []
        self.removed: list[Waiting] = []
        self.tasks: list[asyncio.Task[None]] = []

    def checks(self, cost: int) -> list[Check]:
        return [(self.buckets[0], KEY, min(cost, self.units)), (self.buckets[1], KEY, 1)]

    async def refund(self, reservations: Any) -> None:
        self.store.refund(reservations)
        self.queues.refunded(one.check for one in reservations)

    def teardown(self) -> None:
        if hasattr(self, "line"):
            self.end()
        super().teardown()

    def end(self) -> None:
        while self.inside:
            self.release(0)
        for one in [*self.line]:
            self.run(one.task)
        while self.inside:
            self.release(0)
        self.everything_holds()
        assert (self.line, self.queues.waiting, self.queues.is_queued(NAME)) == ([], 0, False)
        assert self.store.permits_held() == 0
        assert not self.queues._permits, "no count of permits is left"

    def settle(self) -> None:
        """Let every task go on until all of them sleep."""
        self.run(asyncio.sleep(US))

    # -- the requests ------------------------------------------------------------------------------------------------

    def first(self) -> Waiting:
        """Return the request that is to ask next."""
        present = [one for one in self.line if not one.is_gone]
        permits = Counter(one.tenant for one in self.inside) if self.is_fair else Counter()
        return min(present, key=lambda one: permits[one.tenant])

    async def ask(self, one: Waiting) -> Decision:
        if one in self.line:
            assert self.first() is one, "one asks that is not first"
            assert not one.is_gone
        return self.store.hit(self.checks(one.cost))

    async def come(self, one: Waiting) -> None:
        decision = None
        if not self.queues.is_queued(NAME):
            decision = await self.ask(one)
        if decision is None or not decision.allowed:
            self.join(one)
            decision = await self.queues.wait(
                NAME,
                decision,
                partial(self.ask, one),
                wait_us=round((one.until_s - one.came_s) * 1_000_000),
                wait_max=WAIT_MAX,
                tenant=one.tenant if self.is_fair else "",
                is_gone=lambda: one.is_gone,
            )
        one.decision, one.ended_s = decision, self.time.passed_s
        if one in self.line:
            self.line.remove(one)
        if decision.allowed:
            self.inside.append(one)
            if self.is_fair:
                self.queues.count_permit(NAME, one.tenant, 1)
        self.check_end(one)

    def join(self, one: Waiting) -> None:
        """Put a request into the line: those whose clients have left make room for it, else the greediest tenant."""
        if len(self.line) >= WAIT_MAX:
            gone = [other for other in self.line if other.is_gone]
            waiting = Counter(other.tenant for other in [*self.line, one])
            most = max(waiting.values())
            if not gone and self.is_fair and waiting[one.tenant] < most:
                gone = [next(other for other in reversed(self.line) if waiting[other.tenant] == most)]
            for other in gone:
                other.is_refused_for_others = True
                self.line.remove(other)
            self.removed += gone
            if not gone:
                one.is_refused_for_others = True
                return
        self.line.append(one)

    @rule(
        tenant=st.sampled_from("abc"),
        cost=st.sampled_from([1, 1, 2]),
        wait_ms=st.sampled_from([0, 50, 400, 1_000, 2_500, 60_000]),
    )
    def arrive(self, tenant: str, cost: int, wait_ms: int) -> None:
        now_s = self.time.passed_s
        one = Waiting(tenant, cost, now_s, now_s + wait_ms / 1_000)
        one.task = self.loop.create_task(self.come(one))
        self.tasks.append(one.task)
        self.settle()

    def check_end(self, one: Waiting) -> None:
        """Check that a request has ended when and as it had to."""
        assert one.decision is not None
        assert one.ended_s is not None
        assert one.ended_s <= one.until_s + LATE_S + 2 * US, "it has waited longer than it may"
        is_late = one.ended_s >= one.until_s
        if one.decision.allowed:
            waited = one.ended_s > one.came_s
            assert one.decision.reason is (Reason.WAITED if waited else one.decision.reason)
            return
        assert one.decision.readings, "a refusal says by which limit"
        if not (is_late or one.is_gone or one.is_refused_for_others):
            ahead = (one.cost, *(other.cost for other in self.line))
            wait_us = max(wait_us for cost in ahead for *_, wait_us in self.store.peek(self.checks(cost)).readings)
            assert one.ended_s + wait_us / 1_000_000 >= one.until_s, "it could have been let in, for all that is known"

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.line)).is_gone = True

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def request_is_cancelled(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.line))
        self.line.remove(one)
        one.task.cancel()
        self.settle()
        assert one.task.cancelled()

    # -- room --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        self.release(data.draw(st.integers(0, len(self.inside) - 1)))

    def release(self, index: int) -> None:
        one = self.inside.pop(index)
        assert one.decision is not None
        self.run(self.refund(one.decision.begin_refund(permits=True)))
        if self.is_fair:
            self.queues.count_permit(NAME, one.tenant, -1)
        self.settle()

    @precondition(lambda self: self.inside)
    @rule()
    def units_are_refunded(self) -> None:
        decision = self.inside[-1].decision
        assert decision is not None
        self.run(self.refund(decision.begin_refund(permits=False)))
        self.settle()

    @precondition(lambda self: self.inside and not self.is_fair)
    @rule()
    def another_process_makes_room(self) -> None:
        """It is noticed within 200 ms."""
        decision = self.inside.pop(0).decision
        assert decision is not None
        self.store.refund(decision.begin_refund(permits=True))
        self.store.reset(KEY)
        self.run(asyncio.sleep(0.2))
        self.settle()

    @rule()
    def windows_are_reset(self) -> None:
        self.store.reset(KEY)
        self.queues.wake()
        self.settle()

    @rule(ms=st.sampled_from([1, 30, 200, 500, 1_000, 5_000]))
    def time_passes(self, ms: int) -> None:
        self.run(asyncio.sleep(ms / 1_000))
        self.settle()

    @invariant()
    def everything_holds(self) -> None:
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
        assert self.queues.waiting == len(self.line) <= WAIT_MAX
        assert self.store.permits_held() == len(self.inside)
        assert all(one.task.done() for one in self.removed), "a request that makes room is refused at once"
        # A client that has left is skipped at its turn: until then, nobody behind it asks.
        if not any(one.is_gone for one in self.line) and self.line:
            assert not self.store.peek(self.checks(self.first().cost)).allowed, "there is room, and a request waits"


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@contextmanager
def a_line(units: int, permits: int) -> Iterator[Line]:
    line = Line()
    line.begin(units=units, permits=permits, is_fair=False)
    try:
        yield line
    finally:
        line.teardown()


def test_what_a_client_that_has_left_was_waiting_for_refuses_nobody() -> None:
    with a_line(units=3, permits=1) as line:
        for cost, wait_ms in ((2, 0), (2, 60_000), (1, 60_000), (1, 60_000), (1, 60_000)):
            line.arrive(tenant="a", cost=cost, wait_ms=wait_ms)
        line.line[0].is_gone = True  # it would have room for its two units in a second
        line.arrive(tenant="a", cost=1, wait_ms=50)
        line.everything_holds()
        assert len(line.line) == WAIT_MAX
        assert not any(one.is_gone for one in line.line)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_queue_behind_the_waiters_of_its_parent() -> None:
    with a_line(units=3, permits=1) as line:
        for _ in range(2):
            line.arrive(tenant="a", cost=1, wait_ms=60_000)
        child = fork()
        if not child:
            os._exit(line.queues.waiting + line.queues.is_queued(NAME))
        assert os.waitpid(child, 0)[1] == 0
        assert line.queues.waiting == 1


async def test_a_request_that_gives_up_behind_others_gets_the_wait_as_of_then() -> None:
    time = await use_virtual_time()
    store, queues = MemoryStore(clock=time.clock), Queues()
    checks = [(Bucket(NAME[0], parse_limits("1/2s")), KEY, 1)]

    async def ask() -> Decision:
        return store.hit(checks)

    async def wait(wait_us: int) -> Decision:
        refused = store.hit(checks)  # as if all had been asked before the first of them had its answer
        return await queues.wait(NAME, refused, ask, wait_us=wait_us, wait_max=16)

    store.hit(checks)
    *others, last = await asyncio.gather(*map(wait, (5_000_000, 5_000_000, 2_500_000)))
    assert [decision.allowed for decision in others] == [True, True]
    assert (last.allowed, last.retry_after_us) == (False, 1_490_000), "one was admitted after 2 s, and it left at 2.51"


@pytest.mark.parametrize("first", [0, 1])
def test_waiters_of_all_threads_and_kinds_of_loops_are_one_queue(first: int) -> None:
    store, queues, order = MemoryStore(clock=FakeClock()), Queues(), list[int]()
    checks = [(Bucket(NAME[0], [Concurrency(1)]), KEY, 1)]

    async def ask() -> Decision:
        return store.hit(checks)

    def leave(decision: Decision) -> None:
        store.refund(decision.begin_refund(permits=True))
        queues.refunded(checks)

    async def wait(number: int) -> None:
        decision = await queues.wait(NAME, None, ask, wait_us=60_000_000, wait_max=16)
        assert decision.allowed
        order.append(number)
        await anyio.sleep(0.001)
        leave(decision)

    inside = store.hit(checks)
    runs = [partial(anyio.run, wait, number, backend=("asyncio", "trio")[(first + number) % 2]) for number in range(5)]
    threads = [threading.Thread(target=run) for run in runs]
    for count, thread in enumerate(threads, start=1):
        thread.start()
        until(lambda: queues.waiting == count, "it waits")  # noqa: B023
    leave(inside)
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 2, 3, 4]
    assert store.permits_held() == queues.waiting == 0
