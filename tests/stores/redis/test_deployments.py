"""Several processes, sentinels and a cluster: the bound holds over all of them, and the server is found again."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from slidegate import Limit, Limiter
from slidegate.core import Reason, StoreUnavailable
from slidegate.testing import RecordingObserver

from ...redis_servers import RedisCluster, RedisServer, ReplicaPair, Sentinel, needs_redis, until
from ...soak.checks import most_inside
from .faults import FAULTS, on_a_cluster
from .stores import eventually, store_at, ticks_until_served
from .worker import at_work

pytestmark = needs_redis


@pytest.fixture
def server(server: RedisServer) -> RedisServer:
    """Return the shared server, empty."""
    server.command("FLUSHALL")
    return server


def most_in_any(times_us: Sequence[int], window_us: int) -> int:
    """Return the largest number of moments that any half-open interval of a length holds."""
    return most_inside(((time_us, time_us) for time_us in times_us), window_us - 1)[0]


@pytest.mark.parametrize(
    ("processes", "amount", "window_us"),
    [
        pytest.param(4, 200, 500_000, id="slices"),
        pytest.param(4, 50, 500_000, id="times of every unit", marks=pytest.mark.all),
        pytest.param(8, 10_000, 2_000_000, id="large", marks=pytest.mark.deep),
    ],
)
def test_processes_together_get_the_amount(server: RedisServer, processes: int, amount: int, window_us: int) -> None:
    limit = Limit(amount, f"{window_us // 1_000}ms")
    with at_work([0] * processes, server.url, str(limit), 5 * window_us // 2) as times_us:
        pass
    assert len([time_us for time_us in times_us if time_us < times_us[0] + window_us]) == amount
    assert most_in_any(times_us, window_us) == amount
    assert len(times_us) > amount


@pytest.mark.all
def test_hosts_whose_clocks_disagree_share_one_limit(server: RedisServer) -> None:
    with at_work([-5, -0.25, 0.25, 5], server.url, "100/hour", 1_000_000) as times_us:
        pass
    assert len(times_us) == 100
    assert times_us[-1] - times_us[0] < 5_000_000, "all have the time of the server"


# -- a cluster: one node has all keys of a prefix, their slot moves, and the node dies ---------------------------------


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


@pytest.fixture
def cluster(cluster: RedisCluster) -> RedisCluster:
    """Return the shared cluster, empty."""
    for server in cluster.masters:
        server.command("FLUSHALL")
    return cluster


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


async def test_a_slot_that_nobody_serves_does_not_answer(cluster: RedisCluster, limiter: Limiter) -> None:
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
def test_a_cluster_admits_the_amount_while(happens: Callable[[RedisCluster], None], with_replica: RedisCluster) -> None:
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


LIMIT = "1000/hour"


# -- sentinels: any of them may be dead, hang or be out of date --------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[ReplicaPair]:
    with ReplicaPair() as pair:
        yield pair


@pytest.fixture
def sentinels(pair: ReplicaPair) -> Iterator[list[Sentinel]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Sentinel(pair.master)) for _ in range(3)]


def acquainted(sentinels: list[Sentinel]) -> None:
    """Come back when all know of each other and of the replica."""

    def knows(sentinel: Sentinel) -> bool:
        others = sentinel.command("SENTINEL", "SENTINELS", "mymaster")
        return bool(sentinel.command("SENTINEL", "REPLICAS", "mymaster")) and len(others) == 2

    until(lambda: all(map(knows, sentinels)), "each knows the replica and the others")


def url_of(sentinels: list[Sentinel]) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{sentinel.port}' for sentinel in sentinels)}/mymaster"


@pytest.mark.all
@pytest.mark.parametrize("sick", [(0,), (0, 1)], ids=str)
@pytest.mark.parametrize("trouble", ["dead", "hung"])
async def test_one_live_sentinel_is_enough(trouble: str, sick: tuple[int, ...], sentinels: list[Sentinel]) -> None:
    for number in sick:
        if trouble == "dead":
            sentinels[number].kill()
        else:
            sentinels[number].pause()
    async with Limiter.from_url(url_of(sentinels), secret=SECRET, on_error="deny") as limiter:
        assert await ticks_until_served(limiter) >= 0


@pytest.mark.all
async def test_a_failover_is_followed_while_one_sentinel_hangs(pair: ReplicaPair, sentinels: list[Sentinel]) -> None:
    acquainted(sentinels)
    async with Limiter.from_url(url_of(sentinels), secret=SECRET, on_error="deny") as limiter:
        assert await ticks_until_served(limiter) >= 0
        pair.wait_copied()
        sentinels[0].pause()
        sentinels[1].command("SENTINEL", "FAILOVER", "mymaster")
        until(lambda: pair.replica.info("replication")["role"] == "master", "the replica takes over")
        until(lambda: all(port_of(sentinel) == pair.replica.port for sentinel in sentinels[1:]), "sentinels agree")
        pair.master.kill()
        assert await ticks_until_served(limiter) >= 0

        async def what_was_counted_goes_on() -> bool:
            known = await limiter.peek("probe:1", LIMIT, 0)  # over a connection that may have to be opened first
            return known.reason is not Reason.UNAVAILABLE and known.remaining < 999

        await eventually(what_was_counted_goes_on)


def port_of(sentinel: Sentinel) -> int:
    return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])


@pytest.mark.all
async def test_a_sentinel_that_is_out_of_date_is_overruled_by_what_the_server_says(pair: ReplicaPair) -> None:
    with Sentinel(pair.replica) as late, Sentinel(pair.master) as right:
        # The one that is late finds out that it watches a replica only after a while.
        async with Limiter.from_url(url_of([late, right]), secret=SECRET, deadline="10s", on_error="deny") as limiter:
            assert (await limiter.hit("user:1", LIMIT)).allowed


@pytest.mark.all
async def test_errors_and_messages_name_the_service(sentinels: list[Sentinel]) -> None:
    url, observer = url_of(sentinels), RecordingObserver(without=["refused"])
    async with store_at(url.replace("/mymaster", "/gaet")) as store:
        with pytest.raises(StoreUnavailable, match=r"no sentinel leads to a master of service 'gaet'.*No such master"):
            await store.reset("user:1")
    for sentinel in sentinels:
        sentinel.kill()
    async with Limiter.from_url(url, secret=SECRET, deadline="10s", on_error="deny", observers=[observer]) as limiter:
        assert (await limiter.hit("user:1", LIMIT)).reason is Reason.UNAVAILABLE
    message = observer.events[0].message
    assert "service 'mymaster'" in message
    assert "6379" not in message
