"""Limits that meet on the way of one request: one window is charged once, and all others stay charged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.exceptions import WebSocketException
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import (
    ConfigurationError,
    Limiter,
    MemoryStore,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    everyone,
)
from slidegate.testing import FakeClock

from ..asgi import call, hello, page, send_scope, statuses
from .limited import FORMS
from .middlewares import Listener

# -- a refusal further in that somebody catches ------------------------------------------------------------------------


async def test_a_middleware_that_has_returned_is_above_nothing_any_more() -> None:
    """An application asks one further in first, which answers nothing, and goes on by itself."""

    async def passes_on(scope: Scope, receive: Receive, send: Send) -> None:
        return

    aside = RateLimitMiddleware(passes_on, limits="9/hour", limiter=Limiter())
    own = RateLimit("1/hour", name="own")
    site = Starlette(routes=[Route("/", own(page), methods=["GET", "POST"])])

    async def cascade(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await aside(scope, receive, send)
        await site(scope, receive, send)

    app = RateLimitMiddleware(cascade, rules=[], limiter=Limiter())
    assert await statuses(app, 1) == [200]
    assert await statuses(app, 2, method="POST") == [429, 429]


# -- a request that asks again after a refusal -------------------------------------------------------------------------


class Patient:
    """Asks an application until it is admitted, again after each of some pauses."""

    def __init__(self, clock: FakeClock, app: ASGIApp) -> None:
        self.pauses: list[int] = []
        self.admitted: list[bool] = []
        self.clock, self.app = clock, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.admitted = []
        for pause in (0, *self.pauses):
            self.clock.advance(us=pause * 1_000_000)
            answer = await send_scope(self.app, scope)
            self.admitted.append(answer.status == 200)
            if self.admitted[-1]:
                break
        for message in answer.messages:
            await send(message)


ASKED: dict[str, dict[str, Any]] = {
    "named": {"limits": "2/minute", "name": "asked"},
    "unnamed": {"limits": "2/minute"},
    "by a function": {"limits": lambda request: "2/minute"},
    "everyone": {"limits": "2/minute", "key": everyone, "cost": lambda request: 1},
}


@pytest.mark.parametrize("at", ["rule", "dependency", "checked"])
@pytest.mark.parametrize("how", ASKED)
@given(pauses=st.lists(st.lists(st.sampled_from([1, 10, 30, 60]), max_size=4), max_size=8))
async def test_a_refused_request_that_asks_again_is_decided_again(at: str, how: str, pauses: list[list[int]]) -> None:
    clock, spent, ear = FakeClock(), list[int](), Listener()
    limiter = Limiter(MemoryStore(clock=clock), observers=[ear])
    if at == "rule":
        patient = Patient(clock, RateLimitMiddleware(hello, rules=[Rule("*", **ASKED[how])], limiter=limiter))
    else:
        patient = Patient(clock, FORMS[at](RateLimit(**ASKED[how]), page))
    app = RateLimitMiddleware(patient, rules=[Rule("*", "1000/minute", name="outer")], limiter=limiter)
    for request in pauses:
        patient.pauses = request
        now_s = clock() // 1_000_000
        expected = []
        for pause in (0, *request):
            now_s += pause
            expected.append(sum(at_s > now_s - 60 for at_s in spent) < 2)
            if expected[-1]:
                spent.append(now_s)
                break
        answer = await call(app)
        assert patient.admitted == expected
        assert answer.status == (200 if expected[-1] else 429)
        assert ear.outcomes[-1].ended == ("success" if expected[-1] else "refused")
        shown = answer.headers["ratelimit-policy"].split(", ")
        assert len(shown) == 2, "an earlier refusal is not shown beside the decision that follows it"


async def test_a_request_that_was_refused_a_permit_passes_with_one_alone() -> None:
    """A message of a websocket asks again and again, while another websocket holds the only permit."""
    limit = RateLimit(concurrency=1, key=everyone)
    taken: list[bool] = []

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        for _ in range(3):
            try:
                await limit.check(socket)
            except WebSocketException:
                taken.append(False)
            else:
                taken.append(True)
        if len(taken) == 3:
            await call(app, type="websocket")

    app = RateLimitMiddleware(Starlette(routes=[WebSocketRoute("/", endpoint)]), rules=[])
    await call(app, type="websocket")
    assert taken == [True] * 3 + [False] * 3


def two(limiter: Limiter, order: Sequence[str], names: bool) -> dict[str, Any]:
    """Return two middlewares of one limiter, created in this order."""
    return {
        which: RateLimitMiddleware(hello, limits="2/hour", limiter=limiter, name=which if names else None)
        for which in order
    }


async def test_workers_that_create_middlewares_in_another_order_count_the_same_by_their_names(tmp_path: Path) -> None:
    limiters = [Limiter.from_url(f"lmdb://{tmp_path}", deadline="30s") for _ in range(2)]
    first, second = (two(limiter, order, True) for limiter, order in zip(limiters, ("ab", "ba"), strict=True))
    assert [await statuses(app["a"], 1) for app in (first, second)] == [[200], [200]]
    for app in (first, second):
        assert await statuses(app["a"], 1) == [429]
        assert await statuses(app["b"], 1) == [200]
    for limiter in limiters:
        await limiter.close()


async def test_limits_without_a_name_in_two_middlewares_are_numbered_in_memory_and_an_error_on_a_shared_store(
    tmp_path: Path,
) -> None:
    apps = two(Limiter(), "ab", False)
    assert [await statuses(app, 3) for app in apps.values()] == [[200, 200, 429]] * 2
    async with Limiter.from_url(f"lmdb://{tmp_path}") as limiter:
        with pytest.raises(ConfigurationError, match=r"limits without a name \('default'\).*name=\"admin\""):
            two(limiter, "ab", False)
        assert RateLimitMiddleware(hello, limits="2/hour", limiter=limiter), "the other one is gone"
