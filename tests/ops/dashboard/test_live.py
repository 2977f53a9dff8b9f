"""Streams are bounded in number and in time, and end with the client, the session or the server."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from starlette.types import Message, Scope

from slidegate.ops.dashboard import stopping
from slidegate.ops.dashboard.frames import EVERY_S, SELDOM_S, Frames
from slidegate.ops.dashboard.live import LONGEST_S, LOOK_S, Live, Surroundings

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


async def test_a_stream_of_a_long_window_is_slower(live: Live) -> None:
    client = Client(live, b"window=24h")
    await client.run()
    assert len(client.frames) == LONGEST_S / SELDOM_S
    assert {frame["window"] for frame in client.frames} == {"24h"}


async def test_a_stream_ends_after_its_time_in_order(live: Live, world: World) -> None:
    client = Client(live)
    await client.run()
    assert LONGEST_S <= world.now_s <= LONGEST_S + LOOK_S
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert live.streams == 0


async def test_a_stream_ends_with_its_session_before_another_frame(live: Live, world: World) -> None:
    world.at[EVERY_S * 2.5] = lambda: setattr(world, "valid", False)
    client = Client(live)
    await client.run()
    assert len(client.frames) == 3
    assert client.sent[-1]["more_body"] is False


async def test_a_stream_ends_soon_after_the_server_was_told_to_stop(live: Live, world: World) -> None:
    world.at[5.0] = lambda: setattr(world, "stopping", True)
    client = Client(live)
    await client.run()
    assert world.now_s <= 5.0 + LOOK_S
    assert client.sent[-1]["more_body"] is False


async def test_a_client_that_leaves_frees_its_place(live: Live, world: World) -> None:
    client = Client(live)
    world.at[3.0] = client.gone.set
    await client.run()
    assert live.streams == 0
    assert len(client.frames) < LONGEST_S / EVERY_S


async def test_a_client_that_breaks_frees_its_place(live: Live) -> None:
    client = Client(live)

    async def broken(message: Message) -> None:
        raise OSError("the connection is gone")

    client.send = broken  # type: ignore[method-assign]
    with pytest.raises(BaseException, match=r".*") as caught:
        await client.run()
    assert isinstance(caught.value, OSError | BaseExceptionGroup)
    assert live.streams == 0


async def test_one_stream_too_many_is_refused_and_told_when_to_try_again(world: World) -> None:
    most = 2
    ready = anyio.Event()

    async def wait(seconds: float) -> None:
        await ready.wait()
        world.now_s += LONGEST_S

    live = Live(OneFrame(), world.still_valid, most, Surroundings(lambda: world.now_s, wait, lambda: False))
    clients = [Client(live) for _ in range(most)]
    async with anyio.create_task_group() as group:
        for client in clients:
            group.start_soon(client.run)
        with anyio.fail_after(HANG_S):
            while live.streams < most or not all(client.frames for client in clients):
                await anyio.lowlevel.checkpoint()
        late = Client(live)
        await late.run()
        assert late.status == 503
        assert dict(late.sent[0]["headers"])[b"retry-after"] == b"60"
        ready.set()
    assert live.streams == 0
    again = Client(live)
    await again.run()
    assert again.status == 200


@pytest.mark.parametrize("query", [b"window=7m", b"window=", b"window=%3Cscript%3E"])
async def test_a_window_that_is_none_is_named(live: Live, query: bytes) -> None:
    client = Client(live, query)
    await client.run()
    assert client.status == 422
    assert "24h" in client.text
    assert "script" not in client.text


class Server:
    """Has what uvicorn's server has."""

    should_exit = False

    def handle_exit(self, number: int, frame: object) -> None:
        """Note the signal."""


def test_a_server_that_was_told_to_stop_is_seen_by_its_signal_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(stopping.signal, "getsignal", lambda number: server.handle_exit)
    assert not stopping.server_is_stopping()
    server.should_exit = True
    assert stopping.server_is_stopping()


@pytest.mark.parametrize("handler", [None, 0, 1, print, lambda number, frame: None])
def test_any_other_signal_handler_says_nothing(handler: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping.signal, "getsignal", lambda number: handler)
    assert not stopping.server_is_stopping()
