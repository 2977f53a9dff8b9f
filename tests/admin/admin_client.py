"""An application with a middleware and the admin API, and operators who ask it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import jsonschema
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


_served: dict[str, Any] = {}


def rules() -> list[Rule]:
    return [
        Rule("/admin/{rest:path}", exempt=True),
        Rule("/api/{rest:path}", "5/minute", key=header("X-API-Key"), name="api"),
        Rule("/shadow", "2/minute", shadow=True, name="tighter"),
        Rule("*", "20/minute", name="all"),
    ]


class AdminClient:
    """An application, its limiter, and a clock that stands still."""

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
    """Asks the admin API over ASGI, and holds every answer to the document."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, client=("192.0.2.1", 99)),
            base_url="http://ops.example.org/admin/",
            headers={"Authorization": f"Bearer {token}"},
        )

    async def ask(
        self, method: str, path: str, *, json: Any = None, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx.Response:
        answer = await self._client.request(method, path, params=query, json=json, headers=headers)
        hold_to_the_document(await document(), method, path, answer)
        return answer

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def pages(self, path: str, what: str, **query: Any) -> list[Any]:
        found: list[Any] = []
        page: dict[str, Any] = {"next": None}
        while not found or page["next"] is not None:
            more = {} if page["next"] is None else {"cursor": page["next"]}
            page = await self.get(path, **query, **more)
            found += page[what]
            if not page[what]:
                break
        return found


async def document() -> dict[str, Any]:
    """Return the document of the API, as an operator gets it."""
    if not _served:
        routes = AdminRoutes(Limiter(), token=TOKEN)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(routes), base_url="http://ops.example.org"
        ) as client:
            _served.update((await client.get("/openapi.json", headers=headers)).json())
    return _served


def hold_to_the_document(page: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """Check an answer against the schema that the document has for it."""
    operation = page["paths"].get(f"/{path}", {}).get(method.lower())
    if operation is None or answer.status_code == 304:
        return
    (content,) = operation["responses"][str(answer.status_code)]["content"].items()
    assert answer.headers["content-type"] == content[0]
    schema = {**content[1]["schema"], "components": page["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())


def names(entries: Sequence[dict[str, Any]], field: str) -> list[Any]:
    return [entry[field] for entry in entries]
