"""Limits at endpoints and on messages behind real servers on loopback."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import hypercorn.asyncio
import hypercorn.config
import pytest
import uvicorn
from fastapi import Depends, FastAPI, WebSocket
from granian.constants import Interfaces
from granian.server.embed import Server as Granian
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from slidegate import Limiter, MessageLimits, Networks, RateLimit, RateLimitMiddleware, Rule, client_ip, mcp_tool

from ..asgi import page, scope_of
from ..redis_servers import free_port, until
from .test_charges import listens

BOUND_S = 20
"""How long a hang may last; nothing here takes as long as a second."""

Serve = Callable[[Any, int, asyncio.Event], Coroutine[Any, Any, None]]


def site(ended: threading.Event | None = None) -> FastAPI:
    app = FastAPI(middleware=[Middleware(RateLimitMiddleware, rules=[], messages=MessageLimits("3/hour"))])

    @app.get("/plain")
    @RateLimit("2/hour")
    def plain() -> str:
        return "hi"

    @app.websocket("/echo", dependencies=[Depends(RateLimit("2/hour"))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)
        if ended is not None:
            ended.set()

    return app


async def with_uvicorn(app: Any, port: int, stop: asyncio.Event, http: Literal["h11", "httptools"] = "h11") -> None:
    options: dict[str, Any] = {"log_level": "warning", "ws": "wsproto", "timeout_graceful_shutdown": BOUND_S}
    # By default uvicorn believes what peers on loopback write into X-Forwarded-For.
    config = uvicorn.Config(app, port=port, http=http, proxy_headers=False, **options)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await stop.wait()
    server.should_exit = True
    await serving


async def with_hypercorn(app: Any, port: int, stop: asyncio.Event) -> None:
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    await hypercorn.asyncio.serve(app, config, shutdown_trigger=stop.wait)


async def with_granian(app: Any, port: int, stop: asyncio.Event) -> None:
    server = Granian(app, address="127.0.0.1", port=port, interface=Interfaces.ASGI, log_enabled=False)
    serving = asyncio.create_task(server.serve())
    await stop.wait()
    server.stop()
    await serving


@contextmanager
def serving(serve: Serve, app: Any) -> Iterator[str]:
    """Serve an application in a thread, and say where."""
    port = free_port()
    ready: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        ready.append((asyncio.get_running_loop(), stop))
        await serve(app, port, stop)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    until(lambda: listens(port) or not thread.is_alive(), "the server listens")
    assert thread.is_alive(), "the server did not start"
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop, stop = ready[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(BOUND_S)
        assert not thread.is_alive()


OTHERS = {"hypercorn": with_hypercorn, "granian": with_granian, "httptools": partial(with_uvicorn, http="httptools")}
SERVERS = [with_uvicorn, *(pytest.param(serve, id=name, marks=pytest.mark.all) for name, serve in OTHERS.items())]
REQUEST: Final = b"GET /plain HTTP/1.1\r\nhost: app.test\r\nx-forwarded-for: 198.51.100.%d\r\n"
HANDSHAKE: Final = (
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def abort(host: str, request: bytes) -> None:
    """Send a request, and reset the connection before anybody can have read it."""
    name, _, port = host.rpartition(":")
    with socket.create_connection((name, int(port)), BOUND_S) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(request)


@pytest.mark.parametrize("serve", SERVERS)
@pytest.mark.parametrize(
    ("most", "forged", "options"),
    [
        (6, 60, {}),  # the client's own three, and three of all whose peer the server could not tell
        (0, 60, {"blocklist": Networks(["127.0.0.1"])}),
        (3, 1, {"client": client_ip(trusted=1)}),
    ],
)
def test_aborted_requests_stay_within_the_limit(serve: Serve, most: int, forged: int, options: dict[str, Any]) -> None:
    starts: list[str] = []
    routes = Starlette(routes=[Route("/plain", page)])

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        starts.append(scope["type"])
        await routes(scope, receive, send)

    headers = {"X-Forwarded-For": "198.51.100.1"}
    with serving(serve, RateLimitMiddleware(counting, limits="3/hour", **options)) as host:
        httpx.get(f"http://{host}/plain", headers=headers, timeout=BOUND_S)  # this server names peers
        for number in range(60):
            abort(host, REQUEST % (number % forged + 1) + (HANDSHAKE if number % 3 == 2 else b"") + b"\r\n")
        with httpx.Client(timeout=BOUND_S) as client:
            statuses = [client.get(f"http://{host}/plain", headers=headers).status_code for _ in range(5)]
    assert len(starts) - starts.count("lifespan") <= most
    assert statuses[-1] == (429 if most else 403)


@pytest.mark.parametrize("serve", SERVERS)
def test_limits_at_endpoints_and_on_messages_hold_behind_every_server(serve: Serve) -> None:
    ended = threading.Event()
    with serving(serve, site(ended)) as host:
        with httpx.Client(timeout=BOUND_S) as client:
            answers = [client.get(f"http://{host}/plain") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["ratelimit"].endswith('plain";r=1;t=3600')
        assert 3_000 < int(answers[2].headers["retry-after"]) <= 3_600
        assert answers[2].headers["cache-control"] == "no-store"
        with connect(f"ws://{host}/echo", open_timeout=BOUND_S) as websocket:
            for text in "abcd":
                websocket.send(text)
            assert [websocket.recv(BOUND_S) for _ in range(3)] == ["a", "b", "c"]
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(BOUND_S)
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "message limit exceeded")
            assert ended.wait(BOUND_S), "it gets a disconnect"


def test_a_client_reads_the_429_of_a_refused_handshake() -> None:
    with serving(with_uvicorn, site()) as host:
        for _ in range(2):
            with connect(f"ws://{host}/echo", open_timeout=BOUND_S) as client:
                client.send("hi")
                assert client.recv(BOUND_S) == "hi"
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{host}/echo", open_timeout=BOUND_S)
    response = refused.value.response
    assert response.status_code == 429
    assert 3_000 < int(response.headers["retry-after"]) <= 3_600
    assert b"No more than 2 per 1h" in (response.body or b"")


# -- tools of MCP servers: a field that lies, is repeated or left out buys nothing -------------------------------------


NOW = "2026-07-28"
TOOLS = mcp_tool("search", "export", "tröt", validated=True)
SHARED, OLDER = "mcp_tool:*", "mcp_tool:*older"


FIELDS = [(b"mcp-protocol-version", NOW.encode()), (b"mcp-method", b"tools/call"), (b"mcp-name", b"search")]
LEAVING_ONE_OUT = [[one for one in FIELDS if one is not left_out] for left_out in FIELDS]
VALUES = st.sampled_from([b"", NOW.encode(), b"tools/call", b"search", b"=?base64?ZXhwb3J0?="]) | st.binary(max_size=80)
MORE = st.lists(st.tuples(st.sampled_from([*(name for name, _ in FIELDS), b"x-other"]), VALUES), max_size=5)


@given(st.sampled_from([[], FIELDS, *LEAVING_ONE_OUT]), MORE)
def test_whatever_fields_a_client_sends_there_are_no_more_keys_than_tools(
    valid: list[tuple[bytes, bytes]], more: list[tuple[bytes, bytes]]
) -> None:
    """A call with a field missing, empty or repeated may be of any tool."""
    scope = scope_of("/mcp", "POST", headers=valid + more)
    found = TOOLS.read(scope, Limiter(), "client")
    assert found in {SHARED, OLDER, *(f"mcp_tool:{name}" for name in TOOLS.names)}
    revisions, methods, names = ([value for name, value in valid + more if name == field] for field, _ in FIELDS)
    once = [len(values) == 1 and values != [b""] for values in (revisions, methods, names)]
    assert found in (SHARED, OLDER) or all(once)
    assert (found == OLDER) <= (len(revisions) <= 1)
    if not all(once) and (methods == [b"tools/call"] or not once[1]):
        assert [TOOLS.is_in(name).is_true(scope, "client") for name in TOOLS.names] == [None] * 3


@asynccontextmanager
async def served(*rules: Rule) -> AsyncIterator[str]:
    """Serve a real MCP server behind some rules; yields its URL."""
    server = MCPServer("tools")

    @server.tool()
    def search(text: str) -> str:
        return f"found {text}"

    @server.tool()
    def export(rows: int) -> str:
        return f"{rows} rows"

    app = server.streamable_http_app(json_response=True)
    app.add_middleware(RateLimitMiddleware, rules=rules)
    with serving(with_uvicorn, app) as host:
        yield f"http://{host}/mcp"


async def test_a_lying_call_is_rejected_by_the_server_and_counted_under_the_tool_that_it_names() -> None:
    tools = mcp_tool("search", "export", validated=True)
    about = {"protocolVersion": NOW, "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    meta = {f"io.modelcontextprotocol/{name}": value for name, value in about.items()}

    def called(name: str, **arguments: object) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments, "_meta": meta}
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    lie, truth = called("export", rows=1), called("search", text="a")
    sent = {"accept": "application/json, text/event-stream", "mcp-protocol-version": NOW, "mcp-method": "tools/call"}
    encoded = f"=?base64?{b64encode(b'search').decode()}?="
    async with served(Rule("/mcp", "2/hour", key=tools)) as url, httpx.AsyncClient() as client:

        async def post(body: object, name: str) -> int:
            return (await client.post(url, json=body, headers=sent | {"mcp-name": name})).status_code

        assert await post(truth, encoded) == 200
        assert await post(lie, "search") == 400
        assert await post(lie, encoded) == 429
        refused = await client.post(url, json=truth, headers=sent | {"mcp-name": "search"})
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 3_500
        assert await post(lie | {"params": {}}, "export") == 400


# -- servers with several workers, which count apart in memory ---------------------------------------------------------


SERVED = """
from fastapi import FastAPI
from slidegate import RateLimitMiddleware

app = FastAPI()
app.add_middleware(RateLimitMiddleware, limits="5/minute")
app.add_api_route("/", lambda: 1)
if __name__ == "__main__":
    import sys, uvicorn

    uvicorn.run("served:app", port=int(sys.argv[1]), workers=3)
"""
GUNICORN = "-m gunicorn -k uvicorn_worker.UvicornWorker"
SEVERAL = {
    "uvicorn": "-m uvicorn served:app --workers 3 --port {port}",
    "uvicorn in code": "served.py {port}",
    "gunicorn": f"{GUNICORN} -w 3 served:app -b 127.0.0.1:{{port}}",
    "a file of gunicorn": f"{GUNICORN} -c three.py served:app -b 127.0.0.1:{{port}}",
    "hypercorn": "-m hypercorn -w 3 served:app -b 127.0.0.1:{port}",
}
ONE = {
    "uvicorn": "-m uvicorn served:app --port {port}",
    "uvicorn that reloads": "-m uvicorn served:app --reload --workers 3 --port {port}",
    "gunicorn": f"{GUNICORN} -w 1 served:app -b 127.0.0.1:{{port}}",
    "hypercorn": "-m hypercorn -w 1 served:app -b 127.0.0.1:{port}",
    "hypercorn that reloads": "-m hypercorn --reload served:app -b 127.0.0.1:{port}",
}


@pytest.mark.all
@pytest.mark.skipif(sys.platform == "win32", reason="Gunicorn needs POSIX")
@pytest.mark.parametrize(
    ("command", "workers"), [*((each, 3) for each in SEVERAL.values()), *((each, 1) for each in ONE.values())]
)
def test_several_workers_are_reported_however_they_were_started(
    command: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "served.py").write_text(SERVED)
    (tmp_path / "three.py").write_text("workers = 3")
    port, log = free_port(), tmp_path / "log"
    with log.open("wb") as file:
        words = [sys.executable, *command.format(port=port).split()]
        server = subprocess.Popen(words, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True)
    try:
        until(lambda: listens(port) or server.poll() is not None, "the server listens")
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=BOUND_S).status_code == 200
        if workers > 1:
            until(lambda: f"SG103: limits are per process: with {workers} workers" in log.read_text(), "the line")
        assert ("SG103" in log.read_text()) is (workers > 1)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(BOUND_S)
