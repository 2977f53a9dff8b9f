"""What waits for a pause, or fails there, holds no connection: another request finds it free in a pool that has one.

A store that hangs delays a request by its deadline, also one whose response asks for a pause.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from slidegate import Limiter
from slidegate.core import StoreUnavailable
from slidegate.testing import RecordingObserver

from ..redis_servers import AT_REDIS, RedisServer
from .conftest import ASYNC, SYNC, Kind

BOUND_S = 10.0
"""Far below how long a command of an operator waits, 30 s, and a hung store for an answer of its server."""
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


# -- stores that hang --------------------------------------------------------------------------------------------------


@contextmanager
def hung(kind: str, path: Path, **options: Any) -> Iterator[Limiter]:
    """Give a limiter whose store has answered and now hangs: its server, or another process that holds its files."""
    if kind == "redis":
        with RedisServer() as server:
            limiter = Limiter.from_url(f"{server.url}?timeout=20s", **options)
            assert limiter.sync.hit("k", "5/minute")
            server.pause()
            yield limiter
            server.resume()
            limiter.sync.close()
        return
    fcntl = pytest.importorskip("fcntl")
    limiter = Limiter.from_url(f"lmdb://{path}/store", **options)
    assert limiter.sync.hit("k", "5/minute")
    with (path / "store" / "gate").open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield limiter
    limiter.sync.close()


@contextmanager
def getting(kind: Kind, limiter: Limiter) -> Iterator[Callable[[], Any]]:
    """Give what sends a request by a client of a kind, whose server asks for a pause, and waits for the response."""
    answering = kind.httpx.MockTransport(lambda request: kind.httpx.Response(429, headers={"Retry-After": "60"}))
    client = kind.client(limits="9/hour", limiter=limiter, transport=answering)
    if kind.is_sync:
        with client:
            yield lambda: client.get("http://api.example.com/")
        return
    with asyncio.Runner() as runner:
        yield lambda: runner.run(client.get("http://api.example.com/"))
        runner.run(client.aclose())


@pytest.mark.parametrize("store", ["lmdb", AT_REDIS])
@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
def test_a_pause_that_cannot_be_stored_delays_a_response_by_the_deadline(
    kind: Kind, store: str, on_error: str, tmp_path: Path
) -> None:
    """With "local" this process observes it."""
    observer = RecordingObserver(without=["refused"])
    with hung(store, tmp_path, on_error=on_error, observers=[observer]) as limiter, getting(kind, limiter) as get:
        began_s = monotonic()
        if on_error != "deny":
            assert get().status_code == 429
        if on_error != "allow":
            with pytest.raises(kind.limited.TurnTimeout, match={"local": "banned", "deny": "unavailable"}[on_error]):
                get()
        assert monotonic() - began_s < BOUND_S
    told = [event.message for event in observer.events if event.kind == "pause_unshared"]
    unshared = "'to:api.example.com' requested a pause of 60 s, which is not observed: "
    assert told == ([f"{unshared}StoreUnavailable('the store did not answer')"] if on_error == "allow" else [])
