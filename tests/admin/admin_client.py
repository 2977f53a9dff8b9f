"""An application with a middleware and the admin API, and operators who use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, header
from slidegate.admin import AdminRoutes
from slidegate.testing import FakeClock

from ..asgi import hello, statuses

TOKEN = "full-token-0123456789abcdef"
READ_TOKEN = "read-token-0123456789abcdef"
NOW_US = 1_800_000_000_000_000
HOSTILE = [
    "<script>alert(1)</script>",
    "user:\x1b[31mred\r\nX-Y: z",
    "user:\u202egnp.exe",
    "user:\x00null",
    "../../etc/passwd",
    "//a/./b?c=d&e#f",
    "100%25+%2e%2e",
    "user:\U0001f600 \u05d0\u0628",
    '"quoted\\',
    " user:blank ",
]


def rules() -> list[Rule]:
    return [
        Rule("/admin/{rest:path}", exempt=True),
        Rule("/api/{rest:path}", "5/minute", key=header("X-API-Key"), name="api"),
        Rule("/shadow", "2/minute", shadow=True, name="tighter"),
        Rule("*", "20/minute", name="all"),
    ]


class AdminClient:
    def __init__(self, limiter: Limiter | None = None, middleware: dict[str, Any] | None = None, **access: Any) -> None:
        self.clock = FakeClock(NOW_US)
        self.limiter = limiter or Limiter(MemoryStore(clock=self.clock))
        self.routes = AdminRoutes(self.limiter, **(access or {"token": TOKEN, "read_token": READ_TOKEN}))
        options = {"rules": rules(), **(middleware or {})}
        self.app: ASGIApp = Starlette(
            routes=[Mount("/admin", self.routes), Mount("/", hello)],
            middleware=[Middleware(RateLimitMiddleware, limiter=self.limiter, **options)],
        )

    def operator(self, token: str = TOKEN, app: ASGIApp | None = None) -> Operator:
        return Operator(self.app if app is None else app, token)

    async def visit(self, path: str = "/", times: int = 1, client: str = "203.0.113.9", **headers: str) -> list[int]:
        return await statuses(self.app, times, path, client=(client, 1234), headers=headers)


class Operator:
    def __init__(self, app: ASGIApp, token: str) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=("192.0.2.1", 99)),
            base_url="http://ops.example.org/admin/",
            headers={"Authorization": f"Bearer {token}"},
        )

    async def ask(
        self, method: str, path: str, *, json: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        return await self._client.request(method, path, params=query, json=json, headers=headers)

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def pages(self, path: str, **query: Any) -> list[Any]:
        page = await self.get(path, **query)
        found = page["bans"]
        while page["next"] is not None:
            page = await self.get(path, **query, cursor=page["next"])
            found += page["bans"]
        return list(found)


def names(entries: Sequence[dict[str, Any]], field: str) -> list[Any]:
    return [entry[field] for entry in entries]
