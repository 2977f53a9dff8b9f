"""Workers amid random faults of servers and of the wire to them: what they are told is true, and they come back."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from slidegate import BanPolicy, Limiter, StoreError
from slidegate.core import Bucket, Reason, parse_limits
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_SENDERS

from ...questions import hit_all
from ...redis_servers import needs_redis
from .faults import PLACES, Place
from .stores import eventually, struck, ticks_until_served

pytestmark = needs_redis

BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""


class Crowd:
    """Requests and strikes at any worker, and what came of them.

    Each key has a cost of its own. What its window holds is a multiple of that, and of no other cost as long as
    (requests for a key) * (number of keys) stays below `STEP`.
    """

    KEYS = range(97)
    STEP = 200_003
    BUCKET = Bucket("asked", parse_limits("2000000000/hour"))
    POLICY = BanPolicy("1000000/hour", "1h", name="strikes")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.asked, self.passed = Counter[int](), Counter[int]()
        self.struck, self.strikes = Counter[int](), Counter[int]()

    async def ask(self, limiter: Limiter, number: int, cost: int = 1) -> int:
        """Make a request, check that the answer is its own, and return how many its window holds."""
        hit = self.rng.choice((limiter.store.hit, lambda checks: hit_all(limiter, checks)))
        self.asked[number] += cost
        decision = await hit([(self.BUCKET, f"asker:{number}", cost * (self.STEP + number))])
        if decision.reason is Reason.UNAVAILABLE:
            return 0
        count, rest = divmod(decision.readings[0][0], self.STEP + number)
        assert rest == 0, f"the answer to another key, not to {number}"
        assert cost <= count <= self.asked[number], f"{number} was charged for what was not asked"
        self.passed[number] += cost
        return count

    async def strike(self, limiter: Limiter, number: int) -> None:
        self.struck[number] += 1
        await limiter.store.bans.strike(self.POLICY, f"asker:{number}", 1, "")
        self.strikes[number] += 1

    def begin(self, limiter: Limiter, count: int, share: float, patience_s: float) -> list[asyncio.Task[object]]:
        """Begin requests and strikes, and give a share of them up, each after a random time."""
        loop, rng = asyncio.get_running_loop(), self.rng
        acts = rng.choices((self.ask, self.strike), (9, 1), k=count)
        tasks = [loop.create_task(act(limiter, rng.choice(self.KEYS))) for act in acts]
        for task in tasks:
            if rng.random() < share:
                loop.call_later(rng.random() * patience_s, task.cancel)
        return tasks

    async def charged(self, limiter: Limiter) -> Counter[int]:
        """Return how many requests for each key its window holds."""
        counts = await asyncio.gather(*(self.ask(limiter, number, 0) for number in self.KEYS))
        return Counter(dict(zip(self.KEYS, counts, strict=True)))


async def ended(tasks: list[asyncio.Task[object]]) -> None:
    """Wait for what has begun, and raise what is neither given up nor an error of the store."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, (asyncio.CancelledError, StoreError)):
            raise result


@asynccontextmanager
async def workers(place: Place, count: int, deadline: str) -> AsyncIterator[Sequence[Limiter]]:
    async with AsyncExitStack() as stack:
        limiters = [Limiter(RedisStore(place.url), deadline=deadline, on_error="deny") for _ in range(count)]
        for limiter in limiters:
            await stack.enter_async_context(limiter)
        yield limiters


async def rage(place: Place, rng: random.Random, moves: int) -> None:
    """Let everything happen between workers and servers for a while, and end with all well but some latency."""
    for _ in range(moves):
        proxy = rng.choice(place.proxies)
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
                place.server.command("SCRIPT", "FLUSH")
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        if rng.random() < 0.5:
            for other in place.proxies:
                other.thaw()
    for proxy in place.proxies:
        proxy.cut_no_more()
        proxy.thaw()
        proxy.delay_s = 0.001


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.all if kind != "server" else ()) for kind in PLACES]
)
@pytest.mark.parametrize(("rounds", "most"), [(3, NEVER_TICKS), pytest.param(60, BACK_TICKS, marks=pytest.mark.deep)])
async def test_amid_faults_answers_are_true_and_every_worker_is_back_after_the_last_one(
    kind: str, rounds: int, most: int, rng: random.Random
) -> None:
    crowd = Crowd(rng)
    async with PLACES[kind]() as place:
        for _ in range(rounds):
            async with workers(place, 6, "50ms") as limiters:
                raging = asyncio.create_task(rage(place, rng, 24))
                begun = list[asyncio.Task[object]]()
                while not raging.done():
                    begun += crowd.begin(rng.choice(limiters), 20, 0.5, 0.05)
                    await asyncio.sleep(0.005)
                await asyncio.gather(raging, ended(begun))
                late = await asyncio.gather(*(ticks_until_served(limiter, most) for limiter in limiters))
                assert -1 not in late, late
        async with workers(place, 1, "60s") as (well,):
            assert crowd.passed <= await crowd.charged(well) <= crowd.asked
            strikes = {number: await struck(well.store, crowd.POLICY, f"asker:{number}") for number in crowd.KEYS}
            assert crowd.strikes <= Counter(strikes) <= crowd.struck
    assert min(crowd.passed.total(), 10 * crowd.strikes.total()) > 20 * rounds, "there was hardly anything"


@pytest.mark.all
async def test_requests_given_up_on_a_slow_wire_are_refunded_and_hold_no_connection(rng: random.Random) -> None:
    crowd = Crowd(rng)
    async with PLACES["server"]() as place, workers(place, 1, "10s") as (limiter,):
        await crowd.ask(limiter, 0)
        place.proxy.delay_s = 0.05
        for _ in range(10):
            await ended(crowd.begin(limiter, 100, 1.0, 0.06))
        assert crowd.passed.total() < 1_000
        place.proxy.delay_s = 0.0
        for number in range(1_000):
            await crowd.ask(limiter, number % 97)

        async def only_what_was_answered_is_charged() -> bool:
            return await crowd.charged(limiter) == crowd.passed

        await eventually(only_what_was_answered_is_charged)
        assert place.proxy.accepted <= MAX_SENDERS
