"""httpx2, a client with the interface of httpx, works with the transport too."""

import asyncio
import copy
import pickle
import socket
from functools import partial
from typing import Any

import httpx
import pytest

from slidegate import ConfigurationError
from slidegate.httpx import LimitedTransport, SyncLimitedTransport, TurnTimeout

httpx2: Any = pytest.importorskip("httpx2")  # not among the lowest versions
URL = "http://api.example.com/"


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
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_errors_are_those_of_the_client_s_library(library: Any, kind: str) -> None:
    answers = [library.Response(429, headers={"Retry-After": "0"}), library.Response(200)]
    options: Any = {"limits": "2/hour", "transport": library.MockTransport(lambda request: answers.pop(0))}
    client = library.AsyncClient(transport=LimitedTransport(**options))
    send = client.request
    if kind == "sync":
        client = library.Client(transport=SyncLimitedTransport(**options))
        send = partial(asyncio.to_thread, client.request)
    assert (await send("POST", URL, json={"a": 1})).status_code == 200
    with pytest.raises(library.PoolTimeout) as caught:
        await send("GET", URL)
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert isinstance(error, TurnTimeout)
        assert type(error) is type(caught.value)
        assert (str(error), error.key) == (str(caught.value), "to:api.example.com")
        assert error.retry_after_us == caught.value.retry_after_us
        assert error.request.url == URL


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
