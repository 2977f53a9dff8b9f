"""Sends sequential requests to an application, each timed separately, with other code in between.

A worker runs other code between two requests, which evicts caches and branch predictions of the processor. A request
then takes 1.5 times as long as in a loop of only requests. The other code is excluded from the measurement: if its time
were subtracted afterwards, its noise would remain in a difference that is ten times smaller.

The clock is the processor time of this process, which excludes the time of other programs. On a very busy machine a
ratio was 1.3 by this clock, as on later runs, but 0.75 by the wall clock.
"""

import asyncio
import hashlib
import html
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import Context
from random import Random
from time import perf_counter_ns, process_time_ns
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

now_ns: Final = perf_counter_ns if sys.platform == "win32" else process_time_ns
"""The clock. Processor time on Windows has a resolution of 16 ms, so the wall clock is used there."""
TEMPLATES: Final = (
    *("/items/{id}", "/users/{id}", "/users/{id}/orders", "/api/orders/{id}", "/api/invoices/{id}"),
    *("/api/carts/{id}/lines", "/export/{id}", "/pages/{id}", "/search/{id}", "/files/{id}/info"),
)
NEW: Final = 1_000_000
"""The number of the first path that was never requested before."""
HEADERS: Final = (
    (b"host", b"app.test"),
    (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64) benchmark"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"connection", b"keep-alive"),
)


def path_of(number: int) -> str:
    """Return the path with this number; consecutive paths match the routes in turn."""
    return TEMPLATES[number % len(TEMPLATES)].replace("{id}", str(number // len(TEMPLATES)))


def client_of(number: int) -> str:
    """Return the address of a client."""
    return f"203.0.113.{number}" if number < 256 else f"100.64.{number // 256}.{number % 256}"


def scope_of(path: str, peer: str, *headers: tuple[bytes, bytes]) -> Scope:
    """Return the scope of a GET request, in which every object is new."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "".join(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*HEADERS, *headers],
        "client": (peer, 4711),
        "server": ("127.0.0.1", 80),
    }


class Traffic(NamedTuple):
    """The requests that a candidate gets.

    Attributes:
        clients: The number of clients.
        paths: The number of paths.
        keys: The number of values of X-API-Key, of which each client has its share; without the field if 0.
        new_paths: Whether every path is requested only once.
        proxy: The peer of all requests, whose clients a header field names; empty for none.
    """

    clients: int = 256
    paths: int = 10_000
    keys: int = 0
    new_paths: bool = False
    proxy: str = ""

    def scope(self, path: int, client: str, key: int = 0) -> Scope:
        """Return the scope of one request."""
        fields = []
        if self.keys:
            fields.append((b"x-api-key", b"key-%d" % key))
        if not self.proxy:
            return scope_of(path_of(path), client, *fields)
        return scope_of(path_of(path), self.proxy, (b"x-forwarded-for", client.encode()), *fields)

    def warm_up(self) -> Iterator[Scope]:
        """Yield requests of every client to every route, and for every path."""
        first, routes = NEW if self.new_paths else 0, len(TEMPLATES)
        for number in range(max(self.paths, self.clients * routes)):
            client = number // routes % self.clients
            yield self.scope(first + number % self.paths, client_of(client), self._key(client, number))

    def round(self, turn: int, count: int) -> Iterator[Scope]:
        """Yield the requests of a round, the same for every candidate."""
        chance = Random(turn)
        for number in range(count):
            path = 2 * NEW + turn * count + number if self.new_paths else chance.randrange(self.paths)
            client = chance.randrange(self.clients)
            yield self.scope(path, client_of(client), self._key(client, chance.randrange(max(1, self.keys))))

    def _key(self, client: int, number: int) -> int:
        """Return the number of one of the keys of a client."""
        return client + number % max(1, self.keys // self.clients) * self.clients


class Client:
    """The client of an application, which sends no body."""

    status = 0

    async def ask(self, app: ASGIApp, scope: Scope) -> int:
        """Send a request; return the status of the response."""
        self.status = 0
        await app(scope, self.receive, self.send)
        return self.status

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the callbacks scheduled for its next iteration."""

    scheduled = 0

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        self.scheduled += 1
        return super().call_soon(callback, *args, context=context)


async def timed(app: ASGIApp, scopes: Iterator[Scope], count: int, expected: int) -> float:
    """Send requests sequentially; return the microseconds per request.

    Callbacks that a request schedules for the next loop iteration are timed with it, later ones at the end.
    """
    loop, client, taken_ns = asyncio.get_running_loop(), Client(), 0
    assert isinstance(loop, CountingLoop)
    for number in range(count):
        await other_code(number)
        scope = next(scopes)
        loop.scheduled = 0
        began_ns = now_ns()
        status = await client.ask(app, scope)
        if loop.scheduled:
            await asyncio.sleep(0)
        taken_ns += now_ns() - began_ns
        if status != expected:
            raise RuntimeError(f"{scope['path']} for {scope['client']}: expected {expected}, got {status}")
    began_ns = now_ns()
    await asyncio.sleep(0)
    return (taken_ns + now_ns() - began_ns) / count / 1_000


async def report(request: Request) -> JSONResponse:
    return JSONResponse({"section": request.path_params["section"], "agent": request.headers["user-agent"]})


OTHER_APP: Final = Starlette(routes=[Route("/admin/{section}/reports/{day}", report)])
TEXT: Final = json.dumps([{"name": f"name {number}", "price": number * 7 % 12, "tags": []} for number in range(12)])
MEMORY: Final = [str(number * 0.7) for number in range(100_000)]


async def other_code(turn: int) -> None:
    """Run what a worker runs between two requests: another application, JSON, text, memory accesses."""
    rows = sorted(json.loads(TEXT), key=lambda row: row["price"])
    page = re.sub(r"name (\d+)", lambda found: f"<b>{found[1]}</b>", html.escape(TEXT[:400]))
    hashlib.sha256(urlencode({"q": page[:80], "rows": json.dumps(rows, sort_keys=True)}).encode()).hexdigest()
    at = turn * 1_500 % 98_000
    sum(map(len, MEMORY[at : at + 1_500]))
    await Client().ask(OTHER_APP, scope_of(f"/admin/sales/reports/{turn}", "192.0.2.1"))
