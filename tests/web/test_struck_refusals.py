"""The refusal whose strike bans says when the client is let in again: when ban and limit are both over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import Depends, FastAPI, WebSocket
from hypothesis import given, note
from hypothesis import strategies as st

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, header
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import Answer, call, scope_of, send_scope

DENIAL = {"websocket.http.response": {}}


class Site:
    """An application with one limit and one ban policy, and the clock of both."""

    def __init__(self, limits: str, policies: list[BanPolicy], at: str, **options: Any) -> None:
        self.clock, self.heard = FakeClock(), RecordingObserver()
        limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        app, limit = FastAPI(), RateLimit(limits)
        dependencies = [Depends(limit)] if at == "dependency" else []
        decorate: Callable[[Any], Any] = limit if at == "decorator" else lambda endpoint: endpoint

        @app.get("/", dependencies=dependencies)
        @decorate
        async def page() -> str:
            return "page"

        @app.websocket("/", dependencies=dependencies)
        @decorate
        async def chat(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.close()

        rules = [Rule("*", limits)] if at in ("rule", "inner") else []
        self.app: Any = RateLimitMiddleware(app, limiter=limiter, rules=rules, bans=policies, **options)
        if at == "inner":
            inner = RateLimitMiddleware(app, limiter=limiter, rules=rules)
            self.app = RateLimitMiddleware(inner, limiter=limiter, rules=[], bans=policies, **options)

    async def ask(self, kind: str = "http") -> Answer:
        more: dict[str, Any] = {"extensions": DENIAL} if kind == "websocket" else {}
        return await send_scope(self.app, scope_of("/", type=kind, headers={"X-API-Key": "k1"}, **more))


PLACES = st.sampled_from(["rule", "inner", "dependency", "decorator"])
KINDS = st.sampled_from(["http", "websocket"])
LIMITS = st.builds("{}/{}s".format, st.integers(1, 4), st.sampled_from([2, 5, 60]))
BANS = st.builds(
    lambda strikes, length, by_key: BanPolicy(
        f"{strikes}/10m", f"{length}s", factor=1, key=header("X-API-Key") if by_key else None
    ),
    st.integers(1, 4),
    st.sampled_from([1, 3, 30, 3600]),
    st.booleans(),
)


@given(LIMITS, BANS, PLACES, KINDS, st.lists(st.integers(0, 3), max_size=12))
async def test_a_limits_refusal_says_when_the_client_is_let_in_again_also_if_its_strike_bans(
    limits: str, policy: BanPolicy, at: str, kind: str, waits: list[int]
) -> None:
    note(f"{limits} {policy} {policy.key} {at} {kind} {waits}")

    async def played(*then_s: int) -> Any:
        """Return the last answer and its events, or, so much later, whether another request passes."""
        site = Site(limits, [policy], at)
        answer = await site.ask(kind)
        for wait_s in (*waits, *then_s):
            site.clock.advance(f"{wait_s}s") if wait_s else None
            site.heard.events.clear()
            answer = await site.ask(kind)
        first = answer.messages[0]
        passes = first["type"] == "websocket.accept" or first.get("status") == 200
        return passes if then_s else (passes, answer, site.heard.events)

    passes, answer, events = await played()
    if passes:
        return
    retry_s = int(answer.headers["retry-after"])
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.details["retry_after_s"] == retry_s
    assert not await played(retry_s - 1)
    if refused.details["reason"] == "limited":  # a banned client is told of the ban alone
        assert await played(retry_s)


@pytest.mark.parametrize("at", ["rule", "inner", "dependency", "decorator"])
async def test_its_status_and_body_are_those_of_the_limit_and_its_fields_fit(at: str) -> None:
    site = Site("2/10s", [BanPolicy("1/10m", "1h")], at, headers="both")
    await site.ask()
    await site.ask()
    struck, banned = await site.ask(), await site.ask()
    assert struck.status == 429
    assert struck.headers["retry-after"] == "3600"
    assert struck.body.startswith(b'{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded"')
    assert ";r=0;t=10" in struck.headers["ratelimit"], "the limit itself has room before the client has"
    assert struck.headers["cache-control"] == "no-store"
    assert (banned.status, banned.headers["retry-after"]) == (403, "3600")


async def test_a_refusal_for_lack_of_a_permit_whose_strike_bans_says_when_the_ban_ends() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app: Any = None

    async def page(scope: Any, receive: Any, send: Any) -> None:
        answers.append(await call(app))

    answers: list[Answer] = []
    policy = BanPolicy("1/10m", "1h")
    app = RateLimitMiddleware(page, limiter=limiter, rules=[Rule("*", concurrency=1)], bans=policy)
    await app(scope_of(), None, None)
    assert (answers[0].status, answers[0].headers["retry-after"]) == (429, "3600")
