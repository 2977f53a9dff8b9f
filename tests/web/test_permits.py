"""Never more requests are under way than a limit allows, whatever becomes of them, and every permit comes back."""

import asyncio
import random
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, header
from slidegate.core import StoreUnavailable
from slidegate.events import Observer, Outcome
from slidegate.testing import FakeClock

from ..asgi import Answer, call, hello, scope_of, send_scope, statuses
from ..redis_servers import AT_REDIS, BOUND_S, needs_redis
from ..remote_stores import SickStore
from ..virtual_time import VirtualTime, turns

# -- random traffic, of which the application itself counts who is under way ------------------------------------------

KEYS = ("ann", "bob", "eve")
AMOUNTS = {"all": 3, "http": 2, "queued": 2, "own": 2, "sockets": 2}
OWN = RateLimit(concurrency=AMOUNTS["own"], key=header("X-Key"), name="own", wait="50ms")
"""The limit at an endpoint."""


class Broken(Exception):
    """Stands for any failure of the application."""


class Application:
    """Serves each request in the way that its own header asks for, and asserts the bound from inside."""

    def __init__(self) -> None:
        self.under_way: Counter[tuple[str, str]] = Counter()
        self.most: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = dict(scope["headers"])
        key, how, steps = (fields[name].decode() for name in (b"x-key", b"x-how", b"x-steps"))
        rules = rules_of(scope)
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
            for counter, decision in scope["slidegate"] if how == "refund" else ():
                await counter.limiter.refund(decision)
            await serve(scope["type"], how, int(steps), receive, send, leave)
        finally:
            leave()


async def serve(kind: str, how: str, steps: int, receive: Receive, send: Send, leave: Any) -> None:
    """Answer one request; `leave` is called right before its last byte."""
    await (asyncio.sleep(steps / 20) if how == "slow" else turns(steps))
    if how == "silent":
        return
    if how == "raise":
        raise Broken
    if kind == "websocket":
        await send({"type": "websocket.accept"})
        await turns(steps)
        if how == "disconnect":
            assert [(await receive())["type"] for _ in range(2)] == ["websocket.connect", "websocket.disconnect"]
            return
        leave()
        await send({"type": "websocket.close", "code": 1000})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if how == "disconnect":
            assert [(await receive())["type"] for _ in range(2)] == ["http.request", "http.disconnect"]
            return
        for _ in range(steps if how == "stream" else 0):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await turns(1)
        if how == "late":
            raise Broken
        leave()
        await send({"type": "http.response.body", "body": b"."})
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
    fields = {"X-Key": chance.choice(KEYS), "X-How": how, "X-Steps": str(chance.randrange(6))}
    kind = chance.choice(("http", "http", "http", "websocket"))
    scope = scope_of(chance.choice(("/plain", "/queued", "/own")), headers=fields, type=kind)
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
    kept: list[Outcome] = []  # so that no permit is handed back by the garbage collector
    if chance.random() < 0.5:
        limiter.observe(type("Keeps", (Observer,), {"request": lambda self, outcome: kept.append(outcome)})())
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
    virtual = VirtualTime()
    for _ in range(times):
        store = MemoryStore(clock=virtual.clock)
        app = await play(Limiter(store), rng)
        assert store.permits_held() == 0, "everything has ended"
        assert {rule for rule, most in app.most.items() if most == AMOUNTS[rule]} == set(AMOUNTS), "all were full once"
        assert {"200", "websocket.accept", "CancelledError", "Broken"} <= set(app.outcomes)


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS, pytest.param("cluster", marks=needs_redis)])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.deep)])
async def test_the_bound_holds_over_all_ends_of_requests_on_a_shared_store(
    url: str, times: int, rng: random.Random
) -> None:
    for _ in range(times):
        async with Limiter.from_url(url, deadline="30s", on_error="deny") as limiter:
            app = await play(limiter, rng)
            async with asyncio.timeout(BOUND_S):
                while limiter.store.permits_held():  # noqa: ASYNC110 - hand-backs that are under way end by themselves
                    await asyncio.sleep(0.01)
        assert {rule for rule, most in app.most.items() if most == AMOUNTS[rule]}, "something was full"


# -- one case each -----------------------------------------------------------------------------------------------------


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


async def test_each_store_gets_its_permit_back_where_one_of_two_limits_was_asked_in_an_outage() -> None:
    store = SickStore(FakeClock())
    limiter = Limiter(store)
    local: Any = limiter.engine.failover.local  # type: ignore[union-attr]
    held = []

    @RateLimit(concurrency=1)
    async def page(request: Request) -> PlainTextResponse:
        store.error = None
        held.append((store.permits_held(), local.permits_held()))
        return PlainTextResponse("page")

    async def fails_first(request: Request) -> PlainTextResponse:
        store.error = StoreUnavailable("gone")
        return await page(request)

    site = Starlette(routes=[Route("/", fails_first)])
    app = RateLimitMiddleware(site, rules=[Rule("*", concurrency=1)], limiter=limiter)
    assert await statuses(app, 3) == [200] * 3
    assert [*held, (store.permits_held(), local.permits_held())] == [(1, 1)] * 3 + [(0, 0)]
