"""What waits for a pause, or fails there, holds no connection: another request finds it free in a pool that has one."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.core import StoreUnavailable

from .kinds import ASYNC, SYNC, Kind

BOUND_S = 10.0
BODY = b"slow down"
KEY = "to:paused"


class Handler(BaseHTTPRequestHandler):
    """Answers /free and all that comes after a pause with 200, and the first request for a pause."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        if self.path == "/free" or self.server.pauses.is_set():
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.pauses.set()
        self.send_response(429)
        self.send_header("Retry-After", "30")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(self.server.body)
        if self.server.body != BODY:
            self.server.over.wait(BOUND_S)

    def log_message(self, *said: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server whose first answer asks for a pause.

    Attributes:
        body: As much of its body as comes.
        pauses: Whether it was asked.
        over: Whether the test is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.pauses, self.over = threading.Event(), threading.Event()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("slidegate._outbound.LOOK_EVERY_S", 0.02)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


class Client:
    """A client of some kind, with a pool of one connection, and its limiter."""

    def __init__(self, kind: Kind, server: Server) -> None:
        self.kind, self.server = kind, server
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.limiter = Limiter()
        self.client = kind.client(
            limits="1000/second",
            key=lambda request: None if request.url.path == "/free" else "paused",
            limiter=self.limiter,
            wait="10m",
            transport=kind.inner(limits=kind.httpx.Limits(max_connections=1)),
        )

    async def call(self, name: str, *arguments: Any) -> Any:
        return await self.kind.call(self.client, name, *arguments)

    async def send(self) -> Any:
        """Send a request that is paused."""
        return await self.call("get", f"{self.url}/paused")

    async def begin(self) -> "asyncio.Task[Any]":
        """Begin to send it in a task, and come back when the server has it."""
        task = asyncio.create_task(self.send())
        assert await asyncio.to_thread(self.server.pauses.wait, BOUND_S)
        return task

    async def unban(self) -> None:
        """End the pause, when there is one."""
        async with asyncio.timeout(BOUND_S):
            while not await self.limiter.unban(KEY):  # noqa: ASYNC110 - bans are no event of asyncio
                await asyncio.sleep(0.01)

    async def get_free(self) -> int:
        """Return the status of another request, which waits up to five seconds for a connection."""
        return (await self.call("get", f"{self.url}/free")).status_code


@pytest.fixture
async def made(kind: Kind, server: Server) -> AsyncIterator[Client]:
    made = Client(kind, server)
    yield made
    await made.call("aclose")
    await made.limiter.close()


@pytest.mark.parametrize("body", [BODY, b"slow", b""])
async def test_while_a_request_waits_for_the_end_of_a_pause(made: Client, server: Server, body: bytes) -> None:
    """It may be that the body does not come."""
    server.body = body
    waiting = await made.begin()
    assert await made.get_free() == 200
    await made.unban()
    assert (await waiting).status_code == 200


@pytest.mark.parametrize(
    ("kind", "ends"),
    [*((kind, StoreUnavailable) for kind in (*ASYNC, *SYNC)), *((kind, asyncio.CancelledError) for kind in ASYNC)],
    ids=str,
)
async def test_when_what_it_waits_for_fails_or_it_is_cancelled(made: Client, ends: type[BaseException]) -> None:
    waiting = await made.begin()
    assert await made.get_free() == 200
    if ends is StoreUnavailable:
        await made.limiter.close()
    else:
        waiting.cancel()
    with pytest.raises(ends):
        await waiting
    assert await made.get_free() == 200


@pytest.mark.parametrize("kind", SYNC, ids=str)
async def test_when_a_thread_is_interrupted(made: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(span_s: float) -> None:
        raise InterruptedError

    monkeypatch.setattr("slidegate._outbound.time.sleep", interrupted)
    with pytest.raises(InterruptedError):
        await made.send()
    assert await made.get_free() == 200
