"""Print which functions of slidegate one request goes through, in their order: the traces in docs/design.md.

Run it from anywhere: ``python scripts/trace_request.py`` prints the traces, and with ``--write`` it puts them into the
page. Each request goes to an application of its own, after others that fill its memos and end its start-up findings.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

import slidegate
from slidegate import BanPolicy, RateLimitMiddleware, Rule, strike
from slidegate.web.findings.first_requests import WATCHED

HOME: Final = Path(slidegate.__file__).resolve().parent
PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "design.md"
FENCE: Final = re.compile(r"(?<=```text\n)admitted:.*?(?=```)", re.DOTALL)
PLENTY: Final = 1_000_000
PEER: Final = "192.0.2.1"


class Call(NamedTuple):
    """A function that was called: its file below src/slidegate, and its qualified name."""

    file: str
    function: str


class Trace(NamedTuple):
    """The functions that one request called."""

    status: int
    calls: list[Call]

    @property
    def files(self) -> list[str]:
        """The files that the functions stand in, in the order in which they were met."""
        return list(dict.fromkeys(call.file for call in self.calls))


async def page(request: Request) -> PlainTextResponse:
    """Answer, after a strike if the request asks for one."""
    if "strike" in request.query_params:
        await strike(request, "ban")
    return PlainTextResponse("hi")


def gate(amount: int, **options: Any) -> ASGIApp:
    """Return an application behind a gate."""
    app = Starlette(routes=[Route("/", page)])
    app.add_middleware(RateLimitMiddleware, rules=[Rule("*", f"{amount}/hour")], **options)
    return app


async def ask(app: ASGIApp, query: bytes = b"") -> int:
    """Send one request, and return the status of its answer."""
    sent: list[Message] = []
    scope: Scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/", "raw_path": b"/",
        "root_path": "", "query_string": query, "headers": [(b"host", b"example.org")], "client": (PEER, 50_000),
        "server": ("127.0.0.1", 8000),
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


async def traced(app: ASGIApp) -> Trace:
    """Send one request, and return its trace."""
    calls: list[Call] = []
    entered: set[FrameType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(HOME)) or code.co_name.startswith("<"):
            return
        if code.co_flags & inspect.CO_COROUTINE:
            if frame in entered:
                return  # a coroutine goes on
            entered.add(frame)
        calls.append(Call(Path(code.co_filename).relative_to(HOME).as_posix(), code.co_qualname))

    sys.setprofile(note)
    try:
        status = await ask(app)
    finally:
        sys.setprofile(None)
    return Trace(status, calls)


async def traces() -> dict[str, Trace]:
    """Return the traces of the four kinds of requests."""
    admitted, refused = gate(PLENTY), gate(2)
    banned = gate(PLENTY, bans=BanPolicy(ban_private=True))
    striking = gate(2, bans=BanPolicy(f"{2 * WATCHED}/10m", ban_private=True))
    for app in (admitted, refused, banned, striking):
        for _ in range(WATCHED + 1):
            await ask(app)
    await ask(banned, b"strike=1")
    await ask(banned)
    return {
        "admitted": await traced(admitted),
        "refused": await traced(refused),
        "banned": await traced(banned),
        "refused, with a strike": await traced(striking),
    }


def lines(trace: Trace) -> Iterator[str]:
    """Yield a line for each stretch of calls in one file."""
    for file, calls in groupby(trace.calls, key=lambda call: call.file):
        names = " > ".join(call.function.rpartition("<locals>.")[2] for call in calls)
        yield f"{file}: {names}"


def text() -> str:
    """Return the traces as they stand in docs/design.md."""
    parts = []
    for name, trace in asyncio.run(traces()).items():
        head = f"{name}: {trace.status}, {len(trace.calls)} calls in {len(trace.files)} files"
        parts.append("\n".join([head, *(f"    {line}" for line in lines(trace))]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(FENCE.sub(lambda _: text(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(text(), end="")
