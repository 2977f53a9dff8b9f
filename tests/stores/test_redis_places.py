"""Places of concurrency limits in Redis: who holds them, how they are renewed, and how they come back."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from slidegate import ConfigurationError, StoreError, StoreUnavailable
from slidegate.core.decision import Bucket, Decision, Reason
from slidegate.core.kinds.concurrency import Concurrency
from slidegate.core.limits import parse_limits
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import YEAR_2100_US

from ..redis_servers import VALKEY, RedisCluster, RedisServer, needs_redis, needs_valkey

pytestmark = needs_redis
NUMBER = itertools.count()
TWO = Bucket("render", [Concurrency(2)])
WINDOW = Bucket("window", parse_limits("100/minute"))
LEASE_US = 10_000_000
BOUND_S = 30


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as running:
        yield running


@pytest.fixture(params=["server", "cluster", pytest.param("valkey", marks=needs_valkey)])
def place(request: pytest.FixtureRequest) -> Iterator[RedisServer | RedisCluster]:
    if request.param == "valkey":
        with RedisServer(program=VALKEY) as running:
            yield running
    else:
        yield request.getfixturevalue(request.param)


class Workers:
    """Stores on the same data, each as a process of its own has it, with one clock."""

    def __init__(self, place: RedisServer | RedisCluster, number: int, **options: Any) -> None:
        self.clock = FakeClock(YEAR_2100_US)
        prefix = f"p{os.getpid()}-{next(NUMBER)}"
        self.stores = [RedisStore(place.url, prefix=prefix, **{"clock": self.clock, **options}) for _ in range(number)]
        self.seen = [RecordingObserver() for _ in self.stores]
        for store, seen in zip(self.stores, self.seen, strict=True):
            store.observe(seen)


@asynccontextmanager
async def workers(place: RedisServer | RedisCluster, number: int, **options: Any) -> AsyncIterator[Workers]:
    made = Workers(place, number, **options)
    try:
        yield made
    finally:
        for store in made.stores:
            await store.close()


async def take(store: RedisStore, key: str = "ann", *others: tuple[Bucket, str, int], bucket: Bucket = TWO) -> Decision:
    return await settle(store.hit(((bucket, key, 1), *others)))


async def turns() -> None:
    """Let other tasks of the event loop go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_no_more_than_the_amount_is_held_over_all_workers(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 3) as made:
        first, second, third = made.stores
        held = [await take(first), await take(second)]
        refused = await take(third)
        assert [bool(decision) for decision in held] == [True, True]
        assert (refused.reason, refused.retry_after_us, refused.remaining) == (Reason.LIMITED, None, 0)
        assert (await settle(third.peek(((TWO, "ann", 1),)))).reason is Reason.LIMITED
        bob = await take(third, "bob")
        assert bob.remaining == 1
        assert await settle(first.refund(held[0])) is True
        assert await settle(first.refund(held[0])) is False
        held[0] = await take(third)
        assert held[0].allowed
        assert not await take(first)
        assert [store.places_held() for store in made.stores] == [0, 1, 2]


async def test_a_demand_takes_places_and_units_together_or_neither(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 1) as made:
        (store,) = made.stores
        tight = Bucket("tight", parse_limits("1/minute"))
        both = await take(store, "ann", (WINDOW, "ann", 1), (WINDOW, "other", 1))
        assert both.allowed
        assert not await take(store, "ann", (tight, "ann", 2))  # the window refuses, so no place is taken
        assert store.places_held() == 1
        assert (await take(store)).allowed
        refused = await take(store, "ann", (WINDOW, "ann", 1))  # the places refuse, so no unit is charged
        assert (refused.reason, refused.retry_after_us) == (Reason.LIMITED, None)
        assert (await settle(store.peek(((WINDOW, "ann", 1),)))).remaining == 98
        assert await settle(store.refund(both.take_out(0))) is True
        assert (await take(store)).allowed


async def test_a_reset_leaves_places_taken(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 1) as made:
        (store,) = made.stores
        held = [await take(store), await take(store)]
        await settle(store.reset("ann"))
        await store.clear()
        assert not await take(store)
        for decision in held:
            assert await settle(store.refund(decision)) is True
        assert (await take(store)).remaining == 1


async def test_places_of_a_worker_that_is_gone_come_back_after_the_lease(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        gone, here = made.stores
        held = [await take(gone), await take(gone)]
        made.clock.advance(us=LEASE_US - 1)
        assert not await take(here)
        made.clock.advance(us=1)
        assert (await take(here)).allowed
        assert len(held) == 2


async def test_renewed_places_stay_taken(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        holds, other = made.stores
        held = [await take(holds), await take(holds)]
        for _ in range(5):
            made.clock.advance(us=LEASE_US - 1)
            await holds._renewals.renew()
            assert not await take(other)
        assert await settle(holds.refund(held.pop())) is True
        assert (await take(other)).allowed
        assert made.seen[0].events == []


async def test_a_worker_that_was_stopped_learns_it_before_it_asks_for_more(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        stopped, other = made.stores
        old = [await take(stopped), await take(stopped)]
        made.clock.advance(us=LEASE_US)
        taken = await take(other)  # one of the two is gone by the time the worker wakes
        assert not await take(stopped)
        await turns()
        (event,) = made.seen[0].events
        assert (event.kind, dict(event.details)) == ("places_lost", {"lost": 1, "back": 1})
        assert stopped.places_held() == 1
        assert sorted([await settle(stopped.refund(decision)) for decision in old]) == [False, True]
        assert (await take(stopped)).allowed
        assert not await take(stopped)
        assert await settle(other.refund(taken)) is True
        assert (await take(stopped)).allowed


async def test_a_lost_place_is_put_back_when_there_is_room_again(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        stopped, other = made.stores
        old = [await take(stopped), await take(stopped)]
        made.clock.advance(us=LEASE_US)
        taken = [await take(other), await take(other)]
        assert not await take(stopped)
        assert stopped.places_held() == 0
        for decision in taken:
            await settle(other.refund(decision))
        await stopped._renewals.renew()
        await turns()
        assert [event.details for event in made.seen[0].events] == [{"lost": 2, "back": 0}, {"lost": 0, "back": 2}]
        assert not await take(other)
        assert [await settle(stopped.refund(decision)) for decision in old] == [True, True]


async def test_places_are_put_back_after_a_flush(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        holds, other = made.stores
        held = [await take(holds), await take(holds)]
        assert not await take(other)
        for server in [place] if isinstance(place, RedisServer) else place.masters:
            server.command("FLUSHALL")
        await holds._renewals.renew()
        assert not await take(other)
        assert [event.details for event in made.seen[0].events if event.kind == "places_lost"] == [
            {"lost": 0, "back": 2}
        ]
        assert [await settle(holds.refund(decision)) for decision in held] == [True, True]


async def test_a_place_that_nobody_can_hand_back_is_renewed_no_more(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        holds, other = made.stores
        kept = await take(holds)
        await take(holds)  # its decision is gone at once
        await turns()
        gc.collect()
        assert holds.places_held() == 1
        made.clock.advance(us=LEASE_US - 1)
        await holds._renewals.renew()
        made.clock.advance(us=1)
        assert (await take(other)).allowed
        assert not await take(other)
        assert kept.allowed


async def test_thousands_of_places_are_renewed_without_filling_the_line(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2, max_waiting=200) as made:
        holds, other = made.stores
        many = Bucket("many", [Concurrency(700)])
        held = [await take(holds, bucket=many) for _ in range(700)]
        for first in range(0, 1_000, 100):
            held += await asyncio.gather(*(take(holds, f"user:{number}") for number in range(first, first + 100)))
        made.clock.advance(us=LEASE_US - 1)
        await holds._renewals.renew()
        made.clock.advance(us=LEASE_US - 1)
        assert not await take(other, bucket=many)
        assert (await take(other, "user:77")).remaining == 0
        assert holds.places_held() == 1_700 == len(held)
        assert made.seen[0].events == []


async def test_a_place_for_a_request_that_was_given_up_is_handed_back(server: RedisServer) -> None:
    async with workers(server, 2) as made:
        store, other = made.stores
        await settle(store.peek(((TWO, "ann", 1),)))  # connects
        task = asyncio.ensure_future(take(store))
        await asyncio.sleep(0)  # it is on its way
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle(store.peek(((TWO, "ann", 1),)))  # answered behind it
        decisions = [await take(other), await take(other)]
        assert [bool(decision) for decision in decisions] == [True, True]
        assert store.places_held() == 0


async def test_a_script_that_was_forgotten_takes_and_renews_all_the_same(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        holds, other = made.stores
        held = []
        for _ in range(2):
            forget_scripts(place)
            held.append(await take(holds))
        made.clock.advance(us=LEASE_US - 1)
        forget_scripts(place)
        await holds._renewals.renew()
        made.clock.advance(us=LEASE_US - 1)
        assert not await take(other)
        forget_scripts(place)
        assert [await settle(holds.refund(decision)) for decision in held] == [True, True]


def forget_scripts(place: RedisServer | RedisCluster) -> None:
    for server in [place] if isinstance(place, RedisServer) else place.masters:
        server.command("SCRIPT", "FLUSH")


async def test_places_move_with_their_slot(cluster: RedisCluster) -> None:
    async with workers(cluster, 2, readable=True) as made:
        holds, other = made.stores
        held = [await take(holds), await take(holds)]
        (name,) = {name for server in cluster.masters for name in server.command("KEYS", f"{holds._prefix}:p:*")}
        slot = cluster.slot_of(name)
        owner = cluster.owner(slot)
        target = next(server for server in cluster.masters if server is not owner)
        with cluster.migrating(slot, target):
            assert not await take(other)
            await holds._renewals.renew()
        made.clock.advance(us=LEASE_US - 1)
        await holds._renewals.renew()
        made.clock.advance(us=LEASE_US - 1)
        assert not await take(other)
        assert [await settle(holds.refund(decision)) for decision in held] == [True, True]
        cluster.move_slot(slot, owner)


async def test_places_survive_a_server_that_is_killed_and_comes_back_empty() -> None:
    with RedisServer() as server:
        async with workers(server, 2, clock=None, place_lease="10m") as made:
            holds, other = made.stores
            held = [await take(holds), await take(holds)]
            assert not await take(other)
            server.kill()
            with pytest.raises(StoreError):
                await holds._renewals.renew()
            server.start()
            await reconnected(holds)
            await holds._renewals.renew()
            await reconnected(other)
            assert not await take(other)
            assert [await settle(holds.refund(decision)) for decision in held] == [True, True]


async def reconnected(store: RedisStore) -> None:
    async with asyncio.timeout(BOUND_S):
        while True:
            with suppress(StoreError):
                await settle(store.peek(((WINDOW, "ann", 1),)))
                return
            await asyncio.sleep(0.01)


async def test_a_step_back_of_the_clock_frees_nothing(place: RedisServer | RedisCluster) -> None:
    async with workers(place, 2) as made:
        holds, other = made.stores
        held = [await take(holds), await take(holds)]
        made.clock.now_us -= 3_600_000_000
        assert not await take(other)
        await holds._renewals.renew()
        assert not await take(other)
        assert [await settle(holds.refund(decision)) for decision in held] == [True, True]


async def test_every_set_of_places_has_an_end(server: RedisServer) -> None:
    async with workers(server, 1, clock=None, place_lease="5s") as made:
        (store,) = made.stores
        held = await take(store)
        (name,) = server.command("KEYS", f"{store._prefix}:p:*")
        assert 4_000 < server.command("PTTL", name) <= 6_000
        await settle(store.refund(held))
        assert server.command("EXISTS", name) == 0


async def test_a_refusal_by_places_is_never_given_from_memory(server: RedisServer) -> None:
    async with workers(server, 2, clock=None) as made:
        one, other = made.stores
        held = [await take(one, "ann", (WINDOW, "ann", 1)) for _ in range(2)]
        assert not await take(other, "ann", (WINDOW, "ann", 1))
        await settle(one.refund(held[0].take_out(0)))
        assert (await take(other, "ann", (WINDOW, "ann", 1))).allowed


async def test_handed_back_places_leave_remembered_refusals_of_windows_alone(server: RedisServer) -> None:
    async with workers(server, 1, clock=None) as made:
        (store,) = made.stores
        spent = ((Bucket("tight", parse_limits("1/minute")), "eve", 1),)
        assert await settle(store.hit(spent))
        assert not await settle(store.hit(spent))
        for _ in range(5):
            assert await settle(store.refund(await take(store))) is True
        server.command("CONFIG", "RESETSTAT")
        assert not await settle(store.hit(spent))
        assert not any(count for name, count in server.calls().items() if name == "evalsha")


@pytest.mark.parametrize("lease", ["0.5s", "11m", "soon", 0, None])
def test_a_lease_that_cannot_work_is_refused(lease: Any) -> None:
    with pytest.raises(ConfigurationError, match="place_lease"):
        RedisStore("redis://127.0.0.1:1/0", place_lease=lease)


async def test_an_empty_server_that_is_away_says_so() -> None:
    store = RedisStore("redis://127.0.0.1:1/0", timeout="1s")
    try:
        with pytest.raises(StoreUnavailable):
            await take(store)
        assert store.places_held() == 0
    finally:
        await store.close()
