"""A dashboard on a clock that stands still, and browsers and scripts that send it requests."""

from __future__ import annotations

import json
from http.cookies import SimpleCookie
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
    """A dashboard and its limiter."""

    def __init__(self, clock: FakeClock | None = None, store: Any = None, **options: Any) -> None:
        self.clock = clock = clock or FakeClock(NOW_US)
        store = MemoryStore(clock=clock, wall_clock=clock) if store is None else store
        self.limiter = Limiter(store, deadline="30s")
        if "auth" not in options:
            options = {"token": TOKEN, "read_token": READ_TOKEN, **options}
        self.app = Dashboard(self.limiter, **options)

    async def changed(self) -> bool:
        """Return whether `NEW_BAN` was made, and take it back."""
        return await self.limiter.unban(NEW_BAN["target"])


class Browser:
    """Sends requests as a browser does over https: with its cookies, the Origin of its page, and Sec-Fetch-Site."""

    def __init__(
        self, app: ASGIApp, scheme: str = "http", at: str = "", root: str = "", peer: str = "203.0.113.9"
    ) -> None:
        self.app = app
        self.scheme = scheme
        self.at = at
        self.root = root
        self.peer = peer
        self.cookies: dict[str, str] = {}
        self.last_cookie: Any = None

    async def send(self, method: str, path: str, said: Any = None, **headers: str | None) -> Answer:
        """Send a request; a header that is None is left out of those that a browser sends."""
        fields: dict[str, str | None] = {"host": HOST}
        if self.cookies:
            fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method not in ("GET", "HEAD"):
            fields.update({"origin": f"{self.scheme}://{HOST}", "sec-fetch-site": "same-origin"})
            fields["content-type"] = "application/json"
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        body = b"" if said is None else said if isinstance(said, bytes) else json.dumps(said).encode()
        sent = {name: value for name, value in fields.items() if value is not None}
        path, _, query = path.partition("?")
        place: dict[str, Any] = {"client": (self.peer, 1), "scheme": self.scheme, "root_path": self.root}
        place["query_string"] = query.encode()
        answer = await call(self.app, self.root + self.at + path, method, body, headers=sent, **place)
        for name, value in answer.start["headers"]:
            if name == b"set-cookie":
                ((key, morsel),) = SimpleCookie(value.decode()).items()
                self.last_cookie = morsel
                self.cookies[key] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[key]
        return answer

    async def log_in(self, token: str = TOKEN) -> Answer:
        return await self.send("POST", "/api/session", {"token": token})

    async def change(self, **headers: str | None) -> Answer:
        return await self.send("POST", CHANGE, NEW_BAN, **headers)


async def logged_in(site: Site, token: str = TOKEN, **options: Any) -> Browser:
    browser = Browser(site.app, **options)
    assert (await browser.log_in(token)).status == 200
    return browser


def said(answer: Answer) -> Any:
    return json.loads(answer.body)


async def with_token(app: ASGIApp, method: str, path: str, token: str = TOKEN, said: Any = None, **more: str) -> Answer:
    """Send a request as a script does, with its token."""
    headers = {"host": HOST, "authorization": f"Bearer {token}", "content-type": "application/json", **more}
    return await call(app, path, method, b"" if said is None else json.dumps(said).encode(), headers=headers)
