"""A cluster: one node has all keys of a prefix, their slot moves, and the node dies."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from slidegate import Limiter
from slidegate.core import Reason

from ...redis_servers import BOUND_S, RedisCluster, RedisServer, needs_redis, until
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
    async with Limiter.from_url(cluster.url, secret=SECRET, deadline=10, on_error="deny") as limiter:
        yield limiter


def home_of(cluster: RedisCluster) -> tuple[int, RedisServer, RedisServer]:
    """Return the one slot that holds counted windows, its owner, and another master."""
    found = {name for server in cluster.masters for name in server.command("KEYS", "*:w:*")}
    (name,) = found
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


async def test_a_slot_on_its_way_counts_every_hit_once(cluster: RedisCluster, limiter: Limiter) -> None:
    assert (await limiter.hit("key", "5/hour")).remaining == 4
    slot, owner, other = home_of(cluster)
    with cluster.migrating(slot, other):
        assert (await limiter.hit("key", "5/hour")).remaining == 3
        # Now the keys are where the slot goes to, and the slot still with its old owner, who says ASK.
        for name in owner.command("KEYS", "{*}:*"):
            owner.command("MIGRATE", "127.0.0.1", other.port, name, 0, 5_000)
        assert (await limiter.hit("key", "5/hour")).remaining == 2
        assert owner.command("KEYS", "*:w:*") == []
    assert (await limiter.hit("key", "5/hour")).remaining == 1
    cluster.move_slot(slot, owner)


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
    limiter = Limiter.from_url(url_on(cluster, first), secret=SECRET, deadline=10, on_error="deny")
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
