"""Accepted websockets that end when their client is banned: at the next message in either direction, or before.

A connection that says nothing asks nothing, so somebody has to look. One task for each event loop does, as long as
websockets are open there: it asks for the bans of many connections in one question, and looks closer only where the
answer is a ban. It closes the connections of banned clients; the server then tells the application, as of any
connection that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar
from weakref import WeakSet

from starlette.types import Message, Receive, Send

from ...core.bans.in_force import Ban, Guarded
from ...core.logs import logger
from ..request import Ahead

T = TypeVar("T")

EVERY_S: Final = 5.0
"""How long after the end of a look the next one begins: with the deadline of a store a ban is seen within 10 s."""
AT_ONCE: Final = 256
"""How many connections one question is about."""
POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client was banned after it had begun (RFC 6455, section 7.4.1)."""


class GuardedWebSocket:
    """A connection, seen from the application, that ends when its client is banned: at its next message, or before.

    Args:
        receive: The server's channel, which is read ahead while a message waits.
        send: The server's channel.
        guarded: The keys and addresses whose bans end it.
        banned: Tells whether a ban refuses the client now.
        struck: Called for each message that a limit refused.
        accepted: Called with the connection when the application has accepted it; tells whether somebody looks after
            it from then on, and may interrupt it.

    Attributes:
        over: Whether it has ended, by a message of either side.
    """

    def __init__(
        self,
        receive: Ahead,
        send: Send,
        guarded: Sequence[Guarded],
        banned: Callable[[], Awaitable[bool]],
        struck: Callable[[], Awaitable[None]],
        accepted: Callable[[GuardedWebSocket], bool],
    ) -> None:
        self._receive = receive
        self._send = send
        self.guarded = guarded
        self.banned = banned
        self.struck = struck
        self._accepted = accepted
        self._looked_after = False
        self._waiting: asyncio.Task[object] | None = None
        self._interrupted = False
        self.over = False
        self._last: Message | None = None

    @property
    def channels(self) -> tuple[Receive, Send]:
        """The channels for the application."""
        return self.receive, self.send

    async def receive(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._last is not None:
            return self._last
        message = await self._unless_interrupted(self._receive())
        if message is None or self._interrupted:
            return await self.shut_out()
        if self._last is not None:
            return self._last  # it was closed while the application waited
        if message["type"] == "websocket.disconnect":
            self.over = True
        elif message["type"] == "websocket.receive" and await self.banned():
            return await self.shut_out()
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on; a connection that was closed takes no more (ASGI, "Send after disconnect")."""
        if self._last is None and message["type"] == "websocket.send" and await self.banned():
            await self.shut_out()
        if self._last is None:
            await self._send(message)
            if message["type"] == "websocket.accept":
                self._looked_after = self._accepted(self)
            elif message["type"] == "websocket.close":
                self.over = True
        elif message["type"] != "websocket.close":
            raise OSError(self._last["reason"])

    async def close(self, code: int, reason: str) -> Message:
        """Close the connection, if it is open, and return what the application is told."""
        if self._last is None:
            self._last = {"type": "websocket.disconnect", "code": code, "reason": reason}
            self.over = True
            self._receive.close()
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        return self._last

    async def shut_out(self) -> Message:
        """Close the connection of a client that is banned."""
        return await self.close(POLICY_VIOLATION, "banned")

    async def interrupt(self) -> None:
        """Close the connection of a client that is banned, whatever the application waits for.

        Its waiting ends first: there are servers that do not close while they are asked for a message. It is told of
        the end when the close was sent, because its reaction may end the connection in another way.
        """
        if self._interrupted:
            return
        self._interrupted = self._waiting is not None
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self.shut_out()

    async def _unless_interrupted(self, waiting: Awaitable[T]) -> T | None:
        """Wait for something, and return None where the connection is to be closed meanwhile."""
        if not self._looked_after:
            return await waiting
        task = self._waiting = asyncio.current_task()
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self._interrupted or (task is not None and task.uncancel()):
                raise
            return None
        finally:
            self._waiting = None

    async def while_there(self, wait: Callable[[], Awaitable[None]]) -> bool:
        """Do some waiting, and tell whether the client is still there."""
        return await self._unless_interrupted(self._receive.while_there(wait)) is True


class OpenWebSockets:
    """Closes open websockets of clients that are banned.

    Args:
        find: Returns a ban that refuses one of some keys and addresses.
    """

    def __init__(self, find: Callable[[Sequence[Guarded]], Awaitable[Ban | None]]) -> None:
        self._find = find
        self._open: dict[asyncio.AbstractEventLoop, WeakSet[GuardedWebSocket]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, socket: GuardedWebSocket) -> bool:
        """Look after a websocket as long as it is open and somebody holds it.

        Returns:
            False under trio, where nobody looks: a banned client is shut out at its next message there.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        sockets = self._open.get(loop)
        if sockets is None:
            sockets = self._open[loop] = WeakSet()
            self._start(loop, self._look_after(loop, sockets))
        sockets.add(socket)
        return True

    def _start(self, loop: asyncio.AbstractEventLoop, work: Awaitable[object]) -> None:
        async def run() -> None:
            with suppress(OSError):  # the client has gone
                await work

        task = loop.create_task(run())
        self._tasks.add(task)  # a loop itself does not hold its tasks
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self, loop: asyncio.AbstractEventLoop, sockets: WeakSet[GuardedWebSocket]) -> None:
        try:
            while sockets:
                await asyncio.sleep(EVERY_S)
                try:
                    await self._look(loop, sockets)
                except Exception:
                    logger.exception("open websockets were not looked through for bans; the next look comes soon")
        finally:
            del self._open[loop]

    async def _look(self, loop: asyncio.AbstractEventLoop, sockets: WeakSet[GuardedWebSocket]) -> None:
        for ended in [socket for socket in sockets if socket.over]:
            sockets.discard(ended)
        opened = list(sockets)
        for first in range(0, len(opened), AT_ONCE):
            await self._close_banned(loop, opened[first : first + AT_ONCE])
            await asyncio.sleep(0)

    async def _close_banned(self, loop: asyncio.AbstractEventLoop, sockets: Sequence[GuardedWebSocket]) -> None:
        if await self._find([guarded for socket in sockets for guarded in socket.guarded]) is None:
            return
        if len(sockets) == 1:
            # A client may take its time over the close, and others are not to wait for that.
            self._start(loop, sockets[0].interrupt())
            return
        middle = len(sockets) // 2
        await self._close_banned(loop, sockets[:middle])
        await self._close_banned(loop, sockets[middle:])
