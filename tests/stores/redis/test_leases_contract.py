"""The contract of stores with leases: what differs, and that nothing else does."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from slidegate import Decision, MemoryStore
from slidegate.stores.redis import RedisStore, unit_leases
from slidegate.testing import FakeClock

from ...contract import StoreContract
from ...contract.player import settle
from ...contract.programs import YEAR_2100_US
from ...contract.store_contract import bucket
from ...redis_servers import RedisServer, needs_redis
from .stores import PLENTY, end_answers_with_steps_back, eventually, fresh_prefix, workers_at
from .test_leases import leased, left

pytestmark = needs_redis


def returning(name: str) -> Callable[..., Any]:
    """Return a method of `Returning`; a hit is the same question if its checks are."""

    def ask(self: "Returning", *given: Any) -> Any:
        self.return_unless((name, *given[0]) if name == "hit" else name)
        return getattr(RedisStore, name)(self, *given)

    return ask


class Returning(RedisStore):
    """A store that refunds what is left of its leases, unless the same question is asked again."""

    last: Any = None

    def return_unless(self, asked: Any) -> None:
        if asked != self.last and not self.closed:
            self.parts.leases.refund_all(self.batcher().refund_in_background)
        self.last = asked

    hit, peek, charge, refund, inspect = map(  # type: ignore[assignment]
        returning, ("hit", "peek", "charge", "refund", "inspect")
    )


class TestLeased(StoreContract):
    """A store that charges units ahead from the second time on that a question is asked.

    What differs from the reference is that others find units taken that are not spent; see the page. So here a question
    finds those of other questions refunded.
    """

    repeats = True

    @pytest.fixture(autouse=True)
    def _at(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        monkeypatch.setattr(unit_leases, "LEAST_AHEAD", 0)

    def make_store(self, clock: FakeClock) -> RedisStore:
        store = Returning(self.server.url, prefix=fresh_prefix(), timeout=PLENTY, clock=clock, leases=True)
        end_answers_with_steps_back(store)
        return store


LIMITED: Final = ((bucket("3000/10s"), "ann", 1),)
LONG: Final = ((bucket("3000/10m", "long"), "ann", 1),)
WIDE: Final = ((bucket("6000/minute @10", "wide"), "ann", 1),)
PAGE: Final = Path(__file__).resolve().parents[3] / "docs/reference/api.md"


class Two:
    def __init__(self, one: RedisStore, other: RedisStore) -> None:
        self.one, self.other = one, other

    async def lease(self, checks: Any = WIDE) -> int:
        """Have the one lease units, whose slice does not end within two seconds; return how many."""
        slice_s = checks[0][0].limits[0].slice_us / 1_000_000
        await eventually(lambda: time.time() % slice_s < slice_s - 2)
        await leased(self.one, checks)
        return left(self.one)

    async def is_spent(self, checks: Any = WIDE) -> bool:
        answer = self.one.hit(checks)
        return isinstance(answer, Decision) and answer.allowed

    async def fill(self, checks: Any = WIDE) -> Decision:
        decisions = await asyncio.gather(*(settle(self.other.hit(checks)) for _ in range(400)))  # in one call
        return decisions[-1]


async def remaining(two: Two) -> None:
    ahead = await two.lease()
    own, others = await settle(two.one.hit(WIDE)), await settle(two.other.peek(WIDE))
    assert others.remaining == own.remaining - ahead


async def refused_meanwhile(two: Two) -> None:
    await two.lease(SMALL)
    assert not (await two.fill(SMALL)).allowed
    assert await two.is_spent(SMALL)


async def retry_after(two: Two) -> None:
    ahead = await two.lease(SMALL)
    refused = await two.fill(SMALL)
    two.one.parts.leases.refund_all(two.one.batcher().refund_in_background)
    await two.one.batcher().server_us()
    two.other.parts.changes.note()  # a second later
    admitted = [(await settle(two.other.hit(SMALL))).allowed for _ in range(ahead + 1)]
    assert admitted == [True] * ahead + [False]
    assert (refused.retry_after_us or 0) > 1_000_000


async def changes_of_others(two: Two) -> None:
    await two.lease()
    await two.other.bans.ban("ann", None, "", "ann")
    assert await two.is_spent()


async def lowered(two: Two) -> None:
    """The window has the units of a lease by the end of their slice, which an exact limit takes for now."""
    assert await two.lease(LONG)
    lower = bucket("3000/10m", "long")
    lower.limits[0].become(64)
    await two.fill(((lower, "ann", 1),))
    assert await two.is_spent(LONG), "besides what the lowered amount has"


async def forgotten(two: Two, forget: Callable[[RedisStore], Awaitable[object]]) -> None:
    await two.lease(SMALL)
    assert await forget(two.other)
    await two.fill(SMALL)
    assert await two.is_spent(SMALL), "besides the whole amount"


async def dead_worker(two: Two) -> None:
    ahead = await two.lease()
    spent = (await settle(two.one.hit(WIDE))).readings[0][0]
    two.one.parts.changes.note_loss()  # as when it is killed, or its call fails
    await two.one.close()
    assert (await settle(two.other.hit(WIDE))).readings[0][0] == spent + ahead


SMALL: Final = ((bucket("200/minute @10", "small"), "ann", 1),)
DIFFERENCES: Final[dict[str, Callable[[Two], Awaitable[None]]]] = {
    "you read `remaining`, the field `RateLimit`, `peek` or `inspect`": remaining,
    "a request comes near the limit": refused_meanwhile,
    "a request is refused": retry_after,
    "another worker bans, unbans, refunds or changes an amount": changes_of_others,
    "an amount is lowered to 64 or fewer": lowered,
    "another worker resets a key": partial(forgotten, forget=lambda store: store.reset("ann")),
    # As after FLUSHALL, which other tests would see.
    "Redis loses its data, or a failover loses the last writes": partial(
        forgotten, forget=lambda store: store.reset_all()
    ),
    "a worker is killed, or its call fails": dead_worker,
}
"""What differs from a store without leases: a row of the page each."""
OTHERS: Final = (
    "a worker is stopped, and goes on",
    "the machine of a worker is paused",
    "the server's clock steps forward",
)
"""Rows that tests of their own show: in `test_leases` and in `test_storm`."""


def test_the_page_lists_what_differs() -> None:
    section = PAGE.read_text("utf-8").split("\n### Leases of a Redis store\n")[1].split("\n#")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert rows[1:] == [*DIFFERENCES, *OTHERS]


@pytest.mark.parametrize("name", DIFFERENCES)
async def test_what_differs(server: RedisServer, name: str) -> None:
    async with workers_at(server, 2, leases=True) as (one, other):
        await DIFFERENCES[name](Two(one, other))


MANY: Final = 9_000
RUNS: Final = 10
"""A run has few incidents, each up to a second in which a busy worker repeats a refusal: one run may have over 1 %."""


@pytest.mark.all
@pytest.mark.parametrize("load", [0.95, 1.5])
@pytest.mark.parametrize("workers", [2, 8, 32])
async def test_leases_refuse_few_requests(server: RedisServer, rng: random.Random, workers: int, load: float) -> None:
    """Workers of different weights, in bursts; a store in memory counts what is spent, and would have admitted them."""
    runs = [await run_of(server, rng, workers, load) for _ in range(RUNS)]
    needless, asked_nobody = (sum(each) / RUNS / MANY for each in zip(*runs, strict=True))
    print(f"{workers} workers, load {load}: {needless:.2%} needless, {asked_nobody:.0%} asked nobody")  # noqa: T201
    assert needless <= 0.01


async def run_of(server: RedisServer, rng: random.Random, workers: int, load: float) -> tuple[int, int]:
    """Return how many requests were refused needlessly, and how many were admitted without asking Redis."""
    clock = FakeClock(YEAR_2100_US)
    memory, needless, asked_nobody = MemoryStore(clock=clock), 0, 0
    weights = [1 / place for place in range(1, workers + 1)]
    async with workers_at(server, workers, leases=True, clock=clock) as stores:
        for number in range(MANY):
            rate = 300 * load * (2 if number // 600 % 4 == 0 else 2 / 3)
            clock.advance(us=int(rng.expovariate(rate) * 1_000_000))
            for each in stores:
                for lease in [*each.parts.leases.by_checks.values()]:
                    # At the latest: the timer of the event loop, which goes by another clock.
                    if clock.now_us >= lease.until_us + 500_000:
                        each.parts.leases.refund_rest(lease, each.batcher().refund_in_background)
            (store,) = rng.choices(stores, weights)
            answer = store.hit(LIMITED)
            decision = await settle(answer)
            asked_nobody += decision.allowed and isinstance(answer, Decision)
            if decision.allowed:
                await settle(memory.charge(LIMITED))
            else:
                needless += (await settle(memory.peek(LIMITED))).allowed
    return needless, asked_nobody
