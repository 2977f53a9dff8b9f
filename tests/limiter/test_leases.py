"""Leases: the bound at the last moment, fewer questions, and nothing lost or spent twice on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate.core import Limit, parse_limits
from slidegate.core.decision import Bucket, Decision, Reason
from slidegate.core.errors import StoreUnavailable
from slidegate.core.protocols import Store
from slidegate.limiter import Limiter
from slidegate.limiter.leases import lease_pool as shares_module
from slidegate.limiter.leases.lease import Lease, Leased
from slidegate.limiter.leases.lease_pool import Share
from slidegate.limiter.leases.leasing import Leases
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock

from ..redis_servers import RedisServer, needs_redis
from .remote_stores import RemoteStore

WINDOW_US = 1_000_000
START_US = 1_000_000_000_000
AHEAD_US = 7_000_000
SLOW_PPM = 990
LIMITS = "40/1s @4"
WIDE = "1000000/10s @10"


class SharedStore(RemoteStore):
    """A store elsewhere, in the same process: it takes time, and loses answers as it is told."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.bans = self.inner.bans
        self.before_us = self.after_us = 0
        self.loses = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False

    async def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        assert not self.closed
        self.clock.advance(us=self.before_us)
        await asyncio.sleep(0)
        await self.gate.wait()
        answer = question(*arguments)
        await asyncio.sleep(0)
        self.clock.advance(us=self.after_us)
        if self.loses:
            raise StoreUnavailable("the answer is lost")
        return answer

    def close(self) -> None:
        self.closed = True

    def spent(self, bucket: Bucket) -> int:
        """What the store counts now."""
        return bucket.limits[0].amount - (self.inner.peek(((bucket, "ann", 0),)).remaining or 0)


def local_us(number: int, now_us: int) -> int:
    """The clock of a worker: each starts elsewhere, and all but the first run as slowly as a clock may."""
    return now_us + AHEAD_US * number - (now_us - START_US) * SLOW_PPM * min(number, 1) // 1_000_000


def worker(store: Store, clock: FakeClock, number: int) -> Limiter:
    """A limiter whose leases and deadlines go by a clock of their own."""
    limiter = Limiter(store, deadline="10s", on_error="deny")
    assert limiter.internals.failsafe is not None
    limiter.internals.failsafe._clock = clock
    limiter.internals.leases = Leases(store, limiter.internals.failsafe, lambda: local_us(number, clock()))
    limiter.internals.decide = limiter.internals.leases.hit
    return limiter


def leases_of(limiter: Limiter) -> Leases:
    assert limiter.internals.leases is not None
    return limiter.internals.leases


async def turns() -> None:
    """Let others go on as far as they can."""
    for _ in range(30):
        await asyncio.sleep(0)


def leased(limits: str = LIMITS, lease: int = 20, rule: str = "hot") -> Bucket:
    return Bucket(rule, parse_limits(limits), lease=lease)


class Scene:
    """Some workers on a store."""

    def __init__(self, workers: int = 1) -> None:
        self.clock = FakeClock(START_US)
        self.store = SharedStore(self.clock)
        self.workers = [worker(self.store, self.clock, n) for n in range(workers)]

    @property
    def limiter(self) -> Limiter:
        return self.workers[0]

    def share(self, bucket: Bucket, at: int = 0) -> Share:
        share = leases_of(self.workers[at])._shares.find(bucket, "ann")
        assert share is not None
        return share

    def lease(self, bucket: Bucket) -> Lease:
        lease = self.share(bucket).lease
        assert lease is not None
        return lease

    async def hit(self, *buckets: Bucket, at: int = 0, cost: int = 1, guarded: Any = ()) -> Decision:
        async with asyncio.timeout(20):
            return await self.workers[at].hit_all([(bucket, "ann", cost) for bucket in buckets], guarded)

    async def warm(self, bucket: Bucket) -> None:
        """Take a lease: the first request asks for itself."""
        assert await self.hit(bucket, cost=5)
        assert isinstance(await self.hit(bucket, cost=5), Leased)

    def wait_until_the_last_moment(self, lease: Lease, at: int) -> None:
        """Move on to the last microsecond in which a worker spends a lease."""
        moment_us = self.clock()
        step_us = 1 << 24
        while step_us:
            if lease.lasts(local_us(at, moment_us + step_us)):
                moment_us += step_us
            else:
                step_us //= 2
        self.clock.set(moment_us)

    async def settle(self) -> None:
        for limiter in self.workers:
            await leases_of(limiter)._shares._settle()


# -- the bound -------------------------------------------------------------------------------------------------------


class Ledger:
    """What was admitted, when."""

    def __init__(self) -> None:
        self.admitted: dict[Decision, tuple[int, int]] = {}

    def note(self, decision: Decision, at_us: int, cost: int) -> None:
        if decision.allowed:
            # What the store decided was admitted when it decided; what was answered here, when it was answered.
            self.admitted[decision] = (at_us if isinstance(decision, Leased) else decision.now_us, cost)

    def most(self, window_us: int = WINDOW_US) -> int:
        """The most that was admitted in any window."""
        rows = sorted(self.admitted.values())
        return max(
            (sum(cost for at_us, cost in rows if from_us <= at_us < from_us + window_us) for from_us, _ in rows),
            default=0,
        )


DELAYS = st.sampled_from([0, 0, 1, 3_000, 260_000, 510_000])
WHO = st.integers(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("hits"), WHO, st.integers(1, 5)),
    st.tuples(st.just("slow"), WHO, st.sampled_from([1, 2]), DELAYS, DELAYS, st.booleans(), st.booleans()),
    st.tuples(st.just("flood"), WHO),
    st.tuples(st.just("edge"), st.sampled_from([-1, 0])),
    st.tuples(st.just("last"), WHO),
    st.tuples(st.just("others"), st.integers(0, 200)),
)


class Play:
    """Workers that do what they are told, and what they let through."""

    def __init__(self, limits: str) -> None:
        self.scene = Scene(2)
        self.ledger = Ledger()
        self.bucket, self.other = leased(limits, 30), Bucket("other", parse_limits("60/1s @4"))

    async def hits(self, at: int, requests: int) -> None:
        for _ in range(requests):
            self.ledger.note(await self.scene.hit(self.bucket, at=at), self.scene.clock(), 1)

    async def slow(self, at: int, cost: int, before_us: int, after_us: int, loses: bool, mixed: bool) -> None:
        store, buckets = self.scene.store, [self.bucket, self.other] if mixed else [self.bucket]
        store.before_us, store.after_us, store.loses = before_us, after_us, loses
        self.ledger.note(await self.scene.hit(*buckets, at=at, cost=cost), self.scene.clock(), cost)
        store.before_us, store.after_us, store.loses = 0, 0, False

    async def flood(self, at: int) -> None:
        """Ask for all there is: ten at a time, until all of them are refused."""
        admitted = True
        while admitted:
            decisions = await asyncio.gather(*(self.scene.hit(self.bucket, at=at) for _ in range(10)))
            for decision in decisions:
                self.ledger.note(decision, self.scene.clock(), 1)
            admitted = any(decisions)

    async def edge(self, offset_us: int) -> None:
        slice_us = self.bucket.limits[0].slice_us
        self.scene.clock.set(self.scene.clock() // slice_us * slice_us + slice_us + offset_us)

    async def last(self, at: int) -> None:
        lease = self.scene.share(self.bucket, at).lease
        if lease is not None:
            self.scene.wait_until_the_last_moment(lease, at)

    async def others(self, number: int) -> None:
        """Hand something back, or let what was begun come to its end."""
        decisions = [*self.ledger.admitted]
        if number % 2 and decisions:
            decision = decisions[number % len(decisions)]
            await self.scene.workers[number // 2 % 2].refund(decision)
            del self.ledger.admitted[decision]
        await self.scene.settle()

    async def close(self) -> None:
        for limiter in self.scene.workers:
            await leases_of(limiter).close()


async def play(steps: Sequence[tuple[Any, ...]], limits: str) -> None:
    game = Play(limits)
    for name, *values in (*steps, ("close",)):
        await getattr(game, name)(*values)
        for limit in game.bucket.limits:
            assert game.ledger.most(limit.window_us) <= limit.amount


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, min_size=40, max_size=60), st.sampled_from(["12/1s @2", "20/1s @2; 33/1500ms @3"]))
def test_workers_with_leases_never_pass_the_bound(steps: list[tuple[Any, ...]], limits: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares_module, "SHARE", 1)  # the more is held, the more may go wrong
        asyncio.run(play(steps, limits))


# -- handing back ----------------------------------------------------------------------------------------------------


async def test_close_hands_back_what_is_held_and_what_is_on_its_way() -> None:
    scene, bucket, other = Scene(), leased(), leased(rule="other")
    await scene.warm(bucket)
    await scene.hit(other, cost=5)
    scene.store.gate.clear()
    asking = asyncio.create_task(scene.hit(other))
    await turns()
    asking.cancel()
    closing = asyncio.create_task(scene.limiter.close())
    await turns()
    scene.store.gate.set()
    await closing
    assert scene.store.closed
    assert [scene.store.spent(each) for each in (bucket, other)] == [10, 5]


# -- bans and failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["ann", "bob"], ids=["the key", "who is guarded"])
async def test_a_ban_is_obeyed_while_a_lease_lasts(who: str) -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket)
    held = scene.lease(bucket).units
    await scene.limiter.ban(who, "1h")
    refused = await scene.hit(bucket, guarded=["bob"])
    assert (refused.reason, scene.lease(bucket).units) == (Reason.BANNED, held)
    assert await scene.limiter.unban(who)
    assert await scene.hit(bucket, guarded=["bob"])


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_cancelled_or_failed_the_others_spend_nothing_of_the_lease(how: str) -> None:
    scene, hot, plain = Scene(), leased(WIDE, 100), Bucket("plain", parse_limits("9/1s"))
    await scene.warm(hot)
    held = scene.lease(hot).units
    scene.store.gate.clear()
    asking = asyncio.create_task(scene.hit(hot, plain))
    await turns()
    assert scene.lease(hot).units == held - 1
    if how == "cancelled":
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    else:
        scene.store.loses = True
        scene.store.gate.set()
        assert (await asking).reason is Reason.UNAVAILABLE
    assert scene.lease(hot).units == held


async def test_what_is_held_when_the_store_fails_is_spent_and_then_on_error_decides() -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=5)
    await scene.hit(bucket)
    held = scene.lease(bucket).units
    scene.store.loses = True
    decisions = [await scene.hit(bucket) for _ in range(held + 2)]
    assert [decision.allowed for decision in decisions] == [True] * held + [False, False]
    assert decisions[-1].reason is Reason.UNAVAILABLE


@needs_redis
async def test_two_hosts_worth_of_leases_on_one_redis() -> None:
    with RedisServer() as server:
        stores = [RedisStore(server.url), RedisStore(server.url)]
        limiters = [Limiter(store, deadline="10s", on_error="deny") for store in stores]
        bucket = Bucket("hot", [Limit(6_000, "1h", resolution=4)], lease=500)
        server.command("CONFIG", "RESETSTAT")
        checks = [(bucket, "ann", 1)]
        decisions = [await limiters[number % 2].hit_all(checks) for number in range(4_000)]
        assert all(decisions)
        assert server.calls()["evalsha"] < 100
        assert isinstance(decisions[-1], Leased)
        assert await limiters[1].refund(decisions[-1])
        await limiters[1].ban("ann", "1h")
        assert (await limiters[1].hit_all(checks)).reason is Reason.BANNED
        assert await limiters[1].unban("ann")
        await leases_of(limiters[0]).close()
        await leases_of(limiters[1]).close()
        assert (await limiters[0].peek_all([(bucket, "ann", 0)])).remaining == 6_000 - 3_999
        for limiter in limiters:
            await limiter.close()
