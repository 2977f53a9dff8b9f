"""Streams are bounded in time, and end with the client and the session."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from starlette.types import Message, Scope

from slidegate.admin.frames import EVERY_S, Frames
from slidegate.admin.live import LONGEST_S, Live, Surroundings

HANG_S = 60


class OneFrame(Frames):
    """Frames that are numbered."""

    def __init__(self) -> None:
        self.made = 0

    async def latest(self, window: str) -> str:
        self.made += 1
        return json.dumps({"number": self.made, "window": window})


class World:
    """A clock that moves when a stream sleeps, a session and a server that end when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.valid = True
        self.stopping = False
        self.at: dict[float, Any] = {}
        self.around = Surroundings(lambda: self.now_s, self.sleep, lambda: self.stopping)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for moment in [moment for moment in self.at if moment <= self.now_s]:
            self.at.pop(moment)()
        await anyio.lowlevel.checkpoint()

    async def still_valid(self, scope: Scope) -> bool:
        return self.valid


class Client:
    """Opens a stream and keeps what it is sent."""

    def __init__(self, live: Live, query: bytes = b"window=5m") -> None:
        self.live = live
        self.scope = {"type": "http", "method": "GET", "path": "/live", "query_string": query, "headers": []}
        self.sent: list[Message] = []
        self.gone = anyio.Event()

    async def receive(self) -> Message:
        if not self.gone.is_set():
            await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        with anyio.fail_after(HANG_S):
            await self.live(self.scope, self.receive, self.send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: ")]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def live(world: World) -> Live:
    return Live(OneFrame(), world.still_valid, most=3, around=world.around)


async def test_a_stream_sends_a_frame_at_once_and_then_one_in_each_interval(live: Live, world: World) -> None:
    client = Client(live)
    await client.run()
    assert client.status == 200
    assert dict(client.sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert [frame["number"] for frame in client.frames] == list(range(1, int(LONGEST_S / EVERY_S) + 1))
    assert client.text.startswith("retry: ")


async def test_a_stream_ends_with_its_session_before_another_frame(live: Live, world: World) -> None:
    world.at[EVERY_S * 2.5] = lambda: setattr(world, "valid", False)
    client = Client(live)
    await client.run()
    assert len(client.frames) == 3
    assert client.sent[-1]["more_body"] is False


async def test_a_client_that_leaves_frees_its_place(live: Live, world: World) -> None:
    client = Client(live)
    world.at[3.0] = client.gone.set
    await client.run()
    assert live.streams == 0
    assert len(client.frames) < LONGEST_S / EVERY_S
