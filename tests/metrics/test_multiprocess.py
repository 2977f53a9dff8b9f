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
from . import served
from .reading import Exposition, parsed

pytestmark = pytest.mark.all


def scrape(url: str) -> Exposition:
    answer = ask(f"{url}/metrics/")
    return parsed(answer.text)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with serving(served.__name__, 2, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) as url:
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
    told = scrape(url)
    assert told.value("slidegate_requests_total", outcome="passed", route="GET /item") == pids.total()
    assert told.value("slidegate_request_duration_seconds_count", route="GET /item") == pids.total()
    first, second = pids
    os.kill(first, signal.SIGKILL)
    load(2)
    (new,) = pids.keys() - {first, second} or {0}
    assert new, "uvicorn has not replaced the worker"
    told = scrape(url)
    passed = told.value("slidegate_requests_total", outcome="passed", route="GET /item")
    assert pids.total() <= passed <= pids.total() + lost, "the dead one has counted, too"
    assert told.value("slidegate_rule_requests_total", rule="items") == passed
    assert told.value("slidegate_keys") <= 2, "the windows of the dead one are gone"
    assert told.value("slidegate_store_up") == 1
    assert all("process" not in dict(labels) for _, labels in told.series())
