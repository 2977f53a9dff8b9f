"""A limit by user counts the user, whichever dependency of FastAPI says who that is; where it cannot, that is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

from slidegate import RateLimit, RateLimitMiddleware, Rule, user

from ...asgi import Answer, call, scope_of, send_scope


async def current_user(connection: HTTPConnection) -> str:
    name = connection.headers.get("x-user", "")
    if name == "mallory":
        raise HTTPException(401)
    connection.state.user = name
    return name


User = Annotated[str, Depends(current_user)]
BY_USER = [Depends(RateLimit("2/hour", key=user))]


def fastapi(rules: Any = (), **options: Any) -> FastAPI:
    return FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=list(rules))], **options)


async def page(name: User) -> str:
    return name


def on_the_route() -> FastAPI:
    app = fastapi()
    app.get("/", dependencies=BY_USER)(page)
    return app


def on_the_router() -> FastAPI:
    app, router = fastapi(), APIRouter(dependencies=BY_USER)
    router.get("/")(page)
    app.include_router(router)
    return app


def on_the_application() -> FastAPI:
    app = fastapi(dependencies=BY_USER)
    app.get("/")(page)
    return app


def as_a_parameter_before_the_users() -> FastAPI:
    app = fastapi()

    async def get(limit: Annotated[None, *BY_USER], name: User) -> str:
        return name

    app.get("/")(get)
    return app


def as_a_decorator() -> FastAPI:
    app = fastapi()
    app.get("/")(RateLimit("2/hour", key=user)(page))
    return app


def in_a_mounted_application() -> FastAPI:
    app = fastapi()
    inner = FastAPI(dependencies=BY_USER)
    inner.get("/")(page)
    app.mount("/", inner)
    return app


WAYS = [
    on_the_route,
    on_the_router,
    on_the_application,
    as_a_parameter_before_the_users,
    as_a_decorator,
    in_a_mounted_application,
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


async def test_a_websocket_is_counted_by_its_user_too() -> None:
    app = fastapi()

    async def talk(socket: WebSocket, name: User) -> None:
        await socket.close(4000)

    app.websocket("/", dependencies=BY_USER)(talk)

    async def code(name: str) -> int:
        scope = scope_of(type="websocket", headers={"x-user": name}, extensions={})
        answer = await send_scope(app, scope)
        return int(answer.messages[-1]["code"])

    assert [await code(name) for name in ("ann", "bob") for _ in range(3)] == [4000, 4000, 1008] * 2


async def test_who_is_turned_away_is_not_counted_and_other_limits_keep_their_place() -> None:
    seen: list[str] = []
    app = fastapi()

    async def note() -> None:
        seen.append("dependency")

    def cost(request: Any) -> int:
        seen.append("limit")
        return 1

    limits = [Depends(RateLimit("2/hour", cost=cost)), Depends(note), *BY_USER]
    app.get("/", dependencies=limits)(page)
    assert [(await ask(app, "mallory")).status for _ in range(3)] == [401, 401, 429], "the limit by address counts them"
    assert seen == ["limit", "dependency"] * 2 + ["limit"]


async def test_a_rule_by_user_is_found_to_come_before_the_users() -> None:
    app = fastapi([Rule("*", "9/hour", key=user)])
    app.get("/")(page)
    await ask(app, "")
    assert findings(app) == []
    for name in ("ann", "bob"):
        await ask(app, name)
    assert findings(app) == ["SG116"], "once"


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
