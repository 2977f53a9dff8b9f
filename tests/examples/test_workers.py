"""The example with four workers, started for real: they admit exactly the amount together, over a restart too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.redis_servers import free_port

pytest.importorskip("uvicorn")

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples.workers.app"
WORKERS = 4
AMOUNT = 100
PATIENCE_S = 60


@contextmanager
def workers(place: Path, port: int) -> Iterator[str]:
    """Run the example, and end it as its user would."""
    command = ["-m", "uvicorn", f"{EXAMPLE}:app", "--workers", str(WORKERS), "--port", str(port)]
    environment = {**os.environ, "LIMITS": str(place)}
    process = subprocess.Popen([sys.executable, *command, "--log-level", "warning"], cwd=ROOT, env=environment)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)


def ask(url: str) -> tuple[int, int, int | None]:
    """Send a request over a connection of its own; return status, worker, and seconds to wait."""
    answer = httpx.get(url, timeout=PATIENCE_S)
    worker = answer.json()["worker"] if answer.status_code == 200 else 0
    return answer.status_code, worker, int(answer.headers.get("Retry-After", 0)) or None


def wait_until_answered(url: str) -> tuple[int, int, int | None]:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask(url)
        except httpx.TransportError:
            assert time.monotonic() < until_s, "the workers did not start"
            time.sleep(0.05)


def storm(url: str, requests: int) -> list[tuple[int, int, int | None]]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: ask(url), range(requests)))


def test_four_workers_admit_exactly_the_amount_over_a_restart(tmp_path: Path) -> None:
    seen, port = [], free_port()
    for requests in (40, 150):  # the second lot comes to workers that were started anew
        with workers(tmp_path / "limits", port) as url:
            seen += [wait_until_answered(url), *storm(url, requests)]
    admitted = [worker for status, worker, _ in seen if status == 200]
    refused = [wait_s for status, _, wait_s in seen if status == 429]
    assert len(admitted) + len(refused) == len(seen)
    assert len(admitted) == AMOUNT
    assert len(set(admitted)) >= 3, "one worker answered everything"
    assert all(1 <= (wait_s or 0) <= 3_660 for wait_s in refused)
