"""Fields and statuses that are not ours: those of the application that bear our names, and of users' refusals."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from h11 import LocalProtocolError
from h11 import Response as H11Response
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from slidegate import Decision, RateLimit, RateLimitExceeded, RateLimitMiddleware

from ..asgi import call, hello

LIMIT = RateLimit("1/hour")

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
            with suppress(RateLimitExceeded):
                await LIMIT.check(Request(scope, receive))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    middleware = RateLimitMiddleware(app, limits="9/hour", headers="both")
    await call(middleware)
    answer = await call(middleware)
    assert answer.status == 200
    found = [(bytes(name).lower(), bytes(value)) for name, value in answer.start["headers"]]
    for name in OWN:
        assert len([value for other, value in found if other == name.lower().encode()]) == 1, name
        assert (name.lower().encode(), b"theirs") not in found
    assert found.count((b"x-theirs", b"kept")) == len(spelt(""))


# -- what `on_refused` wants to send and cannot ------------------------------------------------------------------------

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
    middleware = refusing_with([*GOOD, bad, (b"X-Spaced", b"  a \t")])
    await call(middleware)
    answer = await call(middleware)
    assert (answer.status, answer.body) == (420, b"own")
    check_sendable(answer.start)
    names = [name for name, _ in answer.start["headers"]]
    assert names[:5] == [name for name, _ in GOOD] + [b"X-Spaced"]
    assert set(names[5:]) == {b"cache-control", b"retry-after", b"ratelimit", b"ratelimit-policy"}
    (line,) = [record.getMessage() for record in caplog.records]
    assert "on_refused" in line
    assert line.isprintable()


@pytest.mark.parametrize("status", [0, 99, 100, 101, 199, 1000, -1, "429", None, 4.29, True])
async def test_a_status_that_cannot_be_sent_leaves_the_default_answer(status: Any, caplog: Any) -> None:
    middleware = refusing_with(GOOD, status)
    await call(middleware)
    answer = await call(middleware)
    assert (answer.status, json.loads(answer.body)["status"]) == (429, 429)
    assert "on_refused" in caplog.text
