"""uvicorn workers in prometheus-client's multi-process mode: one is killed and replaced."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..workers import PATIENCE_S, ask, serving
from . import served_metrics
from .exposition import Exposition, parsed

pytestmark = pytest.mark.all


def scrape(url: str, counted: int) -> Exposition:
    """Scrape when at least so many requests are counted: a request counts after its answer was sent."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        answer = ask(f"{url}/metrics/")
        assert answer is not None
        found = parsed(answer.text)
        passed = found.value("slidegate_request_duration_seconds_count", route="GET /item")
        if passed >= counted:
            return found
        assert time.monotonic() < until_s, (passed, counted)
        time.sleep(0.05)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with serving(served_metrics.__name__, 2, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) as url:
        yield url


def test_counters_are_those_of_all_workers_also_of_one_that_was_killed_and_replaced(url: str) -> None:
    pids: Counter[int] = Counter()
    lost = 0

    def load(workers: int) -> None:
        """Send requests until the given number of workers have answered."""
        nonlocal lost
        until_s = time.monotonic() + PATIENCE_S
        answered: set[int] = set()
        while len(answered) < workers:
            answer = ask(f"{url}/item")
            if answer is not None:
                pid = answer.json()["pid"]
                answered.add(pid)
                pids[pid] += 1
            else:
                lost += 1
            assert time.monotonic() < until_s, pids

    load(2)
    found = scrape(url, pids.total())
    assert found.value("slidegate_request_duration_seconds_count", route="GET /item") == pids.total()
    first, second = pids
    os.kill(first, signal.SIGKILL)
    load(2)
    (new,) = pids.keys() - {first, second} or {0}
    assert new, "uvicorn has not replaced the worker"
    found = scrape(url, pids.total())
    passed = found.value("slidegate_request_duration_seconds_count", route="GET /item")
    assert passed <= pids.total() + lost, "a worker that has ended is counted once"
    assert found.value("slidegate_rule_requests_total", rule="items") == passed
    assert found.value("slidegate_store_up") == 1
    assert found.value("slidegate_active_permits") == 0
