"""An application behind a middleware, with a dashboard; browsers and scripts that use it; and what a page contains."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, header
from slidegate.dashboard import Dashboard
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ...asgi import Answer, call, statuses

NOW_US = 1_800_000_000_000_000
TOKEN = "token-for-tests-0123456789abcdef"
HOST = "ops.example.org"
VIEWS = ("", "clients", "bans", "shadow", "configuration")
HOSTILE = [
    "<script>alert(1)</script>",
    'user:"><img src=x onerror=alert(1)>',
    "user:\x1b[31mred\r\nX-Y: z",
    "user:\u202egnp.exe\u2066",
    "user:\x00null",
    "../../etc/passwd",
    "//a/./b?c=d&e#f",
    "100%25+%2e%2e",
    "user:{{ 7 * 7 }}",
    '"quoted\\',
]


async def article(request: Request) -> PlainTextResponse:
    return PlainTextResponse("an article")


class Site:
    def __init__(
        self, clock: FakeClock | None = None, *, store: Any = None, middleware: Any = None, **options: Any
    ) -> None:
        self.clock = clock or FakeClock(NOW_US)
        self.limiter = Limiter(store or MemoryStore(clock=self.clock, wall_clock=self.clock), deadline="30s")
        self.dashboard = Dashboard(self.limiter, **{"token": TOKEN, **options})
        rules = [
            Rule("/slidegate/{rest:path}", exempt=True),
            Rule("/api/{rest:path}", "5/minute; 50/hour", key=header("X-API-Key"), name="api"),
            Rule("*", "20/minute", name="all"),
            Rule("*", "2/minute", shadow=True, name="tighter"),
        ]
        options = {
            "rules": rules,
            "bans": BanPolicy("900/10m", "1h"),
            "blocklist": Networks(["192.0.2.128/25"]),
            **(middleware or {}),
        }
        self.app: ASGIApp = Starlette(
            routes=[
                Mount("/slidegate", self.dashboard),
                Route("/", article),
                Route("/articles/{slug}", article),
                Route("/api/{rest:path}", article),
            ],
            middleware=[Middleware(RateLimitMiddleware, limiter=self.limiter, **options)],
        )

    def limiter_statistics(self) -> Statistics:
        return Statistics.of(self.limiter)

    async def visit(self, path: str = "/", times: int = 1, client: str = "203.0.113.9", **headers: str) -> list[int]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await statuses(self.app, times, path, client=(client, 1234), headers=fields)

    async def get(self, path: str, **headers: str | None) -> Answer:
        return await self.send("GET", path, b"", **headers)

    async def send(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> Answer:
        """Send a request to the dashboard like a browser that shows its page; a header that is None is left out."""
        fields: dict[str, str | None] = {"host": HOST, "authorization": basic(TOKEN), "sec-fetch-site": "same-origin"}
        fields.update({name.replace("_", "-"): value for name, value in headers.items()})
        sent = {name: value for name, value in fields.items() if value is not None}
        path, _, query = path.partition("?")
        place: dict[str, Any] = {"query_string": query.encode(), "client": ("192.0.2.1", 99)}
        return await call(self.app, f"/slidegate/{path}", method, body, headers=sent, **place)

    async def page(self, path: str = "") -> Page:
        answer = await self.get(path)
        assert answer.status == 200, answer.body
        return Page.of(answer)

    async def submit(self, view: str, **form: str) -> Answer:
        """Send a form of a view."""
        fields = {"content_type": "application/x-www-form-urlencoded"}
        return await self.send("POST", view, urlencode(form).encode(), **fields)

    async def ask(self, method: str, path: str, said: Any = None, **query: str) -> tuple[int, Any]:
        """Call the API like a script; return the status and the decoded body."""
        body, fields = b"", {"authorization": f"Bearer {TOKEN}", "sec_fetch_site": None}
        if said is not None:
            body, fields["content_type"] = json.dumps(said).encode(), "application/json"
        answer = await self.send(method, f"api/{path}?{urlencode(query)}", body, **fields)
        assert answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(answer.body)


def basic(token: str, user: str = "ann") -> str:
    return "Basic " + b64encode(f"{user}:{token}".encode()).decode()


@dataclass
class Page(HTMLParser):
    """What a browser makes of a page: its elements and its text."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    text: str = ""
    alerts: list[str] = field(default_factory=list)
    in_row: bool = False

    @classmethod
    def of(cls, answer: Answer) -> Page:
        page = cls()
        HTMLParser.__init__(page)
        page.feed(answer.body.decode())
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        if tag == "tr":
            self.rows.append([])
            self.in_row = True
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if dict(attrs).get("role") == "alert":
            self.alerts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.in_row = self.in_row and tag not in ("tr", "tbody")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] not in ("script", "style"):
            self.text += data
        if self.in_row and self.rows[-1]:
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()
        if self.alerts and self.tags[-1][1].get("role") == "alert":
            self.alerts[-1] += data.strip()

    def row(self, name: str) -> list[str]:
        """Return the other cells of the row that begins with `name`, or whose first cell begins with it."""
        return next(cells[1:] for cells in self.rows if cells and cells[0].partition(" ")[0] == name)

    def names(self, tag: str, attribute: str) -> list[str]:
        return [str(attrs[attribute]) for found, attrs in self.tags if found == tag and attribute in attrs]
