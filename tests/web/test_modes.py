"""What a limit does besides refusing: counting by the answer, looking on, blocking, calling functions of the user's."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.lowlevel
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from ..asgi import PEER, attempt, call, hello, scope_of, send_scope, statuses


def rules(*given: Rule, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(options.pop("app", hello), rules=given, **options)


def wrong(status: int) -> bool:
    return status == 401


@pytest.mark.parametrize("limits", ["5/hour", "5/hour @4"])
async def test_of_many_logins_at_once_only_as_many_wrong_ones_as_allowed_reach_the_handler(limits: str) -> None:
    seen: list[str] = []

    async def login(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await anyio.lowlevel.checkpoint()
        await PlainTextResponse("hi", 401)(scope, receive, send)

    app = rules(Rule("*", limits, count_if=wrong), app=login)
    answers = await asyncio.gather(*(call(app, "/wrong") for _ in range(500)))
    assert len(seen) == 5
    assert [answer.status for answer in answers].count(429) == 495


async def test_the_start_of_the_response_settles_though_the_client_has_gone() -> None:
    async def broken_send(message: Any) -> None:
        raise OSError("the client is gone")

    app = rules(Rule("*", "1/hour", count_if=wrong))
    for _ in range(3):
        with pytest.raises(OSError, match="gone"):
            await app(scope_of(), None, broken_send)  # type: ignore[arg-type]
    assert await statuses(app, 2) == [200, 200]


async def test_a_client_that_hangs_up_gets_nothing_back() -> None:
    async def gone(scope: Scope, receive: Receive, send: Send) -> None:
        raise ClientDisconnect

    app = rules(Rule("*", "2/hour", count_if=wrong), app=gone)
    for _ in range(2):
        with pytest.raises(ClientDisconnect):
            await call(app)
    assert await statuses(app, 1) == [429]


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

    def unauthorized(status: int) -> bool:
        seen.append(status)
        return wrong(status)

    limiter = Limiter(MemoryStore(clock=FakeClock()))
    app = rules(Rule("*", "2/hour", count_if=unauthorized, name="ws"), app=socket, limiter=limiter)
    await send_scope(app, scope_of(type="websocket", extensions={"websocket.http.response": {}}))
    assert seen == [status]
    assert (await limiter.peek(PEER, "2/hour", 0, rule="ws")).remaining == (1 if status == 401 else 2)


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
    assert await statuses(rules(Rule("*", "1/hour", count_if=count_if)), 2) == [200, 429]


async def test_a_condition_is_asked_once_for_each_request_and_middleware() -> None:
    asked: list[str] = []

    def when(request: Any) -> bool:
        asked.append(request.url.path)
        return True

    exempt = Rule("/a", exempt=True, when=lambda request: False)
    bans = BanPolicy("100/minute", signals={"refused": 1, "4xx": 1, "/honey": 1})
    counting = [Rule("*", "9/hour", when=when, name=name) for name in ("one", "two")]
    app = rules(exempt, *counting, bans=bans)
    for path in ("/a", "/b", "/b"):
        assert await statuses(app, 1, path) == [200]
    assert asked == ["/a", "/b", "/b"]


def raising(request: Any, *more: Any) -> Any:
    raise KeyError("broken token")


async def test_an_answer_that_breaks_after_its_start_is_not_started_twice() -> None:
    class Broken(PlainTextResponse):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 429, "headers": []})
            raise KeyError("half")

    app = RateLimitMiddleware(hello, limits="1/hour", on_refused=lambda request, decision: Broken("x"))
    await call(app)
    answer, error = await attempt(app)
    assert (repr(error), answer.messages) == ("KeyError('half')", [answer.start])


async def test_failures_are_logged_again_after_a_minute_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("time.monotonic", lambda: clock() / 1_000_000)
    app = rules(Rule("*", "99/hour", key=raising), limiter=Limiter(MemoryStore(clock=clock)))
    clock.advance("2m")
    await statuses(app, 5)
    clock.advance("61s")
    await statuses(app, 2)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition("suppressed=")[2].partition(")")[0] for message in messages] == ["0", "4"]
