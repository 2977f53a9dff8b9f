"""Open websockets, looked through for clients that were banned meanwhile.

A connection that says nothing asks nothing, so somebody has to look. One task for each event loop does, as long as
websockets are open there: it asks for the bans of many connections in one question, and looks closer only where the
answer is a ban. It closes the connections of banned clients; the server then tells the application, as of any
connection that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

from ...core.bans.in_force import Ban, Guarded
from ...core.logs import logger

EVERY_S: Final = 0.4
"""How long after the end of a look the next one begins: with the deadline of a store, all of it takes less than 1 s."""
AT_ONCE: Final = 256
"""How many connections one question is about."""


class Socket(Protocol):
    """An open websocket."""

    @property
    def guarded(self) -> Sequence[Guarded]:
        """The keys and addresses whose bans close it."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def interrupt(self) -> Awaitable[object]:
        """Close it, though the application may wait for its next message."""


class OpenSockets:
    """Closes open websockets of clients that are banned.

    Args:
        find: Returns a ban that refuses one of some keys and addresses.
    """

    def __init__(self, find: Callable[[Sequence[Guarded]], Awaitable[Ban | None]]) -> None:
        self._find = find
        self._open: dict[asyncio.AbstractEventLoop, WeakSet[Socket]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, socket: Socket) -> bool:
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

    async def _look_after(self, loop: asyncio.AbstractEventLoop, sockets: WeakSet[Socket]) -> None:
        try:
            while sockets:
                await asyncio.sleep(EVERY_S)
                try:
                    await self._look(loop, sockets)
                except Exception:
                    logger.exception("open websockets were not looked through for bans; the next look comes soon")
        finally:
            del self._open[loop]

    async def _look(self, loop: asyncio.AbstractEventLoop, sockets: WeakSet[Socket]) -> None:
        for ended in [socket for socket in sockets if socket.over]:
            sockets.discard(ended)
        opened = list(sockets)
        for first in range(0, len(opened), AT_ONCE):
            await self._close_banned(loop, opened[first : first + AT_ONCE])
            await asyncio.sleep(0)

    async def _close_banned(self, loop: asyncio.AbstractEventLoop, sockets: Sequence[Socket]) -> None:
        if await self._find([guarded for socket in sockets for guarded in socket.guarded]) is None:
            return
        if len(sockets) == 1:
            # A client may take its time over the close, and others are not to wait for that.
            self._start(loop, sockets[0].interrupt())
            return
        middle = len(sockets) // 2
        await self._close_banned(loop, sockets[:middle])
        await self._close_banned(loop, sockets[middle:])
