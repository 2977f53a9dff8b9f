"""A client with the interface of httpx takes the transport too, around a transport of its own kind."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import httpx2
import pytest

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.httpx import LimitedTransport, SyncLimitedTransport, TurnTimeout
from slidegate.testing import FakeClock

from .network import simulate

URL = "http://api.example.com/"


class Echo(httpx2.AsyncBaseTransport):
    """Refuses the first request, and sends the others back."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(await request.aread())
        if len(self.bodies) == 1:
            return httpx2.Response(429, headers={"Retry-After": "1"})
        return httpx2.Response(200, content=self.bodies[-1])


def test_httpx2_sends_through_it() -> None:
    clock, server = FakeClock(10**12), Echo()
    inner: Any = server
    transport: Any = LimitedTransport(limits="3/minute", limiter=Limiter(MemoryStore(clock=clock)), transport=inner)

    async def run() -> bytes:
        async with httpx2.AsyncClient(transport=transport) as client:
            answer = await client.post(URL, json={"a": 1})
            await client.get(URL)
            with pytest.raises(TurnTimeout):
                await client.get(URL)
        return answer.content

    assert simulate(clock, run()) == b'{"a":1}'
    assert server.bodies == [b'{"a":1}', b'{"a":1}', b""]
    assert clock.now_us == 10**12 + 1_000_000


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_the_default_transport_is_one_of_the_client_s_library(library: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(answer, sock=listener) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with library.AsyncClient(transport=LimitedTransport(limits="9/second")) as client:
            assert (await client.get(url)).status_code == 204

        def get() -> int:
            with library.Client(transport=SyncLimitedTransport(limits="9/second")) as client:
                return int(client.get(url).status_code)

        assert await asyncio.to_thread(get) == 204


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_a_timeout_is_an_error_of_the_client_s_library(library: Any) -> None:
    inner = library.MockTransport(lambda request: library.Response(200))
    async with library.AsyncClient(transport=LimitedTransport(limits="1/hour", transport=inner)) as client:
        await client.get(URL)
        with pytest.raises(library.PoolTimeout) as caught:
            await client.get(URL)
    assert isinstance(caught.value, TurnTimeout)
    assert caught.value.request.url == URL


@pytest.mark.parametrize(
    ("client", "inner", "expected"),
    [
        (httpx2, httpx.AsyncHTTPTransport, r"httpx2\.AsyncHTTPTransport\(\)"),
        (httpx, httpx2.AsyncHTTPTransport, r"httpx\.AsyncHTTPTransport\(\)"),
    ],
)
async def test_a_transport_that_the_client_cannot_use_is_one_sentence(client: Any, inner: Any, expected: str) -> None:
    async with client.AsyncClient(transport=LimitedTransport(limits="3/minute", transport=inner())) as asking:
        with pytest.raises(ConfigurationError, match=rf"^transport: expected {expected}, not <"):
            await asking.post(URL, json={"a": 1})
