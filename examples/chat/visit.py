"""A scripted visit: five people, real sockets, and a clock that the visit turns itself."""

from __future__ import annotations

import asyncio
import json
import secrets

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from examples.serving import HOST, served, show, title
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

from .app import make_app

BOUND_S = 60
ANN, BEN, CARL, DORA, MALLORY = (f"203.0.113.{number}" for number in range(1, 6))


class Guests:
    """Opens the sockets of people, each from an address of their own.

    Args:
        url: The address of the chat.
    """

    def __init__(self, url: str) -> None:
        self._url = url.replace("http", "ws", 1)
        self._sockets: list[ClientConnection] = []

    async def join(self, name: str, client: str, room: str = "lobby") -> ClientConnection:
        """Open a socket.

        Raises:
            InvalidStatus: The handshake was refused.
        """
        # This machine stands for a proxy that says who is calling.
        socket = await connect(
            f"{self._url}/rooms/{room}?name={name}",
            additional_headers={"X-Forwarded-For": client},
            proxy=None,
            open_timeout=BOUND_S,
        )
        self._sockets.append(socket)
        await hears(socket, {"note": f"{name} joined"})
        return socket

    async def leave(self) -> None:
        """Close all sockets."""
        for socket in self._sockets:
            await socket.close()


async def hears(socket: ClientConnection, wanted: dict[str, str]) -> None:
    """Wait until somebody hears something."""
    async with asyncio.timeout(BOUND_S):
        while json.loads(await socket.recv()) != wanted:
            pass


async def visit() -> None:
    """Play the visit, and print what happens."""
    clock, token = FakeClock(), secrets.token_urlsafe(32)
    limiter = Limiter(MemoryStore(clock=clock))
    async with served(make_app(limiter, token, trusted=[HOST])) as server:
        guests = Guests(server.url)
        ann = await talk(guests)
        carl = await join_too_often(guests, clock)
        await write_too_fast(guests, ann)
        await be_shut_out(server.url, token, carl)
        await guests.leave()
    await limiter.close()


async def talk(guests: Guests) -> ClientConnection:
    """Two people meet; return the socket of the first."""
    title("Ann and Ben meet in the lobby.")
    ann, ben = await guests.join("Ann", ANN), await guests.join("Ben", BEN)
    await ann.send("hello Ben")
    for socket in (ann, ben):
        await hears(socket, {"from": "Ann", "text": "hello Ben"})
    show("Ann says", "hello Ben")
    show("Ben hears", "hello Ben")
    return ann


async def join_too_often(guests: Guests, clock: FakeClock) -> ClientConnection:
    """Somebody opens too many sockets at once, and somebody joins too often; return the socket of a listener."""
    title("Ben opens more windows; each client may have three sockets.")
    for window in (2, 3):
        await guests.join("Ben", BEN, "kitchen")
        show(f"his window {window}", "open")
    try:
        await guests.join("Ben", BEN, "kitchen")
    except InvalidStatus as answer:
        show("his window 4", refused(answer))

    title("Dora comes and goes; each client may join ten times a minute.")
    carl = await guests.join("Carl", CARL, "porch")
    for _ in range(10):
        dora = await guests.join("Dora", DORA, "porch")
        await dora.close()
        await hears(carl, {"note": "Dora left"})
    try:
        await guests.join("Dora", DORA, "porch")
    except InvalidStatus as answer:
        show("her join 11", refused(answer))
        wait_s = int(answer.response.headers["Retry-After"])
        clock.advance(f"{wait_s}s")
        await guests.join("Dora", DORA, "porch")
        show(f"{wait_s} seconds later", "open")
    return carl


async def write_too_fast(guests: Guests, ann: ClientConnection) -> None:
    """Somebody writes more than five messages in five seconds, and goes on until she is banned."""
    title("Mallory writes six messages at once; five in five seconds are allowed.")
    silent = await guests.join("Mallory", MALLORY, "kitchen")
    mallory = await guests.join("Mallory", MALLORY)
    for number in range(1, 7):
        await mallory.send(f"buy number {number}")
    show("her socket", await end_of(mallory))
    show("messages that Ann hears", await texts_until(ann, {"note": "Mallory left"}))

    title("She comes back at once and goes on; three refusals in ten minutes are a ban.")
    for number in (2, 3):
        mallory = await guests.join("Mallory", MALLORY)
        await mallory.send("buy more")
        show(f"her socket, refusal {number}", await end_of(mallory))
    show("her other socket, which was silent", await end_of(silent))
    try:
        await guests.join("Mallory", MALLORY)
    except InvalidStatus as answer:
        show("her next join", refused(answer))


async def be_shut_out(url: str, token: str, carl: ClientConnection) -> None:
    """A moderator bans somebody, as the dashboard does."""
    title("A moderator bans Carl, who is only listening.")
    async with httpx.AsyncClient(trust_env=False, timeout=BOUND_S) as moderator:
        answer = await moderator.post(
            f"{url}/moderation/api/bans",
            headers={"Authorization": f"Bearer {token}"},
            json={"target": CARL, "duration": "1h", "reason": "asked to leave"},
        )
    show("the ban", answer.status_code)
    show("his socket", await end_of(carl))


async def texts_until(socket: ClientConnection, wanted: dict[str, str]) -> int:
    """Count the messages that somebody hears before something else."""
    count = 0
    async with asyncio.timeout(BOUND_S):
        while (heard := json.loads(await socket.recv())) != wanted:
            count += "text" in heard
    return count


async def end_of(socket: ClientConnection) -> str:
    """Wait for the end of a socket; say how it was closed."""
    try:
        async with asyncio.timeout(BOUND_S):
            while True:
                await socket.recv()
    except ConnectionClosed as closed:
        return f"closed {closed.rcvd.code}: {closed.rcvd.reason}" if closed.rcvd else "closed without a code"


def refused(answer: InvalidStatus) -> str:
    """Say how a handshake was refused."""
    wait_s = answer.response.headers.get("Retry-After")
    return f"{answer.response.status_code}, " + (f"Retry-After {wait_s}" if wait_s else "no Retry-After")
