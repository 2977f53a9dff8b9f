"""Limits that meet on the way of one request: one window is charged once, and all others stay charged."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.exceptions import WebSocketException
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.testing import FakeClock

from ..asgi import call, hello, page, send_scope, statuses
from .limited import FORMS, limited
from .middlewares import Listener


async def test_a_middleware_that_has_returned_is_above_nothing_any_more() -> None:
    """An application asks one further in first, which answers nothing, and goes on by itself."""

    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        return

    aside = RateLimitMiddleware(nothing, limits="9/hour", limiter=Limiter())
    site = FORMS["starlette"](RateLimit("1/hour", name="own"), page)

    async def cascade(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await aside(scope, receive, send)
        await site(scope, receive, send)

    app = RateLimitMiddleware(cascade, rules=[], limiter=Limiter())
    assert await statuses(app, 1) == [200]
    assert await statuses(app, 2, method="POST") == [429, 429]


NAMING: dict[str, dict[str, Any]] = {
    "named": {"limits": "2/minute", "name": "named"},
    "unnamed": {"limits": "2/minute"},
    "by a function": {"limits": lambda request: "2/minute"},
    "everyone": {"limits": "2/minute", "key": everyone, "cost": lambda request: 1},
}
PAUSES = st.lists(st.sampled_from([1, 10, 30, 60]), max_size=4)


@pytest.mark.parametrize("at", ["rule", "dependency", "checked"])
@pytest.mark.parametrize("how", NAMING)
@given(requests=st.lists(PAUSES, max_size=8))
async def test_a_refused_request_that_asks_again_is_decided_again(at: str, how: str, requests: list[list[int]]) -> None:
    clock, spent, ear = FakeClock(), list[int](), Listener()
    limiter = Limiter(MemoryStore(clock=clock), observers=[ear])
    within = limited(at, limiter=limiter, **NAMING[how]) if at == "rule" else FORMS[at](RateLimit(**NAMING[how]), page)
    pauses: list[int] = []

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        """Ask again after each pause, until the request is admitted."""
        for pause in (0, *pauses):
            clock.advance(us=pause * 1_000_000)
            now_s = clock() // 1_000_000
            is_free = sum(at_s > now_s - 60 for at_s in spent) < 2
            answer = await send_scope(within, scope)
            assert answer.status == (200 if is_free else 429)
            if is_free:
                spent.append(now_s)
                break
        for message in answer.messages:
            await send(message)

    app = RateLimitMiddleware(patient, rules=[Rule("*", "1000/minute", name="outer")], limiter=limiter)
    for request in requests:
        pauses[:] = request
        answer = await call(app)
        assert ear.outcomes[-1].ended == ("success" if answer.status == 200 else "refused")
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


async def test_workers_that_create_middlewares_in_another_order_count_the_same_by_their_names(tmp_path: Path) -> None:
    for order, expected in (("ab", [200, 200, 200]), ("ba", [429, 429, 200])):
        async with Limiter.from_url(f"lmdb://{tmp_path}", deadline="30s") as limiter:
            apps = {name: RateLimitMiddleware(hello, limits="2/hour", limiter=limiter, name=name) for name in order}
            assert [(await call(apps[name])).status for name in "aab"] == expected


async def test_limits_without_a_name_in_two_middlewares_are_numbered_in_memory_and_an_error_on_a_shared_store(
    tmp_path: Path,
) -> None:
    shared = Limiter()
    apps = [RateLimitMiddleware(hello, limits="2/hour", limiter=shared) for _ in range(2)]
    assert [await statuses(app, 3) for app in apps] == [[200, 200, 429]] * 2
    async with Limiter.from_url(f"lmdb://{tmp_path}") as limiter:
        first = RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        with pytest.raises(ConfigurationError, match=r"limits without a name \('default'\).*name=\"admin\""):
            RateLimitMiddleware(hello, limits="2/hour", limiter=limiter)
        del first
        assert RateLimitMiddleware(hello, limits="2/hour", limiter=limiter), "the other one is gone"
