"""Bans in Redis as requests meet them: they are decided by what stands there, whatever a worker holds."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter
from slidegate.core import Reason
from slidegate.core.bans.rows import to_rows
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.bans import CHUNK
from slidegate.testing import FakeClock, RecordingObserver

from ...redis_servers import RedisServer, needs_redis
from .faults import Deployment
from .stores import PLENTY_S, address, hit, store_at, workers_at

pytestmark = needs_redis
NOW_US = 1_900_000_000_000_000
PLENTY = "1000000/minute"
AT_ONCE = BanPolicy("1/hour", "1h", name="p")


async def turns_of(work: Awaitable[object]) -> int:
    """Return how many turns an event loop takes while some work is done: in each of them others go on."""
    turns, done = 0, asyncio.ensure_future(work)
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    await done
    return turns


async def test_requests_are_decided_while_bans_change_with_each(deployment: Deployment) -> None:
    async with store_at(deployment.server) as one, store_at(deployment, prefix=one._prefix) as slow:
        deployment.proxy.delay_s = 0.003

        async def change() -> None:
            for number in itertools.count():
                await one.bans.ban(f"198.51.100.{number % 250}", 60_000_000, "", "ann")

        changing = [asyncio.create_task(change()) for _ in range(4)]
        async with asyncio.timeout(PLENTY_S):
            for _ in range(100):
                hits = (hit(slow, f"user:{n}", PLENTY, subjects=[address("192.0.2.7")]) for n in range(5))
                assert {answer.reason for answer in await asyncio.gather(*hits)} == {Reason.OK}
        assert not any(task.done() for task in changing)
        for task in changing:
            task.cancel()


@pytest.mark.parametrize("step_s", [-1, -3_600])
async def test_where_the_clock_of_the_server_is_set_back_a_ban_ends_later_and_comes_back_to_nobody(
    step_s: int, server: RedisServer
) -> None:
    clock = FakeClock(NOW_US)
    async with workers_at(server, 2, clock=clock) as stores:

        async def reasons() -> set[Reason]:
            return {(await hit(store, "user:eve", PLENTY, subjects=["user:eve"])).reason for store in stores}

        await stores[0].bans.ban("user:eve", 6_000_000, "", "ann")
        for _ in range(5):
            clock.advance("1s")
            assert await reasons() == {Reason.BANNED}
        clock.advance(us=step_s * 1_000_000)
        assert await reasons() == {Reason.BANNED}
        clock.set(NOW_US + 5_999_999)
        assert await reasons() == {Reason.BANNED}
        clock.advance(us=1)
        assert await reasons() == {Reason.OK}
        clock.advance(us=-8_000_000)
        assert await reasons() == {Reason.OK}


async def test_many_bans_are_read_in_steps_between_which_others_go_on(server: RedisServer) -> None:
    many = 4_000
    async with workers_at(server, 2) as (one, other):
        for first in range(0, many, 500):
            some = [f"2001:db8:{n:x}::/64" for n in range(first, first + 500)]
            await asyncio.gather(*(one.bans.ban(key, 3_600_000_000, "", "ann") for key in some))
        limiter = Limiter(other)

        async def drain(found: AsyncIterator[object]) -> None:
            assert len([each async for each in found]) >= many

        assert await turns_of(other.bans.active()) >= many // CHUNK
        for work in (limiter.export_bans(), limiter.bans()):
            assert await turns_of(drain(work)) >= 2 * many // CHUNK
        rows = [*to_rows(await other.bans.active())]
        assert await turns_of(one.bans.load(rows)) >= many // CHUNK


def paused(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have a store wait for an event when it has found the strikes of a key full, before it bans."""
    goes_on, ban_next = asyncio.Event(), store.bans._ban_next

    async def later(*hits: Any) -> Any:
        await goes_on.wait()
        return await ban_next(*hits)

    monkeypatch.setattr(store.bans, "_ban_next", later)
    return goes_on


async def test_a_ban_by_hand_that_comes_before_that_of_a_policy_stays(
    workers: list[RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, slow = workers
    goes_on = paused(slow, monkeypatch)
    struck = asyncio.ensure_future(slow.bans.strike(AT_ONCE, "user:eve", 1, ""))
    await slow.bans.find(("user:eve",))
    by_hand = await one.bans.ban("user:eve", None, "", "ann")
    goes_on.set()
    assert await struck is None
    assert await one.bans.active() == [by_hand]


@pytest.mark.parametrize("between", ["nothing", "an unban", "the end of the ban and a strike"])
@pytest.mark.parametrize("shadow", [False, True])
async def test_of_two_workers_that_find_the_strikes_full_at_once_one_bans(
    between: str, shadow: bool, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has happened since: the slower one finds the strikes gone, or another level."""
    clock, policy = FakeClock(NOW_US), BanPolicy("3/hour", "10m", factor=2, name="p", shadow=shadow)
    async with workers_at(server, 2, clock=clock) as (fast, slow):
        observer = RecordingObserver()
        for store in (fast, slow):
            store.observe(observer)
        goes_on = paused(slow, monkeypatch)
        await fast.bans.strike(policy, "user:eve", 2, "")
        struck = asyncio.ensure_future(slow.bans.strike(policy, "user:eve", 1, ""))
        await slow.bans.find(("user:eve",))
        made = await fast.bans.strike(policy, "user:eve", 1, "")
        assert (made is None) is shadow
        if between == "an unban":
            assert await fast.bans.unban("user:eve", "ann")
        elif between != "nothing":
            clock.advance("10m")
            assert await fast.bans.strike(policy, "user:eve", 1, "") is None
        goes_on.set()
        assert await struck is None
        assert [kind for kind in observer.kinds if kind.endswith("banned")].count(f"{'shadow_' * shadow}banned") == 1
        assert len(await fast.bans.active()) == (between == "nothing" and not shadow)
