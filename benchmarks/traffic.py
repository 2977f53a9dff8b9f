"""Sends sequential requests to an application, each timed separately, with other code in between.

A worker runs other code between two requests, which evicts caches and branch predictions of the processor. A request
then takes 1.5 times as long as in a loop of only requests. The other code is excluded from the measurement: if its time
were subtracted afterwards, its noise would remain in a difference that is ten times smaller.

The clock is the processor time of this process, which excludes the time of other programs. On a very busy machine a
ratio was 1.3 by this clock, as on later runs, but 0.75 by the wall clock.
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
"""The clock. Processor time on Windows has a resolution of 16 ms, so the wall clock is used there."""


class Request(NamedTuple):
    """The path and the client of one request."""

    path: str
    client: str


def path_of(number: int) -> str:
    """Return the path with this number; consecutive paths match the routes in turn."""
    return TEMPLATES[number % len(TEMPLATES)].replace("{id}", str(number // len(TEMPLATES)))


def everyone_everywhere(first: int, count: int) -> list[Request]:
    """Return requests for `count` paths; 2,560 of them cover each pair of client and route."""
    routes = len(TEMPLATES)
    return [Request(path_of(first + at), CLIENTS[at // routes % len(CLIENTS)]) for at in range(count)]


def requests_of(turn: int, count: int, paths: range) -> list[Request]:
    """Return the requests of a round, the same for every candidate.

    Args:
        turn: The number of the round.
        count: The number of requests.
        paths: The numbers of their paths, if there are `count` of them; otherwise the range to draw from.
    """
    chance = Random(turn)
    numbers = paths if len(paths) == count else (chance.choice(paths) for _ in range(count))
    return [Request(path_of(number), chance.choice(CLIENTS)) for number in numbers]


def request_scope(asked: Request, proxied: bool = False) -> Scope:
    """Return the scope of a request that comes directly from its client or through a proxy."""
    if proxied:
        return scope_of(asked.path, PROXY, [(b"x-forwarded-for", asked.client.encode())])
    return scope_of(asked.path, asked.client)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the callbacks scheduled for its next iteration."""

    scheduled = 0

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)


async def timed(app: ASGIApp, requests: Iterable[Request], expected: int, proxied: bool, between: OtherCode) -> float:
    """Send requests sequentially; return the microseconds per request.

    Callbacks that a request schedules for the next loop iteration are timed with it, later ones at the end.

    Raises:
        RuntimeError: A response has an unexpected status.
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
    """The code between two requests: another small application, JSON, text processing, and memory accesses."""

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
        """Run a part of it, and a request to the other application."""
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
