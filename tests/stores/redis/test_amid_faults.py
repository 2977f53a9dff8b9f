"""Workers amid random faults of servers and of the wire to them: what they are told is true, and they come back."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Final

import pytest

from slidegate import BanPolicy, Limiter, StoreError, parse_limits
from slidegate.core import Bucket, Reason
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_SENDERS

from ...contract.player import settle
from ...questions import hit_all
from ...redis_servers import needs_redis
from .faults import DEPLOYMENTS, Deployment
from .stores import eventually, struck, ticks_until_served

pytestmark = needs_redis

NUMBERS: Final = count(1_001)
BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""


class Load:
    """Requests, and a strike for nine of them, each with a key and a cost of its own: its number.

    Attributes:
        answered: Whether each was answered, by its number.
    """

    BUCKET = Bucket("load", parse_limits("1000000000/hour"))
    POLICY = BanPolicy("1000/hour", "1h", name="strikes")

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.answered = rng, dict[int, bool]()

    async def act(self, limiter: Limiter) -> None:
        """Make a request or a strike, and check that the answer is its own."""
        number = next(NUMBERS)
        self.answered[number] = False
        if number % 10 == 0:
            await limiter.store.bans.strike(self.POLICY, f"{number}", 1, "")
        else:
            hit = self.rng.choice((limiter.store.hit, partial(hit_all, limiter)))
            decision = await hit([(self.BUCKET, f"{number}", number)])
            if decision.reason is Reason.UNAVAILABLE:
                return
            assert decision.readings[0][0] == number, "that is the answer to another one, or it was charged twice"
        self.answered[number] = True

    def begin(self, limiter: Limiter, count: int, share: float, patience_s: float) -> list[asyncio.Task[None]]:
        """Let some act at the same time, of which a share gives up, each after a random time."""
        tasks = [asyncio.create_task(self.act(limiter)) for _ in range(count)]
        for task in tasks:
            if self.rng.random() < share:
                asyncio.get_running_loop().call_later(self.rng.random() * patience_s, task.cancel)
        return tasks

    async def counted(self, store: RedisStore) -> dict[int, float]:
        """Return how often each stands in Redis."""

        async def times(number: int) -> float:
            if number % 10 == 0:
                return await struck(store, self.POLICY, f"{number}")
            return (await settle(store.peek([(self.BUCKET, f"{number}", 0)]))).readings[0][0] / number

        return dict(zip(self.answered, await asyncio.gather(*map(times, self.answered)), strict=True))


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for what has begun, and raise what is neither given up nor an error of the store."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, (asyncio.CancelledError, StoreError)):
            raise result


@asynccontextmanager
async def workers(deployment: Deployment, count: int, deadline: str) -> AsyncIterator[Sequence[Limiter]]:
    async with AsyncExitStack() as stack:
        limiters = [Limiter(RedisStore(deployment.url), deadline=deadline, on_error="deny") for _ in range(count)]
        for limiter in limiters:
            await stack.enter_async_context(limiter)
        yield limiters


async def rage(deployment: Deployment, rng: random.Random, moves: int) -> None:
    """Let everything happen between workers and servers for a while, and end with all well but some latency."""
    for _ in range(moves):
        proxy = rng.choice(deployment.proxies)
        proxy.delay_s = rng.uniform(0.001, 0.012)
        match rng.randrange(8):
            case 0:
                proxy.drop()
            case 1:
                proxy.cut_after(rng.randrange(4_000))
            case 2:
                proxy.freeze()
            case 3:
                await proxy.refuse()
                await proxy.accept()
            case 4:
                deployment.server.command("SCRIPT", "FLUSH")
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        if rng.random() < 0.5:
            for other in deployment.proxies:
                other.thaw()
    for proxy in deployment.proxies:
        proxy.cut_no_more()
        proxy.thaw()
        proxy.delay_s = 0.001


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.all if kind != "server" else ()) for kind in DEPLOYMENTS]
)
@pytest.mark.parametrize(("rounds", "most"), [(3, NEVER_TICKS), pytest.param(60, BACK_TICKS, marks=pytest.mark.deep)])
async def test_amid_faults_answers_are_true_and_every_worker_is_back_after_the_last_one(
    kind: str, rounds: int, most: int, rng: random.Random
) -> None:
    async with DEPLOYMENTS[kind]() as deployment:
        for _ in range(rounds):
            load, begun = Load(rng), list[asyncio.Task[None]]()
            async with workers(deployment, 6, "50ms") as limiters:
                raging = asyncio.create_task(rage(deployment, rng, 24))
                while not raging.done():
                    begun += load.begin(rng.choice(limiters), 20, 0.5, 0.05)
                    await asyncio.sleep(0.005)
                await asyncio.gather(raging, ended(begun))
                late = await asyncio.gather(*(ticks_until_served(limiter, most) for limiter in limiters))
                assert -1 not in late, late
            async with workers(deployment, 1, "60s") as (well,):
                counted = await load.counted(well.store)
            odd = {number: times for number, times in counted.items() if times not in (load.answered[number], 1)}
            assert odd == {}, "a request that was not answered is charged once or not at all, others once"
            assert any(load.answered.values())


@pytest.mark.all
async def test_requests_given_up_on_a_slow_wire_are_refunded_and_hold_no_connection(rng: random.Random) -> None:
    load = Load(rng)
    async with DEPLOYMENTS["server"]() as deployment, workers(deployment, 1, "10s") as (limiter,):
        await load.act(limiter)
        deployment.proxy.delay_s = 0.05
        for _ in range(10):
            await ended(load.begin(limiter, 100, 1.0, 0.06))
        assert not all(load.answered.values())
        deployment.proxy.delay_s = 0.0
        for _ in range(1_000):
            await load.act(limiter)

        async def only_requests_that_were_answered_are_charged() -> bool:
            counted = await load.counted(limiter.store)
            return all(times == load.answered[number] for number, times in counted.items() if number % 10)

        await eventually(only_requests_that_were_answered_are_charged)
        assert deployment.proxy.accepted <= MAX_SENDERS
