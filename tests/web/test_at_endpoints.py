"""Limits at endpoints, and middlewares of routes, count as the middleware of an application does."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from slidegate import BanPolicy, RateLimit, RateLimitExceeded, RateLimitMiddleware, Rule, charge

from ..asgi import attempt, statuses


def site(endpoint: Any, *middlewares: dict[str, Any], **options: Any) -> Starlette:
    stack = [Middleware(RateLimitMiddleware, **each) for each in middlewares]
    return Starlette(routes=[Route("/", endpoint, methods=["GET", "POST"])], middleware=stack, **options)


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


class WrongPassword(Exception):
    pass


class WrongPin(WrongPassword):
    pass


class Login(HTTPEndpoint):
    async def get(self, request: Request) -> Response:
        raise WRONG[request.headers["x-wrong"]]()


async def login(request: Request) -> Response:
    return await Login.get(Login, request)  # type: ignore[arg-type]


WRONG: dict[str, Callable[[], Exception]] = {
    "class": WrongPassword,
    "a class above": WrongPin,
    "status": lambda: HTTPException(418),
    "HTTPException": lambda: HTTPException(403),
    "server": ArithmeticError,
}
"""What the endpoint raises, by the handler that answers it with 401."""
HANDLERS: dict[str, Any] = {
    "class": {WrongPassword: 0},
    "a class above": {WrongPassword: 0},
    "status": {418: 0},
    "HTTPException": {HTTPException: 0},
    "server": {Exception: 0},
}
PLACES: dict[str, Callable[[Any, Any, Any], Starlette]] = {
    "route": lambda endpoint, guard, handlers: Starlette(
        routes=[Route("/", endpoint, middleware=[guard])], exception_handlers=handlers
    ),
    "mount": lambda endpoint, guard, handlers: Starlette(
        routes=[Mount("/", routes=[Route("/", endpoint)], middleware=[guard])], exception_handlers=handlers
    ),
    "mounted application": lambda endpoint, guard, handlers: Starlette(
        routes=[Mount("/", Starlette(routes=[Route("/", endpoint)], middleware=[guard], exception_handlers=handlers))]
    ),
    "below a mounted application": lambda endpoint, guard, handlers: Starlette(
        routes=[Mount("/", Starlette(routes=[Route("/", endpoint)], middleware=[guard]))], exception_handlers=handlers
    ),
    "application": lambda endpoint, guard, handlers: Starlette(
        routes=[Route("/", endpoint)], middleware=[guard], exception_handlers=handlers
    ),
}


@pytest.mark.parametrize("endpoint", [login, Login])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("handler", HANDLERS)
async def test_no_exception_is_a_way_past_count_if(handler: str, place: str, endpoint: Any) -> None:
    def denied(request: Request, error: Exception) -> Response:
        return PlainTextResponse("no", 401)

    handlers = dict.fromkeys(HANDLERS[handler], denied)
    counted = [Rule("*", "3/minute", count_if=lambda status: status == 401)]
    bans = BanPolicy("3/hour", "1h", signals={500: 1}, ban_private=True)
    app = PLACES[place](endpoint, Middleware(RateLimitMiddleware, rules=counted, bans=bans), handlers)
    found = []
    for _ in range(5):
        answer, _ = await attempt(app, headers={"x-wrong": handler})
        found.append(answer.status)
    after_three = {401: 429, 500: 403}  # who guesses, and what the server answers where no handler is reached
    assert found == [found[0]] * 3 + [after_three.get(found[0], found[0])] * 2
