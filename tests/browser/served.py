"""Starts the site in separate processes, and sends requests with any client address."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from ..redis_servers import until

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE_S: Final = 60
"""The timeout of all waits."""


class Site:
    def __init__(self, store: str = "memory://", workers: int = 1) -> None:
        command = [sys.executable, "-m", "tests.browser.site", store, str(workers)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        # The line is printed at startup; a process that fails closes the pipe.
        port = self.process.stdout.readline().strip()
        assert port, "the server did not start; it says why above"
        self.url = f"http://127.0.0.1:{port}"
        self.dashboard = f"{self.url}/slidegate/"

    def wait(self) -> None:
        until(lambda: self.ask("192.0.2.1", path="/slidegate/") == 401, "the server answers")

    def ask(self, client: str, path: str = "/", **fields: str) -> int:
        """Send one request over a new connection; return the status, 0 without a response."""
        try:
            headers = {"X-Forwarded-For": client, **fields}
            return httpx.get(self.url + path, headers=headers, timeout=PATIENCE_S).status_code
        except httpx.TransportError:
            return 0

    def flood(self, client: str, requests: int, path: str = "/", **fields: str) -> list[int]:
        """Send requests, a few at a time, each over a new connection; return their statuses."""
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda _: self.ask(client, path, **fields), range(requests)))

    def stop(self) -> None:
        """Stop it like its operator, and wait until it has ended."""
        self.process.terminate()
        try:
            self.process.wait(timeout=PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait(timeout=PATIENCE_S)
            self.process.stdout.close()


@contextmanager
def served(store: str = "memory://", workers: int = 1, sites: int = 1) -> Iterator[list[Site]]:
    """Serve the site by several servers with several workers each, on one store."""
    started: list[Site] = []
    try:
        started.extend(Site(store, workers) for _ in range(sites))
        for site in started:
            site.wait()
        yield started
    finally:
        for site in started:
            site.stop()
