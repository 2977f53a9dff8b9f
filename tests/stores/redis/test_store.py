"""The store for many hosts, on real servers: the contract, and what only this store has to hold, also several calls at
the same time: what is decided and known while the first is answered and the next is not."""

import asyncio
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final
from unittest.mock import Mock

import pytest
import redis.asyncio

from slidegate import BanPolicy, ConfigurationError, Decision, Limiter, MemoryStore, Quota, parse_limits
from slidegate.core import Bucket, Concurrency, Reason, SharedRow, StoreUnavailable, parse_address
from slidegate.stores.redis import RedisStore, batch
from slidegate.stores.redis.batch import HALVED_FROM, MAX_IN_CALL, Command
from slidegate.stores.redis.changes import Changes, KeptAnswer
from slidegate.stores.redis.link import DEPTH, Link
from slidegate.stores.redis.protocol import StoreTime, real_monotonic_us, store_error, with_values
from slidegate.stores.redis.refusals import Refusals
from slidegate.stores.redis.requests import Question
from slidegate.testing import FakeClock, RecordingObserver

from ...contract import RandomContract, StoreContract
from ...contract.player import settle
from ...contract.store_contract import StatsContract, bucket
from ...fault_proxy import FaultProxy
from ...hurry import race
from ...redis_servers import HOST, RedisCluster, RedisServer, needs_redis, needs_valkey
from ...remote_stores import hit_all
from ...turns import interrupted
from ...virtual_time import turns
from .stores import (
    PLENTY_S,
    Ahead,
    all_connected,
    eventually,
    fresh_prefix,
    hit,
    store_at,
    store_of,
    usual,
    workers_at,
)

pytestmark = needs_redis
PAGE: Final = Path(__file__).resolve().parents[3] / "docs/stores/redis.md"


async def test_a_cluster_is_reached_at_the_addresses_that_the_user_s_client_maps_to(cluster: RedisCluster) -> None:
    outside = Mock(side_effect=lambda announced: announced)
    client = redis.asyncio.RedisCluster(host=HOST, port=cluster.servers[0].port, address_remap=outside)
    async with store_at(client) as store:  # the client itself asks no server, and so maps no address
        assert await hit(store)
    assert {(HOST, server.port) for server in cluster.servers} <= {call.args[0] for call in outside.call_args_list}
    await client.aclose()


@pytest.fixture
async def store(server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisStore]:
    """A store with all its connections, whose next requests wait for the end of their turn, and which does not poll."""
    async with store_at(server, clock=clock) as store:
        await all_connected(store)
        yield store


@pytest.fixture
async def workers(server: RedisServer) -> AsyncIterator[list[RedisStore]]:
    async with workers_at(server, 2) as workers:
        yield workers


async def counted(server: RedisServer, work: Callable[[], Awaitable[object]]) -> int:
    server.command("CONFIG", "RESETSTAT")
    await work()
    return sum(count for name, count in server.calls().items() if name in ("evalsha", "eval"))


class AtServer:
    running: str
    repeats = True

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
        return partial(store_of, url_of_user(self.server), prefix=f"slidegate:{fresh_prefix()}")


@needs_valkey
@pytest.mark.usefixtures("fewer_programs")
class TestValkey(AtServer, RandomContract):
    running = "valkey"


@pytest.mark.usefixtures("fewer_programs")
class TestCluster(AtServer, RandomContract, StatsContract):
    running = "cluster"


WATCHED: Final = b"""
local is_declared, keyless, real = { [""] = true }, { TIME = true, INFO = true, SCAN = true }, redis
for _, name in ipairs(KEYS) do
  is_declared[name] = true
end
local function watched(how)
  return function(command, name, ...)
    if not keyless[command] and not is_declared[name] then
      error(command .. " of a key that is not declared: " .. tostring(name))
    end
    return how(command, name, ...)
  end
end
local redis = { call = watched(real.call), pcall = watched(real.pcall) }
"""
"""Stands before the script, and fails where that uses another key than those that it is called with."""


@pytest.mark.usefixtures("fewer_programs")
class TestDeclaredKeys(AtServer, RandomContract, StatsContract):
    """The script uses the keys that it is called with, as servers demand that run scripts side by side.

    `reset_all` alone asks for names, and then resets those in calls that declare them.
    """

    running = "server"

    def make_store(self, clock: FakeClock) -> RedisStore:
        store = super().make_store(clock)
        store.parts.script = WATCHED + store.parts.script
        return store


async def test_where_too_many_wait_others_are_turned_away(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_WAITING", 3)
    async with store_at(server) as store:
        await hit(store, "warm")
        answers = await all_of([ask(store, "ann", bucket("100/minute")) for _ in range(10)])
        failed = [str(answer) for answer in answers if isinstance(answer, StoreUnavailable)]
        assert failed == ["redis: 3 requests are already queued"] * 7  # three waited
        assert (await hit(store, "ann", "100/minute", 0)).remaining == 97


async def test_what_another_layout_or_prefix_wrote_is_neither_read_nor_touched(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store, store_at(server) as other:
        theirs = {f"{{{store._prefix}}}:{name}" for name in ("w2:ann", "3:w:ann", "bans", "3:bans:list")}
        for name in theirs:
            server.command("HSET", name, "x", "theirs")
        for each in (store, other):
            assert (await hit(each, "ann")).remaining == 4
        await store.bans.ban("user:eve", None, "", "ann")
        assert await store.reset_all() is True
        assert [(await hit(each, "ann")).remaining for each in (store, other)] == [4, 3]
        assert theirs == {name for name in theirs if server.command("HGET", name, "x") == b"theirs"}


@pytest.mark.parametrize("reason", [Reason.LIMITED, Reason.TOO_LARGE, Reason.BANNED])
async def test_a_known_refusal_costs_a_command_a_second_whatever_else_redis_is_asked_meanwhile(
    server: RedisServer, workers: list[RedisStore], ahead: Ahead, reason: Reason
) -> None:
    """Others are admitted by a window of everyone that is in the same question."""
    store, other = workers
    shared = usual("1000000/minute")

    async def ask(store: RedisStore, key: str, cost: int = 1) -> Decision:
        return await settle(store.hit(((usual("5/minute"), key, cost), (shared, "everyone", cost))))

    await ask(store, "ann", 5)
    cost = 6 if reason is Reason.TOO_LARGE else 1
    if reason is Reason.BANNED:
        await other.bans.ban("ann", 3_600_000_000, "", "bob")
    first = await ask(store, "ann", cost)

    async def flood() -> None:
        for _ in range(100):
            refused = await ask(store, "ann", cost)
            assert refused.reason is reason
            assert 0 <= (first.retry_after_us or 0) - (refused.retry_after_us or 0) < 60_000_000

    async def flood_beside_others() -> None:
        for _ in range(10):
            ahead.by_s += 0.3
            assert not await ask(store, "ann", cost)
            assert await settle(other.refund((await ask(other, "bob")).begin_refund()))
            assert await ask(store, "eve", 0)

    assert await counted(server, flood) == 0
    ahead.by_s += 1.0  # not trusted any longer: one question, and then for a second again
    assert await counted(server, flood) <= 3  # they are read, and written where nobody was faster
    assert await counted(server, flood_beside_others) <= 10 * 3 + 4


async def test_a_refusal_is_repeated_until_its_cost_could_pass(
    server: RedisServer, store: RedisStore, clock: FakeClock, rng: random.Random
) -> None:
    """Also where units leave in the meantime, which are too few."""

    async def flood(key: str, wait_us: int) -> None:
        end_us = clock.now_us + wait_us
        for left_us in sorted({1, *(rng.randrange(1, wait_us) for _ in range(30))}, reverse=True):
            clock.set(end_us - left_us)
            assert (await hit(store, key, "640/s", 640)).retry_after_us == left_us

    for number in range(10):
        key = f"user:{number}"
        for _ in range(10):
            await hit(store, key, "640/s", rng.randrange(1, 65))
            clock.advance(us=rng.randrange(1, 20_000))
        wait_us = (await hit(store, key, "640/s", 640)).retry_after_us or 0
        assert await counted(server, partial(flood, key, wait_us)) <= wait_us // 1_000_000
        clock.advance(us=1)
        assert await hit(store, key, "640/s", 640)
        clock.advance(us=3_000_000)


@pytest.mark.parametrize("count_denied", [False, True])
async def test_a_cost_above_the_amount_is_asked_once_until_an_operator_raises_it(
    server: RedisServer, store: RedisStore, count_denied: bool
) -> None:
    limited = bucket("10/hour", count_denied=count_denied)
    assert (await hit(store, "ann", limited, 11)).reason is Reason.TOO_LARGE

    async def flood() -> None:
        for _ in range(50):
            assert (await hit(store, "ann", limited, 11)).reason is Reason.TOO_LARGE

    assert await counted(server, flood) == 0
    limited.limits[0].become(20)
    assert (await hit(store, "ann", limited, 11)).remaining == 9, "the refusals counted nothing"


@pytest.mark.parametrize("how", ["refund", "reset", "reset_all", "unban"])
async def test_refunds_of_others_are_known_in_a_second(workers: list[RedisStore], ahead: Ahead, how: str) -> None:
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


async def test_strikes_share_calls_and_a_ban_is_one_call_more(store: RedisStore, server: RedisServer) -> None:
    policy, observer = BanPolicy("100/minute", name="p"), RecordingObserver()
    store.observe(observer)

    async def flood() -> None:
        struck = (store.bans.strike(policy, "user:eve", 1, "") for _ in range(99))
        assert set(await asyncio.gather(*struck)) == {None}

    async def ban() -> None:
        made = await store.bans.strike(policy, "user:eve", 1, "why")
        assert (made.level, made.reason) == (1, "why")

    assert await counted(server, flood) == -(-99 // MAX_IN_CALL)
    assert await counted(server, ban) == 2
    assert observer.kinds == ["banned"]


@pytest.mark.parametrize("banned", ["192.0.2.0/24", "192.0.2.9"])
@pytest.mark.parametrize("running", ["server", "cluster"])
async def test_no_request_is_decided_by_what_a_worker_knew_before_it_was_idle(
    running: str, banned: str, request: pytest.FixtureRequest, ahead: Ahead
) -> None:
    """More requests at once than two calls take: the poll goes in front of them, and costs no call of its own."""
    many, plenty, client = 200, bucket("1000/hour"), (parse_address("192.0.2.9"), "192.0.2.9")
    async with workers_at(request.getfixturevalue(running), 4) as (operator, idle, *new):

        async def reasons(worker: RedisStore) -> set[Reason]:
            asked = [settle(worker.hit(((plenty, f"user:{number}", 1),), client)) for number in range(many)]
            return {decision.reason for decision in await asyncio.gather(*asked, settle(worker.peek((), client)))}

        assert await reasons(idle) == {Reason.OK}
        for late in new:
            await operator.bans.ban(banned, None, "by request", "ann")
            assert "/" in banned or await reasons(idle) == {Reason.BANNED}, "a client is refused at once"
            for _ in range(2):
                ahead.by_s += 1.0
                assert await reasons(idle) == {Reason.BANNED}
            assert await reasons(late) == {Reason.BANNED}, "as a worker that starts now"
            assert (await hit(idle, "user:ann", plenty)).reason is Reason.OK
            await operator.bans.unban(banned, "ann")
            assert await reasons(operator) == {Reason.OK}, "its own it knows at once"
            ahead.by_s += 1.0
            assert await reasons(idle) == {Reason.OK}
        for number in range(many):
            spent = (await settle(idle.peek(((plenty, f"user:{number}", 0),)))).readings[0][0]
            assert spent == 5, "what was charged before the ban was known is refunded"


BOTH: Final = ((Bucket("held", [Concurrency(9)]), "user:ann", 1), (bucket("10/hour"), "user:ann", 1))


@pytest.mark.parametrize("many", [1, 100])
@pytest.mark.parametrize("given_up_after", [*range(20), *range(20, 90, 5)])
async def test_requests_that_are_given_up_leave_nothing_charged_and_their_connection_open(
    given_up_after: int, many: int, server: RedisServer
) -> None:
    """At any turn of the loop: before they are sent, on their way, and in the turn in which their answer comes."""
    async with FaultProxy(server.port) as proxy, store_at(f"redis://{HOST}:{proxy.port}", permit_lease="5m") as store:
        limiter = Limiter(store, deadline="60s", on_error="deny")
        asked = [asyncio.create_task(hit_all(limiter, BOTH)) for _ in range(many)]
        await turns(given_up_after)
        for each in asked:
            each.cancel()
        for each in asked:
            with suppress(asyncio.CancelledError):
                await settle(store.refund((await each).begin_refund()))  # it was there before

        async def nothing_is_left() -> bool:
            return [spent for spent, *_ in (await settle(store.peek(BOTH))).readings] == [1, 1]

        await eventually(nothing_is_left)
        assert proxy.accepted <= 1


def kept(server: RedisServer, store: RedisStore) -> dict[str, int]:
    """Return the milliseconds that each key of a store still lives; -1 for ever."""
    names = server.command("KEYS", f"{{{store._prefix}}}:*")
    return {name.decode().removeprefix(f"{{{store._prefix}}}"): server.command("PTTL", name) for name in names}


async def test_every_key_expires_and_is_a_digest_unless_asked_otherwise(server: RedisServer) -> None:
    policy = BanPolicy("2/minute", "10m", forgive="1h", name="p")
    async with store_at(server, readable=True, permit_lease="5s") as store, store_at(server) as other:
        await hit(other, "user:ann")
        (name,) = [name for name in kept(server, other) if name.startswith(":w:")]
        assert "ann" not in name
        for limits in ("5/minute", "100/minute", "100/minute; 7/hour"):
            await hit(store, "ann", limits, 3)
        longest = parse_limits("7/hour")[0]
        window_ms = kept(server, store)[":w:ann"]
        assert longest.window_us / 1_000 < window_ms <= (longest.span_us + longest.slice_us) / 1_000 + 1_000
        await store.bans.strike(policy, "user:eve", 2, "")
        await store.bans.ban("user:bob", 60_000_000, "", "ann")
        await store.bans.ban("192.0.2.0/24", 60_000_000, "", "ann")
        await store.shared_rows.write(b"ann00000", SharedRow("workers", 0, b"ann", 60_000_000))
        left = kept(server, store)
        assert [name for name, left_ms in left.items() if left_ms < 0] == []
        assert 590_000 < left[":w:user:eve"] <= 602_000
        assert 4_190_000 < left[":s:user:eve"] <= 4_202_000
        assert 59_000 < left[":bans:networks"] <= 61_000
        assert 59_000 < left[":bans:rows:workers:0"] <= 61_002
        assert await store.shared_rows.time() > 1_600_000_000_000_000
        await store.bans.ban("user:bob", None, "", "ann")
        forever = ":w:user:bob", ":bans:index", ":bans"
        assert min(map(kept(server, store).get, forever)) > 50 * 365 * 86_400_000, "for ever is a hundred years"
        await hit(store, "user:bob2", "5/minute")
        await store.bans.unban("user:bob", "ann")
        assert ":w:user:bob" not in kept(server, store)
        async with store_at(server, prefix=store._prefix, readable=True, permit_lease="2s") as short:
            held = await hit(store, "user:kim", BOTH[0][0])
            assert 4_000 < kept(server, store)[":w:user:kim"] <= 6_000
            again = await hit(short, "user:kim", BOTH[0][0])
            assert kept(server, store)[":w:user:kim"] > 4_000, "the longest lease counts"
            for each, decision in ((store, held), (short, again)):
                assert await settle(each.refund(decision.begin_refund()))
            assert ":w:user:kim" not in kept(server, store)


@pytest.mark.parametrize("what", ["hit", "charge"])
async def test_a_question_that_fails_at_one_of_its_keys_charges_none(what: str, cluster: RedisCluster) -> None:
    wide = bucket("1000/hour")
    async with store_at(cluster, readable=True) as store:
        name = f"{{{store._prefix}}}:w:user:bad"
        cluster.owner(cluster.slot_of(name)).command("SET", name, "not ours")
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await settle(getattr(store, what)([(wide, key, 1) for key in ("user:ann", "user:bob", "user:bad")]))
        assert {(await hit(store, key, wide, 0)).remaining for key in ("user:ann", "user:bob")} == {1_000}


async def test_with_a_secret_nobody_finds_an_address_in_the_names_of_keys(server: RedisServer) -> None:
    secret, other_secret, prefix = "s" * 32, "t" * 32, fresh_prefix()

    limiter = partial(Limiter.from_url, f"{server.url}?prefix={prefix}", deadline="10s", on_error="deny")
    tool = partial(limiter, create=False)

    def names() -> set[bytes]:
        return {*server.command("KEYS", f"{{{prefix}}}:w:*")}

    async with limiter(secret=secret) as one, limiter(secret=secret) as same, tool(secret=secret) as operator:
        assert [(await each.hit("203.0.113.7", "5/minute")).remaining for each in (one, same)] == [4, 3]
        keyed = names()
        await operator.ban("203.0.113.7", "1h")
        assert (await same.hit("203.0.113.7", "5/minute")).reason is Reason.BANNED
        for wrong in (tool(secret=other_secret), tool()):
            async with wrong:
                for ask in (wrong.ban("203.0.113.8", "1h"), wrong.unban("203.0.113.7"), wrong.reset("203.0.113.7")):
                    with pytest.raises(StoreUnavailable, match="have another secret"):
                        await ask
        assert names() == keyed
        async with limiter() as unkeyed:
            assert (await unkeyed.hit("203.0.113.7", "5/minute")).remaining == 4
        (without,) = names() - keyed
        assert without not in keyed
        for hidden in (limiter(secret=secret), limiter(secret=other_secret)):
            store: Any = hidden.store
            assert store.parts.packing.name_of("203.0.113.7") != without


def test_limiters_of_one_store_have_one_secret(server: RedisServer) -> None:
    store = store_of(server)
    for _ in range(2):
        Limiter(store, secret="s" * 32)
    for other in ("t" * 32, None):
        with pytest.raises(ConfigurationError, match="another limiter on this store has another secret"):
            Limiter(store, secret=other)


async def test_a_reset_whose_caller_leaves_takes_no_answer_from_requests_before_it(server: RedisServer) -> None:
    async with store_at(server) as store:
        await hit(store, "ann", bucket("5/hour"))
        server.pause()
        asking = asyncio.ensure_future(hit(store, "ann", bucket("5/hour")))
        await turns()
        resetting = asyncio.ensure_future(store.reset_all())
        await turns()
        resetting.cancel()
        await turns()
        server.resume()
        assert (await asking).remaining == 3
        with pytest.raises(asyncio.CancelledError):
            await resetting


async def test_what_has_ended_leaves_a_key_that_is_in_use(server: RedisServer, clock: FakeClock) -> None:
    """Rules of varying names: a window of a second for each, of which a hundred live at a time."""
    async with store_at(server, clock=clock, readable=True) as store:
        await hit(store, "ann", bucket("5/hour", "lasting"))
        await hit(store, "ann", Bucket("plan", [Quota("10/day")]))
        await store.bans.ban("ann", 3_600_000_000, "", "bob")
        await store.bans.unban("ann", "bob")
        for number in range(1_000):
            assert await hit(store, "ann", bucket("5/second", f"rule-{number}"))
            clock.advance("10ms")
            assert server.command("HLEN", f"{{{store._prefix}}}:w:ann") <= 200
        for lasting in (bucket("5/hour", "lasting"), Bucket("plan", [Quota("10/day")])):
            assert (await hit(store, "ann", lasting, 0)).readings[0][0] == 1


async def test_what_has_ended_leaves_a_key_of_which_one_window_is_used_again_and_again(server: RedisServer) -> None:
    async with store_at(server, readable=True) as store:
        for number in range(7):
            assert await hit(store, "ann", bucket("5/20ms", f"rule-{number}"))
        assert await hit(store, "ann", bucket("5/hour"))
        await asyncio.sleep(1.05)  # the key is made to live longer once a second
        assert await hit(store, "ann", bucket("5/hour"))
        assert server.command("HLEN", f"{{{store._prefix}}}:w:ann") == 1


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


# -- several calls at the same time ------------------------------------------------------------------------------------


MANY = 2 * MAX_IN_CALL
WIDE = bucket("100/hour")
FIVE = bucket("5/hour")
DEMANDS = ((FIVE,), (bucket("3/10s; 20/hour", "two"), FIVE), (bucket("4/minute", "counting", count_denied=True),))


class Held:
    """Answers to requests and resets, given to nobody until they are released, in the order in which they came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._come: deque[asyncio.Future[None]] = deque()
        real = Link.ask

        async def held(link: Link, *call: Any) -> Any:
            answer, released = await real(link, *call), asyncio.get_running_loop().create_future()
            if call[5 + call[2] :][:1] in ((), (b"reset",)):  # the name of a command, after keys, time and requests
                self._come.append(released)
                await released
            return answer

        monkeypatch.setattr(Link, "ask", held)

    def __len__(self) -> int:
        return len(self._come)

    async def come(self, count: int) -> None:
        """Wait until so many calls have been answered and not released."""
        async with asyncio.timeout(PLENTY_S):
            while len(self._come) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def release(self, count: int) -> None:
        for _ in range(count):
            self._come.popleft().set_result(None)

    async def answer(self, answer: asyncio.Future[Any]) -> Any:
        await self.come(1)
        self.release(1)
        return await answer


@pytest.fixture
def held(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def ask(store: RedisStore, key: str, limited: Bucket = WIDE, cost: int = 1) -> asyncio.Future[Decision]:
    return asyncio.ensure_future(settle(store.hit(((limited, key, cost),))))


async def all_of(futures: list[asyncio.Future[Decision]]) -> list[Any]:
    async with asyncio.timeout(PLENTY_S):
        return await asyncio.gather(*futures, return_exceptions=True)


async def together(store: RedisStore, ahead: Ahead, count: int, last: Bucket = WIDE) -> None:
    asked = [ask(store, f"user:{number}", last if number == count - 1 else WIDE) for number in range(count)]
    assert all(answer.allowed for answer in await all_of(asked))


async def refusals_that_count(store: RedisStore, ahead: Ahead) -> None:
    for number in range(1, 101):
        decision = await hit(store, "ann", bucket("1/hour", count_denied=True))
        assert (decision.allowed, decision.readings[0][0]) == (number == 1, number)


async def half_seconds(store: RedisStore, ahead: Ahead, hits: bool) -> None:
    for _ in range(20):
        ahead.by_s += 0.5
        await asyncio.sleep(0.001)
        assert not hits or await hit(store, "ann", "1000/hour")


SIZES: Final = {1: 1, 2: 1, HALVED_FROM - 1: 1, HALVED_FROM: 2, MAX_IN_CALL: 2, MAX_IN_CALL + 1: 2, 4 * MAX_IN_CALL: 4}
CALLS: Final[dict[str, tuple[Callable[[RedisStore, Ahead], Awaitable[object]], int]]] = {
    **{f"{count} requests of a turn": (partial(together, count=count), calls) for count, calls in SIZES.items()},
    # Calls with permits follow each other.
    "with one for a permit": (partial(together, count=MAX_IN_CALL, last=Bucket("held", [Concurrency(9)])), 1),
    "refusals that count": (refusals_that_count, 100),
    "an idle worker": (partial(half_seconds, hits=False), 0),
    "two requests a second, and nothing beside them": (partial(half_seconds, hits=True), 20),
}
"""By name: what is asked, and how many calls it takes."""


@pytest.mark.parametrize("name", CALLS)
async def test_requests_take_so_many_calls(name: str, store: RedisStore, server: RedisServer, ahead: Ahead) -> None:
    act, calls = CALLS[name]
    assert await counted(server, lambda: act(store, ahead)) == calls


async def test_answers_are_those_of_requests_in_order(store: RedisStore, clock: FakeClock, rng: random.Random) -> None:
    memory, charged, reset_us = MemoryStore(clock=clock), list[tuple[Decision, Decision]](), dict[str, int]()
    for _ in range(400):
        expected, ours = list[tuple[str, str, Any]](), list[asyncio.Future[Any]]()
        whats = rng.choices(("hit", "peek", "charge", "refund", "reset"), (12, 1, 1, 1, 1), k=rng.choice((1, 2, 4, 40)))
        for what in whats:
            key = rng.choice(("ann", "bob"))
            given: Any = key, key
            if what == "reset":
                # Whether a charge from before, or of the same microsecond, is found is the affair of each store.
                charged = [pair for pair in charged if pair[1].checks[0][1] != key]
                reset_us[key] = clock()
            elif what != "refund":
                given = [tuple((one, key, rng.choice((1, 1, 1, 2, 0))) for one in rng.choice(DEMANDS))] * 2
            elif charged:
                given = [each.begin_refund() for each in charged.pop(rng.randrange(len(charged)))]
            else:
                continue
            expected.append((what, key, await settle(getattr(memory, what)(given[1]))))
            ours.append(asyncio.ensure_future(settle(getattr(store, what)(given[0]))))
        async with asyncio.timeout(PLENTY_S):
            answers = await asyncio.gather(*ours)
        for mine, (what, key, theirs) in zip(answers, expected, strict=True):
            if isinstance(mine, Decision):
                assert mine.reason is theirs.reason
                # A known refusal is repeated with the numbers of its own moment, beside hits that take what was left.
                assert {state.name for state in mine.violated} <= {state.name for state in theirs.violated}
                assert mine.reason is Reason.LIMITED or mine.states == theirs.states
            elif what == "refund":
                assert mine is theirs
            if what in ("hit", "charge") and theirs.reservations and theirs.now_us > reset_us.get(key, 0):
                charged.append((mine, theirs))
        clock.advance(us=rng.choice((0, 1, 1_000_000, 20_000_000)))


async def test_a_request_that_cannot_be_sent_takes_none_of_its_call_with_it(store: RedisStore) -> None:
    """A key that no store is ever given, in a turn with requests of others."""
    answers = await all_of([ask(store, "\ud800" if at == MANY // 2 else f"user:{at}") for at in range(MANY)])
    failed = answers.pop(MANY // 2)
    assert isinstance(failed, StoreUnavailable)
    assert failed.concerns == "request", "it says nothing about the server"
    assert all(isinstance(answer, Decision) and answer.allowed for answer in answers)


async def test_the_answers_to_one_call_do_not_wait_for_the_next(store: RedisStore, held: Held) -> None:
    futures = [ask(store, f"user:{number}") for number in range(MANY)]
    await held.come(2)
    held.release(1)
    await turns(3)
    halves = [{future.done() for future in half} for half in (futures[:MAX_IN_CALL], futures[MAX_IN_CALL:])]
    assert sorted(halves, key=str) == [{False}, {True}], "either may be answered first"
    again = ask(store, "user:0")  # goes while the second call is unanswered
    await held.come(2)
    held.release(2)
    assert {(await future).readings[0][0] for future in futures} == {1}
    assert (await again).readings[0][0] == 2


@pytest.mark.parametrize("follows", ["a refund", "a reset", "a refund of another key"])
async def test_a_refusal_is_remembered_until_something_follows(store: RedisStore, held: Held, follows: str) -> None:
    charged, other = [await held.answer(ask(store, key, FIVE, 5)) for key in ("ann", "bob")]
    refused = ask(store, "ann", FIVE)
    await held.come(1)
    ways = {"a refund": lambda: store.refund(charged.begin_refund()), "a reset": lambda: store.reset("ann")}
    way = ways.get(follows, lambda: store.refund(other.begin_refund()))
    back = asyncio.ensure_future(settle(way()))
    await held.come(2)
    assert (await held.answer(refused)).reason is Reason.LIMITED
    if follows not in ways:
        assert await held.answer(back)
        assert not await asyncio.wait_for(ask(store, "ann", FIVE), PLENTY_S), "and nobody is asked"
        return
    after = ask(store, "ann", FIVE)  # must not be answered by the refusal from before
    await held.come(2)
    assert await held.answer(back)
    assert (await held.answer(after)).allowed


async def test_a_refusal_by_a_ban_is_not_remembered_past_its_unban(store: RedisStore, held: Held) -> None:
    await held.answer(asyncio.ensure_future(store.bans.ban("eve", None, "", "ann")))
    refused = ask(store, "eve")
    await held.come(1)
    assert await store.bans.unban("eve", "ann")
    assert (await held.answer(refused)).reason is Reason.BANNED
    assert (await held.answer(ask(store, "eve"))).allowed


async def test_two_calls_are_under_way_on_a_connection_and_no_more(store: RedisStore, held: Held) -> None:
    futures = [ask(store, f"user:{number}") for number in range((DEPTH + 2) * MAX_IN_CALL)]
    await held.come(DEPTH)
    await turns(20)
    assert len(held) == DEPTH
    while not all(future.done() for future in futures):
        held.release(len(held))
        await turns(1)
    assert all(future.result().allowed for future in futures)


async def test_a_link_is_renewed_when_what_is_under_way_is_answered(server: RedisServer) -> None:
    async with store_at(server) as store:
        link = store.parts.open_link()
        await link.ask("PING")
        server.pause()
        asked = asyncio.ensure_future(link.ask("PING"))
        await turns(5)
        renewed = asyncio.ensure_future(link.renew())
        await turns(5)
        server.resume()
        assert await asked == b"PONG"
        await renewed
        await link.close()


def test_an_event_loop_that_ends_with_a_request_in_the_queue_ends_quietly(server: RedisServer) -> None:
    failed = list[dict[str, Any]]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        store = store_of(server)
        await ask(store, "warm")
        await turns(5)  # its sender waits for more
        asyncio.get_running_loop().call_soon(lambda: left.append(ask(store, "warm")))  # in its last iteration

    left = list[asyncio.Future[Decision]]()
    asyncio.run(main())
    assert failed == []


@pytest.mark.parametrize("names", [None, ["bob"], ["ann"]])
def test_no_change_is_forgotten_while_another_thread_notes_one(names: list[str] | None) -> None:
    noted = list[tuple[Changes, int]]()

    def begin() -> tuple[Callable[[], None], Callable[[], None]]:
        changes = Changes()

        def ban() -> None:
            noted.append((changes, monotonic_ns()))
            changes.note(["ann"])

        return lambda: changes.note(names), ban

    decision, question = Decision(False, Reason.LIMITED, 0, (), []), Question((), ())
    for point in interrupted(begin, ["redis/changes.py"]):
        changes, asked_ns = noted.pop()
        assert not KeptAnswer(decision, asked_ns, 1, [], ["ann"]).holds(question, 0, changes), point


def test_refusals_of_threads_are_known_unless_one_of_them_resets_all_keys() -> None:
    changes = Changes()
    known = Refusals(StoreTime(None), changes)

    def record_or_reset(number: int, thread: int) -> None:
        checks = ((bucket("1/hour", f"rule-{number}-{thread}"), "ann", 1),)
        if number % 4 == 3 and thread < 4:
            changes.note([("rule", "ann")])
            changes.note()
            return
        for cost in range(4):
            costly, now_us = ((*checks[0][:2], cost),), real_monotonic_us()
            question, state = Question(costly, ()), (1, now_us + 10**9, now_us, 10**9)
            known.keep(question, Decision(False, Reason.LIMITED, now_us, costly, [state]), monotonic_ns())
            assert number % 4 == 3 or known.repeat(question) is not None

    race(record_or_reset, rounds=20)


def test_only_names_of_constants_are_replaced_neither_words_of_redis_nor_of_comments() -> None:
    text = b'local COUNT = 5 -- a COUNT\nlocal NEVER = -1\nredis.call("SCAN", "COUNT", COUNT) -- COUNT\nx = 2 -NEVER\n'
    assert with_values(text) == b' -- a COUNT\n\nredis.call("SCAN", "COUNT", (5)) -- COUNT\nx = 2 -(-1)\n'


def test_an_error_without_a_word_says_that_no_answer_came() -> None:
    assert str(store_error(TimeoutError())) == "redis: TimeoutError: no answer came"


async def test_of_several_errors_in_a_call_that_of_the_server_counts(server: RedisServer) -> None:
    async with store_at(server) as store:
        futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
        asked = [Command(future, False, Mock(), Mock()) for future in futures]
        said = [bytes(8), b"\xffREADONLY You can't write against a read only replica.", b"\xffWRONGTYPE a list"]
        failed = store.batcher()._deliver(asked, said, monotonic_ns())
        assert failed is not None
        assert failed.concerns != "request"
        assert [type(future.exception()) for future in futures] == [StoreUnavailable] * 2
