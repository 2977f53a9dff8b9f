"""Applications that workers of their own serve, and requests to them, each on a connection of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import slidegate

ROOT = Path(__file__).resolve().parents[1]
TESTED = Path(slidegate.__file__).parents[1]
"""Where the slidegate that is tested is imported from: the source, or a compiled wheel."""
PATIENCE_S = 60
CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=PATIENCE_S, trust_env=False)


@contextmanager
def serving(module: str, *words: object, patience_s: float = PATIENCE_S / 2, **variables: str) -> Iterator[str]:
    """Run a module that prints its port and serves there; yield its address, and end its workers in order."""
    command = [sys.executable, "-m", module, *map(str, words)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | variables) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(patience_s) in {0, -signal.SIGTERM}
            finally:
                process.kill()


def ask(url: str, **headers: str) -> httpx.Response | None:
    """Send a request; None if there was nobody, or a worker died over it."""
    try:
        return CLIENT.get(url, headers=headers)
    except httpx.TransportError:
        return None
