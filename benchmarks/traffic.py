"""Requests one after the other into an application, each timed by itself, with other code between two of them.

A worker does other things between two requests, and meanwhile the processor forgets: its caches, and its guesses at
branches. A request takes half as long again as in a loop of nothing but requests. The other code is not timed: taking
its time off afterwards would leave its noise in a difference that is ten times smaller.

The clock is the processor time of this process, which stands still while another program has the processor. On a very
busy machine a ratio was 1.3 by this clock, as on later runs, and 0.75 by the one on the wall.
"""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import re
import sys
from collections.abc import Callable, Iterable
from contextvars import Context
from decimal import Decimal
from random import Random
from time import perf_counter_ns, process_time_ns
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Scope

from .apps import CLIENTS, PROXY, TEMPLATES
from .asgi import Client, scope_of

now_ns: Final = perf_counter_ns if sys.platform == "win32" else process_time_ns
"""The clock. Windows counts processor time in steps of 16 ms."""


class Request(NamedTuple):
    """What one request asks for, and who asks."""

    path: str
    client: str


def path_of(number: int) -> str:
    """Return the path with this number; those that follow one another meet the routes in turn."""
    return TEMPLATES[number % len(TEMPLATES)].replace("{id}", str(number // len(TEMPLATES)))


def everyone_everywhere(first: int, count: int) -> list[Request]:
    """Return requests for so many paths; among 2,560 of them each client comes to each route."""
    routes = len(TEMPLATES)
    return [Request(path_of(first + at), CLIENTS[at // routes % len(CLIENTS)]) for at in range(count)]


def requests_of(turn: int, count: int, paths: range) -> list[Request]:
    """Return the requests of a round, the same for every candidate.

    Args:
        turn: The number of the round.
        count: The number of requests.
        paths: The numbers of their paths: as many as there are requests, or others to draw from.
    """
    chance = Random(turn)
    numbers = paths if len(paths) == count else (chance.choice(paths) for _ in range(count))
    return [Request(path_of(number), chance.choice(CLIENTS)) for number in numbers]


def request_scope(asked: Request, proxied: bool = False) -> Scope:
    """Return a request as a server hands it on, straight from its client or from a proxy."""
    if proxied:
        return scope_of(asked.path, PROXY, [(b"x-forwarded-for", asked.client.encode())])
    return scope_of(asked.path, asked.client)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts what is left for its next turn."""

    scheduled = 0

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)


async def timed(app: ASGIApp, requests: Iterable[Request], expected: int, proxied: bool, between: OtherCode) -> float:
    """Send requests one after the other; return the microseconds of one.

    What a request leaves to the event loop's next turn is timed with it, and what it leaves for later at the end.

    Raises:
        RuntimeError: An answer has another status than the expected one.
    """
    loop, client = asyncio.get_running_loop(), Client()
    assert isinstance(loop, CountingLoop)
    receive, send = client.receive, client.send
    count = taken_ns = 0
    for asked in requests:
        await between.run()
        scope = request_scope(asked, proxied)
        client.begin()
        loop.scheduled = 0
        began_ns = now_ns()
        await app(scope, receive, send)
        if loop.scheduled:
            await asyncio.sleep(0)
        taken_ns += now_ns() - began_ns
        count += 1
        if client.status != expected:
            raise RuntimeError(f"{asked.path} for {asked.client}: expected {expected}, got {client.status}")
    began_ns = now_ns()
    await asyncio.sleep(0)
    taken_ns += now_ns() - began_ns
    return taken_ns / count / 1_000


class OtherCode:
    """What a worker does between two requests: another small application, documents, text, and a walk over memory."""

    def __init__(self) -> None:
        chance = Random(1)
        self._text = json.dumps(
            [{"name": f"name {number}", "price": chance.randrange(10_000), "tags": ["a", "b"]} for number in range(12)]
        )
        self._memory = [str(chance.random()) for _ in range(100_000)]
        self._app = Starlette(routes=[Mount("/admin", routes=[Route("/{section}/reports/{day}", self._report)])])
        self._client = Client()
        self._turn = 0

    async def run(self) -> None:
        """Do a part of it, and answer a request of the other application."""
        self._turn += 1
        (self._documents, self._words)[self._turn % 2]()
        at = self._turn * 1_500 % 98_000
        sum(map(len, self._memory[at : at + 1_500]))
        self._client.begin()
        scope = scope_of(f"/admin/sales/reports/{self._turn}", "192.0.2.1")
        await self._app(scope, self._client.receive, self._client.send)

    def _documents(self) -> str:
        read = sorted(json.loads(self._text), key=lambda row: row["price"])
        total = sum((Decimal(row["price"]) for row in read), Decimal(0))
        return f"{total:,.2f}" + json.dumps({row["name"].title(): row for row in read}, sort_keys=True)

    def _words(self) -> str:
        page = re.sub(r"name (\d+)", lambda found: f"<b>{found[1]}</b>", html.escape(self._text[:400]))
        fields = parse_qsl(urlencode({"q": page[:80], "page": "2", "sort": "name"}))
        return hashlib.sha256(repr(fields).encode()).hexdigest()

    async def _report(self, request: StarletteRequest) -> JSONResponse:
        return JSONResponse({"section": request.path_params.get("section"), "agent": request.headers["user-agent"]})
