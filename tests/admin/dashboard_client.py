"""A dashboard with a fake clock, and clients that send requests like browsers and scripts."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore
from slidegate.dashboard import Dashboard
from slidegate.testing import FakeClock

from ..asgi import Answer, call
from .admin_client import NOW_US, READ_TOKEN, TOKEN

HOST = "ops.example.org"
LOOK = "/api/lists"
CHANGE = "/api/bans"
NEW_BAN = {"target": "user:1", "duration": "1h"}


class Site:
    def __init__(self, clock: FakeClock | None = None, store: Any = None, **options: Any) -> None:
        self.clock = clock = clock or FakeClock(NOW_US)
        store = MemoryStore(clock=clock, wall_clock=clock) if store is None else store
        self.limiter = Limiter(store, deadline="30s")
        if "auth" not in options:
            options = {"token": TOKEN, "read_token": READ_TOKEN, **options}
        self.app = Dashboard(self.limiter, **options)

    async def changed(self) -> bool:
        """Return whether `NEW_BAN` was made, and remove it."""
        return await self.limiter.unban(NEW_BAN["target"])


class Browser:
    """Sends requests like a browser: with the password, the Origin of its page, and Sec-Fetch-Site."""

    def __init__(
        self, app: ASGIApp, token: str | None = TOKEN, scheme: str = "http", at: str = "", peer: str = "203.0.113.9"
    ) -> None:
        self.app = app
        self.token = token
        self.scheme = scheme
        self.at = at
        self.peer = peer

    async def send(self, method: str, path: str, said: Any = None, **headers: str | None) -> Answer:
        """Send a request; a header that is None is omitted."""
        fields: dict[str, str | None] = {"host": HOST}
        if self.token is not None:
            fields["authorization"] = basic(self.token)
        if method not in ("GET", "HEAD"):
            fields.update({"origin": f"{self.scheme}://{HOST}", "sec-fetch-site": "same-origin"})
            fields["content-type"] = "application/json"
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        body = b"" if said is None else said if isinstance(said, bytes) else json.dumps(said).encode()
        sent = {name: value for name, value in fields.items() if value is not None}
        path, _, query = path.partition("?")
        place: dict[str, Any] = {"client": (self.peer, 1), "scheme": self.scheme, "query_string": query.encode()}
        return await call(self.app, self.at + path, method, body, headers=sent, **place)

    async def look(self, **headers: str | None) -> int:
        status: int = (await self.send("GET", LOOK, **headers)).status
        return status

    async def change(self, **headers: str | None) -> Answer:
        return await self.send("POST", CHANGE, NEW_BAN, **headers)


def basic(token: str, user: str = "ann") -> str:
    return "Basic " + b64encode(f"{user}:{token}".encode()).decode()


def said(answer: Answer) -> Any:
    return json.loads(answer.body)


async def with_token(app: ASGIApp, method: str, path: str, token: str = TOKEN, said: Any = None, **more: str) -> Answer:
    """Send a request like a script, with its token."""
    headers = {"host": HOST, "authorization": f"Bearer {token}", "content-type": "application/json", **more}
    return await call(app, path, method, b"" if said is None else json.dumps(said).encode(), headers=headers)
