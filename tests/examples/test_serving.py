"""The runner of the examples: its options, a port that is taken, and an end at which nothing is left running."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from examples.serving import HOST, run, served, show

pytestmark = pytest.mark.all


async def hello(request: object) -> PlainTextResponse:
    return PlainTextResponse("hello")


@asynccontextmanager
async def site() -> AsyncIterator[ASGIApp]:
    yield Starlette(routes=[Route("/", hello)])


async def visit() -> None:
    async with site() as app, served(app) as server, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        show("a greeting", (await client.get(server.url)).text)


def test_a_port_in_use_gives_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run("greeting", "Greets.", visit, site, [], ["--port", port]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"greeting: cannot listen on {HOST}:{port}: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("port", ["65536", "-1", "http", "²"])
def test_a_bad_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("greeting", "Greets.", visit, site, [], [f"--port={port}"])
    assert "expected a whole number from 0 to 65535" in capsys.readouterr().err


async def test_a_server_ends_with_its_context_and_gives_its_port_back() -> None:
    async with site() as app, served(app) as server, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(server.url)).text == "hello"
    assert server.is_stopping.is_set()
    with pytest.raises(ConnectionRefusedError), socket.create_connection((HOST, int(server.url.rpartition(":")[2]))):
        pass
