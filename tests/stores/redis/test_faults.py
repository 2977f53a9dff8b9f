"""Redis is sick in every way it can be: what requests get meanwhile, and how things go on afterwards.

With several processes, sentinels and a cluster, the bound holds over all of them, and the server is found again.

Every fault is real: a stopped or killed process, a full memory, a proxy that cuts and stalls.
"""

import asyncio
import gc
import os
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Decision, Limiter, RateLimitMiddleware, Rule, StoreError, parse_limits
from slidegate.core import Bucket, Event, Reason, StoreUnavailable, parse_address
from slidegate.limiter import breaker, failover
from slidegate.limiter.aio import answer_of
from slidegate.stores.redis import RedisStore, link, poll, refusals
from slidegate.stores.system_clock import SYSTEM
from slidegate.testing import RecordingObserver

from ...asgi import call, hello, send_scope
from ...contract.player import listed, settle
from ...fault_proxy import FaultProxy
from ...redis_servers import RedisCluster, RedisServer, ReplicaPair, Sentinel, free_port, needs_redis, until
from ...remote_stores import hit_all
from ...soak.checks import most_inside
from ..forked import actor, outcome
from .faults import DEPLOYMENTS, FAULTS, Deployment, on_a_cluster
from .stores import eventually, hit, store_at, store_of, struck, ticks_until_served, until_answered, workers_at

pytestmark = needs_redis

DEADLINE_S = 0.25
PLENTY_S = 5.0
SLACK_S = 3.0
"""How much longer than the deadline an answer may take on a busy machine; a hang takes for ever."""
AMOUNT = 3
LIMIT = f"{AMOUNT}/hour"
QUICK = "half-open sockets"
"""The fault that every run shows; `dev.py test --all` shows the others."""
BUCKET = Bucket("hit", parse_limits(LIMIT))


@pytest.fixture
async def deployment(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A server and the way to it; the breaker waits a tenth of its second, so that recovery takes less time."""
    monkeypatch.setattr(breaker, "OPEN_US", 100_000)
    return deployment


class Site:
    def __init__(self, url: str, on_error: failover.OnError, deadline_s: float = DEADLINE_S) -> None:
        self.observer, self.deadline_s = RecordingObserver(without=["banned", "refused"]), deadline_s
        deadline = timedelta(seconds=deadline_s)
        self.store = store_of(url, timeout=deadline)
        self.limiter = Limiter(self.store, deadline=deadline, on_error=on_error, observers=[self.observer])

    async def hit(self, key: str = "key") -> Decision:
        async with asyncio.timeout(self.deadline_s + SLACK_S):
            return await self.limiter.hit(key, LIMIT)

    async def hits(self, count: int, key: str = "key") -> list[tuple[bool, Reason]]:
        decisions = [await self.hit(key) for _ in range(count)]
        return [(decision.allowed, decision.reason) for decision in decisions]

    async def recovered(self) -> None:
        """Come back when the store answers again; only time makes a breaker try."""
        async with asyncio.timeout(10 * SLACK_S):
            while self.observer.kinds[-1:] == ["store_failed"]:
                await self.hit("probe")
                await asyncio.sleep(0.02)


PASSED, LIMITED = (True, Reason.OK), (False, Reason.LIMITED)
OPENED, CLOSED = (True, Reason.UNAVAILABLE), (False, Reason.UNAVAILABLE)
OUTCOMES: dict[failover.OnError, list[tuple[bool, Reason]]] = {
    "local": [PASSED] * AMOUNT + [LIMITED] * 2,
    "allow": [OPENED] * (AMOUNT + 2),
    "deny": [CLOSED] * (AMOUNT + 2),
}


async def everything_fails(store: RedisStore) -> bool:
    """Ask a store everything, and check that the causes of errors come to an end."""
    calls = [store.hit([(BUCKET, "key", 1)]), store.reset("key"), store.reset_all(), store.shared_rows.time()]
    calls += [store.bans.find(("key",)), listed(store), store.bans.ban("key", None, "", "ann")]
    answers = await asyncio.gather(*map(settle, calls), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in errors:
        assert isinstance(error, StoreError)
        waiting, above = [(error, 0)], 0
        while waiting:
            behind, above = waiting.pop()
            assert above < 20, f"{error!r} is behind itself"
            waiting += [(one, above + 1) for one in (behind.__cause__, behind.__context__) if one is not None]
    return len(errors) == len(calls)


@pytest.mark.parametrize("name", [one if one == QUICK else pytest.param(one, marks=pytest.mark.all) for one in FAULTS])
async def test_a_fault_has_its_stated_outcome_and_ends_with_its_cause(name: str, deployment: Deployment) -> None:
    fault, raised = FAULTS[name]
    deadline_s = PLENTY_S if raised is StoreUnavailable else DEADLINE_S  # a busy machine misses a short one
    *early, late = sites = [Site(deployment.url, policy, deadline_s) for policy in (*OUTCOMES, "local")]
    async with AsyncExitStack() as stack:
        for site in sites:
            stack.push_async_callback(site.limiter.close)
        for site in early:
            assert await site.hits(1) == [PASSED]
        async with fault(deployment):
            answers = await asyncio.gather(*(site.hits(AMOUNT + 2) for site in sites))
            assert answers == [*OUTCOMES.values(), OUTCOMES["local"]]
            for site in sites:
                assert site.observer.kinds == ["store_failed"]
                with pytest.raises(raised):
                    async with asyncio.timeout(2 * site.deadline_s + SLACK_S):
                        await site.store.hit([(BUCKET, "key", 1)])
            for _ in range(2):
                reads = name in ("OOM", "READONLY", "NOPERM")
                assert await everything_fails(late.store) or reads
        for site in sites:
            await site.recovered()
            assert await site.hits(AMOUNT + 1, "new") == [PASSED] * AMOUNT + [LIMITED]


@pytest.mark.parametrize("name", ["OOM", "READONLY"])
async def test_refused_writes_are_one_outage_whatever_is_answered_that_needs_none(
    name: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "TRUST_US", 0)  # so that the store is asked for each refusal
    site = Site(deployment.url, "allow", PLENTY_S)
    async with site.limiter as limiter, store_at(deployment, prefix=site.store._prefix) as new:
        assert await site.hits(AMOUNT + 1, "spent") == [PASSED] * AMOUNT + [LIMITED]
        await limiter.ban("eve", "1h")
        charged = [await site.hit(f"charged {number}") for number in range(6)]
        # What needs no write, or deletes: that is possible without memory, and then all else in the same call is.
        probes: list[Callable[[], Awaitable[Any]]] = [
            lambda: limiter.hit("key", LIMIT, 0),
            lambda: limiter.refund(charged.pop()),
            lambda: asyncio.gather(limiter.refund(charged.pop()), site.hit("beside it")),
        ]
        async with FAULTS[name][0](deployment):
            for key, reason in (("eve", Reason.BANNED), ("spent", Reason.LIMITED)):
                assert (await hit(new, key, BUCKET)).reason is reason, "a worker that starts just now knows it, too"
            with pytest.raises(StoreUnavailable, match=name):
                await hit(new, "new", BUCKET)
            assert await site.hits(breaker.FAILURES_TO_OPEN) == [OPENED] * breaker.FAILURES_TO_OPEN
            for _ in range(5):
                await asyncio.sleep(breaker.OPEN_US / 1_000_000)
                assert (await limiter.peek("key", LIMIT)).reason is Reason.OK
                assert await answer_of(limiter.engine.failover.find(("key",))) is None
                assert await site.hits(2, "spent") == [LIMITED] * 2
                assert await site.hits(2) == [OPENED] * 2
            for ask in (*probes, *probes, lambda: asyncio.gather(*[ask() for ask in probes])):
                await asyncio.sleep(breaker.OPEN_US / 1_000_000)
                await ask()
                assert limiter.is_failing
                assert await site.hits(2) == [OPENED] * 2
            assert site.observer.kinds == ["store_failed"]
        await site.recovered()
        assert site.observer.kinds == ["store_failed", "store_recovered"]
        assert await site.hits(AMOUNT + 1, "new") == [PASSED] * AMOUNT + [LIMITED]


# -- Redis comes later than the application ----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/mymaster/0"])
@pytest.mark.parametrize("where", ["closed", "hung"])
@pytest.mark.parametrize("on_error", OUTCOMES)
async def test_a_limiter_is_made_at_once_and_its_first_requests_are_answered(
    where: str, on_error: failover.OnError, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as hung:  # connections are taken, and nobody ever answers
        hung.setblocking(False)
        port = hung.getsockname()[1] if where == "hung" else free_port()
        site = Site(address.format(f"127.0.0.1:{port}"), on_error)
        async with site.limiter:
            assert site.observer.kinds == []
            with pytest.raises(BlockingIOError):
                hung.accept()
            assert await site.hits(AMOUNT + 2) == OUTCOMES[on_error]
            assert site.observer.kinds == ["store_failed"]
    assert {record.name for record in caplog.records} == {"slidegate"}, "asyncio would log a task that failed"


@pytest.mark.parametrize("where", ["there", "closed", "hung"])
async def test_an_application_has_connected_when_it_has_started_and_needs_no_server(
    where: str, deployment: Deployment
) -> None:
    """Connecting takes several times of what the wire needs for one answer, and a request waits for one of these."""
    observer = RecordingObserver()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
        else:
            await hello(scope, receive, send)

    deployment.proxy.delay_s = 0.1
    if where == "closed":
        await deployment.proxy.refuse()
    if where == "hung":
        deployment.proxy.freeze()
    limiter = Limiter(store_of(deployment), deadline="250ms", on_error="deny", observers=[observer])
    async with limiter:
        limited = RateLimitMiddleware(app, limits="100/minute", limiter=limiter)
        started = await send_scope(limited, {"type": "lifespan"})
        assert started.messages == [{"type": "lifespan.startup.complete"}]
        if where != "there":
            assert (await call(limited)).status == 503
            return
        assert (await call(limited)).status == 200
        assert observer.kinds == []


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.all
async def test_a_connection_that_leads_to_a_replica_now_is_given_up_for_one_to_the_master() -> None:
    with ReplicaPair() as pair:
        async with FaultProxy(pair.master.port) as address_that_moves:
            site = Site(f"redis://127.0.0.1:{address_that_moves.port}", "deny")
            async with site.limiter:
                assert await site.hits(2) == [PASSED] * 2
                await asyncio.to_thread(pair.wait_copied)  # while what else was asked is answered
                pair.fail_over()
                address_that_moves.target = pair.master.port
                assert await site.hits(1) == [CLOSED]
                assert await site.hits(2) == [PASSED, LIMITED]


async def test_a_worker_opens_one_connection_and_comes_back_when_another_one_leaves_it_room() -> None:
    with RedisServer() as server:
        many = 1 + 3
        async with Redis.from_url(server.url) as operator, workers_at(server, 4) as (late, *workers):
            await operator.config_set("maxclients", many)
            for _ in range(3):
                hits = (hit(store, f"user:{number}", "12/hour") for store in workers for number in range(200))
                assert all(await asyncio.gather(*hits))
                await asyncio.gather(*(store.reset_all() for store in workers))
            assert (await operator.info("stats"))["rejected_connections"] == 0
            assert (await operator.info("clients"))["connected_clients"] == many
            with pytest.raises(StoreUnavailable):
                await hit(late)
            await workers[0].close()
            await until_answered(lambda: late.peek([(BUCKET, "key", 1)]))


@pytest.mark.all
async def test_a_host_that_has_no_address_yet_is_found(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(f"redis://middleware.invalid:{deployment.proxy.port}", "local")
    async with site.limiter:
        assert await site.hits(breaker.FAILURES_TO_OPEN) == [PASSED] * breaker.FAILURES_TO_OPEN
        assert site.observer.kinds == ["store_failed"]
        loop, resolve = asyncio.get_running_loop(), asyncio.get_running_loop().getaddrinfo
        monkeypatch.setattr(loop, "getaddrinfo", lambda _, *given, **options: resolve("127.0.0.1", *given, **options))
        await site.recovered()
    assert deployment.proxy.accepted <= 1


@pytest.mark.parametrize("weight", [1, 3], ids=["third strike", "one strike"])
@pytest.mark.parametrize("on_error", OUTCOMES)
async def test_a_strike_that_bans_refuses_its_own_request_though_the_wire_is_cut_after_it(
    on_error: failover.OnError, weight: int, deployment: Deployment
) -> None:
    site, policy = Site(deployment.url, on_error, PLENTY_S), BanPolicy("3/hour", "1h", signals={"/trap": weight})

    def cut_when_banned(event: Event) -> None:
        if event.kind == "banned":
            deployment.proxy.target = 1  # where nobody listens
            deployment.proxy.drop()

    async with site.limiter as limiter:
        limiter.observe(cut_when_banned)
        app = RateLimitMiddleware(hello, limits="100/minute", limiter=limiter, bans=policy)
        for number in range(10):
            deployment.proxy.target = deployment.server.port
            await site.recovered()
            await asyncio.sleep(2 * link.IDLE_S)
            client = f"198.51.100.{number}", 1
            statuses = [(await call(app, "/trap", client=client)).status for _ in range(3 // weight)]
            assert statuses == [200] * (3 // weight - 1) + [403]
        deployment.proxy.target = deployment.server.port
        await site.recovered()
        await asyncio.sleep(2 * link.IDLE_S)  # the last cut is known
        assert len([ban async for ban in limiter.bans()]) == 10, "all of them were banned in Redis"


async def test_requests_that_end_during_an_outage_hold_no_permits_after_it(deployment: Deployment) -> None:
    """The garbage collector is off: whether a request is under way is not for it to say."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await ended.wait()
        await hello(scope, receive, send)

    # A request that a busy machine answers too late would be let through without a permit.
    plenty: Any = {"deadline": timedelta(seconds=PLENTY_S), "on_error": "allow"}
    urls = deployment.url, deployment.server.url
    troubled, well = (Limiter(RedisStore(url, permit_lease="1s"), **plenty) for url in urls)
    one_at_a_time = [Rule("*", concurrency=1)]
    here = RateLimitMiddleware(work, limiter=troubled, rules=one_at_a_time)
    elsewhere = RateLimitMiddleware(hello, limiter=well, rules=one_at_a_time)

    async def answers(status: int) -> bool:
        return (await call(elsewhere)).status == status

    gc.disable()
    try:
        async with troubled, well:
            under_way = asyncio.ensure_future(call(here))
            await begun.wait()
            # A machine that stops for a lease frees the permit until its next renewal.
            await eventually(partial(answers, 429))
            await deployment.proxy.refuse()
            with pytest.raises(StoreError):
                await troubled.store.renew_permits()
            for _ in range(breaker.FAILURES_TO_OPEN):
                await troubled.hit("key", LIMIT)
            ended.set()
            assert (await under_way).status == 200
            await deployment.proxy.accept()
            await eventually(partial(answers, 200))
    finally:
        gc.enable()


# -- workers amid random faults: the answers that they get are true, and they come back --------------------------------


NUMBERS: Final = count(1_001)
BACK_TICKS: Final = 100
"""Two seconds: every worker is back by then after the last fault."""
NEVER_TICKS: Final = 3_000
"""A minute: a worker that is not back by then never will be. On a busy machine many requests outlast their deadline."""


class Load:
    """Requests, and a strike for nine of them, each with a key and a cost of its own: its number."""

    BUCKET = Bucket("load", parse_limits("1000000000/hour"))
    POLICY = BanPolicy("1000/hour", "1h", name="strikes")

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.answered = rng, dict[int, bool]()  # by number

    async def act(self, limiter: Limiter) -> None:
        """Make a request or a strike, and check that the answer is its own."""
        number = next(NUMBERS)
        self.answered[number] = False
        if number % 10 == 0:
            await limiter.store.bans.strike(self.POLICY, f"{number}", 1, "")
        else:
            hit: Any = self.rng.choice((limiter.store.hit, partial(hit_all, limiter)))
            decision = await hit([(self.BUCKET, f"{number}", number)])
            if decision.reason is Reason.UNAVAILABLE:
                return
            assert decision.readings[0][0] == number, "that is the answer to another one, or it was charged twice"
        self.answered[number] = True

    def begin(self, limiter: Limiter) -> list[asyncio.Task[None]]:
        """Let some act at the same time, of which half give up, each after a random time."""
        tasks = [asyncio.create_task(self.act(limiter)) for _ in range(20)]
        for task in tasks:
            if self.rng.random() < 0.5:
                asyncio.get_running_loop().call_later(self.rng.random() * 0.05, task.cancel)
        return tasks

    async def counted(self, store: RedisStore) -> dict[int, float]:
        async def times(number: int) -> float:
            if number % 10 == 0:
                return await struck(store, self.POLICY, f"{number}")
            return (await settle(store.peek([(self.BUCKET, f"{number}", 0)]))).readings[0][0] / number

        return dict(zip(self.answered, await asyncio.gather(*map(times, self.answered)), strict=True))


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for what has begun; raise what is neither given up nor an error of the store."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, (asyncio.CancelledError, StoreError)):
            raise result


async def rage(deployment: Deployment, rng: random.Random, moves: int) -> None:
    """Let everything happen between workers and servers for a while, and end with all well but some latency."""
    for _ in range(moves):
        proxy = rng.choice(deployment.proxies)
        proxy.delay_s = rng.uniform(0.001, 0.012)
        match rng.randrange(8):
            case 0:
                proxy.drop()
            case 1:
                proxy.cut_after(rng.randrange(4_000))
            case 2:
                proxy.freeze()
            case 3:
                await proxy.refuse()
                await proxy.accept()
            case 4:
                deployment.server.command("SCRIPT", "FLUSH")
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        if rng.random() < 0.5:
            for other in deployment.proxies:
                other.thaw()
    for proxy in deployment.proxies:
        proxy.cut_after(None)
        proxy.thaw()
        proxy.delay_s = 0.001


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.all if kind != "server" else ()) for kind in DEPLOYMENTS]
)
@pytest.mark.parametrize(("rounds", "most"), [(3, NEVER_TICKS), pytest.param(60, BACK_TICKS, marks=pytest.mark.deep)])
async def test_amid_faults_answers_are_true_and_every_worker_is_back_after_the_last_one(
    kind: str, rounds: int, most: int, rng: random.Random
) -> None:
    async with DEPLOYMENTS[kind]() as deployment:
        for _ in range(rounds):
            load, begun = Load(rng), list[asyncio.Task[None]]()
            limiters = [Limiter.from_url(deployment.url, deadline="50ms", on_error="deny") for _ in range(6)]
            async with AsyncExitStack() as stack:
                for limiter in limiters:
                    stack.push_async_callback(limiter.close)
                raging = asyncio.create_task(rage(deployment, rng, 24))
                while not raging.done():
                    begun += load.begin(rng.choice(limiters))
                    await asyncio.sleep(0.005)
                await asyncio.gather(raging, ended(begun))
                late = await asyncio.gather(*(ticks_until_served(limiter, most) for limiter in limiters))
                assert -1 not in late, late
            async with store_at(deployment, prefix="slidegate") as well:  # a busy machine connects slowly
                counted = await load.counted(well)
            odd = {number: times for number, times in counted.items() if times not in (load.answered[number], 1)}
            assert odd == {}, "a request that was not answered is charged once or not at all, others once"
            assert any(load.answered.values())


# -- several processes -------------------------------------------------------------------------------------------------


@contextmanager
def at_work(skews_s: Sequence[float], *given: Any) -> Iterator[list[int]]:
    """Fork workers whose clocks are wrong, given to `hits`; in the end there is, in order, what was admitted when."""
    times_us, workers = list[int](), [actor(partial(work, skew_s, *given)) for skew_s in skews_s]
    yield times_us
    ended = [outcome(*worker) for worker in workers]
    assert {code for _, code in ended} == {0}
    times_us += sorted(int(time_us) for written, _ in ended for time_us in written.split())


def work(skew_s: float, *given: Any) -> None:
    *asked, writing = given
    ours = [vars(module) for name, module in sys.modules.items() if name.startswith("slidegate")]
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("monotonic_ns", 10**9)):
        right = getattr(time, name)
        wrong = partial(lambda right, by: right() + by, right, type(right())(skew_s * unit))
        for names in (vars(time), *ours):
            names.update({known: wrong for known, value in names.items() if value is right})
    SYSTEM.use(None)
    os.write(writing, " ".join(map(str, asyncio.run(hits(*asked)))).encode())


async def hits(url: str, limit: str, span_us: int, may_fail: bool = False) -> list[int]:
    """Hit a limit for a span of the store's time; if it `may_fail`, the store may not answer now and then."""
    times_us = list[int]()

    async def hit_until(end_us: float) -> int:
        while True:
            decision = await limiter.hit("key", limit)
            assert may_fail or decision.reason is not Reason.UNAVAILABLE
            times_us.extend([decision.now_us] * decision.allowed)
            if decision.now_us >= end_us:
                return decision.now_us

    timeout = "" if may_fail else f"{'&' if '?' in url else '?'}timeout=30s"
    async with Limiter.from_url(url + timeout, deadline="30s", on_error="deny") as limiter:
        end_us = await hit_until(0) + span_us
        await asyncio.gather(*(hit_until(end_us) for _ in range(16)))
    return times_us


def test_hosts_whose_clocks_disagree_get_the_amount_by_the_server_s_time(server: RedisServer, tmp_path: Path) -> None:
    amount, window_us = 100, 500_000
    url, limit = f"{server.url}?prefix={tmp_path.name}", f"{amount}/{window_us // 1_000}ms"
    with at_work([-5, -0.25, 0.25, 5], url, limit, 5 * window_us // 2) as times_us:
        pass
    assert len([time_us for time_us in times_us if time_us < times_us[0] + window_us]) == amount
    assert most_inside(zip(times_us, times_us, strict=True), window_us - 1)[0] == amount, "in a half-open interval"
    assert len(times_us) > amount
    assert times_us[-1] - times_us[0] < 9_000_000, "no host counts by its own clock"


# -- a cluster: one node has all keys of a prefix, their slot moves, and the node dies ---------------------------------


ON_FIRST = "on-0"
"""The slot of this prefix is one of the first server of a cluster."""
WHO_IS_MASTER = "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"


def until_master(replica: RedisServer) -> None:
    until(lambda: replica.info("replication")["role"] == "master", "the replica takes over")


@pytest.fixture
def with_replica() -> Iterator[RedisCluster]:
    with RedisCluster(replicas=1) as cluster:
        yield cluster


def home_of(cluster: RedisCluster, prefix: str = "slidegate") -> tuple[int, RedisServer, RedisServer]:
    slot = cluster.slot_of(prefix)
    owner = cluster.owner(slot)
    return slot, owner, next(server for server in cluster.masters if server is not owner)


async def test_a_slot_on_its_way_takes_counts_and_bans_along_and_comes_back(cluster: RedisCluster) -> None:
    for server in cluster.masters:
        server.command("FLUSHALL")
    slot, owner, other = home_of(cluster)
    async with Limiter.from_url(cluster.url, deadline="10s", on_error="deny") as limiter:
        assert (await limiter.hit("key", "6/hour")).remaining == 5
        await limiter.ban("198.51.100.7", "1h")
        with cluster.migrating(slot, other):
            assert (await limiter.hit("key", "6/hour")).remaining == 4
            # Now the keys are where the slot goes to, and the slot still with its old owner, which says ASK.
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
        for number in range(40):
            assert (await limiter.hit(f"198.51.100.{number}", "6/hour")).allowed is (number != 8)
        assert [server for server in cluster.masters if server.command("KEYS", "*")] == [owner], "all is on one node"
        owner.command("CLUSTER", "DELSLOTS", slot)  # nobody serves it
        try:
            assert (await limiter.hit("key", "6/hour")).reason is Reason.UNAVAILABLE
        finally:
            owner.command("CLUSTER", "ADDSLOTS", slot)
            cluster.wait_ok()
        assert (await limiter.hit("key", "6/hour")).remaining == 1


async def test_requests_of_one_turn_are_decided_while_their_keys_are_on_two_nodes(cluster: RedisCluster) -> None:
    """The keys about bans are still where the slot comes from, or have gone before."""
    for first in ("*:w:*", "*bans*"):
        async with workers_at(cluster, 2) as (store, other):
            keys = [f"user:{number}" for number in range(20)]
            await other.bans.ban("198.51.100.0/24", None, "", "ann")
            assert all(await asyncio.gather(*(hit(store, key, "10/hour") for key in keys)))
            slot, owner, target = home_of(cluster, store._prefix)
            with cluster.migrating(slot, target):
                moved = owner.command("KEYS", f"{{{store._prefix}}}{first}")
                for name in moved[: len(keys) // 2]:
                    owner.command("MIGRATE", "127.0.0.1", target.port, name, 0, 5_000)
                await asyncio.sleep(poll.POLL_NS / 1e9)  # so that a poll is due
                assert (await hit(store, keys[0], "10/hour", 0)).remaining == 9
                for spent in (2, 3):
                    answers = await asyncio.gather(*(hit(store, key, "10/hour") for key in [*keys, "new"]))
                    assert [10 - answer.remaining for answer in answers] == [spent] * len(keys) + [spent - 1]
            assert (await hit(store, subjects=[parse_address("198.51.100.7")])).reason is Reason.BANNED
            assert {(await hit(store, key, "10/hour")).remaining for key in keys} == {6}


@pytest.mark.all
async def test_after_a_node_dies_its_replica_goes_on_with_its_copy(with_replica: RedisCluster) -> None:
    first, *_, replica = with_replica.servers
    async with Limiter.from_url(f"{with_replica.url}?prefix={ON_FIRST}", deadline="10s", on_error="deny") as limiter:
        for number in range(40):
            await limiter.hit(f"user:{number}", "3/hour")
        until(lambda: replica.command("DBSIZE") == first.command("DBSIZE"), "the replica has it all")
        first.kill()
        until_master(replica)
        with_replica.wait_ok()
        assert await ticks_until_served(limiter, 1_000) >= 0
        assert {(await limiter.hit(f"user:{number}", "3/hour")).remaining for number in range(40)} == {1}


def slot_moves(cluster: RedisCluster) -> None:
    slot, owner, other = home_of(cluster, ON_FIRST)
    for target in (other, owner) * 3:
        cluster.move_slot(slot, target)


def replica_takes_over(cluster: RedisCluster) -> None:
    cluster.servers[-1].command("CLUSTER", "FAILOVER")
    until_master(cluster.servers[-1])


@pytest.mark.all
@pytest.mark.parametrize("happens", [slot_moves, replica_takes_over])
def test_a_cluster_admits_the_amount_while(happens: Callable[[RedisCluster], None], with_replica: RedisCluster) -> None:
    first, may_fail = with_replica.servers[0], happens is replica_takes_over
    url = f"{with_replica.url}?prefix={ON_FIRST}"
    with at_work([0] * 3, url, "500/500ms", 2_500_000, may_fail) as times_us:
        # One that began amid a migration would know nothing of the data, and refuse.
        until(lambda: first.command("CLIENT", "LIST").count(b"cmd=evalsha") == 3, "each worker hits")
        happens(with_replica)
    assert most_inside(zip(times_us, times_us, strict=True), 499_999)[0] == 500
    assert len(times_us) > 500


@pytest.mark.parametrize("fault", ["refused connection", "half-open sockets"])
@pytest.mark.all
async def test_only_the_node_with_the_keys_matters_and_is_found_again(fault: str) -> None:
    async with on_a_cluster() as deployment:
        for sick in (0, 1):  # the first has the keys
            observer = RecordingObserver(without=["refused"])
            limiter = Limiter.from_url(deployment.url, deadline="500ms", on_error="deny", observers=[observer])
            async with limiter:
                await ticks_until_served(limiter)
                before = len(observer.kinds)  # a busy machine connects slowly
                async with FAULTS[fault][0](replace(deployment, proxies=deployment.proxies[sick:])):
                    served = [(await limiter.hit("user:1", "1000/hour")).reason is Reason.OK for _ in range(10)]
                    assert served == [sick == 1] * 10
                await ticks_until_served(limiter)
            emitted = [kind for kind in observer.kinds[before:] if kind != "store_late"]
            assert emitted[:1] + emitted[-1:] == ([] if sick else ["store_failed", "store_recovered"])


# -- sentinels: any of them may be dead or hang ------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[ReplicaPair]:
    with ReplicaPair() as pair:
        yield pair


@pytest.fixture
def sentinels(pair: ReplicaPair) -> Iterator[list[Sentinel]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Sentinel(pair.master)) for _ in range(3)]


def url_of(sentinels: list[Sentinel]) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{sentinel.port}' for sentinel in sentinels)}/mymaster"


@pytest.mark.all
@pytest.mark.parametrize("when", ["from the start", "in between"])
@pytest.mark.parametrize("trouble", [Sentinel.kill, Sentinel.pause])
async def test_one_sentinel_is_enough(trouble: Any, when: str, pair: ReplicaPair, sentinels: list[Sentinel]) -> None:
    *sick, live = sentinels

    def fails_over() -> bool:
        with suppress(ResponseError):  # until it knows the replica
            return bool(live.command("SENTINEL", "FAILOVER", "mymaster"))
        return False

    for one in sick if when == "from the start" else []:
        trouble(one)
    async with Limiter.from_url(url_of(sentinels), on_error="deny") as limiter:
        assert await ticks_until_served(limiter) >= 0
        pair.wait_copied()
        for one in sick if when == "in between" else []:
            trouble(one)
        until(fails_over, "the sentinel begins")
        until_master(pair.replica)
        until(lambda: int(live.command(*WHO_IS_MASTER)[1]) == pair.replica.port, "the sentinel says so")
        pair.master.kill()
        assert await ticks_until_served(limiter) >= 0

        async def what_was_counted_goes_on() -> bool:
            known = await limiter.peek("probe:1", "1000/hour", 0)  # over a connection that may have to be opened first
            return known.reason is not Reason.UNAVAILABLE and known.remaining < 999

        await eventually(what_was_counted_goes_on)


@pytest.mark.parametrize("own", [None, "own p+w&:/@%", "srv"])
async def test_sentinels_have_no_password_or_one_of_their_own(own: str | None) -> None:
    with RedisServer("--requirepass", "srv", password="srv") as server, Sentinel(server, own) as sentinel:
        address = f"redis+sentinel://:srv@127.0.0.1:{sentinel.port}/mymaster"
        option = f"?{urlencode({'sentinel_password': own}, quote_via=quote)}" if own else ""
        async with Limiter.from_url(address + option, on_error="deny", deadline="10s") as limiter:
            assert (await limiter.hit("user:ann", "5/minute")).remaining == 4


@pytest.mark.parametrize("database", [0, 1])
async def test_the_address_of_a_sentinel_without_its_scheme_names_that(pair: ReplicaPair, database: int) -> None:
    with Sentinel(pair.master) as sentinel:
        address = f"redis://127.0.0.1:{sentinel.port}/{database}"
        async with Limiter.from_url(address, on_error="deny", deadline="10s") as limiter:
            with pytest.raises(StoreUnavailable, match=r"command '(EVAL|SELECT)'; .*, write redis\+sentinel://"):
                await limiter.ban("user:ann", "1h")


@pytest.mark.all
async def test_errors_and_messages_name_the_service(sentinels: list[Sentinel]) -> None:
    url = url_of(sentinels)
    async with store_at(url.replace("/mymaster", "/gaet")) as store:
        with pytest.raises(StoreUnavailable, match="no sentinel leads to a master of 'gaet': they know none"):
            await store.reset("user:1")
    for sentinel in sentinels:
        sentinel.kill()
    site = Site(url, "deny", 10.0)
    async with site.limiter:
        assert await site.hits(3) == [CLOSED] * 3, "an outage"
    message = site.observer.events[0].message
    assert "mymaster" in message
    assert "6379" not in message
