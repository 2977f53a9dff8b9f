"""A TCP proxy between a client and a server, for what goes wrong between them.

    async with FaultProxy(server.port) as proxy:
        proxy.port                # connect here
        proxy.delay_s = 0.05      # every reply comes so much later, in its order
        proxy.cut_after(3)        # the next three bytes of replies, of all connections, get through; then each ends
        proxy.cut_after(None)     # that is taken back, if it has not happened
        proxy.freeze()            # half-open: connections stay, new ones are accepted, nothing comes back
        proxy.thaw()              # what was held back comes now
        await proxy.refuse()      # connections are reset, new ones refused
        await proxy.accept()      # back again, at the same port
        proxy.fate = lambda: (9, True)  # a new connection hangs after nine bytes of replies; False: is reset

Nothing is reordered, and nothing is changed but by being left out at the end. `FaultProxy(port, tls=context)` speaks
TLS to the client and plain text to the server. It runs in the event loop of the test.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeAlias

HOST: Final = "127.0.0.1"
CHUNK: Final = 65_536
Fate: TypeAlias = tuple[int, bool]
"""After how many bytes of replies a connection ends, and whether it hangs then, or is reset."""


class FaultProxy:
    """Forwards between clients and one server, and disturbs what comes back.

    Attributes:
        accepted: How many connections there have been.
        requests: How many bytes clients have sent through.
        fate: Is called for each new connection; None, or a result of None, for a healthy one.
    """

    password: str | None = None  # as a `RedisServer`, which a sentinel may watch through it

    def __init__(self, target: int, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self.target, self.port, self.tls = target, port, tls
        self.delay_s = 0.0
        self.accepted = self.requests = 0
        self.fate: Callable[[], Fate | None] | None = None
        self._left: int | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._server: asyncio.Server | None = None

    def cut_after(self, count: int | None) -> None:
        self._left = count

    def freeze(self) -> None:
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def drop(self) -> None:
        for link, writers in self._links.items():
            for writer in writers:
                _reset(writer)
            link.cancel()

    async def refuse(self) -> None:
        if self._server is not None:
            await stop_listening(self._server)
            self.drop()
            await self._server.wait_closed()
            self._server = None
        while self._links:
            await asyncio.wait(self._links)

    async def accept(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.thaw()
        await self.refuse()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task, fate = asyncio.current_task(), self.fate and self.fate()
        assert task is not None
        self._links[task] = (writer,)
        try:
            answers, onward = await asyncio.open_connection(HOST, self.target)
            self._links[task] = (writer, onward)
            await _first_of(self._requests(reader, onward), self._replies(answers, writer, fate))
        except (OSError, asyncio.CancelledError):
            pass  # an end has gone, or was dropped; the other one learns of it below
        finally:
            for end in self._links.pop(task):
                end.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(CHUNK):
            self.requests += len(piece)
            writer.write(piece)
            await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fate: Fate | None) -> None:
        if fate is not None:
            await self._fall(reader, writer, *fate)
        # Pieces wait side by side: ten replies that come together are all late by the delay, not by ten of it.
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        await _first_of(self._hold(reader, held), self._release(held, writer))

    async def _fall(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: int, hangs: bool) -> None:
        while left and (piece := await reader.read(left)):
            left -= len(piece)
            writer.write(piece)
        if hangs:
            await asyncio.Event().wait()
        _reset(writer)
        raise ConnectionResetError

    async def _hold(self, reader: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]) -> None:
        now_s = asyncio.get_running_loop().time
        while piece := await reader.read(CHUNK):
            held.put_nowait((now_s() + self.delay_s, piece))
        held.put_nowait((now_s() + self.delay_s, b""))
        await asyncio.Event().wait()

    async def _release(self, held: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, piece = await held.get()
            await asyncio.sleep(due_s - loop.time())
            await self._flowing.wait()
            if not piece:
                return
            if self._left is not None:
                piece, self._left = piece[: self._left], max(0, self._left - len(piece))
            writer.write(piece)
            await writer.drain()
            if self._left == 0:
                self._left = None
                self.drop()
                return


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server at a moment when it lets nobody in: until 3.12 asyncio loses a client that is let in just then."""
    while True:
        running = {getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()}
        if "_accept_connection2" not in running:
            break
        await asyncio.sleep(0)
    server.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a machine does that has lost it: what was sent is there, and nothing follows."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _first_of(*flows: Coroutine[Any, Any, None]) -> None:
    """Run both until one ends; stop the other."""
    tasks = [asyncio.ensure_future(flow) for flow in flows]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
