"""The store for many hosts, on real servers: the contract, and what only this store has to hold."""

import asyncio
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from slidegate import BanPolicy, Limiter, parse_limits
from slidegate.core import Bucket, Concurrency, Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore, batch, refusals
from slidegate.stores.redis.batch import MAX_IN_CALL
from slidegate.testing import FakeClock, RecordingObserver

from ...contract import RandomContract, StoreContract
from ...contract.harness import bucket
from ...contract.player import settle
from ...contract.store_contract import StatsContract
from ...questions import hit_all
from ...redis_servers import RedisCluster, RedisServer, needs_redis, needs_valkey
from ...virtual_time import turns
from .faults import Deployment
from .stores import PLENTY, address, all_connected, eventually, fresh_prefix, hit, store_at, store_of, usual, workers_at
from .test_clients import METHODS

pytestmark = needs_redis
HELD: Final = ((Bucket("held", [Concurrency(9)]), "user:ann", 1),)
PAGE: Final = Path(__file__).resolve().parents[3] / "docs/stores/redis.md"


async def counted(server: RedisServer, work: Callable[[], Awaitable[object]]) -> int:
    """Return how many script calls some work takes."""
    server.command("CONFIG", "RESETSTAT")
    await work()
    return sum(count for name, count in server.calls().items() if name in ("evalsha", "eval"))


class AtServer:
    """Stores at the address of the server that a subclass names."""

    running: str

    @pytest.fixture(autouse=True)
    def _at(self, request: pytest.FixtureRequest) -> None:
        self.server = request.getfixturevalue(self.running)

    def make_store(self, clock: FakeClock) -> RedisStore:
        return store_of(self.server, clock=clock)


def url_of_user(server: RedisServer) -> str:
    """Return the address for a user that has the rights of the page about Redis, and no others."""
    rights = re.search(r"The Redis user of slidegate needs\s+`([^`]+)`", PAGE.read_text(encoding="utf-8"))
    server.command("ACL", "SETUSER", "middleware", "reset", "on", ">secret", *rights[1].split(), "~{slidegate:*}:*")
    return server.url.replace("//", "//middleware:secret@")


class TestRedis(AtServer, StoreContract):
    running = "server"

    def make_store(self, clock: FakeClock) -> RedisStore:
        return store_of(url_of_user(self.server), prefix=f"slidegate:{fresh_prefix()}", clock=clock)

    def opener(self) -> Callable[[], RedisStore]:
        return partial(RedisStore, url_of_user(self.server), prefix=f"slidegate:{fresh_prefix()}", timeout=PLENTY)


@needs_valkey
@pytest.mark.usefixtures("fewer_programs")
class TestValkey(AtServer, RandomContract):
    running = "valkey"


@pytest.mark.usefixtures("fewer_programs")
class TestCluster(AtServer, RandomContract):
    running = "cluster"


class TestStatsOnACluster(AtServer, StatsContract):
    running = "cluster"


async def test_where_too_many_wait_further_ones_are_turned_away(server: RedisServer) -> None:
    async with store_at(server, max_waiting=3) as store:
        await hit(store, "warm")
        asked = ((bucket("100/minute"), "ann", 1),)
        futures = [asyncio.ensure_future(settle(store.hit(asked))) for _ in range(10)]
        await asyncio.wait(futures)
        failed = [future for future in futures if future.exception() is not None]
        assert len(failed) == 7  # three waited
        with pytest.raises(StoreUnavailable, match="3 requests are already queued"):
            failed[0].result()
        assert (await hit(store, "ann", "100/minute", 0)).remaining == 97


async def test_what_another_layout_wrote_is_neither_read_nor_touched(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store:
        theirs = {f"{{{store._prefix}}}:{name}" for name in ("w2:ann", "3:w:ann", "bans", "3:bans:list")}
        for name in theirs:
            server.command("HSET", name, "x", "theirs")
        assert (await hit(store, "ann")).remaining == 4
        await store.bans.ban("user:eve", None, "", "ann")
        await store.reset_all()
        assert theirs == {name for name in theirs if server.command("HGET", name, "x") == b"theirs"}


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """By how many seconds, `by_s`, the clocks of stores go before those of `time`."""
    ahead = SimpleNamespace(by_s=0.0)
    clocks = {
        "monotonic": lambda: time.monotonic() + ahead.by_s,
        "monotonic_ns": lambda: time.monotonic_ns() + int(ahead.by_s * 1e9),
    }
    ours = [module for name, module in sys.modules.items() if name.startswith("slidegate.stores.redis")]
    found = [(module, name) for module in ours for name in clocks if name in vars(module)]
    assert {name for _, name in found} == {*clocks}
    for module, name in found:
        monkeypatch.setattr(module, name, clocks[name])
    return ahead


@pytest.mark.parametrize("banned", [False, True])
async def test_a_known_refusal_costs_a_command_a_second_whatever_else_redis_is_asked_meanwhile(
    server: RedisServer, workers: list[RedisStore], ahead: SimpleNamespace, banned: bool
) -> None:
    store, other = workers
    await hit(store, "ann", cost=5)
    if banned:
        await other.bans.ban("ann", 3_600_000_000, "", "bob")
    first = await hit(store, "ann")

    async def flood() -> None:
        for _ in range(100):
            refused = await hit(store, "ann")
            assert refused.reason is (Reason.BANNED if banned else Reason.LIMITED)
            assert 0 <= (first.retry_after_us or 0) - (refused.retry_after_us or 0) < 60_000_000

    async def flood_beside_others() -> None:
        for _ in range(10):
            ahead.by_s += 0.3
            assert not await hit(store, "ann")
            assert await settle(other.refund((await hit(other, "bob")).begin_refund()))
            assert await hit(store, "eve", cost=0)

    assert await counted(server, flood) == 0
    ahead.by_s += 1.0  # not trusted any longer: one question, and then for a second again
    assert await counted(server, flood) <= 3  # they are read, and written where nobody was faster
    news = 2 * 4  # each worker asks once a second what has changed
    assert await counted(server, flood_beside_others) <= 10 * 3 + 4 + news


@pytest.mark.parametrize("how", ["refund", "reset", "reset_all", "unban"])
async def test_refunds_of_another_worker_are_known_in_a_second(
    workers: list[RedisStore], ahead: SimpleNamespace, how: str
) -> None:
    store, other = workers
    charged = await hit(other, "ann", cost=1 if how == "unban" else 5)
    if how == "unban":
        await other.bans.ban("ann", 3_600_000_000, "", "bob")
    assert not await hit(store, "ann")
    ways: dict[str, Callable[[], Any]] = {
        "refund": lambda: other.refund(charged.begin_refund()),
        "reset": lambda: other.reset("ann"),
        "reset_all": other.reset_all,
        "unban": lambda: other.bans.unban("ann", "bob"),
    }
    assert await ways[how]()
    assert await hit(other, "ann")  # its own it knows at once
    assert not await hit(store, "ann")
    ahead.by_s += 1.0
    assert await hit(store, "ann")


async def test_refusals_that_count_cost_a_command_each_and_count_all(store: RedisStore, server: RedisServer) -> None:
    asked = bucket("1000/hour", count_denied=True)
    await hit(store, "ann", asked, 1_000)

    async def flood() -> None:
        for number in range(1, 101):
            refused = await hit(store, "ann", asked)
            assert (refused.allowed, refused.readings[0][0]) == (False, 1_000 + number)

    assert 100 <= await counted(server, flood) <= 103  # and what has changed, once a second


async def test_strikes_share_calls_and_a_ban_is_one_call_more(store: RedisStore, server: RedisServer) -> None:
    policy = BanPolicy("100/minute", name="p")
    observer = RecordingObserver()
    store.observe(observer)

    async def flood() -> None:
        struck = (store.bans.strike(policy, "user:eve", 1, "") for _ in range(99))
        assert set(await asyncio.gather(*struck)) == {None}

    async def ban() -> None:
        made = await store.bans.strike(policy, "user:eve", 1, "why")
        assert (made.level, made.reason) == (1, "why")

    await all_connected(store)
    assert await counted(server, flood) == -(-99 // MAX_IN_CALL)
    assert await counted(server, ban) == 2
    assert observer.kinds == ["banned"]


@pytest.mark.parametrize("banned", ["192.0.2.0/24", "192.0.2.9"])
@pytest.mark.parametrize("running", ["server", "cluster"])
async def test_what_one_worker_bans_and_unbans_is_known_to_the_others_as_soon_as_they_hear_of_it(
    running: str, banned: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "NEWS_S", 0.1)
    monkeypatch.setattr(refusals, "TRUST_US", 100_000)
    deployment, subjects = request.getfixturevalue(running), (address("192.0.2.9"),)
    async with workers_at(deployment, 2) as (store, other):
        plenty = usual("100000/minute")

        async def passes() -> bool:
            return bool(await settle(other.hit(((plenty, "192.0.2.9", 1),), subjects)))

        async def is_refused() -> bool:
            return not await passes()

        assert await passes()
        for _ in range(2):
            await store.bans.ban(banned, None, "by request", "ann")
            assert "/" in banned or await is_refused(), "a client is refused at once"
            await eventually(is_refused)
            assert (await hit(other, "user:ann", plenty)).reason is Reason.OK
            await store.bans.unban(banned, "ann")
            assert await settle(store.hit(((plenty, "192.0.2.9", 1),), subjects)), "its own it knows at once"
            await eventually(passes)


@pytest.mark.parametrize("running", ["server", "cluster"])
@pytest.mark.parametrize("what", ["hit", "peek"])
async def test_bans_of_networks_are_known_at_once(what: str, running: str, request: pytest.FixtureRequest) -> None:
    checks = ((usual("100000/minute"), "192.0.2.9", 1),)
    async with workers_at(request.getfixturevalue(running), 2) as (store, other):
        await store.bans.ban("192.0.2.0/24", None, "by request", "ann")
        asked = [settle(getattr(other, what)(checks, (address("192.0.2.9"),))) for _ in range(3)]
        assert {decision.reason for decision in await asyncio.gather(*asked)} == {Reason.BANNED}


BOTH: Final = (*HELD, (usual("10/hour"), "user:ann", 1))


async def nothing_is_left(store: RedisStore) -> bool:
    """Tell whether nothing is charged or taken but what is asked about."""
    looked = await settle(store.peek(BOTH))
    return [spent for spent, *_ in looked.readings] == [1, 1]


@pytest.mark.parametrize("given_up_after", [*range(20), *range(20, 90, 5)])
async def test_a_request_that_is_given_up_leaves_nothing_charged(given_up_after: int, server: RedisServer) -> None:
    """At any turn of the loop: before it is sent, on its way, and in the turn in which its answer comes."""
    async with store_at(server, permit_lease="5m") as store, Limiter(store, deadline="60s", on_error="deny") as limiter:
        asked = asyncio.create_task(hit_all(limiter, BOTH))
        await turns(given_up_after)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await settle(store.refund((await asked).begin_refund()))  # it was there before

        await eventually(partial(nothing_is_left, store))


async def test_an_answer_that_comes_too_late_leaves_nothing_charged_or_taken(deployment: Deployment) -> None:
    store = store_of(deployment, permit_lease="5m")
    async with Limiter(store, deadline="50ms", on_error="deny") as limiter:
        await hit(store, "warm")  # a connection is open
        deployment.proxy.delay_s = 0.1
        late = await asyncio.gather(*(hit_all(limiter, BOTH) for _ in range(5)))
        assert {decision.reason for decision in late} == {Reason.UNAVAILABLE}
        deployment.proxy.delay_s = 0.0

        await eventually(partial(nothing_is_left, store))


def kept(server: RedisServer, store: RedisStore) -> dict[str, int]:
    """Return the milliseconds that each key of a store still lives; -1 for ever."""
    names = server.command("KEYS", f"{{{store._prefix}}}:*")
    return {name.decode().removeprefix(f"{{{store._prefix}}}"): server.command("PTTL", name) for name in names}


async def test_every_key_expires(server: RedisServer) -> None:
    policy = BanPolicy("2/minute", "10m", forgive="1h", name="p")
    async with store_at(server, readable=True) as store:
        for limits in ("5/minute", "100/minute", "100/minute; 7/hour"):
            for _ in range(3):
                await hit(store, "ann", limits)
        longest = parse_limits("7/hour")[0]
        window_ms = kept(server, store)[":w:ann"]
        assert longest.window_us / 1_000 < window_ms <= (longest.span_us + longest.slice_us) / 1_000 + 1_000
        for _ in range(2):
            await store.bans.strike(policy, "user:eve", 1, "")
        await store.bans.ban("user:bob", 60_000_000, "", "ann")
        await store.bans.ban("192.0.2.0/24", 60_000_000, "", "ann")
        left = kept(server, store)
        assert [name for name, left_ms in left.items() if left_ms < 0] == []
        assert 590_000 < left[":w:user:eve"] <= 602_000
        assert 4_190_000 < left[":s:user:eve"] <= 4_202_000
        assert 59_000 < left[":bans:networks"] <= 61_000
        await store.bans.ban("user:bob", None, "", "ann")
        forever = ":w:user:bob", ":bans:index", ":bans"
        assert min(map(kept(server, store).get, forever)) > 50 * 365 * 86_400_000, "for ever is a hundred years"
        await hit(store, "user:bob2", "5/minute")
        await store.bans.unban("user:bob", "ann")
        assert ":w:user:bob" not in kept(server, store)


async def test_keys_are_digests_unless_asked_otherwise(server: RedisServer) -> None:
    async with store_at(server) as store, store_at(server, readable=True) as readable:
        for each in (store, readable):
            await hit(each, "user:ann")
        (name,) = [name for name in kept(server, store) if name.startswith(":w:")]
        assert "ann" not in name
        assert ":w:user:ann" in kept(server, readable)


@pytest.mark.parametrize("what", ["hit", "charge"])
async def test_a_question_that_fails_at_one_of_its_keys_charges_none(what: str, cluster: RedisCluster) -> None:
    wide = usual("1000/hour")
    async with store_at(cluster, readable=True) as store:
        name = f"{{{store._prefix}}}:w:user:bad"
        cluster.owner(cluster.slot_of(name)).command("SET", name, "not ours")
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await settle(getattr(store, what)([(wide, key, 1) for key in ("user:ann", "user:bob", "user:bad")]))
        assert {(await hit(store, key, wide, 0)).remaining for key in ("user:ann", "user:bob")} == {1_000}


async def test_an_ordinary_refusal_writes_nothing(server: RedisServer) -> None:
    clock = FakeClock()
    async with store_at(server, clock=clock) as store:
        await hit(store, "ann", "5/minute; 100/hour", cost=5)
        await eventually(lambda: server.command("PTTL", f"{{{store._prefix}}}:bans") >= 0)  # a first answer does that
        server.command("CONFIG", "RESETSTAT")
        for second in range(3):
            clock.advance("1s")
            assert not await hit(store, "ann", "5/minute; 100/hour", cost=1 + second)
        assert not {"hset", "hdel", "pexpire"} & server.calls().keys()


async def test_the_user_of_the_page_may_do_all_that_a_store_offers(server: RedisServer) -> None:
    async with store_at(url_of_user(server), prefix=f"slidegate:{fresh_prefix()}") as store:
        for name, ask in METHODS.items():
            answer = await settle(ask(store))
            assert answer or name not in ("read", "active"), name
