"""An application that knows nothing of the middleware; `slidegate run` puts it behind one."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def item(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


app = Starlette(routes=[Route("/items/{id}", item)])
number = 42


def make() -> Starlette:
    return Starlette(routes=[Route("/items/{id}", item)])


def broken() -> Starlette:
    raise RuntimeError("a\nb\x1b[2J")
