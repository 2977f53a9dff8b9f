"""One server: it prints the port that it listens on, and ends with the process that started it."""

from __future__ import annotations

import os
import socket
import sys
from threading import Thread

import uvicorn

from .apps import APPS


def end_with_the_parent() -> None:
    """End as soon as nobody holds the other end of the standard input."""
    sys.stdin.read()
    os._exit(0)


def main(name: str) -> None:
    """Serve one candidate until killed."""
    Thread(target=end_with_the_parent, daemon=True).start()
    app = APPS[name].make()
    config = uvicorn.Config(app, loop="uvloop", http="httptools", ws="none", access_log=False, log_level="critical")
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
