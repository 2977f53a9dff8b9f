"""A refusal of an endpoint's limit reaches the client, whatever the application makes of the exception on its way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest
from fastapi import Depends, FastAPI, HTTPException, WebSocket
from h11 import LocalProtocolError
from h11 import Response as H11Response
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slidegate import BanPolicy, Decision, Limiter, LimitExceeded, RateLimit, RateLimitMiddleware
from slidegate.stores.memory import store as memory

from ...asgi import call, hello, scope_of, send_scope

GATE = Middleware(RateLimitMiddleware, rules=[])
LIMIT = RateLimit("1/hour")


async def check(request: HTTPConnection) -> None:
    await LIMIT.check(request)


# -- what applications make of the exception ------------------------------------------------------------------------


async def in_a_task_group(request: Request) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check, request)
        tasks.start_soon(anyio.sleep, 0)


async def in_nested_groups(request: Request) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_a_task_group(request))


async def beside_another_failure(request: Request) -> None:
    async def fail() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("broken while it was cancelled")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail)
        tasks.start_soon(check, request)


async def raised_from(request: Request) -> None:
    try:
        await check(request)
    except Exception as error:
        raise RuntimeError("wrapped") from error


async def raised_from_none(request: Request) -> None:
    try:
        await check(request)
    except Exception:
        raise KeyError("wrapped, and nothing says in what") from None


async def raised_meanwhile(request: Request) -> None:
    try:
        await check(request)
    finally:
        raise OSError("the cleaning up failed")


async def as_another_http_error(request: Request) -> None:
    try:
        await check(request)
    except Exception as error:
        raise HTTPException(500) from error


async def swallowed_by_a_context(request: Request) -> None:
    with suppress(Exception):
        await check(request)


async def swallowed_and_broken_later(request: Request) -> None:
    await swallowed_by_a_context(request)
    raise ZeroDivisionError


TROUBLES = [
    check, in_a_task_group, in_nested_groups, beside_another_failure, raised_from, raised_from_none, raised_meanwhile,
    as_another_http_error, swallowed_by_a_context, swallowed_and_broken_later,
]  # fmt: skip


def in_starlette(trouble: Any) -> ASGIApp:
    async def page(request: Request) -> Response:
        await trouble(request)
        return PlainTextResponse("hi")

    return Starlette(routes=[Route("/", page)], middleware=[GATE])


def in_a_mounted_application(trouble: Any) -> ASGIApp:
    async def page(request: Request) -> Response:
        await trouble(request)
        return PlainTextResponse("hi")

    return Starlette(routes=[Mount("/", Starlette(routes=[Route("/", page)]))], middleware=[GATE])


def behind_a_base_middleware(trouble: Any) -> ASGIApp:
    async def page(request: Request) -> Response:
        await trouble(request)
        return PlainTextResponse("hi")

    async def passing(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    layers = [GATE, Middleware(BaseHTTPMiddleware, dispatch=passing)]
    return Starlette(routes=[Route("/", page)], middleware=layers)


def in_a_dependency(trouble: Any) -> ASGIApp:
    app = FastAPI(middleware=[GATE])
    app.get("/", dependencies=[Depends(needing(trouble))])(lambda: "hi")
    return app


def under_a_dependency_that_swallows(trouble: Any) -> ASGIApp:
    app = FastAPI(middleware=[GATE])

    async def swallow() -> AsyncIterator[None]:
        with suppress(Exception):
            yield

    app.get("/", dependencies=[Depends(swallow), Depends(needing(trouble))])(lambda: "hi")
    return app


def under_a_plain_dependency_that_swallows(trouble: Any) -> ASGIApp:
    app = FastAPI(middleware=[GATE])

    def swallow() -> Iterator[None]:
        with suppress(Exception):
            yield

    async def page(_: None = Depends(swallow), __: None = Depends(needing(trouble))) -> str:
        return "hi"

    app.get("/")(page)
    return app


def in_a_bare_application(trouble: Any) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trouble(Request(scope, receive))
        if scope["slidegate"].refused is None:
            await hello(scope, receive, send)

    return RateLimitMiddleware(app, rules=[])


def under_two_gates(trouble: Any) -> ASGIApp:
    return RateLimitMiddleware(in_a_bare_application(trouble), limits="9/hour")


def needing(trouble: Any) -> Callable[..., Any]:
    async def needed(request: HTTPConnection) -> None:
        await trouble(request)

    return needed


SITES = [
    in_starlette, in_a_mounted_application, behind_a_base_middleware, in_a_dependency, under_a_dependency_that_swallows,
    under_a_plain_dependency_that_swallows, in_a_bare_application, under_two_gates,
]  # fmt: skip


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.__name__)
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
async def test_the_refusal_goes_out_whatever_becomes_of_its_exception(
    site: Any, trouble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "monotonic_ns", lambda: 10**15)

    async def well(request: Request) -> None:
        await (check if first else trouble)(request)

    app, first = site(well), True
    assert (await call(app)).status == 200
    first = False
    for _ in range(2):
        answer = await call(app)
        assert (answer.status, json.loads(answer.body)["status"], answer.headers["retry-after"]) == (429, 429, "3600")
        assert [message["type"] for message in answer.messages] == ["http.response.start", "http.response.body"]


async def test_a_websocket_whose_refusal_is_wrapped_is_refused_at_its_handshake() -> None:
    app = FastAPI(middleware=[GATE])

    async def talk(socket: WebSocket) -> None:
        await socket.close()

    app.websocket("/", dependencies=[Depends(needing(in_a_task_group))])(talk)
    await send_scope(app, scope_of(type="websocket", extensions={}))
    answer = await send_scope(app, scope_of(type="websocket", extensions={"websocket.http.response": {}}))
    assert answer.status == 429


async def test_what_failed_beside_a_refusal_is_logged_and_no_strike_for_a_500(caplog: Any) -> None:
    limiter = Limiter()
    policy = BanPolicy("2/10m", "1h", signals={500: 1})

    async def page(request: Request) -> Response:
        await swallowed_and_broken_later(request)
        return PlainTextResponse("hi")

    gate = Middleware(RateLimitMiddleware, rules=[], limiter=limiter, bans=policy)
    app = Starlette(routes=[Route("/", page)], middleware=[gate])
    with pytest.raises(ZeroDivisionError):
        await call(app)  # not refused: the failure is the application's, and goes its way
    for _ in range(5):
        assert (await call(app)).status == 429
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len([text for text in told if "ZeroDivisionError" in text]) == 1, "once a minute"
    assert await limiter.banned("203.0.113.9") is None


async def test_a_refusal_that_carries_nothing_else_is_not_an_error_in_the_log(caplog: Any) -> None:
    for trouble in (in_nested_groups, raised_from, as_another_http_error):
        app = in_starlette(trouble)
        with suppress(Exception):
            await call(app)
        assert (await call(app)).status == 429
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_limit_that_refuses_after_the_answer_has_begun_is_the_applications_failure() -> None:
    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await in_a_task_group(Request(scope, receive))

    app = RateLimitMiddleware(late, rules=[])
    await call(app)
    with pytest.raises(ExceptionGroup) as caught:
        await call(app)
    assert caught.group_contains(LimitExceeded)


async def test_a_cancelled_request_is_not_answered() -> None:
    async def page(request: Request) -> Response:
        with suppress(LimitExceeded):
            await check(request)
        raise asyncio.CancelledError

    app = Starlette(routes=[Route("/", page)], middleware=[GATE])
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await call(app)


# -- header fields in any spelling ------------------------------------------------------------------------------------

OWN = ["RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]


def spelt(name: str) -> list[Any]:
    written = name.encode()
    return [
        written,
        written.lower(),
        written.upper(),
        bytearray(written),
        memoryview(written),
        bytearray(written.upper()),
    ]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("pairs", [tuple, list])
async def test_the_applications_fields_of_our_names_give_way_in_any_spelling(refused: bool, pairs: Any) -> None:
    headers = [pairs((spelling, b"theirs")) for name in OWN for spelling in spelt(name)]
    headers += [pairs((spelling, b"kept")) for spelling in spelt("X-Theirs")]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if refused:
            await swallowed_by_a_context(Request(scope, receive))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    gate = RateLimitMiddleware(app, limits="9/hour", headers="both")
    await call(gate)
    answer = await call(gate)
    assert answer.status == (429 if refused else 200)
    found = [(bytes(name).lower(), bytes(value)) for name, value in answer.start["headers"]]
    for name in OWN:
        assert len([value for other, value in found if other == name.lower().encode()]) == 1, name
        assert (name.lower().encode(), b"theirs") not in found
    assert found.count((b"x-theirs", b"kept")) == len(spelt(""))


# -- what `on_refused` wants to send and cannot --------------------------------------------------------------------

GOOD = [(b"x-good", b"yes"), (b"x-high", "caf\u00e9".encode("latin-1")), (b"x-tab", b"a\tb"), (b"x-empty", b"")]
BAD: list[Any] = [
    (b"x-crlf", b"a\r\nset-cookie: evil=1"), (b"x-lf", b"a\nb"), (b"x-nul", b"a\0b"), (b"x-bell", b"a\x07b"),
    (b"x-del", b"\x7f"), (b"x-form-feed", b"a\x0cb"), (b"x name", b"a"), (b"", b"a"), (b"x\r\ny", b"a"), (b"x:", b"a"),
    (b"x-number", 7), (b"x-none", None), ("x-text", "text"), (None, b"a"), (b"x-three", b"a", b"b"), b"x", 7,
]  # fmt: skip


def refusing_with(headers: list[Any], status: Any = 420) -> RateLimitMiddleware:
    def refused(request: Any, decision: Decision) -> Any:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b"own"})

        return answer

    return RateLimitMiddleware(hello, limits="1/hour", on_refused=refused)


def check_sendable(message: Message) -> None:
    """Have h11 look at a message, as uvicorn does before it sends one."""
    try:
        H11Response(status_code=message["status"], headers=message["headers"])
    except LocalProtocolError as error:
        raise AssertionError(f"{message} cannot be sent: {error}") from error


@pytest.mark.parametrize("bad", BAD, ids=repr)
async def test_a_field_that_cannot_be_sent_is_left_out_with_a_line_in_the_log(bad: Any, caplog: Any) -> None:
    gate = refusing_with([*GOOD, bad, (b"X-Spaced", b"  a \t")])
    await call(gate)
    answer = await call(gate)
    assert (answer.status, answer.body) == (420, b"own")
    check_sendable(answer.start)
    names = [name for name, _ in answer.start["headers"]]
    assert names[:5] == [name for name, _ in GOOD] + [b"X-Spaced"]
    assert set(names[5:]) == {b"cache-control", b"retry-after", b"ratelimit", b"ratelimit-policy"}
    (line,) = [record.getMessage() for record in caplog.records]
    assert "on_refused" in line
    assert line.isprintable()


async def test_good_fields_are_sent_as_they_are_and_nothing_is_logged(caplog: Any) -> None:
    gate = refusing_with(GOOD)
    await call(gate)
    assert (await call(gate)).start["headers"][:4] == GOOD
    assert caplog.records == []


@pytest.mark.parametrize("status", [0, 99, 100, 101, 199, 1000, -1, "429", None, 4.29, True])
async def test_a_status_that_cannot_be_sent_leaves_the_default_answer(status: Any, caplog: Any) -> None:
    gate = refusing_with(GOOD, status)
    await call(gate)
    answer = await call(gate)
    assert (answer.status, json.loads(answer.body)["status"]) == (429, 429)
    assert "on_refused" in caplog.text
