"""Redis comes later than the application, which starts, decides by itself, and then makes the keys of everybody."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from slidegate import (
    BanPolicy,
    Limiter,
    MessageLimits,
    RateLimitMiddleware,
    Reason,
    Rule,
    client_ip,
    combine,
    cookie,
    header,
)
from slidegate.core.decision import Bucket
from slidegate.core.errors import StoreError, StoreUnavailable
from slidegate.core.limits import parse_limits
from slidegate.limiter import breakers
from slidegate.limiter.deadlines import Deadline
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ...asgi import Answer, call, hello, scope_of
from ...fault_proxy import FaultProxy
from ...redis_servers import RedisCluster, RedisServer, free_port, needs_redis
from .faults import FAULTS, Place

DEADLINE_S = 0.25
BOUND_S = 10.0
"""How long only a hang takes."""
LONG = "a long key of somebody's own " * 10
LIMITS = "3/hour"
HEADERS = {"X-API-Key": "k-1", "Cookie": "session=s-1"}
OTHERS = {"X-API-Key": "k-2", "Cookie": "session=s-2"}
KEYS = {
    "header": header("X-API-Key"),
    "cookie": cookie("session"),
    "combined": combine(client_ip(), combine(header("X-API-Key"), cookie("session"))),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
async def place(server: RedisServer) -> AsyncIterator[Place]:
    server.command("FLUSHALL")
    async with FaultProxy(server.port) as proxy:
        yield Place(server, proxy)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakers, "OPEN_US", 100_000)


@pytest.fixture
def hung() -> Iterator[int]:
    """A port where connections are taken, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield listener.getsockname()[1]


class Worker:
    """A process of its own, as far as Redis can tell: a limiter, and a gate on it."""

    def __init__(
        self, url: str, *, on_error: Any = "local", key: str = "header", deadline_s: float = DEADLINE_S, **options: Any
    ) -> None:
        self.heard = RecordingObserver(without=["refused", "near_limit"])
        self.limiter = Limiter.from_url(
            f"{url}?timeout={deadline_s * 1000:.0f}ms", deadline=deadline_s, on_error=on_error, observers=[self.heard]
        )
        rules = [] if "bans" in options else [Rule("*", LIMITS, key=KEYS[key], name="rule")]
        self.gate = RateLimitMiddleware(hello, limiter=self.limiter, rules=rules, **options)

    async def answer(self, headers: dict[str, str] = HEADERS, path: str = "/") -> Answer:
        async with asyncio.timeout(BOUND_S + BOUND_S):
            return await call(self.gate, path, headers=headers)

    async def statuses(self, count: int, headers: dict[str, str] = HEADERS) -> list[int]:
        return [(await self.answer(headers)).status for _ in range(count)]

    async def prepared(self) -> None:
        """Come back when the secret is known; only time makes a limiter try again."""
        async with asyncio.timeout(BOUND_S):
            while not await self.limiter.prepare():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def recovered(self) -> None:
        """Come back when Redis decides again, and from now on in whatever time a busy machine takes."""
        await self.prepared()
        async with asyncio.timeout(BOUND_S):
            while self.heard.kinds[-1:] == ["store_failed"]:
                await self.limiter.hit("probe", "1000000/minute")
                await asyncio.sleep(0.02)
        store, safe = self.limiter.store, self.limiter.internals.failsafe
        assert isinstance(store, RedisStore)
        assert safe is not None
        safe._deadline_s, safe._deadline, store._shared.timeout_s = BOUND_S, Deadline(BOUND_S), BOUND_S
        for lane in store._lanes.values():
            if lane._wire is not None:
                lane._wire._timeout_s = BOUND_S

    def digests(self) -> list[str]:
        return [self.limiter.digest("header:X-API-Key", b"k-1"), self.limiter.key_for(LONG)]


async def close(*workers: Worker) -> None:
    for worker in workers:
        await worker.limiter.close()


# -- nobody answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/gate/0"])
@pytest.mark.parametrize("where", ["closed", "hung"])
@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 200, 200, 429]), ("allow", [200] * 4), ("deny", [503] * 4)]
)
async def test_a_limiter_is_made_at_once_and_its_first_requests_are_answered(
    where: str, on_error: str, expected: list[int], address: str, hung: int
) -> None:
    worker = Worker(address.format(f"127.0.0.1:{hung if where == 'hung' else free_port()}"), on_error=on_error)
    assert worker.heard.kinds == []
    assert await worker.statuses(4) == expected
    assert worker.heard.kinds == ["store_failed"]
    await close(worker)


def test_to_make_a_limiter_asks_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        Worker(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_one_request_waits_no_longer_than_the_deadline_in_all(hung: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate, a key, a strike and a hit each may need the secret; only the first of them waits for it."""
    monkeypatch.setattr(breakers, "OPEN_US", 60_000_000)
    bans = BanPolicy("2/1h", signals={200: 1}, key=header("X-API-Key"))
    worker = Worker(f"redis://127.0.0.1:{hung}/0", bans=bans)
    assert worker.limiter.internals.failsafe is not None
    waits, first = 0, worker.limiter.internals.failsafe.first

    async def counted(secret: Any) -> Any:
        nonlocal waits
        waits += 1
        return await first(secret)

    monkeypatch.setattr(worker.limiter.internals.failsafe, "first", counted)
    assert await worker.statuses(4) == [200, 200, 403, 403]
    assert waits == 1
    await close(worker)


async def test_the_loop_goes_on_while_the_secret_is_waited_for(hung: int) -> None:
    worker = Worker(f"redis://127.0.0.1:{hung}/0")
    waiting = asyncio.ensure_future(worker.limiter.prepare())
    turns = 0
    while not waiting.done():
        turns += 1
        await asyncio.sleep(0)
    assert not await waiting
    assert turns > 10
    await close(worker)


async def test_a_request_that_is_cancelled_leaves_the_next_one_to_ask(hung: int) -> None:
    worker = Worker(f"redis://127.0.0.1:{hung}/0")
    assert await worker.statuses(1) == [200]
    assert worker.limiter.internals._secret is not None
    worker.limiter.internals._secret._again_us = 1  # it has been left alone long enough
    probe = asyncio.ensure_future(worker.answer())
    while worker.limiter.internals._secret._again_us == 1:  # noqa: ASYNC110
        await asyncio.sleep(0)
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    assert worker.limiter.internals._secret._again_us == 1
    await close(worker)


async def test_commands_say_that_the_store_is_not_there() -> None:
    worker = Worker(f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnavailable, match="bans cannot be exported while the secret"):
        [line async for line in worker.limiter.export_bans()]
    for command in (worker.limiter.ban("ann", "1h"), worker.limiter.import_bans([]), worker.limiter.reset(LONG)):
        with pytest.raises(StoreError):
            await command
    await close(worker)


# -- it comes and goes ----------------------------------------------------------------------------------------------


@needs_redis
@pytest.mark.parametrize("fault", FAULTS)
async def test_after_any_fault_at_the_start_all_workers_make_the_same_keys(fault: str, place: Place) -> None:
    workers = []
    async with FAULTS[fault][0](place):
        workers = [Worker(place.url, key=key) for key in KEYS]
        for worker in workers:
            assert await worker.statuses(4) == [200, 200, 200, 429]
            assert await worker.statuses(1, OTHERS) == [200]
        assert len({tuple(worker.digests()) for worker in workers}) == len(workers)
    for worker in workers:
        await worker.recovered()
    fresh = Worker(place.url, deadline_s=BOUND_S)
    await fresh.prepared()
    assert {tuple(worker.digests()) for worker in workers} == {tuple(fresh.digests())}
    # No burst: what was counted here still counts here, and is counted there from now on.
    for worker in workers:
        assert await worker.statuses(1) == [429]
        assert await worker.statuses(3, OTHERS) == [200, 200, 429]
    assert await fresh.statuses(4, OTHERS) == [200, 429, 429, 429]
    await close(*workers, fresh)


@needs_redis
async def test_a_server_that_is_started_late_is_found() -> None:
    server = RedisServer()
    workers = [Worker(server.url) for _ in range(3)]
    try:
        for worker in workers:
            assert await worker.statuses(3) == [200] * 3
        server.start()
        for worker in workers:
            await worker.recovered()
            assert await worker.statuses(1) == [429]
        assert len({tuple(worker.digests()) for worker in workers}) == 1
        assert server.command("HLEN", "slidegate:{bans}") >= 1
        await close(*workers)
    finally:
        server.close()


@needs_redis
@pytest.mark.parametrize("given", [None, b"g" * 32])
async def test_after_a_loss_of_data_workers_make_the_keys_of_whoever_came_first(
    given: bytes | None, place: Place
) -> None:
    old, idle, fresh = (Limiter.from_url(place.url, secret=given, deadline=BOUND_S) for _ in range(3))
    for limiter in (old, idle):
        assert (await limiter.hit(LONG, LIMITS)).remaining == (2 if limiter is old else 1)
    first = old.key_for(LONG)
    place.server.command("FLUSHALL")
    assert [(await limiter.hit(LONG, LIMITS, 0)).allowed for limiter in (fresh, old, idle)] == [True] * 3
    assert len({limiter.key_for(LONG) for limiter in (fresh, old, idle)}) == 1
    assert (fresh.key_for(LONG) == first) is (given is not None)
    found = [await limiter.hit(LONG, LIMITS) for limiter in (old, idle, fresh, old)]
    assert [decision.reason for decision in found] == [Reason.OK] * 3 + [Reason.LIMITED]
    for limiter in (old, idle, fresh):
        await limiter.close()


@needs_redis
async def test_a_cluster_that_hangs_at_the_start_is_found() -> None:
    with RedisCluster() as cluster:
        for node in cluster.running:
            node.pause()
        workers = [Worker(cluster.url, key=key) for key in KEYS]
        try:
            for worker in workers:
                assert await worker.statuses(4) == [200, 200, 200, 429]
        finally:
            for node in cluster.running:
                node.resume()
        cluster.wait_ok()
        for worker in workers:
            await worker.recovered()
            assert await worker.statuses(1) == [429]
        assert len({tuple(worker.digests()) for worker in workers}) == 1
        await close(*workers)


@needs_redis
async def test_what_was_provisional_is_forgotten_after_one_window(place: Place) -> None:
    await place.proxy.refuse()
    worker = Worker(place.url)
    safe = worker.limiter.internals.failsafe
    assert safe is not None
    now_us = 1_000_000_000
    safe._clock = lambda: now_us
    assert await worker.statuses(4) == [200, 200, 200, 429]
    await place.proxy.accept()
    now_us += 1_000_000
    await worker.recovered()
    assert await worker.statuses(1) == [429]
    assert worker.limiter.internals.keys._spelling.before is not None
    now_us += 7_200_000_000
    assert await worker.statuses(4) == [200, 200, 200, 429]
    assert safe.local is None
    keys = worker.limiter.internals.keys
    assert keys._spelling.settled
    assert (keys._before, keys._made_of) == ({}, {})
    await close(worker)


@needs_redis
async def test_provisional_bans_and_strikes_last_here(place: Place) -> None:
    await place.proxy.refuse()
    bans = BanPolicy("3/1h", "1h", signals={200: 1}, key=header("X-API-Key"))
    worker = Worker(place.url, bans=bans)
    assert await worker.statuses(4) == [200, 200, 200, 403]
    assert await worker.statuses(2, OTHERS) == [200, 200]
    safe = worker.limiter.internals.failsafe
    assert safe is not None
    assert safe.local is not None
    (ban,) = safe.local.bans.active()
    provisional = worker.limiter.digest("header:X-API-Key", b"k-1")
    assert ban.key == provisional
    await place.proxy.accept()
    await worker.recovered()
    known = worker.limiter.digest("header:X-API-Key", b"k-1")
    assert known != provisional
    assert await worker.statuses(1) == [403]
    found = await worker.limiter.banned(known)
    assert found is not None
    assert found.key == provisional
    assert [line async for line in worker.limiter.export_bans() if provisional in line] == []
    assert await worker.limiter.unban(known)
    assert await worker.statuses(1) == [200]
    await close(worker)


class Weather:
    """Redis comes and goes, as it is drawn. At first it is away."""

    def __init__(self, proxy: FaultProxy, draw: random.Random) -> None:
        self._proxy, self._draw = proxy, draw
        self._there, self._frozen = False, False

    async def change(self) -> None:
        what = self._draw.random()
        if what < 0.03 and not self._frozen:
            await (self._proxy.refuse() if self._there else self._proxy.accept())
            self._there = not self._there
        elif what < 0.05 and self._there:
            (self._proxy.thaw if self._frozen else self._proxy.freeze)()
            self._frozen = not self._frozen
        elif what < 0.08:
            await asyncio.sleep(self._draw.uniform(0, 0.1))  # the breaker waits that long

    async def clear_up(self) -> None:
        self._proxy.thaw()
        if not self._there:
            await self._proxy.accept()


async def nobody_gets_a_window_twice(place: Place, seed: int, steps: int) -> None:
    """Let Redis come and go from the start on; see that each worker lets each client through once a window.

    Keys of three kinds, one of them made of the others, are made before and after the secret comes, so a key that is
    not found under its other spelling shows as a burst.
    """
    print(f"seed {seed}")  # noqa: T201
    draw = random.Random(seed)
    weather = Weather(place.proxy, draw)
    await place.proxy.refuse()
    workers = [Worker(place.url, key=key) for key in KEYS for _ in range(2)]
    clients = [{"X-API-Key": f"c-{number}", "Cookie": f"session=c-{number}"} for number in range(3)]
    for worker in workers:
        # From here on everything is counted here as well; what Redis alone counts before it fails is a window more.
        assert await worker.statuses(1, OTHERS) == [200]
    passed: Counter[tuple[int, int]] = Counter()
    for _ in range(steps):
        await weather.change()
        who, client = draw.randrange(len(workers)), draw.randrange(len(clients))
        passed[who, client] += (await workers[who].answer(clients[client])).status == 200
    await weather.clear_up()
    for worker in workers:
        await worker.recovered()
    assert len({tuple(worker.digests()) for worker in workers}) == 1
    for who, worker in enumerate(workers):
        for client, headers in enumerate(clients):
            passed[who, client] += (await worker.statuses(4, headers)).count(200)
    assert max(passed.values()) <= 3
    await close(*workers)


@needs_redis
async def test_nobody_gets_a_window_twice_while_redis_comes_and_goes(place: Place) -> None:
    await nobody_gets_a_window_twice(place, random.randrange(2**32), 100)


@needs_redis
@pytest.mark.deep
@pytest.mark.parametrize("number", range(10))
async def test_nobody_gets_a_window_twice_whatever_redis_does(place: Place, number: int) -> None:
    await nobody_gets_a_window_twice(place, random.randrange(2**32), 400)


class Chat:
    """A websocket through a gate; what comes through is counted."""

    def __init__(self, limiter: Limiter, messages: str | None = None, **options: Any) -> None:
        options.setdefault("rules", [])
        if messages is not None:
            options["messages"] = MessageLimits(messages, key=header("X-API-Key"))
        self.gate = RateLimitMiddleware(self.app, limiter=limiter, **options)
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.got: asyncio.Queue[Any] = asyncio.Queue()
        self.sent.put_nowait({"type": "websocket.connect"})
        scope = scope_of(headers=HEADERS, type="websocket", subprotocols=[])
        self.task = asyncio.ensure_future(self.gate(scope, self.sent.get, self.got.put))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["path"] = scope["headers"] = None  # as a careless router leaves it
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})

    async def say(self, text: str) -> str:
        """Send a message, and return what comes back: a text, or how the connection ended."""
        self.sent.put_nowait({"type": "websocket.receive", "text": text})
        return await self.hear()

    async def hear(self) -> str:
        async with asyncio.timeout(BOUND_S):
            message = await self.got.get()
        return str(message.get("text", message.get("code", message["type"])))


@needs_redis
async def test_an_open_websocket_is_counted_and_banned_by_the_keys_that_everybody_makes(place: Place) -> None:
    await place.proxy.refuse()
    worker = Worker(place.url)
    bans = BanPolicy("9/1h", key=header("X-API-Key"))
    chats = [Chat(worker.limiter, messages="4/hour", bans=bans) for _ in range(2)]
    assert [await chat.hear() for chat in chats] == ["websocket.accept"] * 2
    assert [await chats[0].say(text) for text in "ab"] == ["a", "b"]
    await place.proxy.accept()
    await worker.recovered()
    assert await chats[0].say("c") == "c"
    key = worker.limiter.digest("header:X-API-Key", b"k-1")
    assert chats[0].gate._gate._messages is not None
    bucket = chats[0].gate._gate._messages._bucket
    async with Limiter.from_url(place.url, deadline=BOUND_S) as other:
        assert (await other.peek_all([(bucket, key, 4)])).allowed is False
        assert (await other.peek_all([(bucket, key, 3)])).allowed is True
        await other.ban(key, "1h")
    assert await chats[1].say("d") == "1008"
    for chat in chats:
        chat.task.cancel()
    await asyncio.gather(*(chat.task for chat in chats), return_exceptions=True)
    await close(worker)


@needs_redis
async def test_where_redis_answers_no_key_is_provisional(place: Place) -> None:
    workers = [Worker(place.url, key=key, deadline_s=BOUND_S) for key in KEYS] * 2
    for worker in workers:
        assert (await worker.answer()).status == 200
        assert worker.heard.kinds == []
        assert worker.limiter.internals.failsafe is not None
        assert worker.limiter.internals.failsafe.local is None
    await close(*workers)


@needs_redis
async def test_keys_that_were_made_before_anything_was_awaited_are_those_that_others_make(place: Place) -> None:
    bucket = Bucket("own", parse_limits("2/hour"))
    for expected in (Reason.OK, Reason.OK, Reason.LIMITED):
        async with Limiter.from_url(place.url, deadline=BOUND_S) as limiter:
            inner = limiter.digest("inner", b"a")
            outer = limiter.digest("outer", f"<{inner}>".encode())
            keys = [inner, f"{inner}:more", outer, limiter.key_for(LONG + outer)]
            decisions = await asyncio.gather(*(limiter.hit_all([(bucket, key, 1)]) for key in keys))
            assert [decision.reason for decision in decisions] == [expected] * 4


@needs_redis
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("length", [3, 3_000])
async def test_many_first_requests_at_once_are_counted_together(length: int, key: str, place: Place) -> None:
    workers = [Worker(place.url, key=key, deadline_s=BOUND_S) for _ in range(4)]
    headers = {"X-API-Key": "k" * length, "Cookie": f"session={'s' * length}"}
    answers = await asyncio.gather(*(worker.answer(headers) for worker in workers for _ in range(25)))
    assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 97
    await close(*workers)
