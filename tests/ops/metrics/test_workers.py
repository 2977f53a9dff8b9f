"""Real workers of uvicorn: whichever is asked, the metrics are those of all, over a SIGKILL and a restart."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from .reading import Exposition, parsed

pytest.importorskip("uvicorn")

ROOT = Path(__file__).resolve().parents[3]
WORKERS = 2
PATIENCE_S = 60


@contextmanager
def workers(place: Path, port: int) -> Iterator[str]:
    """Serve with several workers, and end them as their user would."""
    command = ["-m", "uvicorn", "tests.ops.metrics.served:app", "--workers", str(WORKERS), "--port", str(port)]
    environment = {**os.environ, "METRICS": str(place), "PYTHONPATH": "src"}
    process = subprocess.Popen([sys.executable, *command, "--log-level", "error"], cwd=ROOT, env=environment)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_S)


def ask(url: str) -> httpx.Response:
    """Ask over a connection of its own, so that any worker may answer; a worker that was killed does not."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return httpx.get(url, timeout=PATIENCE_S)
        except httpx.TransportError:
            assert time.monotonic() < until_s, "nobody answers"
            time.sleep(0.05)


def load(url: str, requests: int) -> Counter[int]:
    """Send requests, and return how often each worker answered."""
    with ThreadPoolExecutor(6) as pool:
        return Counter(
            int(ask(f"{url}/items/{number}").text) for number, _ in enumerate(pool.map(str, range(requests)))
        )


def passed(told: Exposition) -> float:
    series = (
        "slidegate_requests_total",
        frozenset({("route", "GET /items/{id}"), ("outcome", "passed"), ("store", "memory")}),
    )
    return told.samples.get(series, 0)


def scrape_until(url: str, wanted: int) -> Exposition:
    """Scrape until the metrics say that so many requests passed; they must never say more."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        told = parsed(ask(f"{url}/metrics/").text)
        assert passed(told) <= wanted
        if passed(told) == wanted:
            return told
        assert time.monotonic() < until_s, f"the metrics say {passed(told)}, not {wanted}"
        time.sleep(0.05)


class Watcher:
    """Scrapes all the time, and notes every counter that falls."""

    def __init__(self, url: str) -> None:
        self.fallen: list[tuple[object, float, float]] = []
        self.scrapes = 0
        self._stop = Event()
        self._thread = Thread(target=self._watch, args=(url,))
        self._thread.start()

    def _watch(self, url: str) -> None:
        before: dict[object, float] = {}
        while not self._stop.wait(0.1):
            try:
                told = parsed(httpx.get(f"{url}/metrics/", timeout=PATIENCE_S).text)
            except httpx.TransportError:
                continue
            for place, value in told.samples.items():
                if place[0].startswith("slidegate_") and place[0].endswith(("_total", "_bucket", "_count", "_sum")):
                    if value < before.get(place, 0):
                        self.fallen.append((place, before[place], value))
                    before[place] = value
            self.scrapes += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)


def test_the_metrics_are_those_of_all_workers_and_never_fall(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with workers(tmp_path, port) as url:
        answered = load(url, 1)
        watcher = Watcher(url)
        try:
            until_s = time.monotonic() + PATIENCE_S
            while len(answered) < WORKERS:
                answered += load(url, 30)
                assert time.monotonic() < until_s, f"only {len(answered)} workers answer"
            scrape_until(url, answered.total())
            victim = next(iter(answered))
            os.kill(victim, signal.SIGKILL)  # everything that it has counted is written
            scrape_until(url, answered.total())
            answered += load(url, 50)
            told = scrape_until(url, answered.total())
            assert told.value("slidegate_request_duration_seconds_count", route="GET /items/{id}") == answered.total()
        finally:
            watcher.end()
        assert watcher.scrapes > 3
        assert watcher.fallen == []
    with workers(tmp_path, port) as url:
        scrape_until(url, answered.total())
        answered += load(url, 20)
        scrape_until(url, answered.total())
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) <= 2 * (WORKERS + 1) + 2 + 2, f"files of workers that are gone pile up: {names}"
