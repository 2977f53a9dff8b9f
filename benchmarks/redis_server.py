"""A redis-server for a benchmark: on a free port of 127.0.0.1, with nothing kept; it ends with the benchmark."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 30


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def redis_server() -> Iterator[str]:
    """Start a server, looked for on PATH and then beside this Python, and yield its address when it answers."""
    program = shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))
    if program is None:
        sys.exit("this needs a redis-server: sudo apt install redis-server")
    port = free_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        try:
            until_s = time.monotonic() + START_S
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if process.poll() is not None or time.monotonic() > until_s:
                    sys.exit("redis-server does not answer")
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
