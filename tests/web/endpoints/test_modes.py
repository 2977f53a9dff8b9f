"""What a limit at an endpoint can do besides refusing at once: wait, look on, and count by the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, RateLimit, RateLimitMiddleware
from slidegate.testing import FakeClock, RecordingObserver

from ...asgi import PEER, call, scope_of, statuses

Form = Callable[[RateLimit], ASGIApp]


def as_dependency(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit)])
    async def page(request: Request) -> Response:
        return answer(request)

    return app


def as_decorator(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/")
    @limit
    async def page(request: Request) -> Response:
        return answer(request)

    return app


def as_decorator_of_a_sync_endpoint(limit: RateLimit) -> ASGIApp:
    app = FastAPI()

    @app.get("/")
    @limit
    def page(request: Request) -> Response:
        return answer(request)

    return app


def on_the_router(limit: RateLimit) -> ASGIApp:
    router = APIRouter(dependencies=[Depends(limit)])

    @router.get("/")
    async def page(request: Request) -> Response:
        return answer(request)

    app = FastAPI()
    app.include_router(router)
    return app


def on_the_app(limit: RateLimit) -> ASGIApp:
    app = FastAPI(dependencies=[Depends(limit)])

    @app.get("/")
    async def page(request: Request) -> Response:
        return answer(request)

    return app


def in_starlette(limit: RateLimit) -> ASGIApp:
    @limit
    async def page(request: Any) -> Response:
        return answer(request)

    return Starlette(routes=[Route("/", page)])


def in_a_class(limit: RateLimit) -> ASGIApp:
    @limit
    class Page(HTTPEndpoint):
        async def get(self, request: Any) -> Response:
            return answer(request)

    return Starlette(routes=[Route("/", Page)])


def answer(request: Any) -> Response:
    status = int(request.headers.get("x-status", "200"))
    return PlainTextResponse("page", status, headers={"X-Cache": request.headers.get("x-hit", "miss")})


FORMS = [
    as_dependency, as_decorator, as_decorator_of_a_sync_endpoint, on_the_router, on_the_app, in_starlette, in_a_class,
]  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS)


def gate_of(app: Any, limiter: Limiter | None = None) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, rules=[], limiter=limiter or Limiter(MemoryStore(clock=FakeClock())))


# -- counting by the answer --------------------------------------------------------------------------------------------


@every_form
async def test_only_answers_that_count_are_counted(form: Form) -> None:
    gate = gate_of(form(RateLimit("2/hour", count_if=lambda status: status == 401)))
    assert await statuses(gate, 9) == [200] * 9
    assert await statuses(gate, 3, headers={"x-status": "401"}) == [401, 401, 429]
    assert await statuses(gate, 1) == [429]


@every_form
async def test_header_fields_and_the_request_say_what_counts(form: Form) -> None:
    limit = RateLimit("1/hour", count_if=lambda status, headers, request: headers["x-cache"] != "hit")
    gate = gate_of(form(limit))
    assert await statuses(gate, 3, headers={"x-hit": "hit"}) == [200] * 3
    assert await statuses(gate, 2) == [200, 429]


async def test_what_is_handed_back_is_what_this_limit_charged() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("5/hour", name="all")), Depends(RateLimit("2/hour", name="bad", count_if=lambda s: s > 400))])  # fmt: skip # noqa: E501
    async def page(request: Request) -> Response:
        return answer(request)

    gate = gate_of(app)
    assert await statuses(gate, 6) == [200] * 5 + [429]


async def test_an_answer_without_a_body_or_an_endpoint_that_fails_settles_as_its_status_says() -> None:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("1/hour", count_if=lambda status: status == 500))])
    async def page() -> Response:
        raise LookupError("gone")

    gate = gate_of(app)
    for expected in (LookupError, None):
        if expected is None:
            assert (await call(gate)).status == 429
        else:
            with pytest.raises(expected):
                await call(gate)


async def test_a_refusal_by_another_limit_hands_everything_back_once() -> None:
    app = FastAPI()
    first = RateLimit("9/hour", name="first", count_if=lambda status: status == 429)
    second = RateLimit("1/hour", name="second")

    @app.get("/", dependencies=[Depends(first), Depends(second)])
    async def page() -> str:
        return "page"

    limiter = Limiter(MemoryStore(clock=FakeClock()))
    gate = gate_of(app, limiter)
    assert await statuses(gate, 3) == [200, 429, 429]
    assert (await limiter.peek(PEER, "9/hour", 0, rule="first")).remaining == 9


# -- looking on --------------------------------------------------------------------------------------------------------


@every_form
async def test_a_shadow_at_an_endpoint_reports_and_never_refuses(form: Form) -> None:
    observer = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer])
    gate = gate_of(form(RateLimit("2/hour", action="shadow", name="strict")), limiter)
    answers = [await call(gate) for _ in range(5)]
    assert [found.status for found in answers] == [200] * 5
    assert "ratelimit" not in answers[0].headers
    told = [event for event in observer.events if event.kind == "shadow_refused"]
    assert len(told) == 3
    assert told[0].details["rule"] == "strict"


@every_form
async def test_tracking_at_an_endpoint_tells_of_hot_keys(form: Form) -> None:
    hot: list[str] = []
    gate = gate_of(form(RateLimit("2/hour", action="track", on_exceeded=lambda key, decision: hot.append(key))))
    assert await statuses(gate, 5) == [200] * 5
    assert hot == [PEER]


async def test_a_shadow_looks_once_at_a_request_and_apart_from_the_limit_of_its_name() -> None:
    observer = RecordingObserver(without=["refused", "near_limit"])
    limiter = Limiter(MemoryStore(clock=FakeClock()), observers=[observer])
    shadow = RateLimit("2/hour", action="shadow", name="one")
    app = FastAPI(dependencies=[Depends(shadow)])

    @app.get("/", dependencies=[Depends(shadow), Depends(RateLimit("3/hour", name="one"))])
    @shadow
    async def page() -> str:
        return "page"

    assert await statuses(gate_of(app, limiter), 4) == [200] * 3 + [429]
    assert [event.kind for event in observer.events].count("shadow_refused") == 2


def test_a_block_at_an_endpoint_is_an_error_that_names_the_rule_to_write() -> None:
    with pytest.raises(ConfigurationError, match=r'Rule\("/admin", action="block"\)'):
        RateLimit("1/hour", action="block")


# -- counting refusals -------------------------------------------------------------------------------------------------


@every_form
async def test_refusals_count_where_they_are_said_to(form: Form) -> None:
    clock = FakeClock()
    limiter = Limiter(MemoryStore(clock=clock))
    gate = gate_of(form(RateLimit("2/minute", count_denied=True)), limiter)
    assert await statuses(gate, 3) == [200, 200, 429]
    clock.advance("50s")
    assert await statuses(gate, 2) == [429, 429]
    clock.advance("15s")
    assert await statuses(gate, 1) == [429]


# -- waiting -----------------------------------------------------------------------------------------------------------


@every_form
async def test_a_request_waits_for_its_turn_at_an_endpoint(form: Form) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))  # however slow the machine is, all four come at one moment
    gate = gate_of(form(RateLimit("2/50ms", wait="10s")), limiter)
    assert await asyncio.gather(*(_status(gate) for _ in range(4))) == [200] * 4
    figures = limiter.stats()
    assert sum(series.seen.count("occupied_pass") for series in figures.rules.values()) == 2


async def _status(gate: ASGIApp) -> int:
    return (await call(gate)).status


@every_form
async def test_no_more_wait_than_may_and_none_longer_than_it_may(form: Form) -> None:
    limiter = Limiter()
    gate = gate_of(form(RateLimit("1/hour", wait="10s")), limiter)
    assert await statuses(gate, 2) == [200, 429]
    at_one_moment = Limiter(MemoryStore(clock=FakeClock()))
    short = gate_of(form(RateLimit("1/100ms", wait="10s", wait_max=1)), at_one_moment)
    assert sorted(await asyncio.gather(*(_status(short) for _ in range(3)))) == [200, 200, 429]


class Leaving:
    """A client that sends its request, and leaves when it is told to."""

    def __init__(self, body: bytes = b"") -> None:
        self.gone = asyncio.Event()
        self.body = body
        self.asked = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("cancelled", [False, True])
@every_form
async def test_the_place_of_a_client_that_leaves_is_handed_back(form: Form, cancelled: bool) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    gate = gate_of(form(RateLimit("1/10s", wait="1h", name="slow")), limiter)
    assert await statuses(gate, 1) == [200]
    client = Leaving()
    waiting = asyncio.ensure_future(gate(scope_of(), client.receive, client.send))
    for _ in range(200):
        await asyncio.sleep(0)
        if await _booked(limiter):
            break
    assert await _booked(limiter)
    if cancelled:
        waiting.cancel()
    else:
        client.gone.set()
    await asyncio.wait([waiting], timeout=60)
    assert waiting.done()
    assert waiting.cancelled() == cancelled
    assert cancelled or waiting.exception() is None
    assert not await _booked(limiter)
    assert client.sent == []
    figures = limiter.stats()
    assert sum(series.seen.count("cancelled") for series in figures.routes.values()) == 1
    assert sum(series.refused for series in figures.routes.values()) == 0


async def test_a_client_that_leaves_while_it_waits_is_not_struck() -> None:
    policy = BanPolicy("1/minute", signals={"refused": 1, "4xx": 1, "5xx": 1}, ban_private=True)
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    gate = RateLimitMiddleware(
        as_dependency(RateLimit("1/10s", wait="1h", name="slow")), rules=[], limiter=limiter, bans=policy
    )
    assert await statuses(gate, 1) == [200]
    client = Leaving()
    client.gone.set()
    await gate(scope_of(), client.receive, client.send)
    assert client.sent == []
    assert [ban async for ban in limiter.bans()] == []


async def _booked(limiter: Limiter) -> bool:
    """Tell whether somebody has booked the next place: then the one after it is two windows away."""
    seen = await limiter.peek(PEER, "1/10s", rule="slow")
    return (seen.retry_after_us or 0) > 10_000_000


async def test_a_body_that_came_while_waiting_is_there_afterwards() -> None:
    app = FastAPI()

    @app.post("/")
    @RateLimit("1/50ms", wait="10s")
    async def page(request: Request) -> str:
        return (await request.body()).decode()

    gate = gate_of(app, Limiter())

    async def post(body: bytes) -> bytes:
        client = Leaving(body)
        await gate(scope_of(method="POST"), client.receive, client.send)
        return b"".join(message.get("body", b"") for message in client.sent)

    assert await asyncio.gather(post(b"one"), post(b"two")) == [b'"one"', b'"two"']


async def test_a_streamed_body_is_whole_for_an_endpoint_that_waited() -> None:
    @RateLimit("1/50ms", wait="10s")
    class Page(HTTPEndpoint):
        async def post(self, request: Any) -> Response:
            pieces: AsyncIterator[bytes] = request.stream()
            return PlainTextResponse(b"".join([piece async for piece in pieces]))

    gate = gate_of(Starlette(routes=[Route("/", Page)]), Limiter())

    async def post() -> bytes:
        pieces: list[Message] = [
            {"type": "http.request", "body": b"a", "more_body": True},
            {"type": "http.request", "body": b"b", "more_body": False},
        ]
        sent: list[Message] = []

        async def receive() -> Message:
            if pieces:
                return pieces.pop(0)
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        await gate(scope_of(method="POST"), receive, send)
        return b"".join(message.get("body", b"") for message in sent)

    assert await asyncio.gather(post(), post()) == [b"ab", b"ab"]


async def test_a_websocket_waits_for_its_turn_too() -> None:
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(RateLimit("1/50ms", wait="10s"))])
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    gate = gate_of(app, Limiter())

    async def connect() -> list[str]:
        scope = scope_of(type="websocket")
        del scope["method"]
        answers = await send_scope_of_a_websocket(gate, scope)
        return [message["type"] for message in answers]

    assert await asyncio.gather(connect(), connect()) == [["websocket.accept", "websocket.close"]] * 2


async def send_scope_of_a_websocket(gate: ASGIApp, scope: Any) -> list[Message]:
    sent: list[Message] = []
    first = True

    async def receive() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "websocket.connect"}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await gate(scope, receive, send)
    return sent


async def test_places_are_waited_for_at_an_endpoint() -> None:
    app = FastAPI()
    under_way, most = 0, 0

    @app.get("/", dependencies=[Depends(RateLimit(concurrency=1, wait="10s"))])
    async def page() -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return "page"

    gate = gate_of(app, Limiter())
    assert await asyncio.gather(*(_status(gate) for _ in range(5))) == [200] * 5
    assert most == 1


async def test_openapi_says_429_only_for_limits_that_refuse() -> None:
    from slidegate import document_limits

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, rules=[])

    @app.get("/shadow", dependencies=[Depends(RateLimit("1/hour", action="shadow"))])
    async def shadow() -> str:
        return "page"

    @app.get("/limit", dependencies=[Depends(RateLimit("1/hour", wait="1s"))])
    async def limit() -> str:
        return "page"

    document_limits(app)
    paths = app.openapi()["paths"]
    assert "429" not in paths["/shadow"]["get"]["responses"]
    assert "429" in paths["/limit"]["get"]["responses"]
