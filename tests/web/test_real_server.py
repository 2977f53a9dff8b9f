"""Through a real uvicorn on loopback: what only a server and a socket can show."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from slidegate import RateLimitMiddleware, Rule

BOUND_S = 20
"""How long a hang may last; nothing here takes as long as a second."""


class Site:
    """An application whose endpoints say what happened to them."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.task_done = threading.Event()
        self.asked = asyncio.Event()
        self.url = ""

    async def slow(self, request: Request) -> PlainTextResponse:
        async with asyncio.timeout(BOUND_S):
            while (await request.receive())["type"] != "http.disconnect":
                pass
        self.left.set()
        return PlainTextResponse("nobody reads this")

    async def task(self, request: Request) -> PlainTextResponse:
        async def work() -> None:
            async with asyncio.timeout(BOUND_S):
                await self.asked.wait()
            self.task_done.set()

        return PlainTextResponse("started", background=BackgroundTask(work))

    async def stream(self, request: Request) -> StreamingResponse:
        async def chunks() -> AsyncIterator[str]:
            yield "first"
            async with asyncio.timeout(BOUND_S):
                await self.asked.wait()
            yield "second"

        return StreamingResponse(chunks())

    async def ask(self, request: Request) -> PlainTextResponse:
        self.asked.set()
        return PlainTextResponse("asked")


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    app = Starlette(
        routes=[Route(f"/{page.__name__}", page) for page in (site.slow, site.task, site.stream, site.ask)],
        middleware=[
            Middleware(RateLimitMiddleware, rules=[Rule("/limited", "1/hour", name="limited"), Rule("*", "100/hour")])
        ],
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        site.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=BOUND_S))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            server.should_exit = True
            thread.join(BOUND_S)
            assert not thread.is_alive()


def test_a_disconnect_reaches_the_handler(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2])), BOUND_S) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nhost: app.test\r\n\r\n")
    assert site.left.wait(BOUND_S)


def test_a_background_task_ends_though_its_client_is_gone(site: Site) -> None:
    with httpx.Client(timeout=BOUND_S) as client:
        assert client.get(f"{site.url}/task").text == "started"
    assert not site.task_done.is_set()
    httpx.get(f"{site.url}/ask", timeout=BOUND_S)
    assert site.task_done.wait(BOUND_S)


def test_a_stream_is_not_buffered_and_others_are_served_meanwhile(site: Site) -> None:
    with httpx.Client(timeout=BOUND_S) as client, client.stream("GET", f"{site.url}/stream") as response:
        chunks = response.iter_text()
        assert next(chunks) == "first"
        assert httpx.get(f"{site.url}/ask", timeout=BOUND_S).text == "asked"
        assert "".join(chunks) == "second"
        assert response.headers["ratelimit"].startswith('"default";r=99')


def test_a_refused_upload_gets_its_429_without_a_100_continue(site: Site) -> None:
    assert httpx.get(f"{site.url}/limited", timeout=BOUND_S).status_code == 404
    request = b"POST /limited HTTP/1.1\r\nhost: app.test\r\nexpect: 100-continue\r\ncontent-length: 1073741824\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(site.url.rpartition(":")[2])), BOUND_S) as client:
        client.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            received = client.recv(65_536)
            assert received, head
            head += received
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 3600" in head
