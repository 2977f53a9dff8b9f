"""The names of limits to which nobody has given one, as clients read them: they show no module of the application."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slidegate import RateLimit, RateLimitExceeded, RateLimitMiddleware, rate_limit_exceeded

from ..asgi import call
from .middlewares import fields

MODULES = ("tests", "slidegate", "locals")
"""Parts of the places of functions here; none of them is a part of a path."""


async def without_router(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    response: Response = PlainTextResponse("hi")
    try:
        await RateLimit("1/hour").check(request)
    except RateLimitExceeded as error:
        response = await rate_limit_exceeded(request, error)
    await response(scope, receive, send)


async def test_no_answer_without_a_router_names_a_module_of_the_application() -> None:
    """Nor does one of a limit at an endpoint in any of its forms, or of a caller: refusals.txt, endpoints.txt."""
    app = RateLimitMiddleware(without_router)
    answers = [await call(app) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    sent = str([answer.messages for answer in answers])
    assert [module for module in MODULES if module in sent] == []
    assert b"violated-policies" in answers[1].body


def many() -> ASGIApp:
    """Return an application whose endpoints have functions of one name, each with a limit of its own."""

    def page() -> Callable[[Request], Response]:
        @RateLimit("1/hour")
        async def index(request: Request) -> Response:
            return JSONResponse("hi")

        return index  # type: ignore[return-value]

    class Index(HTTPEndpoint):
        @RateLimit("1/hour")
        async def get(self, request: Request) -> Response:
            return JSONResponse("hi")

        @RateLimit("1/hour")
        async def post(self, request: Request) -> Response:
            return JSONResponse("hi")

    long = "x" * 80
    below = [Route("/a", page()), Route("/a", page(), methods=["PUT"])]
    below += [Route(f"/{long}/a", page()), Route(f"/{long}/b", page())]
    return Starlette(routes=[Mount("/v1", routes=below), Route("/a", page()), Route("/class", Index)])


async def test_an_operator_changes_the_limit_of_one_endpoint_alone() -> None:
    middleware, long = RateLimitMiddleware(many()), "x" * 80
    asked = [("/v1/a", "GET"), ("/v1/a", "PUT"), (f"/v1/{long}/a", "GET"), ("/a", "GET"), ("/class", "GET")]
    asked += [("/class", "POST"), (f"/v1/{long}/b", "GET")]
    answers = [await call(middleware, path, method) for path, method in asked]
    assert [answer.status for answer in answers] == [200] * len(asked)
    names = [name for answer in answers for name, _ in fields(answer.headers["ratelimit-policy"])]
    assert len({*names}) == len(asked)
    for number, (name, (path, method)) in enumerate(zip(names, asked, strict=True)):
        await middleware.limiter.override(name, "2/hour", "1h", reason="a test", by="ann")
        statuses = [(await call(middleware, *each)).status for each in asked[number + 1 :]]
        assert statuses == [429] * len(statuses)
        assert (await call(middleware, path, method)).status == 200
        await middleware.limiter.restore(name)
