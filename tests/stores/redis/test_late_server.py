"""Redis comes later than the application, which starts, decides by itself, and makes the keys of everybody."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule, StoreError, header
from slidegate.core import StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...asgi import Answer, call, hello
from ...fault_proxy import FaultProxy
from ...redis_servers import BOUND_S, RedisServer, free_port, needs_redis
from .faults import Place

OTHERS = {"X-API-Key": "k-2"}

pytestmark = pytest.mark.usefixtures("impatient")

DEADLINE_S = 0.25
LONG = "a long key of somebody's own " * 10
LIMITS = "3/hour"
HEADERS = {"X-API-Key": "k-1"}


class Weather:
    """Redis comes and goes, as it is drawn. At first it is away."""

    def __init__(self, proxy: FaultProxy, draw: random.Random) -> None:
        self._proxy, self._draw = proxy, draw
        self._there, self._frozen = False, False

    async def change(self) -> None:
        what = self._draw.random()
        if what < 0.03 and not self._frozen:
            await (self._proxy.refuse() if self._there else self._proxy.accept())
            self._there = not self._there
        elif what < 0.05 and self._there:
            (self._proxy.thaw if self._frozen else self._proxy.freeze)()
            self._frozen = not self._frozen
        elif what < 0.08:
            await asyncio.sleep(self._draw.uniform(0, 0.1))  # the breaker waits that long

    async def clear_up(self) -> None:
        self._proxy.thaw()
        if not self._there:
            await self._proxy.accept()


@pytest.fixture
def hung() -> Iterator[int]:
    """A port where connections are taken, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


class Worker:
    """A process of its own, as far as Redis can tell: a limiter, and a middleware on it."""

    def __init__(self, url: str, *, on_error: Any = "local") -> None:
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = Limiter.from_url(
            f"{url}?timeout={DEADLINE_S * 1000:.0f}ms", deadline=DEADLINE_S, on_error=on_error, observers=[self.heard]
        )
        rule = Rule("*", LIMITS, key=header("X-API-Key"), name="rule")
        self.middleware = RateLimitMiddleware(hello, limiter=self.limiter, rules=[rule])

    async def answer(self, headers: dict[str, str] = HEADERS, path: str = "/") -> Answer:
        async with asyncio.timeout(BOUND_S + BOUND_S):
            return await call(self.middleware, path, headers=headers)

    async def statuses(self, count: int, headers: dict[str, str] = HEADERS) -> list[int]:
        return [(await self.answer(headers)).status for _ in range(count)]

    async def recovered(self) -> None:
        """Come back when Redis decides again, and from now on in whatever time a busy machine takes."""
        async with asyncio.timeout(BOUND_S):
            while self.heard.kinds[-1:] == ["store_failed"]:
                await self.limiter.hit("probe", "1000000/minute")
                await asyncio.sleep(0.02)
        store, failover = self.limiter.store, self.limiter.engine.failover
        assert isinstance(store, RedisStore)
        failover._deadline_s = BOUND_S


@pytest.mark.parametrize("address", ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/mymaster/0"])
@pytest.mark.parametrize("where", ["closed", "hung"])
@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 200, 200, 429]), ("allow", [200] * 4), ("deny", [503] * 4)]
)
async def test_a_limiter_is_made_at_once_and_its_first_requests_are_answered(
    where: str, on_error: str, expected: list[int], address: str, hung: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(address.format(f"127.0.0.1:{hung if where == 'hung' else free_port()}"), on_error=on_error)
    assert worker.heard.kinds == []
    assert await worker.statuses(4) == expected
    assert [kind for kind in worker.heard.kinds if kind != "exceeded"] == ["store_failed"]
    await worker.limiter.close()
    assert {record.name for record in caplog.records} == {"slidegate"}, "asyncio would log a task that failed"


def test_to_make_a_limiter_asks_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        Worker(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_commands_say_that_the_store_is_not_there() -> None:
    worker = Worker(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnavailable):
        [line async for line in worker.limiter.export_bans()]
    for command in (worker.limiter.ban("ann", "1h"), worker.limiter.import_bans([]), worker.limiter.reset(LONG)):
        with pytest.raises(StoreError):
            await command
    await worker.limiter.close()


@needs_redis
@pytest.mark.all
async def test_a_server_that_is_started_late_is_found() -> None:
    server = RedisServer()
    workers = [Worker(server.url) for _ in range(3)]
    try:
        for worker in workers:
            assert await worker.statuses(3) == [200] * 3
        server.start()
        for worker in workers:
            await worker.recovered()
            assert await worker.statuses(1) == [200], "the server decides alone"
        assert server.command("HLEN", "{slidegate}:bans") >= 1
        for worker in workers:
            await worker.limiter.close()
    finally:
        server.close()


@needs_redis
@pytest.mark.all
@pytest.mark.parametrize(
    ("steps", "number"), [(100, 0), *(pytest.param(400, number, marks=pytest.mark.deep) for number in range(10))]
)
async def test_nobody_gets_more_than_a_window_of_each_while_redis_comes_and_goes(
    place: Place, steps: int, number: int, rng: random.Random
) -> None:
    """Each worker lets each client through a window of its own, and the server a window of all workers."""
    weather = Weather(place.proxy, rng)
    await place.proxy.refuse()
    workers = [Worker(place.url) for _ in range(6)]
    clients = [{"X-API-Key": f"c-{number}"} for number in range(3)]
    for worker in workers:
        # From here on everything is counted here as well; what Redis alone counts before it fails is a window more.
        assert await worker.statuses(1, OTHERS) == [200]
    passed: Counter[tuple[int, int]] = Counter()
    for _ in range(steps):
        await weather.change()
        who, client = rng.randrange(len(workers)), rng.randrange(len(clients))
        passed[who, client] += (await workers[who].answer(clients[client])).status == 200
    await weather.clear_up()
    for worker in workers:
        await worker.recovered()
    for who, worker in enumerate(workers):
        for client, headers in enumerate(clients):
            passed[who, client] += (await worker.statuses(4, headers)).count(200)
    for client in range(len(clients)):
        assert sum(passed[who, client] for who in range(len(workers))) <= 3 * (len(workers) + 1)
    for worker in workers:
        await worker.limiter.close()
