"""A client with the interface of httpx takes the transport too, around a transport of its own kind."""

from __future__ import annotations

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


def test_a_client_of_httpx2_that_does_not_await_sends_through_it_too() -> None:
    answers = [httpx2.Response(429, headers={"Retry-After": "0"}), httpx2.Response(200, content=b"here")]
    inner: Any = httpx2.MockTransport(lambda request: answers.pop(0))
    transport: Any = SyncLimitedTransport(limits="9/minute", transport=inner)
    with httpx2.Client(transport=transport) as client:
        assert client.post(URL, json={"a": 1}).content == b"here"


@pytest.mark.parametrize(
    ("client", "inner", "expected"),
    [(httpx2, None, "httpx2"), (httpx2, httpx, "httpx2"), (httpx, httpx2, "httpx")],
)
async def test_a_transport_of_another_library_than_the_client_is_one_sentence(
    client: Any, inner: Any, expected: str
) -> None:
    sending = None if inner is None else inner.AsyncHTTPTransport()
    transport: Any = LimitedTransport(limits="3/minute", transport=sending)
    async with client.AsyncClient(transport=transport) as asking:
        with pytest.raises(ConfigurationError, match=rf"transport={expected}\.AsyncHTTPTransport\(\)"):
            await asking.post(URL, json={"a": 1})


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_each_kind_of_client_is_told_which_transport_is_its_own(library: Any) -> None:
    awaited: Any = LimitedTransport(limits="3/minute")
    plain: Any = SyncLimitedTransport(limits="3/minute")
    with pytest.raises(ConfigurationError, match=r"httpx\.Client takes SyncLimitedTransport"):
        library.Client(transport=awaited).get(URL)
    with pytest.raises(ConfigurationError, match="expected a client that awaits"), library.Client(transport=awaited):
        pass
    with pytest.raises(ConfigurationError, match=r"httpx\.AsyncClient takes LimitedTransport"):
        await library.AsyncClient(transport=plain).get(URL)
    with pytest.raises(ConfigurationError, match=r"expected one with handle_request, for example httpx\.HTTPTransport"):
        SyncLimitedTransport(limits="3/minute", transport=library.AsyncHTTPTransport())
