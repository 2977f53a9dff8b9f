"""Workers of uvicorn in prometheus-client's multi-process mode: one of them is killed, and another takes its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from .reading import Exposition, parsed

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


def ask(port: int, path: str) -> str | None:
    """Ask on a connection of its own; None if there was nobody, or a worker died over it."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except (OSError, HTTPException):
        return None


def scrape(port: int) -> Exposition:
    text = ask(port, "/metrics/")
    assert text is not None
    return parsed(text)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.metrics.served", "2"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=PATIENCE_S)


def test_counters_are_those_of_all_workers_also_of_one_that_was_killed_and_replaced(port: int) -> None:
    pids: Counter[int] = Counter()
    lost = 0

    def load(workers: int) -> None:
        """Send requests until so many workers have answered."""
        nonlocal lost
        until_s = time.monotonic() + PATIENCE_S
        answered: set[int] = set()
        while len(answered) < workers:
            text = ask(port, "/item")
            if text is not None:
                pid = json.loads(text)["pid"]
                answered.add(pid)
                pids[pid] += 1
            else:
                lost += 1
            assert time.monotonic() < until_s, pids

    load(2)
    told = scrape(port)
    assert told.value("slidegate_requests_total", outcome="passed", route="GET /item") == pids.total()
    assert told.value("slidegate_request_duration_seconds_count", route="GET /item") == pids.total()
    first, second = pids
    os.kill(first, signal.SIGKILL)
    load(2)
    (new,) = pids.keys() - {first, second} or {0}
    assert new, "uvicorn has not replaced the worker"
    told = scrape(port)
    passed = told.value("slidegate_requests_total", outcome="passed", route="GET /item")
    assert pids.total() <= passed <= pids.total() + lost, "the dead one has counted, too"
    assert told.value("slidegate_rule_requests_total", rule="items") == passed
    assert told.value("slidegate_keys") <= 2, "the windows of the dead one are gone"
    assert told.value("slidegate_store_up") == 1
    assert all("process" not in dict(labels) for _, labels in told.series())
