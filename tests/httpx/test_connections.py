"""What waits for a pause, or fails there, holds no connection: another request finds it free in a pool that has one."""

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import pytest

from slidegate import Limiter
from slidegate.core import Event, StoreUnavailable

from ..redis_servers import BOUND_S, RedisServer, needs_redis
from .kinds import ASYNC, SYNC, Kind

SHORT = b"slow down"
LONG = bytes(range(256)) * 1_000
KEY = "to:paused"
SIZED = {"Content-Length": str(len(SHORT))}
Answer: TypeAlias = tuple[dict[str, str], list[bytes]]
BODIES: dict[str, Answer] = {
    "empty": ({"Content-Length": "0"}, []),
    "short": (SIZED, [SHORT]),
    "in parts": (SIZED, [SHORT[:4], SHORT[4:]]),
    "in chunks": ({"Transfer-Encoding": "chunked"}, [b"4\r\nslow\r\n", b"5\r\n down\r\n0\r\n\r\n"]),
    "packed": ({"Content-Encoding": "gzip", "Content-Length": str(len(gzip.compress(SHORT)))}, [gzip.compress(SHORT)]),
}


class Handler(BaseHTTPRequestHandler):
    """Answers /free and all that comes after a pause with 200, and the first request for a pause."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/free" or self.server.pauses.is_set():
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.server.pauses.set()
        self.server.meanwhile()
        fields, parts = self.server.answer
        self.send_response(429)
        self.send_header("Retry-After", "30")
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
        if not parts and int(fields.get("Content-Length", 0)):
            self.server.over.wait(BOUND_S)

    do_POST = do_GET

    def log_message(self, *said: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server whose first answer asks for a pause.

    Attributes:
        answer: The fields and the parts of the body of that.
        pauses: Whether it was asked.
        meanwhile: What happens before it answers.
        over: Whether the test is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = BODIES["short"]
        self.pauses, self.over = threading.Event(), threading.Event()
        self.meanwhile: Callable[[], None] = lambda: None


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

    def __init__(self, kind: Kind, server: Server, store: str = "memory://", **options: Any) -> None:
        self.kind, self.server = kind, server
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.banned = threading.Event()
        self.limiter = Limiter.from_url(store, deadline="60s", observers=[self._hear])
        options = {"limits": "1000/second", "key": _key, "limiter": self.limiter, "wait": "10m", **options}
        one = kind.inner(limits=kind.httpx.Limits(max_connections=1))
        self.client = kind.client(transport=one, **options)

    def _hear(self, event: Event) -> None:
        if event.kind == "banned":
            self.banned.set()

    async def call(self, name: str, *arguments: Any, of: Any = None, **options: Any) -> Any:
        """Call a method of the client, or of a response."""
        return await self.kind.call(of or self.client, name, *arguments, **options)

    async def send(self, method: str = "GET", **options: Any) -> Any:
        """Send a request that may be paused, and return the response before its body is read."""
        return await self.call("send", self.client.build_request(method, f"{self.url}/paused", **options), stream=True)

    async def begin(self) -> "asyncio.Task[Any]":
        """Begin to send it in a task, and come back when the server has it."""
        task = asyncio.create_task(self.send())
        assert await asyncio.to_thread(self.server.pauses.wait, BOUND_S)
        return task

    async def unban(self) -> None:
        """End the pause, when there is one."""
        assert await asyncio.to_thread(self.banned.wait, BOUND_S)
        assert await self.limiter.unban(KEY)

    async def get_free(self) -> int:
        """Return the status of another request, which waits up to five seconds for a connection."""
        return (await self.call("get", f"{self.url}/free")).status_code


def _key(request: Any) -> str | None:
    return None if request.url.path == "/free" else "paused"


MakeClient: TypeAlias = Callable[..., Client]


@pytest.fixture
async def client(kind: Kind, server: Server) -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(**options: Any) -> Client:
        made.append(Client(kind, server, **options))
        return made[-1]

    yield make
    for one in made:
        await one.call("aclose")
        await one.limiter.close()


@pytest.mark.parametrize("body", BODIES)
async def test_while_a_request_waits_for_the_end_of_a_pause(client: MakeClient, server: Server, body: str) -> None:
    server.answer = BODIES[body]
    made = client()
    waiting = await made.begin()
    assert await made.get_free() == 200
    await made.unban()
    assert (await waiting).status_code == 200


async def test_when_what_it_waits_for_fails(client: MakeClient) -> None:
    made = client()
    waiting = await made.begin()
    assert await made.get_free() == 200
    await made.limiter.close()
    with pytest.raises(StoreUnavailable):
        await waiting
    assert await made.get_free() == 200


@pytest.mark.parametrize("kind", ASYNC, ids=str)
async def test_when_it_is_cancelled(client: MakeClient) -> None:
    made = client()
    waiting = await made.begin()
    assert await made.get_free() == 200
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await made.get_free() == 200


@pytest.mark.parametrize("kind", SYNC, ids=str)
async def test_when_a_thread_is_interrupted(client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(span_s: float) -> None:
        raise InterruptedError

    monkeypatch.setattr("slidegate._outbound.time.sleep", interrupted)
    made = client()
    with pytest.raises(InterruptedError):
        await made.send()
    assert await made.get_free() == 200


ONCE: dict[str, Any] = {"retries": 0}
NOT_SO_LONG: dict[str, Any] = {"wait": "1s"}


@pytest.mark.parametrize(
    ("body", "options"), [*((body, NOT_SO_LONG) for body in BODIES), ("short", ONCE), ("in chunks", ONCE)]
)
async def test_when_the_caller_gets_the_response(
    client: MakeClient, server: Server, body: str, options: dict[str, Any]
) -> None:
    server.answer = BODIES[body]
    made = client(**options)
    await _is_free_beside(made, await made.send(), b"" if body == "empty" else SHORT)


async def test_when_a_request_cannot_be_sent_again(client: MakeClient) -> None:
    made = client()
    content: Any = iter([b"once"]) if made.kind.is_sync else _in_parts(b"once")
    await _is_free_beside(made, await made.send("POST", content=content, headers={"Content-Length": "4"}), SHORT)


async def _is_free_beside(made: Client, response: Any, body: bytes) -> None:
    assert await made.get_free() == 200
    assert response.status_code == 429
    assert await made.call("aread", of=response) == body


async def _in_parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@needs_redis
@pytest.mark.parametrize("retries", [0, 1])
async def test_while_a_store_does_not_answer_that_is_told_of_the_pause(
    client: MakeClient, server: Server, retries: int
) -> None:
    with RedisServer() as redis:
        server.meanwhile = redis.pause
        made = client(store=redis.url, retries=retries)
        waiting = await made.begin()
        assert await made.get_free() == 200
        redis.resume()
        if retries:
            await made.unban()
        assert (await waiting).status_code == (200 if retries else 429)
        await made.limiter.close()


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("body", ["long", "slow"])
async def test_a_response_with_a_long_or_slow_body_is_returned_as_it_is(
    client: MakeClient, server: Server, body: str, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LONG if body == "long" else SHORT
    server.answer = ({"Content-Length": str(len(whole))}, [whole])
    if body == "slow":
        monkeypatch.setattr("slidegate._outbound._READ_WITHIN_S", 0)
    made = client()
    response = await made.send()
    assert response.status_code == 429
    if is_read:
        assert await made.call("aread", of=response) == whole
    await made.call("aclose", of=response)
    assert await made.get_free() == 200


@pytest.mark.parametrize("kind", ASYNC, ids=str)
async def test_when_it_is_cancelled_before_the_body_has_come(client: MakeClient, server: Server) -> None:
    server.answer = ({"Content-Length": "9"}, [])
    made = client()
    waiting = await made.begin()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await made.get_free() == 200


async def test_when_the_body_does_not_come(client: MakeClient, server: Server) -> None:
    server.answer = ({"Content-Length": "9"}, [])
    made = client()
    httpx = made.kind.httpx
    made.client.timeout = httpx.Timeout(5, read=0.2)
    with pytest.raises(httpx.ReadTimeout):
        await made.send()
    assert await made.get_free() == 200
