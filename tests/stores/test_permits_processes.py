"""Permits over real processes that are killed: never more are under way than there are, and they come back."""

import asyncio
import random
import time
from collections import deque
from multiprocessing import get_context
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.core import Bucket, Concurrency, Decision

from ..contract.player import settle
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis

pytestmark = [pytest.mark.all, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
AMOUNT = 3
CHECKS = ((Bucket("render", [Concurrency(AMOUNT)]), "ann", 1),)
FORK = get_context("fork")


def take_and_leave(url: str, taken: Any, left: Any, number: int, is_over: Any) -> None:
    """Take and hand back permits at random, and at the end those that are left.

    They are counted after one was taken and before it is handed back. So whoever looks first at what was taken, and
    then at what is handed back, never sees more under way than there are.
    """

    async def work() -> None:
        async with Limiter.from_url(url) as limiter:
            store, held = limiter.store, deque[Decision]()
            while held or not is_over.value:
                if held and (is_over.value or random.random() < 0.5):
                    left[number] += 1
                    assert await settle(store.refund(held.popleft().begin_refund())) is True
                elif (decision := await settle(store.hit(CHECKS))).allowed:
                    held.append(decision)
                    taken[number] += 1
                await asyncio.sleep(random.random() / 200)
            assert store.permits_held() == 0

    asyncio.run(work())


async def take_all(url: str) -> None:
    """Come back when all permits were free."""
    held = list[Decision]()
    async with asyncio.timeout(BOUND_S), Limiter.from_url(url) as limiter:
        while limiter.store.permits_held() != AMOUNT:
            held.append(await settle(limiter.store.hit(CHECKS)))
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS, pytest.param("cluster", marks=[needs_redis, pytest.mark.deep])])
@pytest.mark.parametrize("kills", [1, pytest.param(40, marks=pytest.mark.deep)])
def test_never_more_than_the_amount_is_under_way_while_workers_are_killed(
    url: str, kills: int, rng: random.Random
) -> None:
    url = f"{url}{'&' if '?' in url else '?'}permit_lease=2s"
    taken, left, is_over = FORK.RawArray("I", 64), FORK.RawArray("I", 64), FORK.RawValue("b")
    alive, most = dict[int, Any](), 0
    for number in range(3 + kills):
        alive[number] = FORK.Process(target=take_and_leave, args=(url, taken, left, number, is_over), daemon=True)
        alive[number].start()
        end_s = time.monotonic() + rng.uniform(0.2, 0.6)
        while time.monotonic() < end_s:
            most = max(most, sum(taken) - sum(left))
            assert most <= AMOUNT
        if number >= 3:
            killed = rng.choice([*alive])
            alive[killed].kill()
            alive.pop(killed).join()
            left[killed] = taken[killed]  # its permits come back later
    assert most == AMOUNT
    is_over.value = 1
    for process in alive.values():
        process.join(BOUND_S)
        assert process.exitcode == 0
    assert sum(taken) == sum(left)
    asyncio.run(take_all(url))
