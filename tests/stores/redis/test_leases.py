"""Leases on a real server: the bound, what ends a lease, and what becomes of its units."""

import asyncio
import os
import random
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from unittest.mock import Mock

import pytest

from slidegate import Decision, Limit, Quota, StoreError
from slidegate.core import BanSubject, Bucket, Check, Concurrency, Reason, parse_address
from slidegate.stores.redis import RedisStore, poll
from slidegate.stores.redis.changes import TRUST_US, windows_of
from slidegate.stores.redis.link import KeysApart
from slidegate.stores.redis.protocol import StoreTime, real_monotonic_us
from slidegate.stores.redis.unit_leases import CLOCK_ERROR, LEAST_AHEAD, ROUNDING_US, UnitLease
from slidegate.testing import FakeClock

from ...contract.player import settle
from ...contract.programs import YEAR_2100_US
from ...contract.store_contract import bucket
from ...fault_proxy import FaultProxy
from ...hurry import at_once
from ...redis_servers import HOST, RedisServer, needs_redis
from ...virtual_time import turns
from .. import forked
from .stores import Ahead, eventually, hit, store_at, usual, workers_at

pytestmark = needs_redis
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
MINUTES: Final = "6000/10m @10"  # slices of a minute
SECOND: Final = "4000/s @4"  # slices of 250 ms
ANN: Final = ((usual(MINUTES), "ann", 1),)
SHORT: Final = ((usual(SECOND), "ann", 1),)
NOBODY: Final[tuple[BanSubject, ...]] = ()


def leases_of(store: RedisStore) -> list[UnitLease]:
    """Return the leases that hold, and those that have ended but wait to be refunded."""
    losses, leases = store.parts.changes.losses, [*store.parts.leases.by_checks.values()]
    return [one for one in leases if not losses.since(one.sent_ns, [*windows_of(one.decision.checks), "ann"])]


def left(store: RedisStore) -> int:
    """Return how many units a store may spend without asking."""
    return sum(len(lease.units) for lease in leases_of(store))


async def asks(store: RedisStore, checks: tuple[Check, ...] = ANN, subjects: Any = NOBODY) -> bool:
    """Hit; return whether Redis was asked."""
    answer = store.hit(checks, subjects)
    await settle(answer)
    return not isinstance(answer, Decision)


async def leased(store: RedisStore, checks: tuple[Check, ...] = ANN, subjects: Any = NOBODY) -> list[Decision]:
    """Hit until some units are left; return the decisions."""
    decisions = list[Decision]()
    for _ in range(400):
        decisions.append(await settle(store.hit(checks, subjects)))
        if left(store) >= 2:
            return decisions
    raise AssertionError("no lease")


async def used(store: RedisStore, limits: str = MINUTES, key: str = "ann") -> int:
    """Return the units that Redis counts."""
    _, now_us, (window,) = await store.inspect([(usual(limits), key, 0)])
    (limit,) = usual(limits).limits
    return limit.counter.spend(window, now_us, 0)[1][0]


@asynccontextmanager
async def leasing(server: Any, many: int = 1, **options: Any) -> AsyncIterator[list[RedisStore]]:
    async with workers_at(server, many, leases=True, **options) as stores:
        yield stores


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    async with leasing(server) as (store,):
        yield store


# -- when Redis is asked -----------------------------------------------------------------------------------------------


async def test_a_question_that_is_repeated_asks_ever_more_seldom(store: RedisStore) -> None:
    asked = [await asks(store) for _ in range(100)]
    assert asked[: LEAST_AHEAD + 1] == [True] * (LEAST_AHEAD + 1)
    assert sum(asked) <= 16, "then for 4, 8, 16 ..."
    decision = await hit(store, limits=MINUTES)
    assert decision.remaining == 6000 - 101, "own units that are not spent do not count"


async def test_a_question_that_was_not_asked_for_a_while_starts_again(store: RedisStore, ahead: Ahead) -> None:
    for _ in range(3):
        asked = [await asks(store) for _ in range(100)]
        assert asked[:LEAST_AHEAD] == [True] * LEAST_AHEAD
        assert sum(asked) <= 20
        ahead.by_s += 10


async def test_one_that_goes_on_being_asked_leases_in_the_next_slice_at_once(store: RedisStore) -> None:
    checks = ((usual("8000/2s @4"), "ann", 1),)
    for turn in range(4):
        asked = [await asks(store, checks) for _ in range(100)]
        assert turn == 0 or sum(asked) <= 9, "for half of last time's, and as many again; in three slices at most"
        await asyncio.sleep(0.5)


ASKED_EACH_TIME: Final[dict[str, tuple[Check, ...]]] = {
    "an exact limit": ((bucket("60/minute"), "ann", 1),),
    "one of its limits is exact": ((bucket("6000/minute @10; 60/hour"), "ann", 1),),
    "exact by its resolution": ((Bucket("x", (Limit(3000, "1m", resolution=3000),)), "ann", 1),),
    "refusals that count": ((bucket(MINUTES, count_denied=True), "ann", 1),),
    "permits": ((usual(MINUTES), "ann", 1), (Bucket("held", [Concurrency(50)]), "ann", 1)),
    "free": ((usual(MINUTES), "ann", 0),),
    "free in part": ((usual(MINUTES), "ann", 1), (bucket(MINUTES), "bob", 0)),
    "a store without leases": ANN,
}


@pytest.mark.parametrize("name", ASKED_EACH_TIME)
async def test_what_has_no_leases_is_asked_each_time(server: RedisServer, name: str) -> None:
    checks = ASKED_EACH_TIME[name]
    async with store_at(server, leases=checks is not ANN) as store:
        assert [await asks(store, checks) for _ in range(20)] == [True] * 20
        assert leases_of(store) == []


async def test_a_lease_is_of_all_limits_and_keys_of_its_question(store: RedisStore) -> None:
    quota = Bucket("month", (Quota("100000/month"),))
    question = ((usual(MINUTES), "ann", 1), (usual("4000/2s @4"), "all", 2), (quota, "ann", 1))
    decisions = await leased(store, question)
    assert max(lease.until_us - real_monotonic_us() for lease in leases_of(store)) <= 500_000, "the shortest slice"
    many, ahead = len(decisions), left(store)
    assert [state.remaining for state in decisions[-1].states] == [6000 - many, 4000 - 2 * many, 100_000 - many]
    # Another question about one of its windows sees what is leased as spent.
    assert (await hit(store, "all", "4000/2s @4")).remaining == 4000 - 2 * many - 2 * ahead - 1


async def test_near_the_limit_units_are_asked_for_one_by_one(store: RedisStore) -> None:
    checks = ((usual("200/minute @10"), "ann", 1),)
    asked = list[bool]()
    while (answer := store.hit(checks)) and (await settle(answer)).allowed:
        asked.append(not isinstance(answer, Decision))
    assert len(asked) == 200
    assert all(asked[-16:])
    assert sum(asked) < 100


async def test_of_equal_hits_at_the_same_time_one_leases_for_those_that_follow(store: RedisStore) -> None:
    for expected in (64, 128):
        decisions = await asyncio.gather(*(hit(store, limits=MINUTES) for _ in range(64)))
        assert 6000 - expected - 64 <= min(decision.remaining or 0 for decision in decisions) <= 6000 - expected
    assert [await asks(store) for _ in range(64)] == [False] * 63 + [True], "the first one repeated nothing"


# -- what becomes of units ---------------------------------------------------------------------------------------------


async def test_what_is_left_is_refunded_when_the_slice_ends(store: RedisStore) -> None:
    decisions = await leased(store, SHORT)
    await eventually(lambda: not left(store))
    assert await used(store, SECOND) == len(decisions)


async def test_what_is_left_is_refunded_when_the_store_is_closed(server: RedisServer) -> None:
    async with leasing(server, 2) as (one, other):
        decisions = await leased(one)
        before, ahead = await used(other), left(one)
        await one.close()
        assert await used(other) == before - ahead == len(decisions)


async def test_a_hit_that_is_given_up_leaves_a_unit_to_the_next(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy, leasing(f"redis://{HOST}:{proxy.port}/0") as (store,):
        for _ in range(4 * LEAST_AHEAD):
            await settle(store.hit(ANN))
        for lease in leases_of(store):
            lease.until_us = real_monotonic_us()  # it has ended just now
        proxy.delay_s = 0.2
        answer: Any = store.hit(ANN)
        await asyncio.sleep(0.05)
        answer.cancel()
        proxy.delay_s = 0.0
        await eventually(lambda: left(store) >= 2)  # the unit of the one that gave up, too


async def test_a_hit_that_is_cancelled_costs_no_unit_and_no_answer_of_others(store: RedisStore) -> None:
    await hit(store, limits=MINUTES)
    for _ in range(5):
        waiting: list[Any] = [store.hit(ANN) for _ in range(9)]
        waiting = [one for one in waiting if not isinstance(one, Decision)]
        for one in waiting[::3]:
            one.cancel()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(one, Decision) for one in answers] == [at % 3 != 0 for at in range(len(answers))]
    spent = sum(lease.used for lease in leases_of(store))
    assert await used(store) - left(store) <= 1 + LEAST_AHEAD + spent


async def test_a_refund_of_a_leased_unit_goes_to_redis_by_its_moment(store: RedisStore) -> None:
    *_, decision = await leased(store)
    ahead, counted = left(store), await used(store)
    assert await settle(store.refund(decision.begin_refund())) is True
    assert (left(store), await used(store)) == (ahead, counted - 1)
    assert await settle(store.refund(decision.begin_refund())) is False
    decision = await hit(store, limits=MINUTES)
    for lease in leases_of(store):
        lease.until_us = 0  # it has ended
    assert await settle(store.refund(decision.begin_refund())) is True
    assert await used(store) == counted - 2


@needs_fork
@pytest.mark.parametrize("fork", [forked.fork, forked.fork_in_c])
async def test_a_child_has_no_units_of_its_parent(store: RedisStore, fork: Callable[[], int]) -> None:
    """Python knows of the first one alone."""
    await leased(store)
    ahead, leases, asked = left(store), store.parts.leases, store._question(ANN, NOBODY)
    child = fork()
    if not child:
        os._exit(leases.spend(asked) is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222
    assert left(store) == ahead


async def test_threads_spend_each_unit_once(store: RedisStore) -> None:
    await leased(store)
    leases, (lease,), asked = store.parts.leases, leases_of(store), store._question(ANN, NOBODY)
    lease.units, lease.until_us = [None] * 20_000, lease.until_us + 60_000_000
    spent = at_once(lambda thread: sum(leases.spend(asked) is not None for _ in range(8_000)), threads=4)
    assert sum(spent) + left(store) == 20_000


# -- what ends a lease -------------------------------------------------------------------------------------------------


async def test_a_worker_that_was_stopped_spends_nothing_after_the_slice(store: RedisStore) -> None:
    await leased(store, SHORT)
    time.sleep(0.3)  # noqa: ASYNC251 - as SIGSTOP does: no timer has run
    assert await asks(store, SHORT)


async def test_a_slow_answer_is_no_longer_lease(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy, leasing(f"redis://{HOST}:{proxy.port}/0") as (store,):
        for _ in range(100):
            await settle(store.hit(SHORT))
        await asyncio.sleep(0.3)
        proxy.delay_s = 0.3
        for _ in range(3):
            assert await asks(store, SHORT)
            assert left(store) == 0, "its slice has ended when it comes"
        proxy.delay_s = 0
        await asyncio.sleep(0.4)
        assert await used(store, SECOND) <= 103, "and what was charged ahead is refunded"


@asynccontextmanager
async def on_its_way(server: RedisServer, subjects: Any = NOBODY) -> AsyncIterator[RedisStore]:
    """Yield a store whose hit was sent, with which units are charged ahead; the answer comes after the block."""
    async with FaultProxy(server.port) as proxy, leasing(f"redis://{HOST}:{proxy.port}/0") as (store,):
        for _ in range(100):
            await settle(store.hit(ANN, subjects))
        for lease in leases_of(store):
            lease.units.clear()
        proxy.freeze()
        answer: Any = store.hit(ANN, subjects)
        await turns(20)
        yield store
        proxy.thaw()
        assert (await answer).allowed
        assert left(store) == 0
        assert await asks(store)
        assert not all([await asks(store) for _ in range(20)]), "units are asked for again"


async def test_a_lease_on_its_way_ends_by_a_ban_of_this_process(server: RedisServer) -> None:
    async with on_its_way(server) as store:
        store.parts.changes.note(("ann",))  # as a strike does that bans


async def test_a_lease_on_its_way_that_ends_for_one_client_is_asked_for_by_others(server: RedisServer) -> None:
    async with on_its_way(server, ("eve",)) as store:
        store.parts.changes.note(("eve",))


async def test_a_lease_on_its_way_ends_by_a_reset(server: RedisServer) -> None:
    """One over another connection, which is answered before. Others have spent since what is there then."""
    async with on_its_way(server) as store, store_at(server, prefix=store._prefix) as other:
        assert await other.reset("ann")
        for _ in range(5):
            await hit(other, limits=MINUTES)
        store.parts.changes.note_loss("ann")
    async with store_at(server, prefix=store._prefix) as other:
        assert await used(other) == 5 + 1 + 20


CLIENT: Final[tuple[BanSubject, ...]] = (parse_address("192.0.2.9") or "", "192.0.2.9")


@pytest.mark.parametrize("banned", ["ann", "192.0.2.9", "192.0.2.0/24"])
@pytest.mark.parametrize("by", ["this process, at once", "another worker, within a second"])
async def test_a_ban_ends_leases(server: RedisServer, ahead: Ahead, banned: str, by: str) -> None:
    async with leasing(server, 2) as (one, other):
        await leased(one, ANN, CLIENT)
        if by.startswith("this"):
            await one.bans.ban(banned, None, "", "ann")
        else:
            await other.bans.ban(banned, None, "", "ann")
            ahead.by_s += 1.0
        assert (await settle(one.hit(ANN, CLIENT))).reason is Reason.BANNED


@pytest.mark.parametrize("is_left", [True, False], ids=["a young lease", "units that come with the poll"])
async def test_a_ban_of_a_network_takes_effect_with_the_poll(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    monkeypatch.setattr(poll, "POLL_NS", 200_000_000)
    async with leasing(server, 2) as (one, other):
        for _ in range(100):
            await settle(one.hit(ANN, CLIENT))
        if not is_left:
            one.parts.leases.refund_all(one.batcher().refund_in_background)
        await other.bans.ban("192.0.2.0/24", None, "", "ann")
        await asyncio.sleep(0.2)
        for _ in range(3):
            assert (await settle(one.hit(ANN, CLIENT))).reason is Reason.BANNED
        assert is_left or left(one) == 0
        assert await used(other) == 100 + left(one), "what was charged before the ban was known is refunded"


async def test_a_lease_is_spent_only_for_clients_that_redis_has_cleared_under_it(server: RedisServer) -> None:
    async with leasing(server, 2) as (store, other):
        tenant, bob, eve = ((usual(MINUTES), "tenant", 1),), ("bob",), ("eve",)
        await other.bans.ban("bob", None, "", "ann")
        await leased(store, tenant)
        assert (await settle(store.hit(tenant, bob))).reason is Reason.BANNED
        asked = [await asks(store, tenant, eve) for _ in range(3 * LEAST_AHEAD)]
        assert asked[0], "a client that was never asked about"
        assert not all(asked)


async def test_a_client_that_redis_has_refused_for_a_ban_takes_no_unit_that_others_are_granted(
    server: RedisServer,
) -> None:
    async with leasing(server, 2) as (store, other):
        eve, bob = ("eve",), ("bob",)
        await leased(store, ANN, eve)
        while left(store):
            await settle(store.hit(ANN, eve))
        await other.bans.ban("eve", None, "", "ann")
        assert (await settle(store.hit(ANN, eve))).reason is Reason.BANNED
        await leased(store, ANN, bob)
        assert (await settle(store.hit(ANN, eve))).reason is Reason.BANNED


@pytest.mark.parametrize("why", ["others have the rest", "the lease has ended"])
async def test_nobody_is_refused_while_the_worker_holds_units(server: RedisServer, why: str) -> None:
    async with leasing(server, 2) as (store, other):
        clients = [CLIENT, ("192.0.2.1",), ("192.0.2.2",)]
        await leased(store, ANN, CLIENT)
        await other.charge(((usual(MINUTES), "ann", 6000 - await used(other)),))
        if why.endswith("ended"):
            store.parts.changes.note()
        many = left(store) or next(len(lease.units) for lease in store.parts.leases.by_checks.values())
        admitted = [(await settle(store.hit(ANN, clients[at % 3]))).allowed for at in range(many + 3)]
        assert admitted == [True] * many + [False] * 3
        assert await used(other) == 6000


async def test_a_client_that_was_banned_while_limits_refused_it_takes_no_unit(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy, leasing(f"redis://{HOST}:{proxy.port}/0") as (store,):
        await leased(store, ANN, ("bob",))
        async with store_at(server, prefix=store._prefix) as other:
            await other.charge(((usual(MINUTES), "ann", 6000 - await used(other)),))
        proxy.freeze()
        answer: Any = store.hit(ANN, ("eve",))
        await turns(20)
        store.parts.changes.note(("eve",))
        for lease in leases_of(store):
            lease.sent_ns = time.monotonic_ns()  # granted to others since
        proxy.thaw()
        assert not await answer


async def test_an_older_answer_of_another_event_loop_adds_units_and_no_older_numbers(store: RedisStore) -> None:
    leases, asked = store.parts.leases, store._question(ANN, NOBODY)
    await leased(store)
    (lease,) = leases_of(store)
    before, ahead = await hit(store, limits=MINUTES), left(store)
    older = Decision(True, Reason.OK, before.now_us - 60_000_000, ANN, [(1, before.now_us, before.now_us, 0)])
    leases.keep(asked, older, lease.sent_ns, TRUST_US, charged=2, spent=1, refund=Mock())
    assert left(store) == ahead + 1
    assert (await hit(store, limits=MINUTES)).readings[0][0] >= before.readings[0][0]


async def test_clients_that_are_refused_when_all_units_are_spent_are_not_kept(store: RedisStore) -> None:
    await leased(store)
    (lease,) = leases_of(store)
    lease.units.clear()
    for number in range(9):
        question = store._question(ANN, [f"user:{number}"])
        store.parts.leases.note_refused(question, lease.sent_ns, is_banned=False)
    assert len(lease.cleared) == 1


async def test_a_poll_that_fails_makes_no_lease_fresh(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the keys of all bans are on another node for a while."""
    await leased(store)
    batcher, changes = store.batcher(), store.parts.changes
    polled_until_ns, call = changes.polled_until_ns, batcher._call
    monkeypatch.setattr(store.parts.polled, "due_ns", 0)
    monkeypatch.setattr(batcher, "_call", Mock(side_effect=KeysApart("apart")))
    await batcher._poll_alone(Mock())
    monkeypatch.setattr(batcher, "_call", call)
    monkeypatch.setattr(batcher, "_wants_poll", False)
    await settle(store.peek(ANN))
    assert changes.polled_until_ns == polled_until_ns


async def test_a_reset_forgets_leases_and_takes_nothing_of_what_is_spent_after_it(server: RedisServer) -> None:
    async with leasing(server, 2) as (one, other):
        await leased(one)
        assert await one.reset("ann") is True
        assert left(one) == 0
        for _ in range(LEAST_AHEAD):
            await hit(other, limits=MINUTES)
        await asyncio.sleep(1.1)  # the lease would have ended
        assert await used(other) == LEAST_AHEAD


async def test_a_reset_of_all_keys_that_is_given_up_at_any_moment_takes_nothing_of_what_is_spent_after_it(
    server: RedisServer,
) -> None:
    ends = set()
    async with leasing(server, 2) as (one, other):
        for turns in (*range(50), 1_000, 10_000):
            await leased(one)
            reset = asyncio.ensure_future(one.reset_all())
            for _ in range(turns):
                await asyncio.sleep(0)
            reset.cancel()
            is_reset = await used(one) == 0  # on the same connection, so that all before is answered
            await settle(other.charge(ANN))
            before = await used(other)
            one.parts.leases.refund_all(one.batcher().refund_in_background)
            assert not is_reset or await used(one) == before == 1, turns
            ends.add(is_reset)
    assert ends == {False, True}


async def test_a_reset_under_one_rule_leaves_the_leases_of_others(store: RedisStore) -> None:
    other = ((bucket(MINUTES, "other"), "ann", 1),)
    for checks in [ANN, other] * 20:
        await settle(store.hit(checks))
    assert [lease.decision.checks for lease in leases_of(store)] == [ANN, other]
    assert await store.reset("ann", ["other"]) is True
    assert [lease.decision.checks for lease in leases_of(store)] == [ANN]


@pytest.mark.parametrize(("by", "most"), [("a charge", 0), ("a changed amount", 9)])
async def test_what_takes_the_units_ends_leases(store: RedisStore, by: str, most: int) -> None:
    limited = bucket(MINUTES)
    checks = ((limited, "ann", 1),)
    await leased(store, checks)
    if by == "a charge":
        await store.charge(((limited, "ann", 10_000),))
    else:
        limited.limits[0].become(10)
    assert await asks(store, checks)
    assert sum([(await settle(store.hit(checks))).allowed for _ in range(10)]) <= most


async def test_if_redis_has_lost_its_data_leases_end_with_the_next_poll(server: RedisServer, store: RedisStore) -> None:
    await leased(store)
    server.command("FLUSHALL")
    assert not await asks(store), "nobody has said so yet"
    await store.batcher().poll()
    assert left(store) == 0
    assert await asks(store)
    await asyncio.sleep(0.05)
    assert await used(store) == 1, "nothing of what was lost is refunded"


async def test_a_failed_call_ends_leases_and_loses_one_but_not_the_bound(server: RedisServer) -> None:
    async with (
        FaultProxy(server.port) as proxy,
        leasing(f"redis://{HOST}:{proxy.port}/0") as (store,),
        store_at(server, prefix=store._prefix) as direct,
    ):
        await leased(store)
        for _ in range(3):
            await hit(store, "bob", MINUTES)
        proxy.cut_after(0)
        with pytest.raises(StoreError):
            await hit(store, "eve", MINUTES)
        assert left(store) == 0, "it may lead to a server that has lost the last writes"
        assert await asks(store)
        assert await used(direct) <= 6000


@pytest.mark.parametrize("is_saved", [False, True])
async def test_nothing_is_spent_after_a_restart_once_a_call_has_failed(is_saved: bool) -> None:
    """A server that comes back without what it wrote last, as after a failover, has the identity of before."""
    with RedisServer() as server:
        async with leasing(server) as (store,):
            await hit(store, "bob", MINUTES)
            if is_saved:
                server.command("SAVE")
            await leased(store)
            life = store.parts.polled.life
            server.kill()
            server.start()
            while left(store):
                with suppress(StoreError):
                    await hit(store, "eve", "6000/minute @11")
            assert await asks(store)
            await store.batcher().poll()
            assert (store.parts.polled.life == life) is is_saved
            await asyncio.sleep(0.05)
            assert await used(store) == 1, "and nothing of what was lost is refunded"


@pytest.mark.parametrize("step_us", [10_000_000, 50_000, -50_000, -10_000_000])
async def test_a_step_of_the_server_s_clock_ends_leases_with_the_next_answer(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, step_us: int
) -> None:
    stepped_us = 0
    monkeypatch.setattr(store.parts.time, "for_script", lambda: time.time_ns() // 1_000 + stepped_us)
    await leased(store)
    stepped_us = step_us
    assert not await asks(store), "nobody has said so yet"
    await hit(store, "bob", MINUTES)
    assert left(store) == 0


def test_what_a_worker_spends_before_its_lease_ends_it_spends_in_the_slice() -> None:
    """By a clock that goes slower by the part that is allowed, and both are rounded down; see proofs/window.v."""
    for slice_us in range(1, 20_000):
        lease_us = slice_us - slice_us // CLOCK_ERROR - ROUNDING_US
        latest_us = lease_us * (CLOCK_ERROR + 1) // CLOCK_ERROR + 1  # when the worker reads the last microsecond of it
        assert lease_us <= 0 or latest_us < slice_us


def test_a_step_of_the_clock_is_noticed() -> None:
    store_time = StoreTime(None)

    def sees_step(ahead_us: int, lag_us: int) -> bool:
        now_us = real_monotonic_us()
        return store_time.note(now_us + ahead_us - lag_us // 2, (now_us - lag_us) * 1_000)

    ahead_us = 10**15
    assert not any(sees_step(ahead_us, lag_us) for lag_us in (0, 40_000, 3_000_000, 0))
    steps = ahead_us - 50_000, ahead_us + 50_000, ahead_us + 50_000
    assert [sees_step(step_us, 0) for step_us in steps] == [True, True, False]


@pytest.mark.parametrize("seed", range(25))
async def test_random_programs_of_three_workers_keep_the_bound(server: RedisServer, seed: int) -> None:
    """By a fake clock. After each step Redis counts what is spent and what the workers have left, and no more."""
    rnd, clock = random.Random(seed), FakeClock(YEAR_2100_US)
    limited = Bucket("x", (Limit(rnd.choice((20, 60, 200)), "2s", resolution=rnd.choice((2, 4, 8))),))
    (limit,) = limited.limits
    assert isinstance(limit, Limit)
    checks = ((limited, "ann", 1),)
    spent, charged = list[tuple[int, int]](), list[Decision]()  # used, mark
    async with leasing(server, 3, clock=clock) as stores:
        for _ in range(300):
            what, store = rnd.random(), rnd.choice(stores)
            if what < 0.7:
                many = rnd.choice((1, 1, 3, 9, 25))
                if rnd.random() < 0.5:
                    decisions = [await settle(store.hit(checks)) for _ in range(many)]
                else:
                    decisions = await asyncio.gather(*(settle(store.hit(checks)) for _ in range(many)))
                for decision in decisions:
                    if decision.allowed:
                        spent.append((clock.now_us, decision.readings[0][2]))
                        assert clock.now_us <= decision.readings[0][2]
                        charged.append(decision)
            elif what < 0.8 and charged:
                decision = charged.pop(rnd.randrange(len(charged)))
                mark = decision.readings[0][2]
                if await settle(rnd.choice(stores).refund(decision.begin_refund())):
                    spent.remove(next(one for one in spent if one[1] == mark))
            else:
                clock.advance(us=rnd.choice((1, 1_000, 60_000, limit.slice_us, 2_000_000)))
            now_us, leases = clock.now_us, [lease for one in stores for lease in leases_of(one)]
            marks = [mark for _, mark in spent]
            marks += [lease.decision.readings[0][2] for lease in leases for _ in lease.units]
            snapshot = await store.inspect([(limited, "ann", 0)])
            _, state = limit.counter.spend(snapshot.windows[0], now_us, 0)
            assert state[0] == sum(now_us < mark + limit.span_us for mark in marks)
        times = sorted(at for at, _ in spent)
        for at in times:
            assert bisect_left(times, at + limit.window_us) - bisect_left(times, at) <= limit.amount
