"""The example with four real workers: together they admit exactly the amount, also over a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.redis_servers import BOUND_S, free_port, until

pytest.importorskip("uvicorn")

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
AMOUNT = 100


@contextmanager
def workers(place: Path, port: int) -> Iterator[str]:
    """Run the example, and stop it like its user."""
    command = ["-m", "examples.workers", "--port", str(port)]
    environment = {**os.environ, "LIMITS": str(place)}
    process = subprocess.Popen([sys.executable, *command, "--log-level", "warning"], cwd=ROOT, env=environment)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=BOUND_S)


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=BOUND_S):
        return True
    return False


def test_four_workers_admit_exactly_the_amount_over_a_restart(tmp_path: Path) -> None:
    seen: list[httpx.Response] = []
    port = free_port()
    for requests in (40, 150):  # the second batch is sent to restarted workers
        with workers(tmp_path / "limits", port) as url, ThreadPoolExecutor(8) as pool:
            until(lambda: listens(port), "the workers start")
            # One connection per request, so that all workers get some.
            seen += pool.map(lambda _, url=url: httpx.get(url, timeout=BOUND_S), range(requests))
    admitted = [answer.json()["worker"] for answer in seen if answer.status_code == 200]
    refused = [int(answer.headers["Retry-After"]) for answer in seen if answer.status_code == 429]
    assert len(admitted) + len(refused) == len(seen)
    assert len(admitted) == AMOUNT
    assert len(set(admitted)) >= 3, "one worker answered everything"
    assert all(1 <= wait_s <= 3_660 for wait_s in refused)
