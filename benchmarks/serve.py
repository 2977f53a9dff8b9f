"""One server of `bench server`: it prints where slidegate lies and its port, and ends with its parent.

`python -m benchmarks.serve NAME` serves the candidate of that name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path
from threading import Thread

import uvicorn

import slidegate

from .apps import PLENTY, candidates


def end_with_the_parent() -> None:
    """End as soon as nobody holds the other end of the standard input."""
    sys.stdin.read()
    os._exit(0)


def main(name: str) -> None:
    """Serve one candidate until killed; uvicorn takes uvloop and httptools where they are installed."""
    logging.disable()
    Thread(target=end_with_the_parent, daemon=True).start()
    app = asyncio.run(candidates()[name].make(PLENTY))
    config = uvicorn.Config(
        app, loop="auto", http="auto", ws="none", access_log=False, log_level="critical", proxy_headers=False
    )
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        print(Path(slidegate.__file__).parent, listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
