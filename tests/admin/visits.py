"""A tool behind a door, and visitors who send it requests."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore
from slidegate.admin.access import Access
from slidegate.admin.door import Door, File
from slidegate.admin.visitors import visitor_of
from slidegate.testing import FakeClock

from ..asgi import Answer, call

TOKEN = "full-token-0123456789abcdef"
READ_TOKEN = "read-token-0123456789abcdef"
HOST = "ops.example.org"
NOW_US = 1_800_000_000_000_000
FILES = {"/": File(b"<!doctype html>page", "text/html; charset=utf-8"), "/app.js": File(b"go()", "text/javascript")}


class Tool:
    """Counts the changes that reach it."""

    def __init__(self) -> None:
        self.changes: list[Any] = []
        self.looks = 0

    async def items(self, request: Request) -> JSONResponse:
        visitor = visitor_of(request.scope)
        if request.method in ("GET", "HEAD"):
            self.looks += 1
        else:
            body = await request.body()
            self.changes.append(json.loads(body) if body else None)
        return JSONResponse({"name": visitor.name, "role": visitor.role})

    async def fail(self, request: Request) -> JSONResponse:
        raise RuntimeError("redis://user:s3cret@h:6379/0 is away")

    def app(self, prefix: str = "/api") -> Starlette:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes = [Route("/items", self.items, methods=methods), Route("/fail", self.fail)]
        return Starlette(routes=[Mount(prefix, routes=routes)] if prefix else routes)


class House:
    """A door with a tool behind it, on a clock that stands still.

    Args:
        store: The store of its limiter; by default one in memory.
        options: Options of `Access`; by default two tokens.
    """

    def __init__(self, store: Any = None, **options: Any) -> None:
        self.clock = FakeClock(NOW_US)
        self.limiter = Limiter(MemoryStore(clock=self.clock) if store is None else store, deadline="30s")
        self.tool = Tool()
        if "auth" not in options:
            options = {"token": TOKEN, "read_token": READ_TOKEN, **options}
        self.access = Access(self.limiter, clock=self.clock, **options)
        self.door = Door(self.tool.app(), self.access, files=FILES, prefix="/api")


class Browser:
    """Sends requests as a browser does: with the cookies that it was given, and the Origin of its page.

    Args:
        app: The application.
        scheme: Of its page.
        at: The place where the application mounts the tool.
        root: The `root_path` that the server says.
        peer: Its address.
    """

    def __init__(
        self, app: ASGIApp, scheme: str = "http", at: str = "", root: str = "", peer: str = "203.0.113.9"
    ) -> None:
        self.app = app
        self.scheme = scheme
        self.at = at
        self.root = root
        self.peer = peer
        self.cookies: dict[str, str] = {}
        self.csrf = ""
        self.last_cookie: Any = None

    async def send(self, method: str, path: str, said: Any = None, **headers: str | None) -> Answer:
        """Send a request; a header that is None is left out of those that a browser sends."""
        fields: dict[str, str | None] = {"host": HOST}
        if self.cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method not in ("GET", "HEAD"):
            fields.update({"origin": f"{self.scheme}://{HOST}", "sec-fetch-site": "same-origin"})
            fields.update({"content-type": "application/json", "x-csrf-token": self.csrf or None})
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        body = b"" if said is None else said if isinstance(said, bytes) else json.dumps(said).encode()
        sent = {name: value for name, value in fields.items() if value is not None}
        place = {"client": (self.peer, 1), "scheme": self.scheme, "root_path": self.root}
        answer = await call(self.app, self.root + self.at + path, method, body, headers=sent, **place)
        for name, value in answer.start["headers"]:
            if name == b"set-cookie":
                ((key, morsel),) = SimpleCookie(value.decode()).items()
                self.last_cookie = morsel
                self.cookies[key] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[key]
        return answer

    async def log_in(self, token: str = TOKEN, prefix: str = "/api") -> Answer:
        """Log in, and keep what changes have to prove."""
        answer = await self.send("POST", f"{prefix}/session", {"token": token})
        if answer.status == 200:
            self.csrf = said(answer)["csrf"]
        return answer


def said(answer: Answer) -> Any:
    """Return the JSON of an answer."""
    return json.loads(answer.body)


async def with_token(app: ASGIApp, method: str, path: str, token: str = TOKEN, said: Any = None, **more: str) -> Answer:
    """Send a request as a script does, with its token."""
    headers = {"host": HOST, "authorization": f"Bearer {token}", "content-type": "application/json", **more}
    return await call(app, path, method, b"" if said is None else json.dumps(said).encode(), headers=headers)
