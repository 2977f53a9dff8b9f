"""An application behind a middleware, with a dashboard; browsers and scripts that use it; and what a page contains."""

import json
import os
import re
import shlex
import socket
from base64 import b64encode
from difflib import ndiff
from functools import partial
from html.parser import HTMLParser
from itertools import dropwhile, groupby, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount, Route

import slidegate
from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, client_ip, header
from slidegate.core import Quota
from slidegate.dashboard import Dashboard
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ..asgi import Answer, call, hello, page, statuses

NOW_US = 1_800_000_000_000_000
TOKEN = "token-for-tests-0123456789abcdef"
SECRET = "k123-secret"
"""The value of a header, of which an answer has at most the digest."""
HOST = "ops.example.org"
VIEWS = ("", "clients", "bans", "configuration")
HEADINGS = ("h1", "h2", "h3", "dt")
BLOCKS = frozenset(
    (*HEADINGS, "div", "dl", "footer", "form", "header", "li", "main", "nav", "ol", "p", "section", "table", "tr", "ul")
)
FIELDS = frozenset(["input", "select", "button"])
HIDDEN = frozenset(["option", "script", "style", "title", "text", "rect", "path"])
HOSTILE = ["<script>alert(1)</script>", 'user:"><img src=x onerror=alert(1)>', "user:\x1b[31mred\r\nX-Y: z"]
HOSTILE += ["user:\u202egnp.exe\u2066", "user:\x00null", "../../etc/passwd", "//a/./b?c=d&e#f", "100%25+%2e%2e"]
HOSTILE += ["user:{{ 7 * 7 }}", '"quoted\\']

SECURITY = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
}
"""Fields of every response."""


class Site:
    def __init__(
        self, clock: FakeClock | None = None, *, store: Any = None, middleware: Any = None, **options: Any
    ) -> None:
        self.clock = clock or FakeClock(NOW_US)
        self.limiter = Limiter(store or MemoryStore(clock=self.clock, wall_clock=self.clock), deadline="30s")
        if "user" not in options:
            options["token"] = TOKEN
        self.dashboard = Dashboard(self.limiter, **options)
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
        self.app = Starlette(
            routes=[
                Mount("/slidegate", self.dashboard),
                Route("/", page),
                Route("/articles/{slug}", partial(page)),
                Route("/api/{rest:path}", partial(page)),
            ],
            middleware=[Middleware(RateLimitMiddleware, limiter=self.limiter, **options)],
        )

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
        sender: dict[str, Any] = {"query_string": query.encode(), "client": ("192.0.2.1", 99)}
        answer = await call(self.app, f"/slidegate/{path}", method, body, headers=sent, **sender)
        assert {name: answer.headers.get(name) for name in SECURITY} == SECURITY
        assert SECRET not in f"{answer.start} {answer.body.decode()}"
        return answer

    async def page(self, path: str = "") -> "Page":
        answer = await self.get(path)
        assert answer.status == 200, answer.body
        return Page(answer)

    async def submit(self, view: str, **form: str) -> Answer:
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


class Page(HTMLParser):
    """What a browser makes of a page: its elements, and its text in lines, with the cells of tables and the fields.

    No page has inline styles or scripts, which the policy forbids, or two rows in a table that its script mixes up.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.alerts: list[str] = []
        self._lines, self._rows = [""], set[str]()
        self.feed(answer.body.decode())

    @property
    def lines(self) -> list[str]:
        return [line for text in self._lines if (line := " ".join(text.split()).strip(" |"))]

    @property
    def text(self) -> str:
        return " ".join(self.lines)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        assert not [name for name in (tag, *given) if name == "style" or name.startswith("on")]
        if tag == "table":
            self._rows.clear()
        if (row := given.get("data-key")) is not None:
            assert row not in self._rows
            self._rows.add(row)
        assert tag != "script" or given == {"src": "static/page.js"}
        if tag in BLOCKS:
            self._lines.append("")
        elif tag in ("td", "th"):
            self._lines[-1] += " | "
        elif tag in FIELDS:
            bounds = f" {given['min']}.." if "min" in given else ""
            value = ascii(given.get("value") or "")[1:-1]
            self._lines[-1] += f" [{given.get('name', tag)}={value}{bounds}]"
        elif tag == "svg" and given.get("role") == "img":
            self._lines.append(f"({given['aria-label']})")
        if given.get("role") == "alert":
            self.alerts.append("")

    def handle_data(self, data: str) -> None:
        tag, attrs = self.tags[-1] if self.tags else ("", {})
        assert not UTC_TEXT.search(data), "the page's script shows times of elements alone in the reader's zone"
        if tag not in HIDDEN:
            self._lines[-1] += data
        if attrs.get("role") == "alert":
            self.alerts[-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "time":  # the page's script reads its attribute
            at = str(self.tags[-1][1]["datetime"]).replace("T", " ").removesuffix("Z")
            assert self._lines[-1].endswith(at)
        if tag == "dt":
            self._lines[-1] += ": "
        elif tag in BLOCKS:
            self._lines.append("")

    def names(self, tag: str, attribute: str) -> list[str]:
        return [str(attrs[attribute]) for found, attrs in self.tags if found == tag and attribute in attrs]


# -- transcripts: what visitors, users and scripts do, line by line ----------------------------------------------------


UNSTEADY = (
    (r"[\w.-]+:\d+:[0-9a-f]{8}", "WORKER"),
    (rf"{slidegate.__version__}(, compiled)?, Python [\w.+]+", "VERSION"),
    (rf"\b{socket.gethostname()} \| {os.getpid()}\b", "HOST | PID"),
)
"""What depends on the machine, and what stands for it."""
UTC_TEXT = re.compile("[0-9]{2}T[0-9:]{8}Z")


class Visitor:
    """Carries out the lines of a transcript: a verb and its words, some of them as ``name=value``."""

    def __init__(self, clock: FakeClock, home: Path) -> None:
        self.clock, self.home = clock, home
        self.site = Site(clock)
        self._kept: list[Any] = []
        self._shown: list[str] = []

    async def answer(self, line: str) -> str:
        verb, _, rest = line.partition(" ")
        shown: str = await getattr(self, f"_{verb}")(*([rest] if verb == "api" else shlex.split(rest))) or ""
        shown = shown.replace(str(self.home), "DIR")
        for pattern, steady in UNSTEADY:
            shown = re.sub(pattern, steady, shown)
        return shown

    async def _site(self, name: str = "") -> None:
        (self.home / "bad.netset").write_text("203.0.113.128/25\n198.51.100.0/24\n")
        bad = Networks.from_file(self.home / "bad.netset")
        kinds = [
            Rule(["/", "/b"], "5/minute; 50/hour", methods=["POST"], name="forms", wait="1s"),
            Rule("/articles/{slug}", lambda request: "7/minute", name="plans"),
            Rule("/old", block=True, status=410, name="old"),
            Rule("/api/{rest:path}", exempt=True, name="free"),
        ]
        plan = Rule("*", ["100/minute @7", "9/second", Quota("10/day")], concurrency=4, name="plan")
        wide = Rule("*", "9/hour", key=client_ip(ipv4_prefix=16), name="wide")
        options: dict[str, dict[str, Any]] = {
            "networks": {
                "middleware": {"client": client_ip(ipv4_prefix=25), "rules": [Rule("*", "3/minute", name="all"), wide]}
            },
            "": {},
            "read-only": {"changes": False},
            "strict": {"middleware": {"bans": BanPolicy("2/10m", "1h")}},
            "plan": {"middleware": {"rules": [plan]}},
            "kinds": {"middleware": {"rules": kinds, "blocklist": bad, "messages": slidegate.MessageLimits("10/s")}},
        }
        self.site = Site(self.clock, **options[name])

    async def _file(self, name: str = "file", limit: str = "4/s") -> None:
        """Add a middleware of a file, whose limit may have the name of another one."""
        file = self.home / "slidegate.toml"
        file.write_text(f'[[rules]]\npath = "/from/file"\nlimits = "{limit}"\nname = "{name}"\n')
        self._kept.append(RateLimitMiddleware.from_file(hello, file, limiter=self.site.limiter))

    async def _visit(self, path: str, *words: str) -> str:
        """Send requests, and return their statuses if not all have passed."""
        more = dict(word.split("=", 1) for word in words)
        statuses = await self.site.visit(path, int(more.pop("times", "1")), more.pop("client", "203.0.113.9"), **more)
        counted = ", ".join(f"{len([*same])} x {status}" for status, same in groupby(statuses))
        return "" if {*statuses} == {200} else counted

    async def _advance(self, span: str) -> None:
        """Advance the clock after everything that was counted is written."""
        await Statistics.of(self.site.limiter).publish()
        self.clock.advance(span)

    async def _ban(self, key: str, duration: str, reason: str = "", by: str = "manual") -> None:
        await self.site.limiter.ban(key, duration, reason=reason, by=by)

    async def _api(self, line: str) -> str:
        method, path, said = [*line.split(" ", 2), ""][:3]
        path, _, query = path.partition("?")
        fields = dict(pair.split("=", 1) for pair in query.split("&")) if query else {}
        status, found = await self.site.ask(method, path, json.loads(said) if said else None, **fields)
        return f"{status} {json.dumps(found)}"

    async def _send(self, method: str, *words: str) -> str:
        """Send a request with header fields and a body to each path, and return the statuses and which methods are."""
        fields: dict[str, Any] = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        body = fields.pop("body", "").encode()
        paths = [words[0], *(word for word in words[1:] if "=" not in word)]
        sent = {name: value or None for name, value in fields.items()}
        answers = [await self.site.send(method, path, body, **sent) for path in paths]
        return ", ".join(f"{answer.status} {answer.headers.get('allow', '')}".strip() for answer in answers)

    async def _page(self, path: str = "", begins: str = "", ends: str = "\0") -> str:
        """Return the lines of a page; or those from one that begins so, up to the next that begins so."""
        lines = (await self.site.page(path)).lines
        head = next(place for place, line in enumerate(lines) if line.endswith("UTC")) + 1
        self._shown = lines[head:]
        part = dropwhile(lambda line: not line.startswith(begins), self._shown)
        return "\n".join(takewhile(lambda line: not line.startswith(ends), part))

    async def _then(self, path: str = "") -> str:
        """Return how a page differs from the page before: the lines that are gone, and those that are new."""
        before = self._shown
        await self._page(path)
        return "\n".join(line for line in ndiff(before, self._shown) if line.startswith(("- ", "+ ")))

    async def _form(self, view: str, *words: str) -> str:
        """Send a form, and return where it leads, or the alerts of the page that shows it again."""
        answer = await self.site.submit(view, **dict(word.split("=", 1) for word in words))
        return f"{answer.status} {answer.headers.get('location') or ' '.join(Page(answer).alerts)}".strip()
