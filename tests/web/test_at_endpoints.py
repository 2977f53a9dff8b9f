"""Limits at endpoints, and middlewares of routes, count as the middleware of an application does."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    Limiter,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    Rule,
    charge,
)

from ..asgi import call, statuses


def site(endpoint: Any, *middlewares: dict[str, Any], **options: Any) -> Starlette:
    stack = [Middleware(RateLimitMiddleware, **each) for each in middlewares]
    return Starlette(routes=[Route("/", endpoint, methods=["GET", "POST"])], middleware=stack, **options)


async def test_the_fields_of_a_limit_at_an_endpoint_follow_an_override() -> None:
    limiter = Limiter()
    page = RateLimit("10/minute", name="at")(lambda request: PlainTextResponse("page"))
    app = site(page, {"limiter": limiter})
    await call(app)
    await limiter.override("at", "3/minute", "1h")
    answers = [await call(app) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    fields = [dict(answer.start["headers"])[b"ratelimit-policy"] for answer in answers]
    assert fields == [b'"at";q=3;w=60'] * 3


@pytest.mark.parametrize("outer", [[], [{"name": "outer"}]])
async def test_a_refusal_that_is_caught_is_none_for_strikes_and_charges(outer: list[dict[str, Any]]) -> None:
    one, two = RateLimit("1/hour", name="one"), RateLimit("100/hour", name="two")

    async def login(request: Request) -> Response:
        try:
            await one.check(request)
        except RateLimitExceeded:
            await two.check(request)
            await charge(request, 5)
        return PlainTextResponse("no", 401)

    bans = BanPolicy("3/hour", "1h", signals={401: 1}, ban_private=True)
    assert await statuses(site(login, *outer, {"bans": bans}), 5) == [401, 401, 401, 403, 403]


async def test_what_an_application_answers_by_a_handler_of_its_own_stays_counted() -> None:
    class WrongPassword(Exception):
        pass

    class Login(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            raise WrongPassword

    rules = [Rule("*", "3/minute", count_if=lambda status: status == 401)]
    guard = Middleware(RateLimitMiddleware, rules=rules)
    handlers: Any = {WrongPassword: lambda request, error: PlainTextResponse("no", 401)}
    app = Starlette(routes=[Route("/", Login, middleware=[guard])], exception_handlers=handlers)
    assert await statuses(app, 5) == [401] * 3 + [429] * 2


async def test_unnamed_limits_of_one_endpoint_count_apart_if_anything_about_them_differs() -> None:
    async def page(request: Request) -> Response:
        return PlainTextResponse("page")

    reads, writes = RateLimit("3/minute", methods=["GET"]), RateLimit("3/minute", methods=["POST"])
    app = site(reads(writes(page)), {})
    assert await statuses(app, 4) == [200, 200, 200, 429]
    assert (await call(app, method="POST")).status == 200
    judged = RateLimit("3/minute", count_if=lambda status: status == 401)
    assert await statuses(site(judged(RateLimit("3/minute")(page)), {}), 5) == [200] * 3 + [429] * 2
