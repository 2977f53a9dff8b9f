"""What is an outage of a store, and what is not: traffic at several rates on a fake clock."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import Limiter
from slidegate.core import Event
from slidegate.core.decision import Decision
from slidegate.testing import FakeClock

from ..remote_stores import SickStore
from ..virtual_time import VirtualTime

SECOND_US = 1_000_000
START_US = 10**12
OUTAGES = {"store_failed", "store_recovered"}
NAMED = "no answer within the deadline of 50 ms (Limiter(deadline=...))"


class Server(SickStore):
    """A store that answers by futures, each `took_s(number)` after its question; also those that nobody awaits."""

    def __init__(self, clock: FakeClock, took_s: Callable[[int], float]) -> None:
        super().__init__(clock)
        self._took_s = took_s
        self._late: list[Callable[[int], None]] = []

    def observe_late(self, took: Callable[[int], None]) -> None:
        self._late.append(took)

    def hit(self, checks: Any, subjects: Sequence[Any] = ()) -> asyncio.Future[Decision]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Decision] = loop.create_future()
        took_s = self._took_s(self.calls)
        self.calls += 1
        loop.call_later(took_s, self._answer, future, checks, int(took_s * SECOND_US))
        return future

    def _answer(self, future: asyncio.Future[Decision], checks: Any, took_us: int) -> None:
        if not future.done():
            future.set_result(self.inner.hit(checks))
        else:
            for took in self._late:
                took(took_us)


class Traffic:
    """Requests at a steady rate, to a store whose answers take a time that is given for each, in seconds."""

    def __init__(self, took_s: Callable[[int], float]) -> None:
        self.clock, self.events = FakeClock(START_US), list[tuple[int, Event]]()
        VirtualTime(self.clock)
        self.store = Server(self.clock, took_s)
        self.limiter = Limiter(self.store, on_error="allow", observers=[self])
        failover: Any = self.limiter.engine.failover
        failover._clock = self.clock

    def event(self, event: Event) -> None:
        self.events.append((self.clock(), event))

    def of(self, *kinds: str) -> list[tuple[int, Event]]:
        return [(at_us, event) for at_us, event in self.events if event.kind in kinds]

    async def run(self, rate: int, count: int) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(number / rate)
            assert await self.limiter.hit("ann", "1000000/hour")

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(one(number))


QUICK_S, LATE_S, NEVER_S = 0.002, 0.09, 10**6
RATES = (20, 200, 1_000)


@pytest.mark.parametrize("one_in", [1_000, 100, 20])
@pytest.mark.parametrize("rate", RATES)
@settings(max_examples=3)
@given(data=st.data())
def test_a_share_of_calls_that_are_late_is_no_outage(rate: int, one_in: int, data: st.DataObject) -> None:
    count = 2_000
    late = {first + data.draw(st.integers(0, one_in - 1)) for first in range(0, count, one_in)}

    async def play() -> None:
        traffic = Traffic(lambda number: LATE_S if number in late else QUICK_S)
        await traffic.run(rate, count)
        assert (traffic.of(*OUTAGES), traffic.limiter.failures) == ([], len(late))
        assert 1 <= len(traffic.of("store_late")) <= 1 + count / rate / 60

    asyncio.run(play())


@pytest.mark.parametrize("rate", RATES)
async def test_a_store_that_dies_is_reported_within_200_ms_and_one_that_pauses_for_100_ms_is_not(rate: int) -> None:
    pauses, dies = 3 * rate, 6 * rate

    def took_s(number: int) -> float:
        if number >= dies:
            return NEVER_S
        is_over_s = (pauses - number) / rate + 0.1
        return max(is_over_s, QUICK_S) if number >= pauses else QUICK_S

    traffic = Traffic(took_s)
    await traffic.run(rate, dies)
    assert traffic.of(*OUTAGES) == []
    died_us = traffic.clock()
    await traffic.run(rate, rate // 2)
    ((reported_us, failed),) = traffic.of("store_failed")
    assert failed.message.endswith(NAMED)
    assert reported_us - died_us <= 200_000


async def test_an_answer_to_a_request_that_was_cancelled_is_not_late() -> None:
    traffic = Traffic(lambda number: QUICK_S)
    hit = asyncio.create_task(traffic.limiter.hit("ann", "1000000/hour"))
    await asyncio.sleep(QUICK_S / 2)
    hit.cancel()
    await traffic.run(20, 2)
    assert traffic.of("store_late") == []


async def test_64_questions_that_one_late_answer_leaves_open_are_one_late_call() -> None:
    traffic = Traffic(lambda number: QUICK_S if number < 3 * 64 else LATE_S)
    for _ in range(5):  # the last two are late
        assert all(await asyncio.gather(*(traffic.limiter.hit("ann", "1000000/hour") for _ in range(64))))
    assert (traffic.limiter.failures, traffic.limiter.is_failing) == (2, False)


async def test_a_server_that_always_needs_80_ms_is_reported_with_the_time_that_it_needs() -> None:
    traffic = Traffic(lambda number: 0.08)
    await traffic.run(20, 100)
    assert traffic.limiter.is_failing
    ((_, late),) = traffic.of("store_late")
    assert late.message == f"1 of the last 1 calls (100.0%) got {NAMED}; the median answer took 80 ms"
    assert late.details == {"calls": 1, "late": 1, "median_us": 80_000}


async def test_late_calls_are_reported_once_a_minute_with_their_share_and_the_median_answer() -> None:
    traffic = Traffic(lambda number: LATE_S if number % 20 == 10 else 0.03)
    await traffic.run(20, 20 * 150)
    assert [(at_us - START_US) // SECOND_US for at_us, _ in traffic.events] == [0, 60, 120]
    late = traffic.events[1][1]
    assert late.details == {"calls": 1_000, "late": 50, "median_us": 30_000}
    assert late.message == f"50 of the last 1000 calls (5.0%) got {NAMED}; the median answer took 30 ms"
