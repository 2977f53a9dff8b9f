"""Sync clients: threads are queued like tasks, and get the same errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import httpx
import pytest

from slidegate import ConfigurationError, Limiter
from slidegate.httpx import SyncLimitedTransport, TurnTimeout

URL = "http://api.example.com/"


class Server(httpx.BaseTransport):
    """Returns the given responses, then 200; records requests and the number of closes."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []
        self.closed = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answers.pop(0) if self.answers else httpx.Response(200)

    def close(self) -> None:
        self.closed += 1


def limited(server: Server, **options: Any) -> httpx.Client:
    return httpx.Client(transport=SyncLimitedTransport(**{"limits": "100/second", "transport": server, **options}))


def test_threads_wait_for_room() -> None:
    with limited(Server(), limits="5/200ms", limiter=Limiter()) as client, ThreadPoolExecutor(8) as pool:
        began_s = monotonic()
        assert set(pool.map(lambda _: client.get(URL).status_code, range(16))) == {200}
        assert monotonic() - began_s >= 0.6


def test_what_one_thread_has_spent_or_was_told_holds_for_all_who_share_the_limiter() -> None:
    limiter = Limiter()
    server = Server(httpx.Response(200), httpx.Response(429, headers={"Retry-After": "60"}))
    first, second = (limited(server, limits="9/minute", limiter=limiter, wait="20s") for _ in range(2))
    assert [first.get(URL).status_code, second.get(URL).status_code] == [200, 429]
    with pytest.raises(TurnTimeout, match="after 60 s at the earliest"):
        first.get(URL)
    assert len(server.asked) == 2
    for number, client in enumerate((first, second)):
        client.close()
        assert server.closed == number + 1
        assert limiter.sync.hit("k", "5/minute"), "a limiter that is shared stays open"


def test_a_refused_request_is_sent_again_with_its_body_and_the_answer_before_is_closed() -> None:
    closed: list[int] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"wait"

        def close(self) -> None:
            closed.append(1)

    server = Server(
        httpx.Response(429, headers={"Retry-After": "0"}, stream=Body()), httpx.Response(200, stream=Body())
    )
    with limited(server) as client, client.stream("POST", URL, content=b"once") as answer:
        assert closed == [1]
        assert answer.read() == b"wait"
    assert [request.content for request in server.asked] == [b"once", b"once"]
    assert closed == [1, 1]


async def test_in_a_thread_with_an_event_loop_it_is_refused_and_not_waited_for() -> None:
    client = limited(Server())
    with pytest.raises(ConfigurationError, match="expected a thread without event loop"):
        client.get(URL)
    assert (await asyncio.to_thread(client.get, URL)).status_code == 200
