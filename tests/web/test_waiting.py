"""A request that may wait stands in line; permits are shared fairly, never more than a limit allows, and come back."""

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, header
from slidegate.web.waiting import ReadAhead

from ..asgi import Answer, call, hello, scope_of, send_scope, statuses
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis
from ..remote_stores import SlowStore
from ..virtual_time import VirtualTime, turns
from .middlewares import Listener
from .stage import Stage

FAIR = 'key=everyone, wait="30s", fair=header("X-Tenant"), name="held"'


async def test_a_signal_that_the_process_survives_ends_no_wait() -> None:
    rules = [Rule("*", "1/10s", wait="30s")]
    app = RateLimitMiddleware(hello, rules=rules, limiter=Limiter(MemoryStore(clock=VirtualTime().clock)))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        first, waiting = (asyncio.create_task(call(app)) for _ in range(2))
        assert (await first).status == 200
        assert app.limiter.queued == 1
        signal.raise_signal(signal.SIGTERM)
        assert (await waiting).status == 200
        assert await statuses(app, 1) == [200]
    finally:
        signal.signal(signal.SIGTERM, before)


class Losing:
    """A server that hands a message out slowly, and has lost it where its reader is cancelled meanwhile."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.received = b""
        self.lost = 0

    async def receive(self) -> Message:
        taken = self.messages.pop(0) if self.messages else None
        try:
            await asyncio.sleep(0.05 if taken else 3_600)
        except asyncio.CancelledError:
            self.lost += taken is not None
            raise
        assert taken is not None
        return taken

    async def send(self, message: Message) -> None:
        self.received += message.get("body") or message.get("text", "").encode()


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("at", ["window", "permit", "endpoint", "two limits", "two requests"])
async def test_a_server_that_loses_messages_when_a_read_is_cancelled_loses_none(at: str, kind: str) -> None:
    """Where two limits wait at once one may be given a request of its own, made of the same channel."""

    async def read(request: Request) -> PlainTextResponse:
        own = Request(request.scope, request.receive) if at == "two requests" else request
        await asyncio.gather(*(one.check(each) for one, each in zip(together, (request, own), strict=False)))
        return PlainTextResponse(await own.body())

    async def talk(socket: WebSocket) -> None:
        await asyncio.gather(*(one.check(socket) for one in together or [limit]))
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()

    options: Any = {"concurrency": 1} if at == "permit" else {"limits": "1/20ms"}
    rules = [Rule("*", **options, wait="10s")] if at in ("window", "permit") else []
    limit = RateLimit("99/s") if rules else RateLimit(**options, wait="10s")
    together = [limit, RateLimit("1/25ms", wait="10s", name="other")] if at.startswith("two") else []
    routes = [Route("/", read if together else limit(read), methods=["POST"]), WebSocketRoute("/", talk)]
    middleware = RateLimitMiddleware(Starlette(routes=routes), rules=rules)
    come: dict[str, list[Message]] = {
        "http": [{"type": "http.request", "body": piece, "more_body": piece == b"a"} for piece in (b"a", b"b")],
        "websocket": [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "ab"}],
    }
    servers = [Losing(*come[kind]) for _ in range(4)]
    async with asyncio.timeout(30):
        await asyncio.gather(
            *(middleware(scope_of("/", "POST", type=kind), server.receive, server.send) for server in servers)
        )
    assert [(server.received, server.lost) for server in servers] == [(b"ab", 0)] * 4


async def test_a_request_that_is_cancelled_as_it_hands_its_permit_back_is_read_no_more() -> None:
    store, entered, reading = SlowStore(VirtualTime().clock), list[Scope](), set[int]()

    async def stays(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope)
        await anyio.sleep_forever()

    middleware = RateLimitMiddleware(stays, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="10s")])

    async def visit(number: int) -> None:
        async def receive() -> Message:
            reading.add(number)
            try:
                return await anyio.sleep_forever()  # type: ignore[return-value]
            finally:
                reading.remove(number)

        await middleware(scope_of(), receive, anyio.sleep_forever)

    tasks = [asyncio.create_task(visit(number)) for number in range(2)]
    await asyncio.sleep(1)
    assert (len(entered), reading) == (1, {1})
    tasks[0].cancel()
    await asyncio.sleep(1)
    tasks[1].cancel()
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await turns()
    assert (len(entered), reading, store.permits_held()) == (2, set(), 0)


async def test_a_channel_that_fails_while_a_request_waits_fails_for_the_application() -> None:
    async def broken() -> Message:
        raise OSError("the connection is gone")

    ahead = ReadAhead(broken)
    ahead.begin()
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(ahead(), 60)


@pytest.mark.parametrize(("kind", "most"), [("http.request", 64), ("websocket.receive", 1)])
async def test_little_is_read_while_a_request_waits_and_the_application_gets_it(kind: str, most: int) -> None:
    read = 0

    async def endless() -> Message:
        nonlocal read
        read += 1
        return {"type": kind, "number": read, "body": b"x" * 1_024, "more_body": True}

    ahead = ReadAhead(endless)
    ahead.begin()
    await turns(200)
    assert 1 <= read <= most
    assert [(await ahead())["number"] for _ in range(100)] == [*range(1, 101)]


# -- permits that are shared fairly ------------------------------------------------------------------------------------


@pytest.mark.parametrize("instant", range(6))
async def test_a_permit_for_a_waiter_cancelled_in_that_instant_goes_to_the_next(tmp_path: Path, instant: int) -> None:
    come = [f"come GET / X-Tenant={tenant}" for tenant in "abc"]
    async with Stage(VirtualTime(), tmp_path) as stage:
        await stage.play(f'rule "/", concurrency=1, {FAIR}', "slow", *come)
        stage.under_way.pop()[1].set()
        await turns(instant)
        assert await stage.play("cancel 1", "inside") == ["", "c"]
        assert await stage.play("end", "ended") == ["", "0: 200 at 0s\n1: cancelled at 0s\n2: 200 at 0s"]
        queues = stage.limiter.engine.queues
        assert (queues._permits, queues.waiting) == ({}, 0)


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
async def test_every_store_hands_permits_out_fairly_and_those_that_a_change_adds(url: str, tmp_path: Path) -> None:
    def state() -> tuple[int, list[str]]:
        return stage.limiter.engine.queues.waiting, sorted(tenant for tenant, _ in stage.under_way)

    async def until(waiting: int, *tenants: str) -> None:
        while state() != (waiting, [*tenants]):  # noqa: ASYNC110 - a store answers late
            await asyncio.sleep(0.01)

    in_real_time: Any = SimpleNamespace(passed_s=0.0)
    async with asyncio.timeout(BOUND_S), Stage(in_real_time, tmp_path) as stage:
        stage.limiter = Limiter.from_url(url, deadline="20s")
        await stage.play(f'rule "/", concurrency=2, {FAIR}', "slow", "come GET / X-Tenant=big times=4")
        await until(2, "big", "big")
        await stage.play("come GET / X-Tenant=small")
        await until(3, "big", "big")
        await stage.play("end 0")
        await until(2, "big", "small")
        await stage.play("override held 3")
        await until(1, "big", "big", "small")
        await stage.play("end")
        await asyncio.gather(*stage.tasks)
        assert {status for *_, status in stage.ended} == {"200"}
        await stage.limiter.close()


# -- random traffic, of which the application itself counts who is under way ------------------------------------------

KEYS = ("ann", "bob", "eve")
AMOUNTS = {"all": 3, "http": 2, "queued": 2, "own": 2, "sockets": 2}
OWN = RateLimit(concurrency=AMOUNTS["own"], key=header("X-Key"), name="own", wait="50ms")
"""The limit at an endpoint."""
STARTS = {
    "http": {"type": "http.response.start", "status": 200, "headers": []},
    "websocket": {"type": "websocket.accept"},
}
ENDS = {"http": {"type": "http.response.body", "body": b"."}, "websocket": {"type": "websocket.close", "code": 1000}}


class Broken(Exception):
    """Stands for any failure of the application."""


class Application:
    """Serves each request in the way that its scope asks for, and asserts the bound from inside."""

    def __init__(self) -> None:
        self.under_way: Counter[tuple[str, str]] = Counter()
        self.most: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key, rules = scope["key"], rules_of(scope)
        if "own" in rules:
            await OWN.check(HTTPConnection(scope, receive))
        held = Counter((rule, key) for rule in rules)
        self.under_way += held
        for rule, _ in held:
            count = self.under_way[rule, key]
            assert count <= AMOUNTS[rule], f"{count} requests of {key} are under way under {rule}"
            self.most[rule] = max(self.most[rule], count)

        def leave() -> None:
            self.under_way.subtract(held)
            held.clear()

        try:
            for counter, decision in scope["slidegate"].decisions if scope["how"] == "refund" else ():
                await counter.limiter.refund(decision)
            await serve(scope["type"], scope["how"], scope["steps"], receive, send, leave)
        finally:
            leave()


async def serve(kind: str, how: str, steps: int, receive: Receive, send: Send, leave: Any) -> None:
    """Answer one request; `leave` is called right before its last byte."""
    await (asyncio.sleep(steps / 20) if how == "slow" else turns(steps))
    if how == "silent":
        return
    if how == "raise":
        raise Broken
    await send(STARTS[kind])
    if how == "disconnect":
        kinds = [(await receive())["type"].rpartition(".")[2] for _ in range(2)]
        assert kinds == ["request" if kind == "http" else "connect", "disconnect"]
        return
    for _ in range(steps if how == "stream" else 0):
        await (turns(1) if kind == "websocket" else send({**ENDS[kind], "more_body": True}))
        await turns(1)
    if how == "late":
        raise Broken
    leave()
    await send(ENDS[kind])
    await turns(steps)  # background tasks


def rules_of(scope: Scope) -> list[str]:
    own = ["own"] * (scope["path"] == "/own")
    if scope["type"] == "websocket":
        return ["all", "sockets", *own]
    return ["all", *own] if own else ["all", "queued"] if scope["path"] == "/queued" else ["all", "http"]


async def slowly(request: HTTPConnection) -> str:
    """Return a key, by the time that a client may have left."""
    await turns(3)
    return request.headers["x-key"]


def middleware(limiter: Limiter, app: Application) -> RateLimitMiddleware:
    """Return the middleware whose rules `AMOUNTS` repeats."""
    by = header("X-Key")
    rules = [
        Rule("*", "100000/minute", concurrency=AMOUNTS["all"], key=by, name="all", wait="50ms", wait_max=3),
        Rule("/plain", concurrency=AMOUNTS["http"], connection="http", key=by, name="http"),
        Rule("/queued", concurrency=str(AMOUNTS["queued"]), connection="http", key=by, name="queued", wait="5s"),
        Rule("*", concurrency=AMOUNTS["sockets"], connection="websocket", key=by, name="sockets"),
        Rule("*", "5/minute", shadow=True, key=slowly, name="watched"),
    ]
    return RateLimitMiddleware(app, limiter=limiter, rules=rules)


async def visit(app: RateLimitMiddleware, seen: Application, chance: random.Random) -> None:
    how = chance.choice(("plain", "refund", "stream", "raise", "late", "silent", "disconnect", "slow"))
    own: Any = {"key": chance.choice(KEYS), "how": how, "steps": chance.randrange(6)}
    kind = chance.choice(("http", "http", "http", "websocket"))
    scope = scope_of(chance.choice(("/plain", "/queued", "/own")), headers={"X-Key": own["key"]}, type=kind, **own)
    gone, answer = anyio.Event(), Answer()

    async def slow_server(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_slowly(message: Message) -> None:
            await turns(1)
            await send(message)

        await app(scope, receive, send_slowly)

    task = asyncio.ensure_future(send_scope(slow_server, scope, leaves=gone, answer=answer))
    leaves_after = chance.randrange(40) if how == "disconnect" or chance.random() < 0.2 else None
    cancels_after = chance.randrange(20) if chance.random() < 0.2 else None
    for turn in range(60):
        if turn == leaves_after:
            gone.set()
        if turn == cancels_after:
            task.cancel()
        await asyncio.sleep(0)
    gone.set()
    async with asyncio.timeout(BOUND_S):
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(outcome, Exception) and not isinstance(outcome, (Broken, RateLimitExceeded, WebSocketException)):
        raise outcome
    status = next((str(message.get("status", message["type"])) for message in answer.messages), type(outcome).__name__)
    seen.outcomes[status] += 1


async def play(limiter: Limiter, chance: random.Random) -> Application:
    """Let random visitors come, and return the application, which has seen no more under way than there may be."""
    app = Application()
    front = middleware(limiter, app)
    if chance.random() < 0.5:
        limiter.observe(Listener())  # keeps outcomes, so that no permit is handed back by the garbage collector
    async with asyncio.TaskGroup() as tasks:
        for _ in range(400):
            tasks.create_task(visit(front, app, chance))
            await turns(chance.randrange(6))
            if chance.random() < 0.05:
                await limiter.reset(chance.choice(KEYS))
            if chance.random() < 0.1:
                await asyncio.sleep(0.03)
    assert not any(app.under_way.values())
    return app


@pytest.mark.parametrize("times", [4, pytest.param(150, marks=pytest.mark.deep)])
async def test_the_bound_holds_over_all_ends_of_requests(times: int, rng: random.Random) -> None:
    virtual, full = VirtualTime(), set[str]()
    for _ in range(times):
        store = MemoryStore(clock=virtual.clock)
        app = await play(Limiter(store), rng)
        assert store.permits_held() == 0, "everything has ended"
        full |= {rule for rule, most in app.most.items() if most == AMOUNTS[rule]}
        assert {"200", "websocket.accept", "CancelledError", "Broken"} <= set(app.outcomes)
    assert full == set(AMOUNTS), "all were full once"


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS, pytest.param("cluster", marks=needs_redis)])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.deep)])
async def test_the_bound_holds_over_all_ends_on_a_shared_store(url: str, times: int, rng: random.Random) -> None:
    for _ in range(times):
        async with Limiter.from_url(url, deadline="30s", on_error="deny") as limiter:
            app = await play(limiter, rng)
            async with asyncio.timeout(BOUND_S):
                while limiter.store.permits_held():  # noqa: ASYNC110 - hand-backs that are under way end by themselves
                    await asyncio.sleep(0.01)
        assert {rule for rule, most in app.most.items() if most == AMOUNTS[rule]}, "something was full"


def test_permits_come_back_under_trio_too() -> None:
    store, seen = MemoryStore(), list[int]()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await anyio.lowlevel.checkpoint()
        await hello(scope, receive, send)

    middleware = RateLimitMiddleware(later, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="20s")])

    async def come() -> None:
        seen.extend(await statuses(middleware, 1))

    async def main() -> None:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(come)
            with anyio.move_on_after(0):
                await call(middleware)

    anyio.run(main, backend="trio")
    assert (seen, store.permits_held()) == ([200] * 5, 0)
