"""What a limit can do besides refusing, in a rule and at an endpoint: plans, counting by the answer, looking on."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slidegate import Decision, Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import PEER, call, hello, scope_of, statuses
from .limited import AT, limited

everywhere = pytest.mark.parametrize("at", AT)

# -- limits that depend on the caller ----------------------------------------------------------------------------------

PLANS = {"free": "2/hour", "pro": "4/hour; 100/day", "staff": "unlimited"}


def plan_of(request: Any) -> str:
    return PLANS[request.headers.get("x-plan", "free")]


async def plan_later(request: Any) -> str:
    await anyio.lowlevel.checkpoint()
    return plan_of(request)


@pytest.mark.parametrize("plan", [plan_of, plan_later])
@everywhere
async def test_limits_may_depend_on_the_caller(plan: Any, at: str) -> None:
    app = limited(at, plan, key=lambda request: request.headers.get("x-plan"), name="plan")
    assert await statuses(app, 6, headers={"x-plan": "pro"}) == [200] * 4 + [429] * 2
    assert await statuses(app, 3, headers={"x-plan": "free"}) == [200, 200, 429]
    assert await statuses(app, 9, headers={"x-plan": "staff"}) == [200] * 9
    answer = await call(app, headers={"x-plan": "pro"})
    assert answer.headers["ratelimit-policy"] == '"plan-3600";q=4;w=3600, "plan-86400";q=100;w=86400'


async def test_a_plan_that_changes_keeps_the_counts_of_its_window() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", plan_of)])
    assert await statuses(app, 2, headers={"x-plan": "free"}) == [200, 200]
    assert await statuses(app, 3, headers={"x-plan": "pro"}) == [200, 200, 429]
    assert await statuses(app, 1, headers={"x-plan": "free"}) == [429]


@pytest.mark.parametrize("limits", [plan_of, lambda r: None, lambda r: "5/minut", lambda r: 5, lambda r: []])
async def test_a_limits_function_that_fails_leaves_the_default_limits(
    limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", limits, fallback_limits="1/hour", name="plans")])
    assert await statuses(app, 3, headers={"x-plan": "nobody"}) == [200, 429, 429]
    assert len(caplog.records) == 1
    assert "'plans'" in caplog.text


# -- counting by status ------------------------------------------------------------------------------------------------


@everywhere
async def test_only_answers_that_count_are_counted(at: str) -> None:
    middleware = limited(at, "2/hour", count_if=lambda status: status == 401, name="login")
    assert await statuses(middleware, 9) == [200] * 9
    assert await statuses(middleware, 3, headers={"x-status": "401"}) == [401, 401, 429]
    assert await statuses(middleware, 1) == [429]


@pytest.mark.parametrize("at", ["rule", "endpoint"])
async def test_an_exception_is_a_500_to_count_if(at: str) -> None:
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hi", int(request.headers["x-status"]))

    wrong, failed = {"count_if": lambda status: status == 401}, {"count_if": lambda status: status == 500}
    for limit, asked in ((wrong, ["?", "?", "401", "?", "401"]), (failed, ["401", "?", "401", "?"])):
        endpoint = page if at == "rule" else RateLimit("2/hour", **limit)(page)
        rules = [Rule("/", "2/hour", **limit)] if at == "rule" else []
        middleware = Middleware(RateLimitMiddleware, rules=rules)
        app = Starlette(routes=[Route("/", endpoint)], middleware=[middleware])
        for status in asked:
            with pytest.raises(ValueError, match="invalid literal") if status == "?" else nullcontext():
                assert await statuses(app, 1, headers={"x-status": status}) == [401]
        assert await statuses(app, 1, headers={"x-status": "200"}) == [429]


def login(right: str = "open sesame") -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await anyio.lowlevel.checkpoint()
        status = 200 if scope["path"] == f"/{right}" else 401
        await PlainTextResponse("hi", status)(scope, receive, send)

    seen: list[str] = []
    app.seen = seen  # type: ignore[attr-defined]
    return app


def guarded(app: Any, limits: str = "5/hour", **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(
        app, rules=[Rule("*", limits, count_if=lambda status: status == 401, name="login")], **options
    )


@pytest.mark.parametrize("limits", ["5/hour", "5/hour @4"])
async def test_of_many_logins_at_once_only_as_many_wrong_ones_as_allowed_reach_the_handler(limits: str) -> None:
    app = login()
    answers = await asyncio.gather(*(call(guarded_app, "/wrong") for guarded_app in [guarded(app, limits)] * 500))
    assert len(app.seen) == 5
    assert [answer.status for answer in answers].count(429) == 495


async def test_the_start_of_the_response_settles_though_the_client_has_gone() -> None:
    async def broken_send(message: Any) -> None:
        raise OSError("the client is gone")

    app = guarded(hello, "1/hour")
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            await app(scope_of(), None, broken_send)  # type: ignore[arg-type]
    assert await statuses(app, 2) == [200, 200]


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"type": "websocket.accept"}, 101),
        ({"type": "websocket.close", "code": 1008}, 403),
        ({"type": "websocket.http.response.start", "status": 401, "headers": []}, 401),
    ],
)
async def test_the_handshake_of_a_websocket_settles_as_well(message: Any, status: int) -> None:
    seen: list[int] = []

    async def socket(scope: Scope, receive: Receive, send: Send) -> None:
        await send(message)

    async def send(message: Any) -> None: ...

    def unauthorized(status: int) -> bool:
        seen.append(status)
        return status == 401

    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = RateLimitMiddleware(socket, limiter=limiter, rules=[Rule("*", "2/hour", count_if=unauthorized, name="ws")])
    scope = scope_of(type="websocket", extensions={"websocket.http.response": {}})
    await app(scope, None, send)  # type: ignore[arg-type]
    assert seen == [status]
    assert (await limiter.peek(PEER, "2/hour", 0, rule="ws")).remaining == (1 if status == 401 else 2)


@everywhere
async def test_header_fields_and_the_request_may_say_what_counts(at: str) -> None:
    def counts(status: int, headers: Any, request: Any) -> bool:
        return status == 200 and headers["x-cache"] != "hit" and "x-free" not in request.headers

    middleware = limited(at, "1/hour", count_if=counts)
    for free in ({"x-hit": "hit"}, {"x-free": "1"}, {"x-status": "404"}):
        assert 429 not in await statuses(middleware, 3, headers=free)
    assert await statuses(middleware, 2) == [200, 429]


@pytest.mark.parametrize(
    "count_if",
    [
        lambda status, limit=400: status < limit,
        lambda status, *rest: not rest,
        frozenset({200}).__contains__,
        lambda status, headers=None: headers is None,
    ],
)
async def test_a_count_if_with_one_parameter_that_it_needs_gets_the_status_alone(count_if: Any) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "1/hour", count_if=count_if)])
    assert await statuses(app, 2) == [200, 429]


async def test_a_count_if_that_fails_counts(caplog: pytest.LogCaptureFixture) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", count_if=lambda status: status == 1 // 0, name="x")])
    assert await statuses(app, 3) == [200, 200, 429]
    assert "'x'" in caplog.text


# -- refusals that count -----------------------------------------------------------------------------------------------


@everywhere
async def test_refusals_count_where_they_are_said_to(at: str) -> None:
    clock = FakeClock()
    middleware = limited(at, "2/minute", limiter=Limiter(MemoryStore(clock=clock)), count_denied=True)
    assert await statuses(middleware, 3) == [200, 200, 429]
    clock.advance("50s")
    assert await statuses(middleware, 2) == [429, 429]
    clock.advance("15s")
    assert await statuses(middleware, 1) == [429]


# -- shadows -----------------------------------------------------------------------------------------------------------


@everywhere
async def test_a_shadow_reports_and_never_refuses(at: str) -> None:
    observer = RecordingObserver(without=["refused"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer])
    middleware = limited(at, "2/hour", limiter=limiter, shadow=True, name="next")
    answers = [await call(middleware) for _ in range(5)]
    assert [answer.status for answer in answers] == [200] * 5
    assert "ratelimit" not in answers[0].headers
    assert observer.kinds == ["shadow_refused"] * 3
    assert observer.events[0].details == {"rule": "next", "key": PEER}


# -- hot keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_hot_key_is_told_once_when_it_passes_the_limit_and_again_after_it_has_cooled(kind: str) -> None:
    hot: list[tuple[str, bool]] = []

    def note(key: str, decision: Decision) -> None:
        hot.append((key, decision.allowed))

    async def note_later(key: str, decision: Decision) -> None:
        note(key, decision)

    clock = FakeClock(10**15)
    rule = Rule("*", "100/5s", shadow=True, on_exceeded=note if kind == "sync" else note_later)
    app = RateLimitMiddleware(hello, rules=[rule], limiter=Limiter(MemoryStore(clock=clock)))
    assert await statuses(app, 100) == [200] * 100
    assert hot == []
    assert await statuses(app, 50) == [200] * 50
    assert hot == [(PEER, False)]
    clock.advance("11s")
    await statuses(app, 90)
    assert len(hot) == 1
    await statuses(app, 20)
    assert len(hot) == 2
    await statuses(app, 101, client=("192.0.2.1", 1))
    assert hot[2:] == [("192.0.2.1", False)]


@everywhere
async def test_a_limit_that_refuses_tells_of_a_key_too(at: str) -> None:
    hot: list[str] = []
    middleware = limited(at, "2/hour", on_exceeded=lambda key, decision: hot.append(key))
    assert await statuses(middleware, 5) == [200] * 2 + [429] * 3
    assert hot == [PEER]


async def test_an_on_exceeded_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule("*", "1/hour", shadow=True, on_exceeded=lambda key, decision: 1 // 0, name="hot")
    app = RateLimitMiddleware(hello, rules=[rule])
    assert await statuses(app, 3) == [200] * 3
    assert "'hot'" in caplog.text


async def test_a_client_that_hangs_up_gets_nothing_back() -> None:
    async def gone(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    middleware = guarded(gone, "2/hour")
    for _ in range(2):
        with pytest.raises(ClientDisconnect):
            await call(middleware)
    assert await statuses(middleware, 1) == [429]
