"""One server of `bench server`, with all its workers; it ends with its parent process.

`python -m benchmarks.serve SERVER WORKERS PORT` prints the location of slidegate, and serves the candidate named by an
environment variable.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Final

import uvicorn
from granian import Granian
from granian.constants import Interfaces
from starlette.types import ASGIApp

import slidegate

from .apps import PLENTY, candidates

APP: Final = "SLIDEGATE_BENCH_APP"
"""The variable with the name of the candidate, because each worker imports the application."""
FACTORY: Final = "benchmarks.serve:app"
HOST: Final = "127.0.0.1"


def app() -> ASGIApp:
    """Return the application of one worker."""
    logging.disable()
    make = candidates()[os.environ[APP]].make
    with ThreadPoolExecutor(1) as pool:  # the event loop of the worker may already be running
        return pool.submit(lambda: asyncio.run(make(PLENTY))).result()


def serve_uvicorn(workers: int, port: int) -> None:
    """Serve until killed; uvicorn uses uvloop and httptools if they are installed."""
    uvicorn.run(
        FACTORY,
        factory=True,
        host=HOST,
        port=port,
        workers=workers,
        ws="none",
        access_log=False,
        log_level="critical",
        proxy_headers=False,
    )


def serve_granian(workers: int, port: int) -> None:
    """Serve until killed; granian uses uvloop if it is installed."""
    server = Granian(
        FACTORY,
        factory=True,
        address=HOST,
        port=port,
        workers=workers,
        interface=Interfaces.ASGI,
        websockets=False,
        log_enabled=False,
    )
    server.serve()


SERVERS: Final = {"uvicorn": serve_uvicorn, "granian": serve_granian}


def end_with_the_parent() -> None:
    """Kill the process group when the parent closes the standard input."""
    os.read(0, 1)  # not `sys.stdin`: a forked worker closes it, and would wait for this read
    os.killpg(0, signal.SIGKILL)


def main(server: str, workers: str, port: str) -> None:
    """Serve one candidate; the process must be the leader of a process group that includes its workers."""
    logging.disable()
    Thread(target=end_with_the_parent, daemon=True).start()
    print(Path(slidegate.__file__).parent, flush=True)
    SERVERS[server](int(workers), int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
