"""The store for many hosts, on real servers: the contract, and what only this store has to hold."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from slidegate import BanPolicy
from slidegate.core import StoreUnavailable
from slidegate.core.addresses import parse_address
from slidegate.core.concurrency import Concurrency
from slidegate.core.decision import Decision, LimitSet, Reason
from slidegate.core.limits import parse_limits
from slidegate.core.store import BanStore, SharedStats, StatsRow, Store
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.clock import ServerClock
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.testing.contract import StoreContract
from slidegate.testing.contract.harness import bucket
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import Ask, Change, Move, Program, Step

from ...patching import replace_everywhere
from ...redis_servers import RedisCluster, RedisServer, needs_redis, needs_valkey
from ..transports import RandomContract
from .stores import PLENTY_S, fresh_prefix, store_at, store_of, struck

BOUND_S = 20
PAGE: Final = Path(__file__).resolve().parents[3] / "docs/stores/redis.md"


async def counted(server: RedisServer, work: Callable[[], Awaitable[object]]) -> int:
    """Return how many script calls some work takes."""
    server.command("CONFIG", "RESETSTAT")
    await work()
    return sum(count for name, count in server.calls().items() if name in ("evalsha", "eval"))


@cache
def usual(limits: str) -> LimitSet:
    """Return the one bucket for limits: a known refusal is one of a bucket, not of a text."""
    return bucket(limits)


async def hit(store: RedisStore, key: str, limits: str | LimitSet = "5/minute", cost: int = 1) -> Decision:
    asked = usual(limits) if isinstance(limits, str) else limits
    return await settle(store.hit(((asked, key, cost),)))


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
    rights = re.search(r"A user for slidegate needs\s+`([^`]+)`", PAGE.read_text(encoding="utf-8"))
    assert rights is not None
    server.command("ACL", "SETUSER", "middleware", "reset", "on", ">secret", *rights[1].split())
    return server.url.replace("//", "//middleware:secret@")


@needs_redis
class TestRedis(AtServer, StoreContract):
    running = "server"

    def make_store(self, clock: FakeClock) -> RedisStore:
        url = url_of_user(self.server)
        return RedisStore(url, prefix=f"slidegate:{fresh_prefix()}", timeout=PLENTY_S, clock=clock)

    def opener(self) -> Callable[[], RedisStore]:
        return partial(RedisStore, url_of_user(self.server), prefix=f"slidegate:{fresh_prefix()}", timeout=PLENTY_S)


@needs_valkey
class TestValkey(AtServer, RandomContract):
    running = "valkey"


@needs_redis
class TestCluster(AtServer, RandomContract):
    running = "cluster"

    async def play(self, program: Program) -> None:
        # What a refusal of several keys would count is not peeked at. Its units are charged and handed back; a window
        # behind the one that refused is not asked, so what a step of the clock back or another amount does to
        # windows when they are asked shows later than in the reference.
        if any(isinstance(move, Ask) and len({key for _, key, _ in move.question}) > 1 for move in program.moves):
            program = program._replace(moves=[move for move in program.moves if not _shows_when_asked(move)])
        await super().play(program._replace(count_denied=()))


def _shows_when_asked(move: Move) -> bool:
    return isinstance(move, Change) or (isinstance(move, Step) and move.span_us < 0)


# -- batching ----------------------------------------------------------------------------------------------------------


@needs_redis
async def test_where_too_many_wait_further_ones_are_turned_away(server: RedisServer) -> None:
    async with store_at(server, max_waiting=3) as store:
        await hit(store, "warm")
        asked = ((bucket("100/minute"), "ann", 1),)
        futures = [asyncio.ensure_future(settle(store.hit(asked))) for _ in range(10)]
        await asyncio.wait(futures)
        failed = [future for future in futures if future.exception() is not None]
        assert len(failed) == 7  # three waited
        with pytest.raises(StoreUnavailable, match="3 requests wait"):
            failed[0].result()
        assert (await hit(store, "ann", "100/minute", 0)).remaining == 97


@needs_redis
async def test_what_another_layout_wrote_is_neither_read_nor_touched(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store:
        theirs = {f"{store._prefix}:{name}" for name in ("w2:{ann}", "3:w:{ann}", "{bans}", "3:{bans}:list")}
        for name in theirs:
            server.command("HSET", name, "x", "theirs")
        assert (await hit(store, "ann")).remaining == 4
        await store.bans.ban("user:eve", None, "", "ann")
        await store.reset_all()
        assert theirs == {name for name in theirs if server.command("HGET", name, "x") == b"theirs"}


@needs_redis
async def test_scripts_that_are_forgotten_are_sent_again_and_charged_once(server: RedisServer) -> None:
    async with store_at(server) as store:
        policy = BanPolicy("5/minute", name="p")
        for spent in range(1, 4):
            server.command("SCRIPT", "FLUSH")
            assert (await hit(store, "ann")).remaining == 5 - spent
            server.command("SCRIPT", "FLUSH")
            await store.bans.strike(policy, "user:ann", 1, "")


# -- what is answered without asking -----------------------------------------------------------------------------------


class Ahead:
    """Clocks in the place of those of `time`, which go `ahead_s` before them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        replace_everywhere(monkeypatch, "slidegate.stores.redis", "monotonic", self.monotonic)
        replace_everywhere(monkeypatch, "slidegate.stores.redis", "monotonic_ns", lambda: int(self.monotonic() * 1e9))

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return time.monotonic() + self.ahead_s


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    return Ahead(monkeypatch)


@needs_redis
async def test_a_known_refusal_costs_no_command(server: RedisServer, ahead: Ahead) -> None:
    async with store_at(server) as store:
        await hit(store, "ann", cost=5)
        first = await hit(store, "ann")

        async def flood() -> None:
            for _ in range(100):
                refused = await hit(store, "ann")
                assert refused.reason is Reason.LIMITED
                assert 0 <= (first.retry_after_us or 0) - (refused.retry_after_us or 0) < 60_000_000

        assert await counted(server, flood) == 0
        ahead.ahead_s += 1.0  # not trusted any longer: one question, and then for a second again
        assert await counted(server, flood) <= 3  # they are read, and written where nobody was faster


@needs_redis
@pytest.mark.parametrize("how", ["refund", "reset", "reset_all"])
async def test_what_another_worker_hands_back_is_known_after_a_second(
    server: RedisServer, ahead: Ahead, how: str
) -> None:
    async with store_at(server) as store, store_at(server, prefix=store._prefix) as other:
        charged = await hit(other, "ann", cost=5)
        assert not await hit(store, "ann")
        ways: dict[str, Callable[[], Any]] = {
            "refund": lambda: other.refund(charged.take_back()),
            "reset": lambda: other.reset("ann"),
            "reset_all": other.reset_all,
        }
        await ways[how]()
        assert await hit(other, "ann")  # its own it knows at once
        assert not await hit(store, "ann")
        ahead.ahead_s += 1.0
        assert await hit(store, "ann")


@needs_redis
async def test_refusals_that_count_cost_one_command_and_count_all(server: RedisServer, ahead: Ahead) -> None:
    async with store_at(server) as store:
        asked = bucket("1000/hour", count_denied=True)
        await hit(store, "ann", asked, 1_000)
        assert not await hit(store, "ann", asked)

        async def flood() -> None:
            for _ in range(100):
                assert not await hit(store, "ann", asked)

        assert await counted(server, flood) == 0
        async with asyncio.timeout(BOUND_S):
            spent = 0
            while spent != 1_101:
                looked = await settle(store.peek(((usual("1000/hour"), "ann", 1),)))
                spent = looked.readings[0][0]
                assert spent <= 1_101


@needs_redis
async def test_strikes_are_summed_and_the_one_too_many_bans_at_once(server: RedisServer, ahead: Ahead) -> None:
    policy = BanPolicy("100/minute", name="p")
    async with store_at(server) as store:
        heard = RecordingObserver()
        store.observe(heard)

        async def flood() -> None:
            for _ in range(99):
                assert await store.bans.strike(policy, "user:eve", 1, "") is None

        assert await counted(server, flood) <= 3  # they are read, and written where nobody was faster
        made = await store.bans.strike(policy, "user:eve", 1, "why")
        assert made is not None
        assert (made.level, made.reason) == (1, "why")
        assert heard.kinds == ["banned"]


# -- bans --------------------------------------------------------------------------------------------------------------


@needs_redis
@pytest.mark.parametrize("running", ["server", "cluster"])
async def test_a_network_that_one_worker_bans_is_read_by_the_others_as_soon_as_they_hear_of_it(
    running: str, request: pytest.FixtureRequest
) -> None:
    address = parse_address("192.0.2.9")
    assert address is not None
    place = request.getfixturevalue(running)
    async with store_at(place) as store, store_at(place, prefix=store._prefix) as other:
        asked = ((bucket("100000/minute"), "192.0.2.9", 1),)
        assert await settle(other.hit(asked, (address,)))
        for _ in range(2):
            await store.bans.ban("192.0.2.0/24", None, "by request", "ann")
            async with asyncio.timeout(BOUND_S):
                while await settle(other.hit(asked, (address,))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await settle(other.hit(((asked[0][0], "user:ann", 1),)))).reason is Reason.OK
            await store.bans.unban("192.0.2.0/24", "ann")
            async with asyncio.timeout(BOUND_S):
                while not await settle(other.hit(asked, (address,))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


@needs_redis
@pytest.mark.parametrize(("step_us", "way"), [(-5_000_000, "5.0 s back"), (5_000_000, "5.0 s forward")])
async def test_a_step_of_the_servers_clock_is_told_and_forgets_what_was_known(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, step_us: int, way: str
) -> None:
    async with store_at(server) as store:
        heard = RecordingObserver()
        store.observe(heard)
        await hit(store, "ann", cost=5)
        assert not await hit(store, "ann")
        assert heard.kinds == []
        real = ServerClock.saw
        monkeypatch.setattr(ServerClock, "saw", lambda clock, now_us, sent_us: real(clock, now_us + step_us, sent_us))
        await hit(store, "bob")
        assert [(event.kind, round(event.details["step_us"] / 1_000_000)) for event in heard.events] == [
            ("clock_stepped", step_us // 1_000_000)
        ]
        assert way in heard.events[0].message

        async def again() -> None:
            assert not await hit(store, "ann")

        assert await counted(server, again) == 1


# -- what stands in Redis ----------------------------------------------------------------------------------------------


def kept(server: RedisServer, store: RedisStore) -> dict[str, int]:
    """Return the milliseconds that each key of a store still lives; -1 for ever."""
    names = server.command("KEYS", f"{store._prefix}:*")
    return {name.decode().removeprefix(store._prefix): server.command("PTTL", name) for name in names}


@needs_redis
async def test_every_key_expires(server: RedisServer) -> None:
    policy = BanPolicy("2/minute", "10m", forgive="1h", name="p")
    async with store_at(server, readable=True) as store:
        for limits in ("5/minute", "100/minute", "100/minute; 7/hour"):
            for _ in range(3):
                await hit(store, "ann", limits)
        longest = parse_limits("7/hour")[0]
        window_ms = kept(server, store)[":7:w:{ann}"]
        assert longest.window_us / 1_000 < window_ms <= (longest.span_us + longest.slice_us) / 1_000 + 1_000
        for _ in range(2):
            await store.bans.strike(policy, "user:eve", 1, "")
        await store.bans.ban("user:bob", 60_000_000, "", "ann")
        await store.bans.ban("192.0.2.0/24", 60_000_000, "", "ann")
        left = kept(server, store)
        assert [name for name, left_ms in left.items() if left_ms < 0] == []
        assert 590_000 < left[":7:w:{user:eve}"] <= 602_000
        assert 4_190_000 < left[":7:s:{user:eve}"] <= 4_202_000
        assert 59_000 < left[":7:{bans}:networks"] <= 61_000
        await store.bans.ban("user:bob", None, "", "ann")
        assert kept(server, store)[":7:w:{user:bob}"] > 50 * 365 * 86_400_000, "for ever is a hundred years"
        await hit(store, "user:bob2", "5/minute")
        await store.bans.unban("user:bob", "ann")
        assert ":7:w:{user:bob}" not in kept(server, store)


@needs_redis
async def test_keys_are_digests_unless_asked_otherwise(server: RedisServer) -> None:
    async with store_at(server) as store, store_at(server, readable=True) as readable:
        for each in (store, readable):
            await hit(each, "user:ann")
        (name,) = [name for name in kept(server, store) if name.startswith(":7:w:")]
        assert "ann" not in name
        assert ":7:w:{user:ann}" in kept(server, readable)


# -- the object --------------------------------------------------------------------------------------------------------


@needs_redis
async def test_a_question_of_several_keys_on_a_cluster_is_charged_on_all_or_on_none(cluster: RedisCluster) -> None:
    tight, wide = bucket("5/hour", "tight"), bucket("100/hour", "wide")
    async with store_at(cluster) as store:
        both = ((tight, "user:ann", 1), (wide, "everyone", 1))
        decisions = await asyncio.gather(*(settle(store.hit(both)) for _ in range(20)))
        admitted = [decision for decision in decisions if decision.allowed]
        assert len(admitted) <= 5
        while (last := await settle(store.hit(both))).allowed:
            admitted.append(last)
        assert len(admitted) == 5
        assert (await settle(store.peek(((wide, "everyone", 0),)))).remaining == 95
        assert [state.rule for state in last.violated] == ["tight"]
        assert [spent for spent, *_ in last.readings] == [5, 5], "what was handed back is not told as spent"
        for decision in admitted:
            assert await settle(store.refund(decision.take_back())) is True
            assert await settle(store.refund(decision.take_back())) is False
        assert (await settle(store.peek(((tight, "user:ann", 0),)))).remaining == 5


@needs_redis
async def test_a_refusal_of_several_keys_counts_where_that_is_asked_for(cluster: RedisCluster) -> None:
    counting = bucket("3/hour", "tight", count_denied=True)
    async with store_at(cluster, clock=FakeClock(10**15)) as store:
        both = ((counting, "user:ann", 1), (usual("100/hour"), "everyone", 1))
        answers = [await settle(store.hit(both)) for _ in range(5)]
        assert [answer.allowed for answer in answers] == [True] * 3 + [False] * 2
        looked = await settle(store.peek(((counting, "user:ann", 0),)))
        assert looked.readings[0][0] == 5  # three that passed, and two that were refused
        assert (await settle(store.peek(((usual("100/hour"), "everyone", 0),)))).remaining == 97
        peeked = await settle(store.peek(both))
        assert (peeked.reason, peeked.reservations) == (Reason.LIMITED, [])
        owed = await settle(store.charge(both))
        assert owed.allowed
        assert await settle(store.refund(owed.take_back())) is True


@needs_redis
async def test_a_question_of_several_keys_that_is_given_up_is_handed_back(cluster: RedisCluster) -> None:
    wide = usual("1000/hour")
    async with store_at(cluster) as store:
        keys = [f"user:{number}" for number in range(4)]
        for key in keys:  # connected to all nodes
            await hit(store, key, wide)
        checks = tuple((wide, key, 1) for key in keys)
        tasks = [asyncio.create_task(settle(store.hit(checks))) for _ in range(100)]
        for turn in range(40):
            await asyncio.sleep(0)
            tasks[turn].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        passed = sum(isinstance(answer, Decision) for answer in answers)
        assert 60 <= passed < 100
        async with asyncio.timeout(BOUND_S):
            for key in keys:
                while (await hit(store, key, wide, 0)).remaining != 999 - passed:
                    pass


@needs_redis
@pytest.mark.parametrize("what", ["hit", "charge"])
async def test_a_question_of_several_keys_that_fails_at_one_of_them_is_handed_back(
    what: str, cluster: RedisCluster
) -> None:
    wide = usual("1000/hour")
    async with store_at(cluster, readable=True) as store:
        name = f"{store._prefix}:7:w:{{user:bad}}"
        cluster.owner(cluster.slot_of(name)).command("SET", name, "not ours")
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await settle(getattr(store, what)([(wide, key, 1) for key in ("user:ann", "user:bob", "user:bad")]))
        async with asyncio.timeout(BOUND_S):
            for key in ("user:ann", "user:bob"):
                while (await hit(store, key, wide, 0)).remaining != 1_000:
                    pass


@needs_redis
async def test_what_is_given_up_before_it_went_is_not_charged(server: RedisServer) -> None:
    async with store_at(server) as store:
        await hit(store, "ann", "100/minute")
        tasks = [asyncio.create_task(hit(store, "ann", "100/minute")) for _ in range(10)]
        await asyncio.sleep(0)  # they wait for the end of the turn
        for task in tasks[1:]:
            task.cancel()
        assert (await tasks[0]).allowed
        assert (await hit(store, "ann", "100/minute", 0)).remaining == 98


@needs_redis
@pytest.mark.parametrize("banned", [False, True])
async def test_a_refusal_is_given_for_a_second_whatever_else_redis_is_asked_meanwhile(
    server: RedisServer, ahead: Ahead, banned: bool
) -> None:
    async with store_at(server) as store, store_at(server, prefix=store._prefix) as other:
        charged = await hit(other, "ann", cost=5)
        if banned:
            await other.bans.ban("ann", 3_600_000_000, "", "bob")

        async def flood() -> None:
            for _ in range(10):
                ahead.ahead_s += 0.3
                assert not await hit(store, "ann")
                assert await settle(other.refund((await hit(other, "bob")).take_back()))
                assert await hit(store, "eve", cost=0)

        assert not await hit(store, "ann")
        assert await counted(server, flood) <= 10 * 3 + 4
        ahead.ahead_s += 1.0
        assert await settle(other.bans.unban("ann", "bob") if banned else other.refund(charged.take_back()))
        assert (await hit(store, "ann")).reason is (Reason.LIMITED if banned else Reason.OK)


@needs_redis
async def test_an_ordinary_refusal_writes_nothing(server: RedisServer) -> None:
    clock = FakeClock()
    async with store_at(server, clock=clock) as store:
        await hit(store, "ann", "5/minute; 100/hour", cost=5)
        while server.command("PTTL", f"{store._prefix}:7:{{bans}}") < 0:  # noqa: ASYNC110
            await asyncio.sleep(0)  # the first answer gives the data a life
        server.command("CONFIG", "RESETSTAT")
        for second in range(3):
            clock.advance("1s")
            assert not await hit(store, "ann", "5/minute; 100/hour", cost=1 + second)
        assert not {"hset", "hdel", "pexpire"} & server.calls().keys()


@needs_redis
async def test_what_one_worker_bans_the_next_request_of_any_other_knows(server: RedisServer) -> None:
    async with store_at(server) as store, store_at(server, prefix=store._prefix) as other:
        asked = ((bucket("100/minute"), "192.0.2.9", 1),)
        assert await settle(other.hit(asked))
        await store.bans.ban("192.0.2.9", None, "by request", "ann")
        answers = [settle(other.hit(asked)), settle(other.hit(((asked[0][0], "user:ann", 1),)))]
        refused, passed = await asyncio.gather(*answers)
        assert (refused.reason, passed.reason) == (Reason.BANNED, Reason.OK)
        await store.bans.unban("192.0.2.9", "ann")
        async with asyncio.timeout(BOUND_S):
            while not await hit(other, "192.0.2.9", "100/minute", 0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await hit(other, "192.0.2.9", "100/minute", 0)).remaining == 99  # nothing was charged


@needs_redis
async def test_a_banned_client_costs_no_command_and_an_unban_is_known_after_a_second(
    server: RedisServer, ahead: Ahead
) -> None:
    async with store_at(server) as store, store_at(server, prefix=store._prefix) as other:
        await store.bans.ban("user:eve", 3_600_000_000, "", "ann")
        assert (await hit(other, "user:eve")).reason is Reason.BANNED

        async def flood() -> None:
            for _ in range(100):
                assert (await hit(other, "user:eve")).reason is Reason.BANNED

        assert await counted(server, flood) == 0
        assert await store.bans.unban("user:eve", "ann")
        ahead.ahead_s += 1.0
        assert await hit(other, "user:eve")


@needs_redis
async def test_strikes_that_are_not_enough_are_sent_in_time(server: RedisServer) -> None:
    policy = BanPolicy("100/minute", name="p")
    async with store_at(server) as store:
        for _ in range(5):
            await store.bans.strike(policy, "user:eve", 2, "")
        async with asyncio.timeout(BOUND_S):
            while True:
                if await struck(store) == {"user:eve": 10}:
                    break


@needs_redis
async def test_the_user_of_the_page_may_do_all_that_a_store_offers(server: RedisServer) -> None:
    store = RedisStore(url_of_user(server), prefix=f"slidegate:{fresh_prefix()}", timeout=PLENTY_S)
    checks = ((bucket("5/minute"), "ann", 1),)
    policy = BanPolicy("1/minute", "10m", name="p")
    row = StatsRow("5s", 0, b"figure", 60_000_000)
    held = await settle(store.hit(((LimitSet("two", [Concurrency(2)]), "ann", 1),)))
    calls: dict[str, Callable[[], object]] = {
        "hit": lambda: store.hit(checks),
        "peek": lambda: store.peek(checks),
        "prepare": lambda: store.prepare(checks),
        "charge": lambda: store.charge(checks),
        "renew_permits": store.renew_permits,
        "refund": lambda: store.refund(held.take_back()),
        "inspect": lambda: store.inspect("ann", [checks[0][0]]),
        "reset": lambda: store.reset("ann"),
        "reset_all": store.reset_all,
        "time": store.shared_stats.time,
        "write": lambda: store.shared_stats.write(b"worker00", [row, row._replace(number=1, kept_us=0)]),
        "read": lambda: store.shared_stats.read("5s", 0, 1),
        "part_of": lambda: store.part_of(checks),
        "permits_held": store.permits_held,
        "expect_open": store.expect_open,
        "keep_deadline": lambda: store.keep_deadline(1.0),
        "answers_threads": store.answers_threads,
        "count": store.bans.count,
        "may_refuse": store.bans.may_refuse,
        "observe": lambda: store.observe(RecordingObserver()),
        "evicts": lambda: store.evicts,
        "strike": lambda: store.bans.strike(policy, "192.0.2.7", 1, ""),
        "strike_later": lambda: store.bans.strike_later(policy, "192.0.2.9", 1, ""),
        "ban": lambda: store.bans.ban("user:bob", None, "", "ann"),
        "find": lambda: store.bans.find(("user:bob",)),
        "unban": lambda: store.bans.unban("user:bob", "ann"),
        "active": store.bans.active,
        "dump": store.bans.dump,
        "load": lambda: store.bans.load(rows),
        "close": store.close,
    }
    rows = await store.bans.dump()
    offers = RedisStore, Store, BanStore, SharedStats
    offered = {name for offer in offers for name in vars(offer) if not name.startswith("_")}
    assert set(calls) == offered - {"shared_stats"}
    for name, ask in calls.items():
        answer = ask()
        if inspect.isawaitable(answer):
            answer = await answer
        assert answer or name not in ("read", "active", "strike"), name


@needs_redis
async def test_a_closed_store_answers_nobody_and_keeps_nobody_waiting(server: RedisServer) -> None:
    store = store_of(server)
    await hit(store, "ann")
    server.pause()
    try:
        waiting = [asyncio.ensure_future(hit(store, "ann")) for _ in range(3)]
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait(waiting)
    finally:
        server.resume()
    assert [type(future.exception()) for future in waiting] == [StoreUnavailable] * 3
    with pytest.raises(StoreUnavailable, match="closed"):
        await hit(store, "ann")


@needs_redis
async def test_a_banned_key_refuses_a_question_of_several_keys(cluster: RedisCluster) -> None:
    async with store_at(cluster) as store, store_at(cluster, prefix=store._prefix) as other:
        both = ((usual("100/hour"), "user:ann", 1), (usual("100/hour"), "everyone", 1))
        assert await settle(store.hit(both))
        await other.bans.ban("user:ann", None, "", "ann")
        await store.bans.find(())
        assert (await settle(store.hit(both))).reason is Reason.BANNED
        assert (await settle(store.peek(both))).reason is Reason.BANNED
        assert (await hit(store, "everyone", "100/hour", 0)).remaining == 99


@needs_redis
async def test_a_value_of_somebody_else_fails_its_own_key_alone(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store:
        server.command("SET", f"{store._prefix}:7:w:{{ann}}", "theirs")
        server.command("HSET", f"{store._prefix}:7:w:{{bob}}", "x", "theirs")
        answers = await asyncio.gather(*(hit(store, key) for key in ("ann", "bob", "ann")), return_exceptions=True)
        assert [isinstance(answer, StoreUnavailable) for answer in answers] == [True, False, True]
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await hit(store, "ann")


@needs_redis
async def test_a_window_that_is_damaged_fails_its_own_key_alone(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store:
        await hit(store, "ann")
        rewrite = "local f = redis.call('HKEYS', KEYS[1])[1]; redis.call('HSET', KEYS[1], f, struct.pack('<BI8', 3, 7))"
        server.command("EVAL", rewrite, "1", f"{store._prefix}:7:w:{{ann}}")
        answers = await asyncio.gather(*(hit(store, key) for key in ("ann", "bob")), return_exceptions=True)
        assert [isinstance(answer, StoreUnavailable) for answer in answers] == [True, False]


@needs_redis
@pytest.mark.parametrize("protocol", [2, 3])
async def test_the_client_of_a_user_says_where_to_connect_and_stays_open(server: RedisServer, protocol: int) -> None:
    async with Redis.from_url(server.url, decode_responses=True, protocol=protocol) as client:
        store = RedisStore(client, prefix=fresh_prefix(), timeout=PLENTY_S)
        assert (await hit(store, "ann")).remaining == 4
        await store.bans.ban("user:eve", None, "", "ann")
        assert [ban.key for ban in await store.bans.active()] == ["user:eve"]
        await store.close()
        assert await client.ping()
