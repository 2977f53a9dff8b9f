"""Runs an example on loopback: first a visit, which prints what happens, then the site until Ctrl-C.

The applications need nothing of this; any ASGI server serves them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

HOST = "127.0.0.1"
END = "The visit is over."
INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""
GRACE_S = 5
"""How long answers that are under way may take when a site is stopped."""


class Server(uvicorn.Server):
    """A server on a loopback port that leaves signals to whoever started it.

    Attributes:
        url: The address of the site, without a slash at the end.
        has_started: Set when the site answers.
        is_stopping: Set when the server was told to stop.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        # The middleware itself looks at X-Forwarded-For, so the server has to leave the peer as it is.
        super().__init__(
            uvicorn.Config(app, log_level="warning", proxy_headers=False, timeout_graceful_shutdown=GRACE_S)
        )
        self.url = f"http://{HOST}:{listener.getsockname()[1]}"
        self.has_started = asyncio.Event()
        self.is_stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.has_started.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so, and stop."""
        self.is_stopping.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: several servers may run in one process."""
        yield


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0) -> AsyncIterator[Server]:
    """Serve an application while the context lasts; port 0 is any free one.

    Raises:
        OSError: The port is taken.
        SystemExit: The application did not start; it has logged why.
    """
    with socket.create_server((HOST, port)) as listener:
        server = Server(app, listener)
        running = asyncio.create_task(server.serve([listener]))
        started = asyncio.create_task(server.has_started.wait())
        try:
            await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED)
            if not server.started:
                await running  # which says why
            yield server
        finally:
            started.cancel()
            server.should_exit = True
            await running


def run(
    name: str,
    description: str,
    visit: Callable[[], Coroutine[None, None, None]],
    site: Callable[[], AbstractAsyncContextManager[ASGIApp]],
    hints: Sequence[str],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run the command line of an example.

    Args:
        name: The name of the example.
        description: One sentence for ``--help``.
        visit: Plays the visit and prints what happens.
        site: Opens the application that is served afterwards.
        hints: Lines that say how to try the site; ``{url}`` in them is its address.
        arguments: The command line; by default that of this process.

    Returns:
        The exit code: 0, 2 if the port cannot be used, or 130 if the visit was interrupted.
    """
    parser = argparse.ArgumentParser(prog=f"python3 dev.py example {name}", description=description)
    parser.add_argument("--no-serve", action="store_true", help="end after the visit")
    parser.add_argument("--port", type=port_number, default=8000, help="0 for any free one; by default 8000")
    options = parser.parse_args(arguments)
    try:
        with quiet():
            asyncio.run(visit())
    except KeyboardInterrupt:
        return INTERRUPTED
    if options.no_serve:
        return 0
    print(f"\n{END}")
    try:
        asyncio.run(serve(site, options.port, hints))
    except OSError as error:
        where = f"{HOST}:{options.port}"
        sys.stderr.write(f"{name}: cannot listen on {where}: {error.strerror or error}; --port 0 takes any free one\n")
        return 2
    return 0


async def serve(site: Callable[[], AbstractAsyncContextManager[ASGIApp]], port: int, hints: Sequence[str]) -> None:
    """Serve a site until Ctrl-C or SIGTERM, and say how to try it."""
    async with site() as app, served(app, port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, server.handle_exit)
        print(f"Serving at {server.url} until Ctrl-C.")
        for hint in hints:
            print(f"  {hint.format(url=server.url)}")
        sys.stdout.flush()
        await server.is_stopping.wait()
    print("Stopped.")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log of slidegate off the terminal: a visit says by itself who was refused and banned."""
    logger, handler = logging.getLogger("slidegate"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def port_number(text: str) -> int:
    """Read a port."""
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 65535, not {text!r}")
    return int(text)


def title(text: str) -> None:
    """Print the heading of a part of a visit."""
    print(f"\n{text}")


def show(what: str, outcome: object) -> None:
    """Print one event of a visit and what came of it."""
    print(f"  {what:<62} {outcome}", flush=True)
