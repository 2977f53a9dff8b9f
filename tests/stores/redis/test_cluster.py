"""A cluster: one node has all keys of a prefix, their slot moves, and the node dies."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import pytest

from slidegate import Limiter
from slidegate.core import Reason
from slidegate.testing import RecordingObserver

from ...redis_servers import RedisCluster, RedisServer, needs_redis, until
from .faults import FAULTS, on_a_cluster
from .stores import ticks_until_served
from .test_processes import most_in_any
from .worker import at_work

pytestmark = needs_redis

SECRET = b"s" * 32
CLIENTS = 40
AMOUNT = 500
WINDOW_US = 500_000
ON_FIRST = "on-0"
"""The slot of this prefix is one of the first server of a cluster."""


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


def home_of(cluster: RedisCluster, prefix: str = "slidegate") -> tuple[int, RedisServer, RedisServer]:
    """Return the slot of a prefix, its owner, and another master."""
    slot = cluster.slot_of(prefix)
    owner = cluster.owner(slot)
    return slot, owner, next(server for server in cluster.masters if server is not owner)


async def test_a_slot_on_its_way_takes_counts_and_bans_along(cluster: RedisCluster, limiter: Limiter) -> None:
    assert (await limiter.hit("key", "6/hour")).remaining == 5
    await limiter.ban("198.51.100.7", "1h")
    slot, owner, other = home_of(cluster)
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
    for number in range(CLIENTS):
        assert (await limiter.hit(f"198.51.100.{number}", "6/hour")).allowed is (number != 8)
    assert [server for server in cluster.masters if server.command("KEYS", "*")] == [owner], "all is on one node"


async def test_a_slot_that_nobody_serves_is_a_store_that_does_not_answer(
    cluster: RedisCluster, limiter: Limiter
) -> None:
    assert (await limiter.hit("key", "3/hour")).remaining == 2
    slot, owner, _ = home_of(cluster)
    owner.command("CLUSTER", "DELSLOTS", slot)
    try:
        assert (await limiter.hit("key", "3/hour")).reason is Reason.UNAVAILABLE
    finally:
        owner.command("CLUSTER", "ADDSLOTS", slot)
        cluster.wait_ok()
    assert (await limiter.hit("key", "3/hour")).remaining == 1


@pytest.mark.all
async def test_after_a_node_dies_its_replica_goes_on_with_what_it_was_told(with_replica: RedisCluster) -> None:
    cluster = with_replica
    first, *_, replica = cluster.servers
    limiter = Limiter.from_url(f"{cluster.url}?prefix={ON_FIRST}", secret=SECRET, deadline="10s", on_error="deny")
    async with limiter:
        for number in range(CLIENTS):
            await limiter.hit(f"user:{number}", "3/hour")
        until(lambda: replica.command("DBSIZE") == first.command("DBSIZE"), "the replica has it all")
        first.kill()
        until(lambda: replica.info("replication")["role"] == "master", "the replica takes over")
        cluster.wait_ok()
        assert await ticks_until_served(limiter, 1_000) >= 0
        decisions = [await limiter.hit(f"user:{number}", "3/hour") for number in range(CLIENTS)]
    assert [decision.remaining for decision in decisions] == [1] * CLIENTS


def slot_moves(cluster: RedisCluster) -> None:
    slot, owner, other = home_of(cluster, ON_FIRST)
    for target in (other, owner) * 3:
        cluster.move_slot(slot, target)


def replica_takes_over(cluster: RedisCluster) -> None:
    replica = cluster.servers[-1]
    replica.command("CLUSTER", "FAILOVER")
    until(lambda: replica.info("replication")["role"] == "master", "the replica takes over")


@pytest.mark.all
@pytest.mark.parametrize("happens", [slot_moves, replica_takes_over])
def test_processes_together_get_exactly_the_amount_while(
    happens: Callable[[RedisCluster], None], with_replica: RedisCluster
) -> None:
    first, may_fail = with_replica.servers[0], happens is replica_takes_over
    url = f"{with_replica.url}?prefix={ON_FIRST}"
    with at_work([0] * 3, url, f"{AMOUNT}/500ms", 5 * WINDOW_US, may_fail=may_fail) as times_us:
        until(lambda: first.command("KEYS", "*:w:*"), "the first hit")
        happens(with_replica)
    assert most_in_any(times_us, WINDOW_US) == AMOUNT
    assert len(times_us) > AMOUNT


@pytest.mark.parametrize("fault", ["refused connection", "half-open sockets"])
@pytest.mark.all
async def test_only_the_node_with_the_keys_matters_and_is_found_again(fault: str) -> None:
    async with on_a_cluster() as deployment:
        for sick in (0, 1):  # the first has the keys
            observer = RecordingObserver(without=["refused"])
            limiter = Limiter.from_url(
                deployment.url, secret=SECRET, deadline="500ms", on_error="deny", observers=[observer]
            )
            async with limiter:
                await ticks_until_served(limiter)
                before = len(observer.kinds)  # a busy machine connects slowly
                async with FAULTS[fault][0](replace(deployment, proxies=deployment.proxies[sick:])):
                    served = [(await limiter.hit("user:1", "1000/hour")).reason is Reason.OK for _ in range(10)]
                    assert served == [sick == 1] * 10
                await ticks_until_served(limiter)
            emitted = [kind for kind in observer.kinds[before:] if kind != "store_late"]
            assert emitted[:1] + emitted[-1:] == ([] if sick else ["store_failed", "store_recovered"])
