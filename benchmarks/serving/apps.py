"""The applications that are served: bare ones, twins that send what the gate sends, gates, and the peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from slowapi.middleware import SlowAPIASGIMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

from ..middleware import PLENTY, asgi_ratelimit, by_hand, ours, slowapi, starlette

BARE = "bare Starlette"
ADMITTED = "bare Starlette, fields of an admission"
REFUSED = "bare Starlette, fields and body of a refusal"


class App(NamedTuple):
    """One candidate.

    Attributes:
        make: Makes the application.
        first: The status of the first answer.
        status: The status of every other answer.
        twin: The bare application that sends the same; empty for none.
    """

    make: Callable[[], ASGIApp]
    first: int = 200
    status: int = 200
    twin: str = ""


def twin(amount: int, status: int) -> ASGIApp:
    """Return a bare application whose every answer has the fields and the body of a gate's second answer."""
    messages: list[Message] = []
    scope: Scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/", "raw_path": b"/",
        "root_path": "", "query_string": b"", "headers": [], "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        messages.append(message)

    async def ask() -> None:
        app = ours(amount)
        await app(dict(scope), receive, send)
        messages.clear()
        await app(dict(scope), receive, send)

    asyncio.run(ask())
    assert messages[0]["status"] == status
    body = b"".join(message.get("body", b"") for message in messages)
    fields = {name.decode(): value.decode() for name, value in messages[0]["headers"]}

    async def page(request: Request) -> Response:
        return Response(body, status, fields)

    return Starlette(routes=[Route("/", page)])


APPS = {
    BARE: App(starlette),
    ADMITTED: App(lambda: twin(PLENTY, 200)),
    "slidegate, admitted": App(lambda: ours(PLENTY), twin=ADMITTED),
    "slidegate, statistics=False, admitted": App(lambda: ours(PLENTY, statistics=False), twin=ADMITTED),
    "a hit and two fields by hand, admitted": App(lambda: by_hand(starlette(), fields=True), twin=ADMITTED),
    "asgi-ratelimit, admitted": App(lambda: asgi_ratelimit(PLENTY)),
    "slowapi, admitted": App(lambda: slowapi(PLENTY, SlowAPIASGIMiddleware)),
    REFUSED: App(lambda: twin(1, 429), first=429, status=429),
    "slidegate, refused": App(lambda: ours(1), status=429, twin=REFUSED),
    "slidegate, statistics=False, refused": App(lambda: ours(1, statistics=False), status=429, twin=REFUSED),
    "asgi-ratelimit, refused": App(lambda: asgi_ratelimit(1), status=429),
    "slowapi, refused": App(lambda: slowapi(1, SlowAPIASGIMiddleware), status=429),
}
"""The candidates by their names, in the order of the table."""
