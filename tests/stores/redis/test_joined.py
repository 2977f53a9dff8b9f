"""Equal hits that wait for the same call: one request of the script, answered as if asked one after another."""

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, Final

import pytest

from slidegate import Decision, MemoryStore, Quota
from slidegate.core import Bucket, Check, Concurrency, Reason, StoreUnavailable, parse_address
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_IN_CALL
from slidegate.stores.redis.requests import AskedQuestion
from slidegate.stores.redis.script import Packed
from slidegate.stores.redis.several import several
from slidegate.testing import FakeClock

from ...contract import RandomContract
from ...contract.player import settle
from ...contract.store_contract import bucket
from ...fault_proxy import FaultProxy
from ...redis_servers import HOST, RedisServer, needs_redis
from ...virtual_time import turns
from .stores import Ahead, all_connected, hit, store_at, store_of, usual, workers_at

pytestmark = needs_redis
MANY: Final = 10 * MAX_IN_CALL


@pytest.mark.usefixtures("fewer_programs")
class TestSeveral(RandomContract):
    """Every hit is charged as several ones are, of which there is one."""

    @pytest.fixture(autouse=True)
    def _at(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        real = AskedQuestion._pack_hits

        def pack(asked: AskedQuestion, single: Packed) -> Packed:
            if not asked.question.is_joinable:
                return real(asked, single)
            asked.is_several = True
            return several(single, 1)

        monkeypatch.setattr(AskedQuestion, "_pack_hits", pack)

    def make_store(self, clock: FakeClock) -> RedisStore:
        return store_of(self.server, clock=clock)


async def together(*asked: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("limits", ["10/minute", "100/minute @10", "1000/hour; 70/minute"])
@pytest.mark.parametrize("cost", [1, 3])
async def test_equal_hits_of_one_turn_are_one_request(limits: str, cost: int, server: RedisServer) -> None:
    async with store_at(server, clock=FakeClock()) as store:
        await all_connected(store)
        server.command("CONFIG", "RESETSTAT")
        decisions = await together(*(hit(store, limits=limits, cost=cost) for _ in range(MANY)))
        assert server.calls()["evalsha"] == 1
        assert server.calls()["hset"] == len(usual(limits).limits), "and each window is written once"

        memory = MemoryStore(clock=FakeClock())
        for ours in decisions:
            theirs = await settle(memory.hit(((usual(limits), "ann", cost),)))
            assert (ours.reason, ours.states, ours.is_whole) == (theirs.reason, theirs.states, theirs.is_whole)


KEYS: Final = ("ann", "ann", "ann", "bob", "all")
BUCKETS: Final = (bucket("9/minute"), bucket("90/minute @8; 200/hour", "two"), Bucket("month", [Quota("500/month")]))
OTHERS: Final = (bucket("9/minute", "counting", count_denied=True),)


def drawn(rng: random.Random) -> tuple[Check, ...]:
    """Return a question, of a few; some are about a key that most are about, too."""
    first = rng.choice((*BUCKETS, *BUCKETS, *BUCKETS, *OTHERS)), rng.choice(KEYS), rng.choice((1, 1, 1, 1, 2, 0))
    if rng.random() < 0.2:
        return first, (bucket("300/hour", "service") if first[2] else BUCKETS[1], "all", 1)
    return (first,)


async def test_turns_of_many_hits_are_answered_as_one_after_another(
    server: RedisServer, clock: FakeClock, rng: random.Random
) -> None:
    """Beside peeks, charges and resets, and some are given up before they are sent."""
    memory = MemoryStore(clock=clock)
    async with store_at(server, clock=clock) as store:
        await all_connected(store)
        for _ in range(150):
            questions = [drawn(rng) for _ in range(3)]
            expected, ours = list[Any](), list[asyncio.Future[Any]]()
            for _ in range(rng.choice((1, 3, 20, 60))):
                what = rng.choices(("hit", "peek", "charge", "reset"), (40, 1, 1, 1))[0]
                asked: Any = rng.choice(questions)
                if what == "reset":
                    asked = "ann"
                answer = getattr(store, what)(asked)
                if what == "hit" and rng.random() < 0.1 and not isinstance(answer, Decision):
                    answer.cancel()
                    continue
                ours.append(asyncio.ensure_future(settle(answer)))
                expected.append(await settle(getattr(memory, what)(asked)))
            for mine, theirs in zip(await asyncio.gather(*ours), expected, strict=True):
                if isinstance(mine, Decision):
                    assert mine.reason is theirs.reason
                    assert mine.reason is Reason.LIMITED or mine.states == theirs.states
            clock.advance(us=rng.choice((0, 1, 1_000_000, 20_000_000)))


async def test_who_gives_up_takes_no_unit_and_no_answer_from_the_others(server: RedisServer) -> None:
    """Before the request is sent, and while it is under way."""
    for given_up_after in range(12):
        async with store_at(server) as store:
            await all_connected(store)
            asked: list[Any] = [store.hit(((usual("5/minute"), "ann", 1),)) for _ in range(8)]
            await turns(given_up_after)
            given_up = [one for one in (asked[0], asked[3]) if one.cancel()]
            answers = await together(*asked)
            admitted = [one for one in answers if isinstance(one, Decision) and one.allowed]
            assert len(admitted) == 5 or len(given_up) == 2, "of those that waited, as many as there is room for"
            assert (await hit(store, limits="5/minute", cost=0)).readings[0][0] == len(admitted)


async def test_each_of_several_hits_is_refunded_by_itself(server: RedisServer) -> None:
    async with store_at(server) as store:
        decisions = await together(*(hit(store, limits="5/minute") for _ in range(4)))
        for left in (3, 2, 1, 0):
            assert await settle(store.refund(decisions.pop().begin_refund()))
            assert (await hit(store, limits="5/minute", cost=0)).readings[0][0] == left


async def test_what_several_hits_were_charged_is_refunded_to_a_network_that_is_banned(
    server: RedisServer, ahead: Ahead
) -> None:
    address = parse_address("192.0.2.9")
    async with workers_at(server, 2) as (operator, worker):

        async def reasons() -> set[Reason]:
            subjects = (address,)
            return {one.reason for one in await together(*(hit(worker, subjects=subjects) for _ in range(5)))}

        await hit(worker, "bob")
        await operator.bans.ban("192.0.2.0/24", None, "", "ann")
        ahead.by_s += 1.0
        assert await reasons() == {Reason.BANNED}
        assert (await hit(worker, cost=0)).readings[0][0] == 0
        await operator.bans.unban("192.0.2.0/24", "ann")
        ahead.by_s += 1.0
        assert await reasons() == {Reason.OK}


async def test_a_connection_that_ends_fails_all_of_them_and_breaks_no_bound(server: RedisServer) -> None:
    async with FaultProxy(server.port) as proxy, store_at(f"redis://{HOST}:{proxy.port}/0") as store:
        await hit(store, limits="100/minute")
        proxy.cut_after(0)
        failed = await together(*(hit(store, limits="100/minute") for _ in range(150)))
        assert {type(one) for one in failed} == {StoreUnavailable}
        assert (await hit(store, limits="100/minute", cost=0)).readings[0][0] in (1, 100)


async def test_where_too_many_wait_no_further_one_joins(server: RedisServer) -> None:
    async with store_at(server, max_waiting=7) as store:
        for _ in range(2):
            answers = await together(*(hit(store, key, "50/minute") for key in ("ann", "bob") * 5))
            assert [str(one) for one in answers[7:]] == ["redis: 7 requests are already queued"] * 3
            assert all(isinstance(one, Decision) and one.allowed for one in answers[:7])


async def test_permits_are_taken_one_by_one(server: RedisServer) -> None:
    async with store_at(server) as store:
        decisions = await together(*(hit(store, limits=Bucket("held", [Concurrency(5)])) for _ in range(8)))
        assert [one.allowed for one in decisions] == [True] * 5 + [False] * 3
        assert store.permits_held() == 5
