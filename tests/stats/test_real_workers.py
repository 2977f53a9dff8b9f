"""Real workers of uvicorn on a shared store: their stats are those of the client that sent the requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from ..redis_servers import RedisServer, needs_redis
from .served import AMOUNT, INTERVAL_S

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
PATIENCE_S = 60


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path / 'store'}"
    else:
        with RedisServer() as server:
            yield server.url


@contextmanager
def serving(store: str) -> Iterator[str]:
    """Run the application; end its workers in order."""
    command = [sys.executable, "-m", "tests.stats.served", store, str(WORKERS)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_S)


class Load:
    """A client that keeps count."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.by_pid: Counter[int] = Counter()
        self.lost = 0

    @property
    def counted(self) -> list[int]:
        return [self.statuses[200], self.statuses[429]]

    def send(self, url: str, requests: int) -> None:
        with ThreadPoolExecutor(6) as pool:
            for answer in pool.map(lambda _: self.ask(f"{url}/item"), range(requests)):
                if answer is None:
                    self.lost += 1
                    continue
                status, told = answer
                self.statuses[status] += 1
                if status == 200:
                    self.by_pid[told["pid"]] += 1

    @staticmethod
    def ask(url: str) -> tuple[int, Any] | None:
        """Send a request on a connection of its own; None if there was nobody, or a worker died over it."""
        place, _, path = url.removeprefix("http://").partition("/")
        connection = HTTPConnection(place, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()


def figures(url: str, window: str) -> Any:
    """Return what a worker says; it may have to start first."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        answer = Load.ask(f"{url}/stats/{window}")
        if answer is not None and answer[0] == 200:
            return answer[1]
        assert time.monotonic() < until_s, answer
        time.sleep(0.05)


def stats_once_they_are(url: str, window: str, counted: list[int]) -> Any:
    until_s = time.monotonic() + PATIENCE_S
    while (found := figures(url, window))["counted"] != counted:
        assert time.monotonic() < until_s, (found, counted)
        time.sleep(0.05)
    return found


def test_the_sums_are_those_of_the_client_over_stops_in_order_and_a_kill(store: str) -> None:
    load = Load()
    with serving(store) as url:
        figures(url, "5m")  # a worker is there
        load.send(url, AMOUNT + 40)
        assert load.lost == 0
        assert load.counted == [AMOUNT, 40]
        for window in ("5m", "1h", "24h"):
            found = stats_once_they_are(url, window, load.counted)
            assert found["charted"] == load.counted
        assert {pid for pid, _ in found["workers"]} >= set(load.by_pid)
    # All have stopped in order: what they had counted is there as soon as others ask, and they are gone.
    with serving(store) as url:
        found = figures(url, "24h")
        assert found["counted"] == load.counted
        assert not {pid for pid, _ in found["workers"]} & set(load.by_pid)
        load.send(url, 40)
        found = stats_once_they_are(url, "24h", load.counted)
        killed, before = found["workers"][-1][0], load.counted
        with ThreadPoolExecutor(1) as beside:
            storm = beside.submit(load.send, url, 60)
            os.kill(killed, signal.SIGKILL)
            storm.result()
        # All were refused. The killed one has lost no more than it had not published: a part of the storm.
        assert load.counted[0] == before[0]
        load.send(url, 20)
        refused = stats_growing_to(url, before[1] + 20)
        time.sleep(5 * INTERVAL_S)
        refused = max(refused, figures(url, "24h")["counted"][1])
        assert before[1] + 20 <= refused <= load.counted[1] + load.lost


def stats_growing_to(url: str, least: int) -> int:
    """Return the refusals once there are so many."""
    until_s = time.monotonic() + PATIENCE_S
    while (refused := figures(url, "24h")["counted"][1]) < least:
        assert time.monotonic() < until_s, (refused, least)
        time.sleep(0.05)
    return int(refused)
