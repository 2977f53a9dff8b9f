"""A server that answers from a list, in the time of a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import httpx

from slidegate.testing import FakeClock

from ..virtual_time import VirtualTime

T = TypeVar("T")


def simulate(clock: FakeClock, work: Coroutine[Any, Any, T]) -> T:
    """Run some work in the time of `clock`."""

    async def run() -> T:
        VirtualTime(clock)
        return await work

    return asyncio.run(run())


class Answers(httpx.AsyncBaseTransport):
    """Answers from a list, the last one for ever, and notes when it was asked, in seconds."""

    def __init__(self, *answers: tuple[int, Mapping[str, str]]) -> None:
        self._answers = list(answers)
        self.asked_s: list[float] = []
        self.delay_s = 0.0
        self.closed = 0
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([part async for part in request.stream]))
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.delay_s)
        status, headers = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return httpx.Response(status, headers=dict(headers))

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def gaps_s(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in pairwise(self.asked_s)]
