"""A cluster: one node has all keys of a prefix, their slot moves, and the node dies."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Final

import pytest

from slidegate import Limiter
from slidegate.core import Reason
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...fault_proxy import FaultProxy, in_front_of
from ...redis_servers import BOUND_S, RedisCluster, RedisServer, needs_redis, until
from .faults import FAULTS, Place
from .stores import eventually
from .test_processes import most_in_any
from .worker import Orders, at_work

pytestmark = needs_redis

SECRET = b"s" * 32
CLIENTS = 40
AMOUNT = 500
WINDOW_US = 500_000


@pytest.fixture
def with_replica() -> Iterator[RedisCluster]:
    with RedisCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _empty(cluster: RedisCluster) -> None:
    for server in cluster.masters:
        server.command("FLUSHALL")


@pytest.fixture
async def limiter(cluster: RedisCluster) -> AsyncIterator[Limiter]:
    async with Limiter.from_url(cluster.url, secret=SECRET, deadline="10s", on_error="deny") as limiter:
        yield limiter


def home_of(cluster: RedisCluster, names: str = "*:w:*") -> tuple[int, RedisServer, RedisServer]:
    """Return the slot of the one key with such a name, by default a counted window, its owner, and another master."""
    (name,) = {name for server in cluster.masters for name in server.command("KEYS", names)}
    slot = cluster.slot_of(name)
    owner = cluster.owner(slot)
    return slot, owner, next(server for server in cluster.masters if server is not owner)


def url_on(cluster: RedisCluster, server: RedisServer) -> str:
    """Return the address of a store whose keys are on a server; its prefix says which slot they are in."""
    prefixes = (f"on-{number}" for number in range(1_000))
    return f"{cluster.url}?prefix={next(one for one in prefixes if cluster.owner(cluster.slot_of(one)) is server)}"


async def test_all_keys_of_a_prefix_are_on_one_node_and_each_has_its_own_limit(
    cluster: RedisCluster, limiter: Limiter
) -> None:
    for _ in range(4):
        for number in range(CLIENTS):
            await limiter.hit(f"user:{number}", "3/hour")
    left = [(await limiter.peek(f"user:{number}", "3/hour")).reason for number in range(CLIENTS)]
    assert left == [Reason.LIMITED] * CLIENTS
    assert sorted(len(server.command("KEYS", "*:w:*")) for server in cluster.masters) == [0, 0, CLIENTS]


async def test_a_slot_on_its_way_takes_counts_and_bans_along(cluster: RedisCluster, limiter: Limiter) -> None:
    assert (await limiter.hit("key", "6/hour")).remaining == 5
    await limiter.ban("198.51.100.7", "1h")
    slot, owner, other = home_of(cluster, "*:bans")
    with cluster.migrating(slot, other):
        assert (await limiter.hit("key", "6/hour")).remaining == 4
        # Now the keys are where the slot goes to, and the slot still with its old owner, who says ASK.
        for name in owner.command("KEYS", "{*}:*"):
            owner.command("MIGRATE", "127.0.0.1", other.port, name, 0, 5_000)
        assert (await limiter.hit("key", "6/hour")).remaining == 3
        assert owner.command("KEYS", "*:w:*") == []
    assert (await limiter.hit("key", "6/hour")).remaining == 2
    await limiter.ban("198.51.100.8", "1h")
    assert {found.key async for found in limiter.bans()} == {"198.51.100.7", "198.51.100.8"}
    cluster.move_slot(slot, owner)
    assert (await limiter.hit("198.51.100.7", "6/hour")).reason is Reason.BANNED
    await limiter.unban("198.51.100.7")
    assert (await limiter.hit("198.51.100.7", "6/hour")).allowed


@pytest.mark.all
def test_processes_together_get_exactly_the_amount_while_the_slot_moves_to_and_fro(cluster: RedisCluster) -> None:
    with at_work([Orders(cluster.url, f"{AMOUNT}/500ms", span_us=5 * WINDOW_US)] * 3) as times_us:
        until(lambda: any(server.command("KEYS", "*:w:*") for server in cluster.masters), "the first hit")
        slot, owner, other = home_of(cluster)
        for target in (other, owner) * 3:
            cluster.move_slot(slot, target)
    assert most_in_any(times_us, WINDOW_US) == AMOUNT
    assert len(times_us) > AMOUNT


async def test_a_slot_that_nobody_serves_is_a_store_that_does_not_answer(
    cluster: RedisCluster, limiter: Limiter
) -> None:
    assert (await limiter.hit("key", "3/hour")).remaining == 2
    slot, owner, _ = home_of(cluster)
    owner.command("CLUSTER", "DELSLOTS", slot)
    try:
        async with asyncio.timeout(BOUND_S):
            assert (await limiter.hit("key", "3/hour")).reason is Reason.UNAVAILABLE
    finally:
        owner.command("CLUSTER", "ADDSLOTS", slot)
        cluster.wait_ok()
    async with asyncio.timeout(BOUND_S):
        assert (await limiter.hit("key", "3/hour")).remaining == 1


@pytest.mark.all
async def test_after_a_node_dies_its_replica_goes_on_with_what_it_was_told(with_replica: RedisCluster) -> None:
    cluster = with_replica
    first, *_, replica = cluster.servers
    limiter = Limiter.from_url(url_on(cluster, first), secret=SECRET, deadline="10s", on_error="deny")
    async with limiter:
        for number in range(CLIENTS):
            await limiter.hit(f"user:{number}", "3/hour")
        until(lambda: replica.command("DBSIZE") == first.command("DBSIZE"), "the replica has it all")
        first.kill()
        until(lambda: replica.info("replication")["role"] == "master", "the replica takes over")
        cluster.wait_ok()

        async def is_served() -> bool:
            return (await limiter.hit("probe", "1000/hour")).reason is Reason.OK

        await eventually(is_served)
        decisions = [await limiter.hit(f"user:{number}", "3/hour") for number in range(CLIENTS)]
    assert [decision.remaining for decision in decisions] == [1] * CLIENTS


@pytest.mark.all
def test_processes_together_get_no_more_than_the_amount_while_a_replica_takes_over(with_replica: RedisCluster) -> None:
    cluster = with_replica
    first, *_, replica = cluster.servers
    orders = Orders(url_on(cluster, first), f"{AMOUNT}/500ms", span_us=5 * WINDOW_US, may_fail=True)
    with at_work([orders] * 3) as times_us:
        until(lambda: first.command("KEYS", "*:w:*"), "the first hit")
        replica.command("CLUSTER", "FAILOVER")
        until(lambda: replica.info("replication")["role"] == "master", "the replica takes over")
    assert most_in_any(times_us, WINDOW_US) == AMOUNT
    assert len(times_us) > AMOUNT


# -- connections are late, stall and are reset: every node is reached through a proxy, whose port it tells clients -----


TICK_S: Final = 0.02
BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""
LIMIT: Final = "1000/hour"
KEYS: Final = ("user:1", "user:2", "user:3")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with RedisCluster(fronted=True) as cluster:
        yield cluster


@pytest.fixture
async def proxies(nodes: RedisCluster) -> AsyncIterator[list[FaultProxy]]:
    for server in nodes.servers:
        server.command("FLUSHALL")
    async with in_front_of(nodes.servers) as proxies:
        yield proxies


def limiter_at(proxies: list[FaultProxy], deadline: str, heard: RecordingObserver) -> Limiter:
    """Return a limiter that denies what the store does not decide."""
    store = RedisStore("redis+cluster://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies))
    return Limiter(store, secret=SECRET, deadline=deadline, on_error="deny", observers=[heard])


async def are_decided(limiter: Limiter) -> bool:
    """Hit every key at once; tell whether the store answered all."""
    decisions = await asyncio.gather(*(limiter.hit(key, LIMIT) for key in KEYS))
    return all(decision.reason is not Reason.UNAVAILABLE for decision in decisions)


async def keep_asking(limiter: Limiter) -> None:
    while True:
        await are_decided(limiter)
        await asyncio.sleep(0.005)


async def ticks_until_back(limiter: Limiter, most: int) -> int:
    """Return after how many ticks the store answered for every key, -1 if that is too many."""
    for tick in range(most):
        if await are_decided(limiter):
            return tick
        await asyncio.sleep(TICK_S)
    return -1


async def rage(proxies: list[FaultProxy], rng: random.Random, moves: int) -> None:
    """Let everything happen between clients and nodes for a while, and end with all well but some latency."""
    for _ in range(moves):
        proxy = rng.choice(proxies)
        proxy.delay_s = rng.uniform(0.001, 0.012)
        match rng.randrange(6):
            case 0 | 1:
                proxy.drop()
            case 2:
                proxy.cut_after(rng.randrange(2_000))
            case 3:
                proxy.freeze()
            case 4:
                await proxy.refuse()
                await proxy.accept()
        await asyncio.sleep(rng.uniform(0.0, 0.03))
        if rng.random() < 0.5:
            for other in proxies:
                other.thaw()
    for proxy in proxies:
        proxy.cut_no_more()
        proxy.thaw()
        proxy.delay_s = 0.001


@pytest.mark.parametrize(
    ("rounds", "most_ticks"), [(3, NEVER_TICKS), pytest.param(60, BACK_TICKS, marks=pytest.mark.deep)]
)
@pytest.mark.all
async def test_every_worker_that_starts_amid_faults_is_back_after_the_last_one(
    rounds: int, most_ticks: int, proxies: list[FaultProxy], rng: random.Random
) -> None:
    for number in range(rounds):
        async with AsyncExitStack() as stack:
            limiters = [limiter_at(proxies, "50ms", RecordingObserver()) for _ in range(6)]
            for limiter in limiters:
                await stack.enter_async_context(limiter)
                stack.callback(asyncio.create_task(keep_asking(limiter)).cancel)
            await rage(proxies, rng, 12)
            late = await asyncio.gather(*(ticks_until_back(limiter, most_ticks) for limiter in limiters))
        assert -1 not in late, f"round {number}: {late}"


@pytest.mark.parametrize("fault", ["refused connection", "half-open sockets"])
@pytest.mark.parametrize("keeps", [False, True], ids=["another node", "the node with the keys"])
@pytest.mark.all
async def test_only_the_node_with_the_keys_matters_and_is_found_again(
    keeps: bool, fault: str, nodes: RedisCluster, proxies: list[FaultProxy]
) -> None:
    heard, keeper = RecordingObserver(without=["refused"]), nodes.owner(nodes.slot_of("slidegate"))
    sick = next(number for number, server in enumerate(nodes.servers) if (server is keeper) is keeps)
    async with limiter_at(proxies, "500ms", heard) as limiter:

        async def is_served() -> bool:
            return (await limiter.hit("user:1", LIMIT)).reason is Reason.OK

        await eventually(is_served)
        before = len(heard.kinds)  # a busy machine connects slowly
        async with FAULTS[fault][0](Place(nodes.servers[sick], proxies[sick])):
            served = [await is_served() for _ in range(10)]
            assert served == [not keeps] * 10
        await eventually(is_served)
    told = [kind for kind in heard.kinds[before:] if kind != "store_late"]
    assert told[:1] + told[-1:] == (["store_failed", "store_recovered"] if keeps else [])
