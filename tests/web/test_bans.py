"""Who keeps abusing is shut out, by what they do; and whoever is refused is told when it is let in again."""

from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI
from hypothesis import given, note
from hypothesis import strategies as st
from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, header
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import page, scope_of, send_scope
from .sockets import greet

DENIAL = {"websocket.http.response": {}}


def site(limits: str, policy: BanPolicy, at: str, limiter: Limiter) -> ASGIApp:
    """Return an application with a page and a websocket, and a limit somewhere."""
    limit = RateLimit(limits)
    dependencies = [Depends(limit)] if at == "dependency" else []
    decorate: Callable[[Any], Any] = limit if at == "decorator" else lambda endpoint: endpoint
    app = FastAPI()
    app.get("/", dependencies=dependencies)(decorate(page))
    app.websocket("/", dependencies=dependencies)(decorate(greet))
    rules = [Rule("*", limits)] if at in ("rule", "inner") else []
    if at == "inner":
        inner = RateLimitMiddleware(app, limiter=limiter, rules=rules)
        return RateLimitMiddleware(inner, limiter=limiter, rules=[], bans=policy)
    return RateLimitMiddleware(app, limiter=limiter, rules=rules, bans=policy)


POSITIONS = st.sampled_from(["rule", "inner", "dependency", "decorator"])
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


@given(LIMITS, BANS, POSITIONS, KINDS, st.lists(st.integers(0, 3), max_size=12))
async def test_a_limits_refusal_says_when_the_client_is_let_in_again_also_if_its_strike_bans(
    limits: str, policy: BanPolicy, at: str, kind: str, waits: list[int]
) -> None:
    note(f"{limits} {policy} {policy.key} {at} {kind} {waits}")

    async def played(*then_s: int) -> Any:
        """Return the last answer and its events, or, so much later, whether another request passes."""
        clock, observer = FakeClock(), RecordingObserver()
        app = site(limits, policy, at, Limiter(MemoryStore(clock=clock), observers=[observer]))
        for wait_s in (0, *waits, *then_s):
            clock.advance(us=wait_s * 1_000_000)
            observer.events.clear()
            answer = await send_scope(app, scope_of(type=kind, headers={"X-API-Key": "k1"}, extensions=DENIAL))
        first = answer.messages[0]
        passes = first["type"] == "websocket.accept" or first.get("status") == 200
        return passes if then_s else (passes, answer, observer.events)

    passes, answer, events = await played()
    if passes:
        return
    retry_s = int(answer.headers["retry-after"])
    (refused,) = [event for event in events if event.kind == "refused"]
    assert refused.details["retry_after_s"] == retry_s
    assert not await played(retry_s - 1)
    if refused.details["reason"] == "limited":  # a banned client is told of the ban alone
        assert await played(retry_s)
