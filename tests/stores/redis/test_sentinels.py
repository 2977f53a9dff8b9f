"""Sentinels: any of them may be dead, hang or be out of date, and the master is found."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from slidegate import Limiter
from slidegate.core import Reason, StoreUnavailable
from slidegate.testing import RecordingObserver

from ...redis_servers import ReplicaPair, Sentinel, needs_redis, until
from .stores import eventually, store_at, ticks_until_served

pytestmark = [needs_redis, pytest.mark.all]

SECRET = b"s" * 32
LIMIT = "1000/hour"


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


@pytest.mark.parametrize("sick", [(0,), (0, 1)], ids=str)
@pytest.mark.parametrize("trouble", ["dead", "hung"])
async def test_one_sentinel_that_lives_is_enough(
    trouble: str, sick: tuple[int, ...], sentinels: list[Sentinel]
) -> None:
    for number in sick:
        if trouble == "dead":
            sentinels[number].kill()
        else:
            sentinels[number].pause()
    async with Limiter.from_url(url_of(sentinels), secret=SECRET, on_error="deny") as limiter:
        assert await ticks_until_served(limiter) >= 0


async def test_a_failover_is_followed_while_the_first_sentinel_hangs(
    pair: ReplicaPair, sentinels: list[Sentinel]
) -> None:
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


async def test_a_sentinel_that_is_out_of_date_is_overruled_by_what_the_server_says(pair: ReplicaPair) -> None:
    with Sentinel(pair.replica) as late, Sentinel(pair.master) as right:
        # The one that is late finds out that it watches a replica only after a while.
        async with Limiter.from_url(url_of([late, right]), secret=SECRET, deadline="10s", on_error="deny") as limiter:
            assert (await limiter.hit("user:1", LIMIT)).allowed


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
