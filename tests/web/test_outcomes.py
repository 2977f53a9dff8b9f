"""What observers hear of a request: its outcome, once, when its last byte is out, and one event if it is refused."""

import asyncio
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.events import Outcome
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page, scope_of, statuses
from .middlewares import Listener

TIGHT: Any = RateLimit("1/hour", name="tight")


@pytest.mark.parametrize(("passed_us", "took_us"), [(30_000, 30_000), (-1, 0)], ids=["ahead", "back"])
async def test_an_outcome_says_when_a_request_began_how_long_it_took_and_whom_it_counted(
    passed_us: int, took_us: int
) -> None:
    clock, ear = FakeClock(10**15), Listener()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        clock.advance(us=passed_us)
        await hello(scope, receive, send)

    limiter = Limiter(MemoryStore(clock=clock), observers=[ear])
    assert await statuses(RateLimitMiddleware(slow, limits="3/hour", limiter=limiter), 2) == [200, 200]
    times = [(one.began_us, one.duration_us) for one in ear.outcomes]
    assert times == [(10**15 + count * passed_us - took_us, took_us) for count in (1, 2)]
    assert {state.key for one in ear.outcomes for decision in one.decisions for state in decision.states} == {PEER}


START, BODY, COPY = ({"type": f"http.response.{name}"} for name in ("start", "body", "zerocopysend"))
MESSAGES: dict[str, Any] = {
    "start": {**START, "status": 200, "headers": []},
    "304": {**START, "status": 304, "headers": []},
    "trailed": {**START, "status": 200, "headers": [], "trailers": True},
    "hint": {"type": "http.response.early_hint", "links": []},
    "last": BODY,
    "more": {**BODY, "more_body": True},
    "file": {"type": "http.response.pathsend", "path": "/x"},
    "copy": {**COPY, "file": 3},
    "copy-more": {**COPY, "file": 3, "more_body": True},
    "trailers": {"type": "http.response.trailers", "headers": []},
    **{name: {"type": f"websocket.{name}"} for name in ("accept", "send", "close")},
    "raises": RuntimeError(),
    "left": ClientDisconnect(),
    "gone": WebSocketDisconnect(1001),
    "cancelled": CancelledError(),
}
"""What an application sends or raises."""


class Brief(Listener):
    takes_passed = True


async def ends(words: list[str]) -> str:
    """Return what comes to the server and, beside an observer that fails, the outcome; and permits behind each send."""
    store, told = MemoryStore(), list[str]()

    class Failing(Listener):
        def request(self, outcome: Outcome, /) -> None:
            told.append(f"[{outcome.ended}]" if outcome.allowed else "[refused]")
            raise RuntimeError("no")

    limiter = Limiter(store)
    await limiter.hit(PEER, "1/hour", rule="tight")
    for observer in (Failing(), ear := Listener(), brief := Brief()):
        limiter.observe(observer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for word in words:
            if word == "limited":
                await TIGHT.check(Request(scope))
            if isinstance(MESSAGES[word], BaseException):
                raise MESSAGES[word]
            await send(MESSAGES[word])
            told.append(str(store.permits_held()))

    async def send(message: Message) -> None:
        told.append(message["type"].rpartition(".")[2])

    middleware = RateLimitMiddleware(app, rules=[Rule("*", "5/day", concurrency=1)], limiter=limiter)
    with suppress(Exception, CancelledError):
        kind = "websocket" if words[:1] in (["accept"], ["close"]) else "http"
        await middleware(scope_of(type=kind), anyio.sleep_forever, send)
    (outcome,), (decision, *more) = ear.outcomes, ear.outcomes[0].decisions
    passed = decision.checks, outcome.route, outcome.duration_us
    is_ordinary = kind == "http" and outcome.ended == "success" and not more
    assert brief.outcomes in ([[passed]] if is_ordinary else [[outcome], [passed]])
    return " ".join([*told, f"end {store.permits_held()}"])


def test_a_request_has_one_outcome_behind_its_last_byte_and_until_then_its_permit(texts: Callable[..., None]) -> None:
    texts(
        Path(__file__).with_name("ends.txt"), "> ", lambda line: asyncio.run(ends(line.removeprefix("nothing").split()))
    )


async def test_an_observer_that_comes_while_a_request_is_under_way_hears_of_the_next_one() -> None:
    limiter, ear = Limiter(), Listener()

    async def attaching(scope: Scope, receive: Receive, send: Send) -> None:
        limiter.observe(ear)
        await hello(scope, receive, send)

    await call(RateLimitMiddleware(attaching, limits="9/hour", limiter=limiter))
    assert ear.outcomes == []
    await call(RateLimitMiddleware(hello, limits="9/hour", limiter=limiter))
    assert [one.reason for one in ear.outcomes] == ["ok"]


async def test_an_endpoint_of_two_applications_has_the_route_of_the_one_that_was_asked() -> None:
    applications = {path: Starlette(routes=[Route(path, page)]) for path in ("/a", "/b")}

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        await applications[scope["path"]](scope, receive, send)

    paths, limiter = ["/a", "/a", "/b", "/a", "/b", "/b", "/a"], Limiter(observers=[ear := Listener()])
    middleware = RateLimitMiddleware(either, limiter=limiter)
    for path in paths:
        await call(middleware, path)
    assert [one.route for one in ear.outcomes] == [f"GET {path}" for path in paths]
