"""Requests that wait for room are refused when their server is told to end, which waits for its last requests."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.web import server_end, waiting
from slidegate.web.server_end import ServerEnd

from ..asgi import call, hello, statuses
from ..redis_servers import free_port, until
from ..virtual_time import VirtualTime, turns

BOUND_S = 60
WAIT_S = 50
"""How long the requests would wait."""
POSIX = pytest.mark.skipif(os.name != "posix", reason="Windows ends a process by other means than signals")

WAITING = f"""
import asyncio
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule, everyone

async def page(request):
    return PlainTextResponse("page")

async def queued(request):
    return PlainTextResponse(str(limiter.queued))

limiter = Limiter()
limited = RateLimit("1/{WAIT_S}s", wait="{WAIT_S + 1}s", key=everyone)(page)
rules = [
    Rule("/window", "1/{WAIT_S}s", wait="{WAIT_S + 1}s", key=everyone, name="window"),
]
app = Starlette(
    routes=[Route("/window", page), Route("/limited", limited), Route("/queued", queued)],
    middleware=[Middleware(RateLimitMiddleware, rules=rules, limiter=limiter)],
)
"""
SERVERS = {
    "uvicorn": ["uvicorn", "waiting:app", "--port"],
    "granian": ["granian", "waiting:app", "--interface", "asgi", "--port"],
    "hypercorn": ["hypercorn", "waiting:app", "--workers", "0", "--graceful-timeout", str(WAIT_S), "--bind"],
}


@POSIX
@pytest.mark.parametrize("server", ["uvicorn", *(pytest.param(one, marks=pytest.mark.all) for one in [*SERVERS][1:])])
def test_a_server_that_is_told_to_end_does_not_wait_for_those_that_wait(server: str, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    port = free_port()
    command = [sys.executable, "-m", *SERVERS[server], f"127.0.0.1:{port}" if server == "hypercorn" else str(port)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with ThreadPoolExecutor() as pool, subprocess.Popen(command, env=variables, cwd=tmp_path) as running:
        try:
            until(lambda: _listens(port), f"{server} listens")
            asked = [pool.submit(_ask, port, path) for path in ("/window", "/limited") for _ in range(4)]
            until(lambda: _ask(port, "/queued").text == "6", "all but two wait")
            running.send_signal(signal.SIGTERM)
            began_s = time.monotonic()
            assert running.wait(BOUND_S) in (0, -signal.SIGTERM)
            assert time.monotonic() - began_s < WAIT_S / 2
        finally:
            running.kill()
        assert sorted(one.result().status_code for one in asked) == [200, 200, *[429] * 6]


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def _ask(port: int, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=BOUND_S, trust_env=False)


# -- in this process ---------------------------------------------------------------------------------------------------


class Server:
    """What a server does with the signals of its process: it hears them."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(number)


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> ServerEnd:
    """The end of a server in a process of its own."""
    end = ServerEnd()
    monkeypatch.setattr(waiting, "SERVER_END", end)
    return end


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    before = {number: signal.signal(number, server.handle_exit) for number in server_end._SIGNALS}
    yield server
    for number, handler in before.items():
        signal.signal(number, handler)


async def comes_true(holds: Callable[[], object]) -> None:
    while not holds():
        await turns(1)


RULES: dict[str, Rule] = {
    "a window": Rule("*", "1/20s", wait="30s"),
    "a permit": Rule("*", concurrency=1, wait="30s"),
    "fair": Rule("*", concurrency=1, wait="30s", fair=lambda request: "tenant"),
}


@pytest.mark.interpreted("the end is replaced in a module")
@pytest.mark.parametrize("how", ["handler", "loop"])
@pytest.mark.parametrize("number", server_end._SIGNALS)
@pytest.mark.parametrize("rule", RULES)
async def test_all_that_wait_are_refused_at_once_and_the_server_hears_the_signal(
    rule: str, number: int, how: str, end: ServerEnd, server: Server
) -> None:
    loop = asyncio.get_running_loop()
    if how == "loop":
        loop.add_signal_handler(number, server.handle_exit, number, None)
    limiter, stays = Limiter(), asyncio.Event()

    async def page(*channels: Any) -> None:
        await stays.wait()
        await hello(*channels)

    app = RateLimitMiddleware(page, limiter=limiter, rules=[RULES[rule]])
    handler = signal.getsignal(number)
    came = [asyncio.create_task(call(app)) for _ in range(5)]
    async with asyncio.timeout(BOUND_S):
        await comes_true(lambda: limiter.queued == 4)
        signal.raise_signal(number)
        refused = [(await one).status for one in came[1:]]
        stays.set()
        assert (await came[0]).status == 200
        await comes_true(lambda: server.heard)
    assert refused == [429] * 4
    assert server.heard == [number]
    assert signal.getsignal(number) == handler, "the handler of the server is back"
    assert await statuses(app, 1) == [429 if rule == "a window" else 200], "nobody waits any more"
    if how == "loop":
        loop.remove_signal_handler(number)


@pytest.mark.interpreted("the end is replaced in a module")
async def test_without_a_signal_requests_wait_and_handlers_are_as_before(end: ServerEnd, server: Server) -> None:
    clock = VirtualTime().clock

    def limited() -> RateLimitMiddleware:
        rules = [Rule("*", "1/10s", wait="30s")]
        return RateLimitMiddleware(hello, rules=rules, limiter=Limiter(MemoryStore(clock=clock)))

    before = [signal.getsignal(number) for number in server_end._SIGNALS]
    assert await statuses(limited(), 3) == [200, 200, 200]
    together = await asyncio.gather(*(statuses(app, 2) for app in (limited(), limited())))
    assert together == [[200, 200], [200, 200]]
    assert [signal.getsignal(number) for number in server_end._SIGNALS] == before
    assert (end.is_near, server.heard) == (False, [])


@pytest.mark.interpreted("the end is replaced in a module")
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_what_ends_a_process_at_once_still_does(handler: Any, end: ServerEnd) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with end.watched():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_server_that_sets_its_handlers_meanwhile_keeps_them(end: ServerEnd, server: Server) -> None:
    with end.watched():
        other = Server()
        original = signal.signal(signal.SIGTERM, other.handle_exit)
        with end.watched():
            pass
    assert signal.getsignal(signal.SIGTERM) == other.handle_exit
    signal.signal(signal.SIGTERM, original)  # as it puts back what it has found
    with end.watched():
        signal.raise_signal(signal.SIGTERM)
    assert (server.heard, other.heard, end.is_near) == ([signal.SIGTERM], [], True)
