"""Endpoints that a test, or another endpoint, calls as the functions that they are."""

import logging
import sys
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import slidegate
from slidegate import BanPolicy, RateLimit, RateLimitMiddleware, Rule, charge, client_key, decision_of, settle, strike
from slidegate.core import Reason
from slidegate.testing import limits_off, reset_limits

from ..asgi import PEER, scope_of

app = FastAPI()
app.add_middleware(RateLimitMiddleware, rules=[Rule("*", "9/hour", name="all")], bans=BanPolicy())


@app.get("/twice/{number}")
@RateLimit("1/hour")
async def twice(number: int) -> int:
    return 2 * number


@app.get("/in-a-thread/{number}")
@RateLimit("1/hour")
def in_a_thread(number: int) -> int:
    return 2 * number


@app.get("/asks/{number}")
@RateLimit("1/hour")
async def asks(number: int, request: Request) -> int:
    assert request.url
    return 2 * number


@app.get("/outer/{number}")
@RateLimit("1/hour")
@RateLimit("2/hour")
async def outer(number: int) -> int:
    return await twice(number)


class Shop:
    @RateLimit("1/hour")
    async def method(self, number: int) -> int:
        return 2 * number


WITHOUT: dict[str, Callable[[], Awaitable[int]]] = {
    "async": lambda: twice(3),
    "sync": lambda: in_a_thread(3),
    "by name": lambda: twice(number=3),
    "another limit": lambda: outer(3),
    "a method": lambda: Shop().method(3),
}


@pytest.mark.parametrize("ask", WITHOUT.values(), ids=WITHOUT)
async def test_a_call_without_a_request_is_not_counted(ask: Callable[[], Awaitable[int]]) -> None:
    reset_limits()
    for _ in range(3):
        assert await ask() == 6
        with limits_off():
            assert await ask() == 6
    with TestClient(app) as client:
        assert client.get("/twice/3").json() == 6, "nothing was counted"


async def page() -> None:
    pass


class Page:
    async def __call__(self) -> None:
        pass


@pytest.mark.parametrize(("endpoint", "shown"), [(page, "function page"), (partial(page), "partial"), (Page(), "Page")])
async def test_that_nothing_is_counted_is_logged_once(
    endpoint: Callable[[], Awaitable[None]], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    page = RateLimit("1/hour")(endpoint)
    with limits_off():
        await page()
    assert caplog.messages == []
    for _ in range(3):
        await page()
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    before, after = said.getMessage().split(" was called without a request, so the call is not counted")
    assert shown in before, after


HEADS = ["from __future__ import annotations"]
if sys.version_info >= (3, 14):  # others evaluate an annotation before the decorator
    HEADS.append("")


@pytest.mark.parametrize("annotation", ["Nowhere", "typing.Nowhere", "int | 'Later'", "'Nowhere'"])
@pytest.mark.parametrize("head", HEADS)
def test_an_annotation_that_cannot_be_evaluated_is_taken_as_by_starlette(head: str, annotation: str) -> None:
    names: dict[str, Any] = {"typing": typing, "PlainTextResponse": PlainTextResponse}
    exec(f"{head}\nasync def page(request, x: {annotation} = 1): return PlainTextResponse('page')", names)
    app = Starlette(routes=[Route("/", RateLimit("1/hour")(names["page"]))])
    client = TestClient(RateLimitMiddleware(app))
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]


ASKED: dict[str, tuple[Callable[[Request], Any], Any]] = {
    "a limit": (lambda request: asks(3, request), 6),
    "a limit by name": (lambda request: asks(number=3, request=request), 6),
    "a limit of FastAPI": (lambda request: twice(3, slidegate_connection=request), 6),  # type: ignore[call-arg]
    "charge": (lambda request: charge(request, 3, rule="all"), "reason exempt"),
    "settle": (lambda request: settle(request, 3, rule="all"), False),
    "strike": (lambda request: strike(request, "ban"), None),
    "check": (lambda request: RateLimit("1/hour").check(request), None),
    "decision_of": (lambda request: decision_of(request), "reason disabled"),
    "client_key": (lambda request: client_key(request), PEER),
}
"""What may be asked about a request, and what is answered where nothing counts."""


@pytest.mark.parametrize("what", ASKED)
async def test_a_request_without_a_middleware_is_an_error_unless_limits_are_off(what: str) -> None:
    ask, expected = ASKED[what]

    async def answer() -> Any:
        found = ask(Request(scope_of()))
        found = await found if hasattr(found, "__await__") else found
        return f"reason {found.reason}" if isinstance(getattr(found, "reason", None), Reason) else found

    with limits_off():
        assert await answer() == expected
    with pytest.raises(slidegate.ConfigurationError, match="there is no RateLimitMiddleware around this endpoint"):
        await answer()
