"""Places over real processes that are killed and stopped: never more than there are, and they come back."""

import asyncio
import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.core import Bucket, Concurrency, Decision

from ..contract.player import settle
from ..redis_servers import AT_REDIS, needs_redis, until

pytestmark = [pytest.mark.all, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
AMOUNT = 3
CHECKS = ((Bucket("render", [Concurrency(AMOUNT)]), "ann", 1),)
FORK = get_context("fork")


class Worker:
    """A process that takes and hands back permits as it is told to, or at random while it is busy.

    It keeps the number of its requests under way on the board, from after a place is taken until before it is handed
    back. So the sum over all workers is never more than the permits that are taken.
    """

    def __init__(self, url: str, busy_permits: Any, index: int) -> None:
        self.busy_permits, self.index = busy_permits, index
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=serve, args=(url, busy_permits, index, theirs), daemon=True)
        self.process.start()

    def ask(self, order: str) -> Any:
        self.pipe.send(order)
        return self.pipe.recv()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.busy_permits[self.index] = 0  # its permits come back later


def serve(url: str, busy_permits: Any, index: int, pipe: "Connection[Any, Any]") -> None:
    async def obey() -> None:
        async with Limiter.from_url(url) as limiter:
            holder = Holder(limiter.store, busy_permits, index)
            while True:
                pipe.send(await getattr(holder, await asyncio.to_thread(pipe.recv))())

    asyncio.run(obey())


class Holder:
    """What a worker does; each method is an order."""

    def __init__(self, store: Any, busy_permits: Any, index: int) -> None:
        self.store, self.busy_permits, self.index = store, busy_permits, index
        self.permits: deque[Decision] = deque()

    async def take(self) -> bool:
        answer = self.store.hit(CHECKS)
        try:
            decision = await settle(answer)
        except asyncio.CancelledError:
            # As a limiter does: where the answer came in the very turn of the cancellation, nobody else knows of it.
            if isinstance(answer, asyncio.Future) and answer.done() and not answer.cancelled():
                self.note(answer.result())
            raise
        return self.note(decision)

    def note(self, decision: Decision) -> bool:
        if decision.allowed:
            self.permits.append(decision)
            self.busy_permits[self.index] += 1
        return decision.allowed

    async def leave(self) -> bool:
        self.busy_permits[self.index] -= 1
        return bool(await settle(self.store.refund(self.permits.popleft().take_back())))

    async def held(self) -> int:
        return int(self.store.permits_held())

    async def busy(self) -> bool:
        self.work = asyncio.create_task(self.take_and_leave())
        return True

    async def take_and_leave(self) -> None:
        while True:
            await (self.leave() if self.permits and random.random() < 0.5 else self.take())
            await asyncio.sleep(random.random() / 200)

    async def calm(self) -> list[bool]:
        self.work.cancel()
        await asyncio.wait([self.work])
        return [await self.leave() for _ in range(len(self.permits))]


class Crew:
    """Workers on one store, and the board on which they write what is under way."""

    def __init__(self, url: str) -> None:
        self.url, self.busy_permits, self.workers = url, FORK.RawArray("B", 256), list[Worker]()

    def hire(self) -> Worker:
        self.workers.append(Worker(self.url, self.busy_permits, len(self.workers)))
        return self.workers[-1]


@pytest.fixture(params=["lmdb", AT_REDIS, pytest.param("cluster", marks=[needs_redis, pytest.mark.deep])])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def crew(url: str) -> Iterator[Crew]:
    made = Crew(f"{url}{'&' if '?' in url else '?'}permit_lease=2s")
    yield made
    for worker in made.workers:
        worker.kill()


@pytest.mark.parametrize(
    ("rounds", "seed"), [(1, 1), *(pytest.param(40, seed, marks=pytest.mark.deep) for seed in (2, 3))]
)
def test_never_more_than_the_amount_is_under_way_while_workers_are_killed(crew: Crew, rounds: int, seed: int) -> None:
    chance, most = random.Random(seed), 0
    alive = [crew.hire() for _ in range(3)]
    assert all(worker.ask("busy") for worker in alive)
    for _ in range(rounds):
        end_s = time.monotonic() + chance.uniform(0.2, 0.6)
        while time.monotonic() < end_s:
            under_way = sum(crew.busy_permits)
            most = max(most, under_way)
            assert under_way <= AMOUNT
        alive.pop(chance.randrange(len(alive))).kill()
        alive.append(crew.hire())
        assert alive[-1].ask("busy")
    assert most == AMOUNT
    for worker in alive:
        assert False not in worker.ask("calm")
        assert worker.ask("held") == 0
    assert sum(crew.busy_permits) == 0
    last = crew.hire()
    until(lambda: last.ask("take") and last.ask("held") == AMOUNT, "the permits of those who were killed")


def test_a_stopped_worker_counts_what_it_has_again_when_it_continues(crew: Crew) -> None:
    first, second = crew.hire(), crew.hire()
    assert [first.ask("take") for _ in range(AMOUNT)] == [True] * AMOUNT
    first.signal(signal.SIGSTOP)
    try:
        until(lambda: second.ask("take"), "a permit of the stopped worker")
    finally:
        first.signal(signal.SIGCONT)
    until(lambda: not second.ask("take"), "the renewal")
    assert first.ask("held") == AMOUNT
    while second.ask("held"):
        assert second.ask("leave")
    assert not second.ask("take"), "the first has all of them"
    assert [first.ask("leave") for _ in range(AMOUNT)] == [True] * AMOUNT
    assert second.ask("take")
    assert [first.ask("held"), second.ask("held")] == [0, 1]
