"""Leases: the bound at the last moment, fewer questions, and nothing lost or spent twice on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from slidegate import MemoryStore, RateLimitMiddleware, Rule, everyone
from slidegate.core import Limit, parse_limits
from slidegate.core.decision import Bucket, Check, Decision, Reason
from slidegate.core.errors import ConfigurationError, StoreUnavailable
from slidegate.core.protocols import Store
from slidegate.core.windows.views import Snapshot
from slidegate.limiter import Limiter
from slidegate.limiter.leases import lease_pool as shares_module
from slidegate.limiter.leases.lease import Lease, Leased
from slidegate.limiter.leases.lease_pool import Share, Shares
from slidegate.limiter.leases.leasing import Leases
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock

from ..asgi import call
from ..hurry import hurried
from ..redis_servers import RedisServer, needs_redis

SLICE_US = 250_000
WINDOW_US = 1_000_000
START_US = 1_000_000_000_000
AHEAD_US = 7_000_000
SLOW_PPM = 990
LIMITS = "40/1s @4"
WIDE = "1000000/10s @10"


class SharedStore:
    """A store elsewhere, in the same process: it takes time, counts questions, and loses answers as it is told."""

    def __init__(self, clock: FakeClock) -> None:
        self.inner = MemoryStore(clock=clock)
        self.clock = clock
        self.secret, self.bans = self.inner.secret, self.inner.bans
        self.observe = self.inner.observe
        self.asked: Counter[str] = Counter()
        self.before_us = self.after_us = 0
        self.loses = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.refunded = asyncio.Event()
        self.closed = False

    async def answer(self, question: Any, *arguments: Any) -> Any:
        assert not self.closed
        self.asked[question.__name__] += 1
        self.clock.advance(us=self.before_us)
        await asyncio.sleep(0)
        await self.gate.wait()
        answer = question(*arguments)
        await asyncio.sleep(0)
        self.clock.advance(us=self.after_us)
        if self.loses:
            raise StoreUnavailable("the answer is lost")
        return answer

    def hit(self, checks: Sequence[Check], guarded: Sequence[Any] = ()) -> Awaitable[Decision]:
        return self.answer(self.inner.hit, checks, guarded)

    def peek(self, checks: Sequence[Check], guarded: Sequence[Any] = ()) -> Awaitable[Decision]:
        return self.answer(self.inner.peek, checks, guarded)

    def charge(self, checks: Sequence[Check]) -> Awaitable[Decision]:
        return self.answer(self.inner.charge, checks)

    async def refund(self, decision: Decision) -> bool:
        changed = await self.answer(self.inner.refund, decision)
        self.refunded.set()
        return bool(changed)

    def reset(self, key: str) -> Awaitable[bool]:
        return self.answer(self.inner.reset, key)

    def reset_all(self) -> Awaitable[bool]:
        return self.answer(self.inner.reset_all)

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Awaitable[Snapshot]:
        return self.answer(self.inner.inspect, key, buckets)

    def close(self) -> None:
        self.closed = True

    def spent(self, bucket: Bucket, key: str = "ann") -> int:
        """What the store counts now."""
        return self.inner.peek(((bucket, key, 0),)).readings[0][0]


def local_us(number: int, now_us: int) -> int:
    """The clock of a worker: each starts elsewhere, and all but the first run as slowly as a clock may."""
    return now_us + AHEAD_US * number - (now_us - START_US) * SLOW_PPM * min(number, 1) // 1_000_000


def worker(store: Store, clock: FakeClock, number: int = 0, on_error: Any = "deny") -> Limiter:
    """A limiter whose leases and deadlines go by a clock of their own."""
    limiter = Limiter(store, deadline="10s", on_error=on_error)
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


def leased(limits: str = LIMITS, lease: int = 20, rule: str = "hot", **options: Any) -> Bucket:
    return Bucket(rule, parse_limits(limits), lease=lease, **options)


class Scene:
    """Some workers on a store."""

    def __init__(self, workers: int = 1, on_error: Any = "deny") -> None:
        self.clock = FakeClock(START_US)
        self.store = SharedStore(self.clock)
        self.workers = [worker(self.store, self.clock, n, on_error) for n in range(workers)]

    @property
    def limiter(self) -> Limiter:
        return self.workers[0]

    def share(self, bucket: Bucket, at: int = 0, key: str = "ann") -> Share:
        share = leases_of(self.workers[at])._shares.find(bucket, key)
        assert share is not None
        return share

    def lease(self, bucket: Bucket, at: int = 0, key: str = "ann") -> Lease:
        lease = self.share(bucket, at, key).lease
        assert lease is not None
        return lease

    async def hit(self, *buckets: Bucket, at: int = 0, cost: int = 1, key: str = "ann", guarded: Any = ()) -> Decision:
        async with asyncio.timeout(20):
            return await self.workers[at].hit_all([(bucket, key, cost) for bucket in buckets], guarded)

    async def warm(self, bucket: Bucket, at: int = 0, cost: int = 5) -> None:
        """Take a lease: the first request asks for itself."""
        assert await self.hit(bucket, at=at, cost=cost)
        assert isinstance(await self.hit(bucket, at=at, cost=cost), Leased)

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


async def spend_at_the_last_moment(scene: Scene, bucket: Bucket, at: int) -> Ledger:
    """Spend a lease as late as it can be, what is left after that, and what leaves the windows as soon as it does."""
    ledger = Ledger()
    ledger.note(await scene.hit(bucket, at=at, cost=5), scene.clock(), 5)
    ledger.note(await scene.hit(bucket, at=at, cost=1), scene.clock(), 1)
    lease = scene.lease(bucket, at)
    scene.wait_until_the_last_moment(lease, at)
    for _ in range(lease.units):
        ledger.note(await scene.hit(bucket, at=at), scene.clock(), 1)
    assert scene.store.asked == {"hit": 2}
    for moment_us in (scene.clock() // SLICE_US * SLICE_US + SLICE_US - 1, START_US + 5 * SLICE_US):
        scene.clock.set(max(moment_us, scene.clock()))
        while decision := await scene.hit(bucket, at=2):
            ledger.note(decision, scene.clock(), 1)
    return ledger


@pytest.mark.parametrize("at", [0, 1], ids=["an exact clock", "a slow clock"])
async def test_spent_at_the_last_moment_a_lease_keeps_the_bound(at: int) -> None:
    ledger = await spend_at_the_last_moment(Scene(3), leased(), at)
    assert ledger.most() <= 40


@pytest.mark.parametrize(
    ("at", "late_us"), [(0, SLICE_US), (1, 0)], ids=["one slice longer", "a slow clock without the margin"]
)
async def test_spent_later_it_would_not(at: int, late_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Lease):
        def __init__(self, decision: Decision, sent_us: int) -> None:
            super().__init__(decision, sent_us)
            self.until_us = sent_us + SLICE_US + late_us

    monkeypatch.setattr(shares_module, "Lease", Late)
    ledger = await spend_at_the_last_moment(Scene(3), leased(), at)
    assert ledger.most() > 40


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


@settings(max_examples=150)
@given(st.lists(STEPS, min_size=40, max_size=60), st.sampled_from(["12/1s @2", "20/1s @2; 33/1500ms @3"]))
def test_workers_with_leases_never_pass_the_bound(steps: list[tuple[Any, ...]], limits: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares_module, "SHARE", 1)  # the more is held, the more may go wrong
        asyncio.run(play(steps, limits))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(0, 90_000)), max_size=40))
def test_what_is_refused_for_the_sake_of_leases_is_no_more_than_others_hold(steps: list[tuple[int, int, int]]) -> None:
    async def scenario() -> None:
        scene, bucket = Scene(3), leased()
        admitted = MemoryStore(clock=scene.clock)
        for at, cost, pause_us in steps:
            scene.clock.advance(us=pause_us)
            decision = await scene.hit(bucket, at=at, cost=cost)
            await scene.settle()
            if decision:
                admitted.charge(((bucket, "ann", cost),))
                continue
            spent = admitted.peek(((bucket, "ann", 0),)).readings[0][0]
            others = [share.lease.units for n in range(3) if n != at and (share := scene.share(bucket, n)).lease]
            assert spent + sum(others) + cost > 40

    asyncio.run(scenario())


# -- fewer questions -------------------------------------------------------------------------------------------------


async def test_a_hot_key_asks_the_store_once_for_each_lease() -> None:
    scene, bucket = Scene(), leased(WIDE, 1_000)
    for _ in range(20_000):
        assert await scene.hit(bucket)
    # One for itself, nine while the share grows from 2 to 512, and then a lease for every thousand.
    assert scene.store.asked == {"hit": 1 + 9 + 19}
    await scene.limiter.close()
    assert scene.store.spent(bucket) == 20_000


async def test_a_cold_key_asks_for_itself_and_holds_nothing() -> None:
    scene, bucket = Scene(), leased(WIDE, 1_000)
    for _ in range(3):
        decision = await scene.hit(bucket)
        assert not isinstance(decision, Leased)
        assert scene.share(bucket).lease is None
        scene.clock.advance("5s")
    assert scene.store.asked == {"hit": 3}


async def test_who_stops_asking_starts_anew() -> None:
    scene, bucket = Scene(), leased(WIDE, 1_000)
    await scene.warm(bucket)
    scene.clock.advance("3s")
    assert not isinstance(await scene.hit(bucket), Leased)


async def test_the_share_shrinks_as_the_limit_nears_until_each_request_asks_for_itself() -> None:
    scene, bucket = Scene(), leased("1000/10s @10", 500)
    sizes = []
    for _ in range(1_000):
        decision = await scene.hit(bucket)
        assert decision
        (held,) = decision.leases.values() if isinstance(decision, Leased) else (None,)
        size = held.decision.checks[0][2] if held is not None else 1
        sizes += [size] if sizes[-1:] != [size] else []
    assert max(sizes) <= 250
    assert sizes[-1] == 1
    falling = sizes[sizes.index(max(sizes)) :]
    assert falling == sorted(falling, reverse=True)
    assert not await scene.hit(bucket)
    assert scene.store.spent(bucket) == 1_000


async def test_a_refused_lease_does_not_refuse_the_request() -> None:
    scene, bucket = Scene(2), leased(LIMITS, 20)
    await scene.hit(bucket, cost=10)
    assert await scene.hit(bucket, at=1, cost=28)  # so the 7 units that the first worker asks for next are not there
    decision = await scene.hit(bucket, cost=1)
    assert decision.allowed
    assert not isinstance(decision, Leased)
    assert scene.store.spent(bucket) == 39


async def test_requests_wait_for_the_lease_that_is_on_its_way_and_share_it() -> None:
    scene, bucket = Scene(), leased(WIDE, 1_000)
    await scene.hit(bucket, cost=50)
    scene.store.gate.clear()
    waiting = [asyncio.create_task(scene.hit(bucket)) for _ in range(100)]
    await turns()
    assert scene.store.asked == {"hit": 2}
    scene.store.gate.set()
    assert all(isinstance(decision, Leased) for decision in await asyncio.gather(*waiting))
    assert scene.store.asked == {"hit": 2}


async def test_no_more_wait_for_a_lease_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "MAX_WAITING", 3)
    scene, bucket = Scene(), leased(WIDE, 1_000)
    await scene.hit(bucket, cost=50)
    scene.store.gate.clear()
    waiting = [asyncio.create_task(scene.hit(bucket)) for _ in range(10)]
    await turns()
    assert scene.store.asked == {"hit": 1 + 1 + 7}
    scene.store.gate.set()
    assert all(await asyncio.gather(*waiting))


async def test_who_asked_for_a_lease_may_give_up_and_the_others_get_it() -> None:
    scene, bucket = Scene(), leased(WIDE, 1_000)
    await scene.hit(bucket, cost=5)
    scene.store.gate.clear()
    first = asyncio.create_task(scene.hit(bucket))
    await turns()
    second = asyncio.create_task(scene.hit(bucket))
    await turns()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    scene.store.gate.set()
    assert isinstance(await second, Leased)
    assert scene.lease(bucket).units == 9
    assert scene.share(bucket).waiting == 0


async def test_other_requests_do_not_pass_through_leases_at_all() -> None:
    scene, plain = Scene(), Bucket("plain", parse_limits(WIDE))
    assert scene.limiter.internals.decide is not scene.limiter.internals.decide_unleased
    for _ in range(3):
        await scene.hit(plain)
        await scene.limiter.hit("ann", WIDE)
    assert scene.store.asked == {"hit": 6}


async def test_in_memory_a_lease_changes_nothing() -> None:
    limiter, bucket = Limiter(MemoryStore(clock=FakeClock(START_US))), leased()
    assert limiter.internals.leases is None
    for _ in range(40):
        assert (await limiter.hit_all([(bucket, "ann", 1)])).__class__ is Decision
    assert not await limiter.hit_all([(bucket, "ann", 1)])


# -- what a decision says --------------------------------------------------------------------------------------------


async def test_a_leased_decision_reads_as_the_store_last_said_with_what_is_held_counted_as_spent() -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=4)
    decision = await scene.hit(bucket)
    assert isinstance(decision, Leased)
    scene.clock.advance(us=1_000)
    later = await scene.hit(bucket)
    assert (later.allowed, later.reason, later.retry_after_us) == (True, Reason.OK, 0)
    assert later.remaining == 40 - 4 - 8
    assert later.now_us == scene.clock()
    seen = scene.store.inner.peek(later.checks)
    assert (later.more_after_us, later.reset_after_us) == (seen.more_after_us, seen.reset_after_us)


async def test_a_limit_with_several_windows_is_leased_until_the_first_of_their_slices_ends() -> None:
    scene, bucket = Scene(), leased("40/1s @4; 70/2500ms @7")
    scene.clock.advance(us=100_000)
    await scene.warm(bucket)
    ends = [(START_US + 100_000) // limit.slice_us * limit.slice_us + limit.slice_us for limit in bucket.limits]
    assert min(ends) - 1_000 < scene.lease(bucket).until_us < min(ends)


async def test_a_lease_ends_after_a_second_in_a_long_slice() -> None:
    scene, bucket = Scene(), leased("1000/1h @10", 100)
    await scene.warm(bucket)
    assert scene.lease(bucket).until_us <= START_US + 1_000_000


# -- several checks --------------------------------------------------------------------------------------------------


async def test_several_checks_ask_one_question_about_those_without_a_lease() -> None:
    scene, hot, plain = Scene(), leased(WIDE, 100), Bucket("plain", parse_limits("7/1s"))
    await scene.hit(hot, plain, cost=3)
    decision = await scene.hit(hot, plain)
    assert isinstance(decision, Leased)
    assert scene.store.asked == {"hit": 3}
    assert await scene.hit(hot, plain)
    assert scene.store.asked == {"hit": 4}
    assert [state.remaining for state in decision.states] == [1_000_000 - 3 - 6, 3]
    assert scene.lease(hot).units == 4


async def test_a_refusal_by_the_others_spends_nothing_of_the_lease() -> None:
    scene, hot, plain = Scene(), leased(WIDE, 100), Bucket("plain", parse_limits("2/1s"))
    await scene.warm(hot)
    held = scene.lease(hot).units
    decisions = [await scene.hit(hot, plain) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert scene.lease(hot).units == held - 2
    refused = decisions[2]
    assert refused.reason is Reason.LIMITED
    assert [state.rule for state in refused.violated] == ["plain"]
    assert refused.retry_after_us == 1_000_000


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


async def test_a_lease_that_ends_while_the_store_thinks_is_not_spent_late() -> None:
    scene, hot, plain = Scene(), leased(), Bucket("plain", parse_limits("9/1s"))
    await scene.warm(hot)
    scene.store.after_us = SLICE_US
    decision = await scene.hit(hot, plain)
    scene.store.after_us = 0
    await scene.settle()
    assert decision.__class__ is Decision
    assert decision.allowed
    await scene.limiter.close()
    assert [scene.store.spent(bucket) for bucket in (hot, plain)] == [11, 1]


async def test_a_request_that_may_wait_somewhere_is_not_leased() -> None:
    scene, hot = Scene(), leased()
    await scene.warm(hot)
    slow = Bucket("slow", parse_limits("9/1s"), wait_us=200_000, wait_max=3)
    assert (await scene.hit(hot, slow)).__class__ is Decision


# -- handing back ----------------------------------------------------------------------------------------------------


async def test_what_is_left_goes_back_when_the_lease_ends() -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket)
    assert scene.store.spent(bucket) > 10
    lease = scene.lease(bucket)
    scene.clock.set(lease.until_us)
    await scene.hit(bucket)
    await scene.settle()
    held = scene.share(bucket).lease
    assert scene.store.spent(bucket) == 11 + (held.units if held is not None else 0)


async def test_a_timer_ends_a_lease_that_nobody_asks_for_again() -> None:
    scene, bucket = Scene(), leased("1000/20ms @2", 100)
    await scene.warm(bucket)
    lease = scene.lease(bucket)
    assert lease.timer is not None
    leases_of(scene.limiter)._shares._due(scene.share(bucket), lease)
    assert scene.share(bucket).lease is lease  # it came too early
    scene.clock.set(lease.until_us)
    async with asyncio.timeout(20):
        await scene.store.refunded.wait()
    assert scene.store.spent(bucket) == 10


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


async def test_after_close_each_request_asks_for_itself() -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket)
    await leases_of(scene.limiter).close()
    for _ in range(3):
        assert not isinstance(await scene.hit(bucket), Leased)


async def test_a_request_too_large_for_the_lease_does_not_fail_for_what_is_held_here() -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket, cost=4)
    held = scene.lease(bucket).units
    assert held > 0
    assert await scene.hit(bucket, cost=32)
    assert not await scene.hit(bucket, cost=1)
    assert scene.store.spent(bucket) == 40


async def test_a_refund_goes_to_the_lease_while_it_lasts_and_to_the_store_afterwards_and_only_once() -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=5)
    early, late = await scene.hit(bucket, cost=2), await scene.hit(bucket, cost=3)
    held = scene.lease(bucket).units
    assert await scene.limiter.refund(early) is True
    assert await scene.limiter.refund(early) is False
    assert scene.lease(bucket).units == held + 2
    assert scene.store.asked == {"hit": 2}
    scene.clock.set(scene.lease(bucket).until_us)
    assert await scene.limiter.refund(late) is True
    assert await scene.limiter.refund(late) is False
    await scene.limiter.close()
    assert scene.store.spent(bucket) == 5


async def test_a_refund_in_another_event_loop_goes_to_the_store() -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=5)
    decision = await scene.hit(bucket, cost=2)
    held, spent = scene.lease(bucket).units, scene.store.spent(bucket)
    assert await asyncio.to_thread(lambda: asyncio.run(scene.limiter.refund(decision)))
    assert scene.lease(bucket).units == held
    assert scene.store.spent(bucket) == spent - 2


async def test_a_check_taken_out_is_handed_back_alone() -> None:
    scene, hot, plain = Scene(), leased(), Bucket("plain", parse_limits("9/1s"))
    await scene.warm(hot)
    held = scene.lease(hot).units
    decision = await scene.hit(plain, hot)
    hot_part, plain_part = decision.take_out(1), decision.take_out(0)
    assert await scene.limiter.refund(hot_part) is True
    assert (scene.lease(hot).units, scene.store.spent(plain)) == (held, 1)
    assert await scene.limiter.refund(plain_part) is True
    assert scene.store.spent(plain) == 0
    assert await scene.limiter.refund(decision.take_out(1)) is False
    assert await scene.limiter.refund(decision) is False
    assert scene.lease(hot).units == held


async def test_a_reset_forgets_the_lease_with_the_windows() -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket)
    assert await scene.limiter.reset("ann") is True
    assert not scene.share(bucket).covers(1, 0)
    for _ in range(40):
        assert await scene.hit(bucket)
    assert not await scene.hit(bucket)


async def test_a_reset_of_all_forgets_the_leases_of_all_keys() -> None:
    scene, bucket = Scene(), leased()
    await scene.warm(bucket)
    assert await scene.limiter.reset_all() is True
    assert not scene.share(bucket).covers(1, 0)
    for _ in range(40):
        assert await scene.hit(bucket)
    assert not await scene.hit(bucket)


def test_a_reset_in_one_thread_goes_with_new_leases_in_others() -> None:
    shares, bucket, wrong = Shares(SharedStore(FakeClock()), None, lambda: 0), leased(), list[Exception]()  # type: ignore[arg-type]

    async def look(names: range) -> None:
        for name in names:
            shares.find(bucket, f"user:{name}")

    def loops() -> None:
        try:
            for _ in range(150):
                asyncio.run(look(range(300)))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=loops) for _ in range(2)]
    with hurried(collecting=False):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            shares.forget("user:1")
        for thread in threads:
            thread.join()
    assert wrong == []


async def test_leases_are_bounded_in_number_and_old_ones_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "MAX_SHARES", 3)
    scene, bucket = Scene(), leased()
    for name in "abcdef":
        await scene.hit(bucket, cost=3, key=name)
        await scene.hit(bucket, cost=1, key=name)
    await scene.settle()
    assert [scene.store.spent(bucket, name) for name in "abc"] == [4, 4, 4]
    scene.store.gate.clear()
    asking = [asyncio.create_task(scene.hit(bucket, cost=7, key=name)) for name in "def"]
    await turns()
    extra = asyncio.create_task(scene.hit(bucket, key="g"))  # every place is waiting for an answer
    await turns()
    scene.store.gate.set()
    assert all(await asyncio.gather(*asking, extra))
    assert {key for shares in leases_of(scene.limiter)._shares._by_loop.values() for _, key in shares} == set("def")


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


class ListedBans:
    """Bans that are listed here as well, as `RedisStore` has them."""

    def __init__(self, store: SharedStore) -> None:
        self.listed = store.inner.bans
        self.known_s = time.monotonic()
        self.asked = 0

    def judge(self, checks: Sequence[Check], guarded: Sequence[Any]) -> Any:
        return self.listed.judge(checks, guarded, prolong=False)

    def find(self, guarded: Sequence[Any]) -> Any:
        self.asked += 1
        return self.listed.find(guarded)


@pytest.mark.parametrize(("age_s", "questions"), [(0, 0), (100, 2)], ids=["fresh", "old"])
async def test_a_store_that_lists_all_bans_here_is_asked_when_the_list_is_old(age_s: float, questions: int) -> None:
    scene, bucket = Scene(), leased()
    bans: Any = ListedBans(scene.store)
    scene.store.bans = bans
    bans.known_s += 50 - age_s  # a slow machine must not make it old
    limiter = worker(scene.store, scene.clock)
    scene.workers = [limiter]
    await scene.warm(bucket)
    scene.store.inner.bans.ban("bob", 1_000_000, "", "manual")
    assert (await scene.hit(bucket, guarded=["bob"])).reason is Reason.BANNED
    assert bans.asked == questions


async def test_a_ban_refuses_several_checks_and_gives_the_lease_back() -> None:
    scene, bucket, plain = Scene(), leased(), Bucket("plain", parse_limits("9/1s"))
    await scene.warm(bucket)
    held = scene.lease(bucket).units
    await scene.limiter.ban("ann", "1h")
    refused = await scene.limiter.hit_all([(bucket, "ann", 1), (plain, "bob", 1)])
    assert (refused.reason, len(refused.checks), scene.lease(bucket).units) == (Reason.BANNED, 2, held)


async def test_what_is_held_when_the_store_fails_is_spent_and_then_on_error_decides() -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=5)
    await scene.hit(bucket)
    held = scene.lease(bucket).units
    scene.store.loses = True
    decisions = [await scene.hit(bucket) for _ in range(held + 2)]
    assert [decision.allowed for decision in decisions] == [True] * held + [False, False]
    assert decisions[-1].reason is Reason.UNAVAILABLE


async def test_while_a_store_of_this_process_counts_nothing_is_leased() -> None:
    scene, bucket = Scene(on_error="local"), leased()
    await scene.warm(bucket)
    assert isinstance(await scene.hit(bucket), Leased)
    scene.store.loses = True
    await scene.hit(Bucket("plain", parse_limits("9/1s")))
    scene.store.loses = False
    assert not isinstance(await scene.hit(bucket), Leased)
    scene.clock.advance("1s")
    for _ in range(3):
        assert not isinstance(await scene.hit(bucket), Leased)
    scene.clock.advance("10s")
    await scene.hit(bucket, cost=5)
    assert isinstance(await scene.hit(bucket), Leased)


async def test_a_mixed_request_that_is_answered_here_counts_here_alone() -> None:
    scene, bucket, plain = Scene(on_error="local"), leased(), Bucket("plain", parse_limits("9/1s"))
    await scene.warm(bucket)
    held = scene.lease(bucket).units
    scene.store.loses = True
    decision = await scene.hit(bucket, plain)
    assert decision.allowed
    assert scene.lease(bucket).units == held
    assert scene.store.asked == {"hit": 3}  # and not once more
    assert [state.remaining for state in decision.states] == [39, 8]


async def test_a_bad_question_is_an_error_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, bucket = Scene(), leased()
    await scene.hit(bucket, cost=5)

    def refuse(*arguments: Any) -> Any:
        raise ConfigurationError("not like this")

    monkeypatch.setattr(scene.store, "hit", refuse)
    for decision in await asyncio.gather(*(scene.hit(bucket) for _ in range(3)), return_exceptions=True):
        assert isinstance(decision, ConfigurationError)


# -- in front of an application ---------------------------------------------------------------------------------------


async def test_a_rule_leases_where_its_limits_count_slices_and_settles_by_the_status() -> None:
    def limits(request: HTTPConnection) -> str:
        return request.headers.get("plan", "1000000/10s @10")

    async def maybe(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("", 401 if scope["path"] == "/wrong" else 200)(scope, receive, send)

    scene = Scene()
    counts = [401].__contains__
    rule = Rule("*", limits, lease=100, count_if=counts, key=everyone, name="service")
    app = RateLimitMiddleware(maybe, limiter=scene.limiter, rules=[rule])
    for path in ["/wrong"] * 20 + ["/right"] * 20:
        await call(app, path)
    assert scene.store.asked["hit"] < 12
    for _ in range(5):
        assert (await call(app, "/wrong", headers={"plan": "3/1m"})).status in (401, 429)
    asked = scene.store.asked["hit"]
    await scene.limiter.close()
    assert scene.store.asked["hit"] == asked
    assert scene.store.spent(Bucket("service", parse_limits("1000000/10s @10")), "everyone") == 20


# -- stores ----------------------------------------------------------------------------------------------------------


async def test_two_processes_worth_of_leases_on_one_lmdb_environment(tmp_path: Path) -> None:
    clock = FakeClock(START_US)
    store = LmdbStore(tmp_path / "env", clock=clock)
    workers = [worker(store, clock), worker(store, clock, 1)]
    bucket = Bucket("hot", [Limit(2_000, "1s", resolution=4)], lease=300)
    admitted = 0
    for number in range(2_200):
        decision = await workers[number % 2].hit_all([(bucket, "ann", 1)])
        admitted += decision.allowed
        if number == 900:
            assert isinstance(decision, Leased)
            assert await workers[number % 2].refund(decision)
            admitted -= 1
    assert admitted == 2_000
    clock.advance("3s")
    for _ in range(30):
        assert await workers[0].hit_all([(bucket, "ann", 1)])
    await leases_of(workers[0]).close()
    seen = store.peek(((bucket, "ann", 0),))
    assert seen.readings[0][0] == 30
    store.close()


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
