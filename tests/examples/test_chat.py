"""The chat does what its README shows, keeps its bounds, and goes on whatever one of its guests does."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import websockets.sync.client as sync
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from examples.chat import app as chat
from examples.chat import rooms as house
from examples.chat.visit import MALLORY
from examples.serving import Server, served
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock
from tests.examples.visits import running, shown

pytestmark = pytest.mark.all

PATIENCE_S = 60
TOKEN = "a-token-for-tests-alone"


def test_the_command_plays_the_visit_of_the_readme_and_serves_the_chat() -> None:
    with running("examples.chat", hints=2) as example:
        assert example.visit == shown("chat")
        assert "in two windows" in example.hints
        assert httpx.get(example.url, trust_env=False, timeout=PATIENCE_S).status_code == 200
        with sync.connect(f"{example.url.replace('http', 'ws')}/rooms/lobby?name=Ann", proxy=None) as socket:
            assert json.loads(socket.recv(PATIENCE_S)) == {"note": "Ann joined"}
        token = re.search(r"with the token (\S+)$", example.hints, re.MULTILINE)
        assert token
        bans = httpx.get(
            f"{example.url}/moderation/api/bans",
            headers={"Authorization": f"Bearer {token[1]}"},
            trust_env=False,
            timeout=PATIENCE_S,
        )
        assert bans.status_code == 200
        assert MALLORY not in bans.text, "the visit leaves nothing behind"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """The chat, whose clock stands still."""
    limiter = Limiter(MemoryStore(clock=FakeClock()))
    async with limiter, served(chat.make_app(limiter, TOKEN)) as server:
        yield server


def joining(server: Server, name: str, room: str = "lobby") -> Any:
    return connect(f"{server.url.replace('http', 'ws')}/rooms/{room}?name={name}", proxy=None, open_timeout=PATIENCE_S)


async def heard(socket: ClientConnection) -> dict[str, str]:
    async with asyncio.timeout(PATIENCE_S):
        message: dict[str, str] = json.loads(await socket.recv())
        return message


async def code_at_the_end(socket: ClientConnection) -> int | None:
    try:
        while True:
            await heard(socket)
    except ConnectionClosed as closed:
        return closed.rcvd and closed.rcvd.code


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"bytes", chat.UNSUPPORTED), ("x" * (chat.LONGEST_TEXT + 1), chat.TOO_BIG)],
    ids=["bytes", "a text that is too long"],
)
async def test_a_message_that_nobody_could_read_ends_its_own_socket_alone(
    server: Server, sent: str | bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    async with joining(server, "Ann") as ann, joining(server, "Ben") as ben:
        await ann.send(sent)
        assert await code_at_the_end(ann) == code
        assert [await heard(ben), await heard(ben)] == [{"note": "Ben joined"}, {"note": "Ann left"}]
        await ben.send("still here")
        assert await heard(ben) == {"from": "Ben", "text": "still here"}
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_markup_stays_text_and_the_page_loads_nothing_from_elsewhere(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client:
        page = await client.get("/")
        assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
        for name in re.findall(r'(?:src|href)="(chat\.\w+)"', page.text):
            assert (await client.get(f"/{name}")).status_code == 200
        assert (await client.get("/chat.html")).status_code == 404
        assert (await client.get("/moderation/api/bans")).status_code == 401
    assert "innerHTML" not in (chat.HERE / "chat.js").read_text("utf-8")


def test_one_who_falls_behind_hears_an_end_and_the_others_hear_everything() -> None:
    rooms = house.Rooms()
    with rooms.joined("Slow", "lobby") as (room, slow), rooms.joined("Ann", "lobby") as (_, quick):
        for number in range(house.QUEUED * 2):
            room.say("Ann", str(number))
            while quick.statistics().current_buffer_used:
                quick.receive_nowait()
        assert slow.statistics().current_buffer_used == house.QUEUED
        assert slow.statistics().open_send_streams == 0
        assert quick.statistics().open_send_streams == 1


def test_rooms_have_an_end_and_an_empty_room_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "MOST_ROOMS", 2)
    monkeypatch.setattr(house, "MOST_MEMBERS", 2)
    rooms = house.Rooms()
    with ExitStack() as stack:
        for name, room in (("Ann", "lobby"), ("Ben", "lobby"), ("Carl", "porch")):
            stack.enter_context(rooms.joined(name, room))
        for room in ("lobby", "attic"):
            with pytest.raises(house.Full), rooms.joined("Dora", room):
                pass
    with rooms.joined("Dora", "attic") as (_, hears):
        assert json.loads(hears.receive_nowait()) == {"note": "Dora joined"}
