"""Stats are to the last unit those of a recorder that counts at once, whatever requests and clocks do."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.routing import Mount, Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import Decision, Limiter, MemoryStore, Networks, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import MetricSummary, MetricWindow
from slidegate.stats import Statistics, Stats, recorder
from slidegate.stats.recorder import OTHER
from slidegate.stats.series import KEPT, SLICE_US
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web.routes import UNROUTED

from ..asgi import scope_of
from ..web.middlewares import charged

BLOCKED = "198.51.100.7"
FIRST = {"http.response.start": 200, "websocket.accept": 101, "websocket.close": 403}
PATHS = {
    "/items/1": "GET /items/{id}",
    "/items/2": "GET /items/{id}",
    "/one/1": "GET /one/{id}",
    "/beside/1": "GET /beside/{id}",
    "/other/1": "GET /other/{id}",
    "/limited": "GET /limited",
    "/sub/ann": "GET /sub/{name}",
    "/nowhere": UNROUTED,
    "/ws": "WS /ws",
}
BESIDE = {"/beside/1"}


class Recorder:
    """Stands around a middleware, watches its messages, and counts each at once."""

    def __init__(self, middleware: ASGIApp, clock: FakeClock) -> None:
        self.middleware = middleware
        self.clock = clock
        self.windows: dict[tuple[tuple[str, ...], str], MetricWindow] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = Seen(self, scope)

        async def watch(message: Message) -> None:
            seen.message(message)
            await send(message)
            seen.sent(message)

        try:
            await self.middleware(scope, receive, watch)
        except WebSocketDisconnect:
            seen.leave()
        except (ClientDisconnect, asyncio.CancelledError):
            seen.end("cancelled")
        except Exception:
            seen.end("exception", 500)
        else:
            seen.leave()

    def record(self, labels: tuple[str, ...], route: str, now_us: int, *events: str, **times: int) -> None:
        wanted = labels, route
        if wanted not in self.windows and len(self.windows) >= recorder.MAX_SERIES:
            wanted = (OTHER,), OTHER
        window = self.windows.setdefault(wanted, MetricWindow(KEPT[SLICE_US], SLICE_US))
        window.record(now_us, *events, **times)

    def read(self, slices: int) -> tuple[dict[str, MetricSummary], dict[str, MetricSummary], MetricSummary]:
        now_us = self.clock()
        rules: dict[str, list[MetricSummary]] = {}
        routes: dict[str, list[MetricSummary]] = {}
        nothing = MetricWindow(KEPT[SLICE_US], SLICE_US).read(now_us, slices)
        total = [nothing]
        for (labels, route), window in self.windows.items():
            if (read := window.read(now_us, slices)).events:
                total.append(read)
                routes.setdefault(route, []).append(read)
                for label in dict.fromkeys(labels):
                    rules.setdefault(label, []).append(read)
        merged = MetricSummary.merged
        return {n: merged(r) for n, r in rules.items()}, {n: merged(r) for n, r in routes.items()}, merged(total)


class Seen:
    """What becomes of one request."""

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        self.recorder = recorder
        self.scope = scope
        self.route = PATHS[scope["path"]]
        self.began_us = recorder.clock()
        self.status = 0
        self.over = False

    @property
    def decision(self) -> Decision:
        """The decision so far. Who asks for more than the first one changes how the rest of a request is recorded."""
        record = self.scope.get("slidegate") or self.scope["slidegate.ended"]
        first: Decision | None = getattr(record, "first", None)
        more = first is None or self.scope["path"] == "/limited"
        return record.decision if more else first

    @property
    def labels(self) -> tuple[str, ...]:
        if self.scope["path"] == "/limited":
            return tuple(charged(self.scope))
        return tuple(bucket.label for bucket, _, _ in self.decision.checks)

    def message(self, message: Message) -> None:
        if not self.status and message["type"] in FIRST:
            self.status = message.get("status") or FIRST[message["type"]]

    def sent(self, message: Message) -> None:
        ends = ("http.response.body", "websocket.close")
        if self.status and not self.over and message["type"] in ends and not message.get("more_body", False):
            self.end("success")

    def leave(self) -> None:
        self.end("success" if self.status and self.scope["type"] == "websocket" else "cancelled")

    def end(self, how: str, status: int = 0) -> None:
        if self.over:
            return
        self.over, decision = True, self.decision
        status = self.status or status
        answered = (f"{status // 100}xx" if 100 <= status < 600 else "other",) if status else ()
        now_us = max(self.recorder.clock(), self.began_us)
        if decision.allowed:
            self.recorder.record(self.labels, self.route, now_us, "pass", *answered, how, rt_us=now_us - self.began_us)
            return
        violated = {state.rule for state in decision.violated}
        labels = tuple(bucket.label for bucket, _, _ in decision.checks if bucket.rule in violated)
        shut = ("blocked",) if decision.reason == "blocked" else ()
        route = self.route if "endpoint" in self.scope else UNROUTED
        self.recorder.record(labels, route, now_us, "block", *shut, *answered)


class Script:
    """An endpoint that does what the scope of a request says; a number is a span by which its clock goes on."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for act in scope["script"]:
            if isinstance(act, int):
                self.clock.advance(us=act)
                await asyncio.sleep(0)
            elif isinstance(act, dict):
                await send(act)
            else:
                raise act


def script(rng: random.Random, connection: str) -> list[int | Message | BaseException]:
    """Draw what an application does: ordinary answers, streams, half of an answer, exceptions at any place."""
    acts: list[int | Message | BaseException]
    if connection == "websocket":
        acts = [{"type": rng.choice(("websocket.accept", "websocket.close"))}] if rng.random() < 0.9 else []
        errors: list[BaseException] = [RuntimeError(), WebSocketDisconnect(1001), asyncio.CancelledError()]
    else:
        status = rng.choice((200, 200, 204, 301, 404, 503, 999))
        acts = [{"type": "http.response.early_hint", "links": []}] if rng.random() < 0.1 else []
        acts.append({"type": "http.response.start", "status": status, "headers": []})
        acts += [{"type": "http.response.body", "body": b"x", "more_body": True}] * rng.choice((0, 0, 0, 1, 3))
        acts.append({"type": "http.response.body", "body": b"x"})
        if rng.random() < 0.1:
            acts = acts[: rng.randrange(len(acts))]
        errors = [RuntimeError(), ClientDisconnect(), asyncio.CancelledError()]
    if rng.random() < 0.2:
        acts.insert(rng.randrange(len(acts) + 1), rng.choice(errors))
    for place in range(len(acts), -1, -1):
        if rng.random() < 0.7:
            acts.insert(place, span_us(rng))
    return acts


def span_us(rng: random.Random) -> int:
    """Draw a span: mostly short, sometimes longer than a slice or than all slices, sometimes back."""
    if rng.random() < 0.98:
        return rng.choice((rng.randrange(30), rng.randrange(20_000)))
    return rng.choice((1, -1)) * rng.choice((rng.randrange(3 * SLICE_US), rng.randrange(2 * KEPT[SLICE_US] * SLICE_US)))


class Fork(Router):
    """A router that leaves some paths to another one, of which nothing is known before a request comes there."""

    beside: Router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in BESIDE:
            await self.beside(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


RULES: dict[str, list[Rule]] = {
    "a rule for all": [Rule("*", "60/minute", name="all")],
    "some paths have two": [Rule("*", "60/minute", name="all"), Rule("/items/{id}", "5/second", name="items")],
    "one endpoint, two rules": [Rule(f"/items/{number}", "5/second", name=f"item {number}") for number in (1, 2)],
}


class World:
    """A middleware between scripts and a recorder."""

    def __init__(self, rules: list[Rule]) -> None:
        self.clock = FakeClock(10**12)
        self.heard = RecordingObserver()
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.statistics = Statistics(self.limiter)
        shared = Script(self.clock)
        # The recorder stands around a router: nothing in between makes an answer of an exception.
        router = Fork(
            routes=[
                Route("/items/{id}", Script(self.clock), methods=["GET"]),
                Route("/one/{id}", shared, methods=["GET"]),
                Route("/other/{id}", shared, methods=["GET"]),
                Route("/limited", RateLimit("3/minute", name="tight")(self.limited)),
                Mount("/sub", routes=[Route("/{name}", Script(self.clock), methods=["GET"])]),
                WebSocketRoute("/ws", Script(self.clock)),
            ]
        )
        router.beside = Router(routes=[Route("/beside/{id}", shared, methods=["GET"])])
        middleware = RateLimitMiddleware(
            router,
            limiter=self.limiter,
            rules=rules,
            blocklist=Networks([BLOCKED]),
            ignore_checks=["SG103", "SG123", "SG124"],
        )
        self.recorder = Recorder(middleware, self.clock)

    async def limited(self, request: Any) -> ASGIApp:
        return Script(self.clock)

    async def ask(self, rng: random.Random) -> None:
        """Send one request that is drawn, and take a while for each message of the answer."""
        path = rng.choice(list(PATHS))
        connection = "websocket" if path == "/ws" else "http"
        client = BLOCKED if rng.random() < 0.1 else "203.0.113.9"

        async def receive() -> Message:
            return {"type": f"{connection}.disconnect"}

        async def send(message: Message) -> None:
            for _ in range(rng.randrange(3)):
                self.clock.advance(us=rng.randrange(9))
                await asyncio.sleep(0)

        scope = scope_of(path, client=(client, 1), type=connection, script=script(rng, connection))
        await self.recorder(scope, receive, send)

    def agree(self, slices: int) -> None:
        read: Stats = self.statistics.stats(slices * SLICE_US / 1_000_000)
        rules, routes, total = self.recorder.read(slices)
        assert {name: traffic.seen for name, traffic in read.rules.items()} == rules
        assert {name: traffic.seen for name, traffic in read.routes.items()} == routes
        assert read.total.seen == total


async def test_stats_are_those_of_a_recorder_that_counts_at_once(rng: random.Random) -> None:
    await ask_and_compare(rng)


@pytest.mark.interpreted("a constant that the test replaces is a part of the compiled code")
async def test_stats_are_those_of_the_recorder_also_when_series_run_out(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_SERIES", 2)
    await ask_and_compare(rng)


async def ask_and_compare(rng: random.Random) -> None:
    """Send random requests to some applications, and compare the stats after each round."""
    for rules in RULES.values():
        world = World(rules)
        await ask_in_rounds(world, rng)
        assert world.heard.kinds.count("series_full") == (len(world.recorder.windows) > recorder.MAX_SERIES)


async def ask_in_rounds(world: World, rng: random.Random) -> None:
    for _ in range(12):
        tasks = [asyncio.create_task(world.ask(rng)) for _ in range(rng.randrange(1, 25))]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if rng.random() < 0.05:
                world.agree(rng.randint(1, KEPT[SLICE_US]))
        for task in tasks:
            task.result()
        if rng.random() < 0.5:
            world.clock.advance(us=max(span_us(rng) * 50, -(10**9)))
        world.agree(rng.randint(1, KEPT[SLICE_US]))
