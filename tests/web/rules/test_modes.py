"""What a rule can do besides refusing: limits by request, counting by status, shadows and hot keys."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.lowlevel
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from slidegate import ConfigurationError, Decision, Limit, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import PEER, call, hello, scope_of, statuses

# -- limits that depend on the caller ------------------------------------------------------------------------------

PLANS = {"free": "2/hour", "pro": "4/hour; 100/day", "staff": "unlimited"}


def plan_of(request: Any) -> str:
    return PLANS[request.headers.get("x-plan", "free")]


async def plan_later(request: Any) -> str:
    await anyio.lowlevel.checkpoint()
    return plan_of(request)


@pytest.mark.parametrize("plan", [plan_of, plan_later])
async def test_limits_may_depend_on_the_caller(plan: Any) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", plan, key=lambda request: request.headers.get("x-plan"))])
    assert await statuses(app, 6, headers={"x-plan": "pro"}) == [200] * 4 + [429] * 2
    assert await statuses(app, 3, headers={"x-plan": "free"}) == [200, 200, 429]
    assert await statuses(app, 9, headers={"x-plan": "staff"}) == [200] * 9
    answer = await call(app, headers={"x-plan": "pro"})
    assert answer.headers["ratelimit-policy"] == '"default-3600";q=4;w=3600, "default-86400";q=100;w=86400'


async def test_a_plan_that_changes_keeps_the_counts_of_its_window() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", plan_of)])
    assert await statuses(app, 2, headers={"x-plan": "free"}) == [200, 200]
    assert await statuses(app, 3, headers={"x-plan": "pro"}) == [200, 200, 429]
    assert await statuses(app, 1, headers={"x-plan": "free"}) == [429]


@pytest.mark.parametrize("limits", [plan_of, lambda r: None, lambda r: "5/minut", lambda r: 5, lambda r: []])
async def test_a_limits_function_that_fails_leaves_the_default_limits(
    limits: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", limits, default_limits="1/hour", name="plans")])
    assert await statuses(app, 3, headers={"x-plan": "nobody"}) == [200, 429, 429]
    assert len(caplog.records) == 1
    assert "'plans'" in caplog.text


async def test_plans_are_read_once_and_remembered_in_bounds() -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", lambda request: f"{request.headers['n']}/hour")])
    for number in range(1, 700):
        assert (
            await call(app, headers={"n": str(number)}, client=(f"10.0.{number // 250}.{number % 250}", 1))
        ).status == 200
    selection = app._gate.rules.select(scope_of())
    assert len(selection.limiting[0]._plans) <= 257
    several = RateLimitMiddleware(hello, rules=[Rule("*", lambda request: [Limit(1, "1h"), Limit(9, "1d")])])
    assert await statuses(several, 2) == [200, 429]


# -- counting by status --------------------------------------------------------------------------------------------


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


async def test_a_right_password_costs_nothing_afterwards() -> None:
    app = guarded(login())
    assert await statuses(app, 50, "/open sesame") == [200] * 50
    assert (await call(app, "/open sesame")).headers["ratelimit"] == '"login";r=5;t=0'
    assert await statuses(app, 6, "/wrong") == [401] * 5 + [429]


async def test_only_the_rule_that_does_not_count_hands_back() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    rules = [Rule("*", "5/hour", count_if=lambda status: status == 401, name="login"), Rule("*", "9/hour", name="all")]
    app = RateLimitMiddleware(login(), rules=rules, limiter=limiter)
    await call(app, "/open sesame")
    assert (await limiter.peek(PEER, "5/hour", 0, rule="login")).remaining == 5
    assert (await limiter.peek(PEER, "9/hour", 0, rule="all")).remaining == 8
    await call(app, "/wrong")
    assert (await limiter.peek(PEER, "5/hour", 0, rule="login")).remaining == 4


async def test_a_client_that_hangs_up_gets_nothing_back_and_neither_does_a_handler_that_breaks() -> None:
    async def gone(scope: Scope, receive: Receive, send: Send) -> None:
        raise OSError("the client is gone")

    app = guarded(gone, "2/hour")
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await call(app)
    assert await statuses(app, 1) == [429]


async def test_the_start_of_the_response_settles_though_the_client_has_gone() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("hi")(scope, receive, send)

    async def broken_send(message: Any) -> None:
        raise OSError("the client is gone")

    app = guarded(late, "1/hour")
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            await app(scope_of(), None, broken_send)  # type: ignore[arg-type]
    assert await statuses(app, 2) == [200, 200]


async def test_what_a_refusal_further_in_has_handed_back_is_not_settled_again() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = guarded(RateLimitMiddleware(login(), limits="1/hour"), limiter=limiter)
    assert await statuses(app, 3, "/open sesame") == [200, 429, 429]
    assert (await limiter.peek(PEER, "5/hour", 0, rule="login")).remaining == 5


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


async def test_a_refusal_further_in_hands_back_rule_by_rule() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    rules = [Rule("*", "10/minute", name="a"), Rule("*", "20/minute", count_denied=True, name="b")]
    app = RateLimitMiddleware(RateLimitMiddleware(hello, limits="1/minute"), limiter=limiter, rules=rules)
    assert await statuses(app, 8) == [200] + [429] * 7
    assert (await limiter.peek(PEER, "10/minute", 0, rule="a")).remaining == 9
    assert (await limiter.peek(PEER, "20/minute", 0, rule="b")).remaining == 12


def by_fields(status: int, headers: Any) -> bool:
    return headers.get("x-cache") != "hit"


def by_request(status: int, headers: Any, request: Any) -> bool:
    return status == 200 and request.headers.get("x-free") is None and request.method == "GET"


async def test_header_fields_and_the_request_may_say_what_counts() -> None:
    async def cached(scope: Scope, receive: Receive, send: Send) -> None:
        hit = dict(scope["headers"]).get(b"x-hit", b"miss").decode()
        await PlainTextResponse("hi", headers={"X-Cache": hit})(scope, receive, send)

    app = RateLimitMiddleware(cached, rules=[Rule("*", "2/hour", count_if=by_fields)])
    assert await statuses(app, 9, headers={"x-hit": "hit"}) == [200] * 9
    assert await statuses(app, 3) == [200, 200, 429]
    free = RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", count_if=by_request)])
    assert await statuses(free, 9, headers={"x-free": "1"}) == [200] * 9
    assert await statuses(free, 9, method="HEAD") == [200] * 9
    assert await statuses(free, 3) == [200, 200, 429]


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


@pytest.mark.parametrize(
    "count_if", [lambda: True, lambda a, b, c, d: True, lambda status, *, request: True, call, 401]
)
def test_a_count_if_of_other_parameters_is_an_error(count_if: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"count_if: expected .* lambda status: status == 401"):
        Rule("*", "1/hour", count_if=count_if)


async def test_a_count_if_that_fails_counts(caplog: pytest.LogCaptureFixture) -> None:
    app = RateLimitMiddleware(hello, rules=[Rule("*", "2/hour", count_if=lambda status: status == 1 // 0, name="x")])
    assert await statuses(app, 3) == [200, 200, 429]
    assert "'x'" in caplog.text


# -- shadows -------------------------------------------------------------------------------------------------------


async def test_a_shadow_reports_and_never_refuses_nor_touches_the_real_windows() -> None:
    observer = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer])
    rules = [Rule("*", "2/hour", action="shadow", name="next"), Rule("*", "4/hour", name="now")]
    app = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
    assert await statuses(app, 6) == [200] * 4 + [429] * 2
    assert [event.kind for event in observer.events] == ["shadow_refused"] * 2, "what was refused is not counted"
    assert observer.events[0].details == {"rule": "next", "key": PEER}
    assert "next" not in (await call(app, client=("192.0.2.1", 1))).headers["ratelimit-policy"]


async def test_a_shadow_of_one_name_with_a_real_rule_has_windows_of_its_own() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    shadow = RateLimitMiddleware(hello, rules=[Rule("*", "3/hour", action="shadow", name="api")], limiter=limiter)
    real = RateLimitMiddleware(hello, rules=[Rule("*", "3/hour", name="api")], limiter=limiter)
    assert await statuses(shadow, 9) == [200] * 9
    assert await statuses(real, 4) == [200, 200, 200, 429]


# -- hot keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_hot_key_is_told_once_when_it_passes_the_limit_and_again_after_it_has_cooled(kind: str) -> None:
    hot: list[tuple[str, bool]] = []

    def note(key: str, decision: Decision) -> None:
        hot.append((key, decision.allowed))

    async def note_later(key: str, decision: Decision) -> None:
        note(key, decision)

    clock = FakeClock()
    rule = Rule("*", "100/5s", action="track", on_exceeded=note if kind == "sync" else note_later)
    app = RateLimitMiddleware(hello, rules=[rule], limiter=Limiter(MemoryStore(clock=clock)))
    assert await statuses(app, 100) == [200] * 100
    assert hot == []
    assert await statuses(app, 50) == [200] * 50
    assert hot == [(PEER, False)]
    clock.advance("6s")
    await statuses(app, 90)
    assert len(hot) == 1
    await statuses(app, 20)
    assert len(hot) == 2
    await statuses(app, 101, client=("192.0.2.1", 1))
    assert hot[2:] == [("192.0.2.1", False)]


async def test_an_on_exceeded_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule("*", "1/hour", action="track", on_exceeded=lambda key, decision: 1 // 0, name="hot")
    app = RateLimitMiddleware(hello, rules=[rule])
    assert await statuses(app, 3) == [200] * 3
    assert "'hot'" in caplog.text


async def test_onlookers_may_call_functions_and_leave_requests_uncounted() -> None:
    hot: list[str] = []
    rules = [
        Rule("*", "1/hour", action="track", key=lambda r: r.headers.get("x-k"), on_exceeded=lambda k, d: hot.append(k)),
        Rule("*", "99/hour"),
    ]
    app = RateLimitMiddleware(hello, rules=rules)
    assert await statuses(app, 3) == [200] * 3
    assert await statuses(app, 3, headers={"x-k": "k"}) == [200] * 3
    assert hot == ["k"]


async def test_more_hot_keys_than_are_remembered_are_still_told() -> None:
    hot: list[str] = []
    rule = Rule("*", "1/hour", action="track", on_exceeded=lambda k, d: hot.append(k), key=lambda r: r.headers["x-k"])
    app = RateLimitMiddleware(hello, rules=[rule])
    for number in range(4_200):
        await statuses(app, 2, headers={"x-k": str(number)})
    assert len(hot) == 4_200
    assert len(app._gate.judge._onlookers._exceeded) <= 4_096
