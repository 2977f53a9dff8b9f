"""Random traffic against concurrency limits, over any store: the application itself counts who is under way."""

import asyncio
import random
from collections import Counter
from typing import Any

from starlette.exceptions import WebSocketException
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from slidegate import Limiter, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, header
from slidegate.events import Observer, Outcome

from ..asgi import scope_of
from ..virtual_time import turns

KEYS = ("ann", "bob", "eve")
AMOUNTS = {"all": 3, "http": 2, "queued": 2, "own": 2, "sockets": 2}
OWN = RateLimit(concurrency=AMOUNTS["own"], key=header("X-Key"), name="own", wait="50ms")
"""The limit at an endpoint."""
BOUND_S = 60


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
            assert (await receive())["type"] == "websocket.disconnect"
            return
        leave()
        await send({"type": "websocket.close", "code": 1000})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if how == "disconnect":
            assert (await receive())["type"] == "http.disconnect"
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
    more = {"type": "websocket", "scheme": "ws", "subprotocols": []} if kind == "websocket" else {}
    scope = scope_of(chance.choice(("/plain", "/queued", "/own")), headers=fields, **more)
    gone = asyncio.Event()
    sent: list[Message] = []

    async def receive() -> Message:
        await gone.wait()
        return {"type": f"{kind}.disconnect", "code": 1001}

    async def send(message: Message) -> None:
        await turns(1)
        sent.append(message)

    task = asyncio.ensure_future(app(scope, receive, send))
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
    status = next((str(message.get("status", message["type"])) for message in sent), type(outcome).__name__)
    seen.outcomes[status] += 1


async def play(limiter: Limiter, seed: int, *, visits: int = 150) -> Application:
    """Let random visitors come, and return the application, which has seen no more under way than there may be."""
    chance, app = random.Random(seed), Application()
    front = middleware(limiter, app)
    kept: list[Outcome] = []  # so that no permit is handed back by the garbage collector
    if chance.random() < 0.5:
        limiter.observe(type("Keeps", (Observer,), {"request": lambda self, outcome: kept.append(outcome)})())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(visits):
            tasks.create_task(visit(front, app, chance))
            await turns(chance.randrange(6))
            if chance.random() < 0.05:
                await limiter.reset(chance.choice(KEYS))
            if chance.random() < 0.1:
                await asyncio.sleep(0.03)
    assert not any(app.under_way.values())
    return app
