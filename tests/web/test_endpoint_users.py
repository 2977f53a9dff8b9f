"""A limit by user counts the user that is known when it is asked; where somebody is known only later, that is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from slidegate import RateLimit, RateLimitMiddleware, Rule, user

from ..asgi import Answer, call


async def current_user(connection: HTTPConnection) -> str:
    name = connection.headers.get("x-user", "")
    connection.state.user = name
    return name


User = Annotated[str, Depends(current_user)]
LIMIT = Depends(RateLimit("2/hour", key=user))
BY_USER = [Depends(current_user), LIMIT]


def fastapi(rules: Any = (), **options: Any) -> FastAPI:
    return FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=list(rules))], **options)


async def page(name: User) -> str:
    return name


def on_the_route() -> FastAPI:
    app = fastapi()
    app.get("/", dependencies=BY_USER)(page)
    return app


def on_the_application() -> FastAPI:
    app = fastapi(dependencies=BY_USER)
    app.get("/")(page)
    return app


def as_a_parameter_behind_the_users() -> FastAPI:
    app = fastapi()

    async def get(name: User, limit: Annotated[None, LIMIT]) -> str:
        return name

    app.get("/")(get)
    return app


def as_a_decorator() -> FastAPI:
    app = fastapi()
    app.get("/")(RateLimit("2/hour", key=user)(page))
    return app


WAYS = [
    on_the_route,
    on_the_application,
    as_a_parameter_behind_the_users,
    as_a_decorator,
]


def findings(app: FastAPI) -> list[str]:
    layer: Any = app.middleware_stack
    while not isinstance(layer, RateLimitMiddleware):
        layer = layer.app
    return [finding.code for finding in layer.findings]


async def ask(app: Any, name: str, address: str = "203.0.113.9", path: str = "/") -> Answer:
    return await call(app, path, headers={"x-user": name} if name else {}, client=(address, 1))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_users_of_one_address_count_apart_and_a_user_of_two_addresses_once(way: Callable[[], FastAPI]) -> None:
    app = way()
    for name in ("ann", "bob"):
        answers = [await ask(app, name, address) for address in ("192.0.2.1", "198.51.100.2", "192.0.2.1")]
        assert [answer.status for answer in answers] == [200, 200, 429], name
    assert [(await ask(app, "")).status for _ in range(3)] == [200, 200, 429], "nobody is counted by address"
    assert (await ask(app, "", "198.51.100.77")).status == 200
    assert findings(app) == []


class Header(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> Any:
        return AuthCredentials(), SimpleUser(conn.headers["x-user"])


@pytest.mark.parametrize("outside", [True, False])
async def test_where_authentication_stands_decides(outside: bool) -> None:
    layers = [
        Middleware(AuthenticationMiddleware, backend=Header()),
        Middleware(RateLimitMiddleware, rules=[Rule("*", "2/hour", key=user)]),
    ]
    app = FastAPI(middleware=layers if outside else layers[::-1])
    app.get("/")(lambda: "hi")
    found = [(await ask(app, name)).status for name in ("ann", "ann", "bob")]
    assert found == ([200, 200, 200] if outside else [200, 200, 429])
