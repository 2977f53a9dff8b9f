"""Four real uvicorn workers on one store: their statistics equal the counts of the client."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slidegate.ops.statistics import EVERY_S

from ..redis_servers import AT_REDIS
from ..workers import PATIENCE_S, ask, serving
from . import served_statistics
from .served_statistics import AMOUNT, WORKERS

pytestmark = pytest.mark.all


class Sent:
    """What a client has sent, and how it was answered."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.pids: Counter[int] = Counter()

    def send(self, site: str, requests: int) -> None:
        """Send requests; the status of one without a response is 0."""
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: ask(f"{site}/item"), range(requests)))
        for answer in answers:
            self.statuses[0 if answer is None else answer.status_code] += 1
            if answer is not None and answer.status_code == 200:
                self.pids[answer.json()["pid"]] += 1

    @property
    def counted(self) -> list[int]:
        return [self.statuses[200], self.statuses[429]]


def figures(site: str, window: str = "24h") -> Any:
    """Return the statistics of all workers as one of them reads them, when one is up."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        answer = ask(f"{site}/stats/{window}")
        if answer is not None and answer.status_code == 200:
            return answer.json()
        assert time.monotonic() < until_s, answer and answer.text
        time.sleep(0.05)


def figures_of(site: str, counted: list[int], window: str = "24h") -> Any:
    """Return the statistics when all workers have written; a write is due within five seconds."""
    until_s = time.monotonic() + 4 * EVERY_S
    while (found := figures(site, window))["counted"] != counted:
        assert time.monotonic() < until_s, (found, counted)
        time.sleep(0.2)
    return found


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
def test_sums_equal_the_counts_of_the_client_and_a_killed_worker_loses_five_seconds(url: str) -> None:
    sent = Sent()
    with serving(served_statistics.__name__, url) as site:
        figures(site)
        sent.send(site, AMOUNT + 100)
        assert sent.counted == [AMOUNT, 100]
        for window in ("5m", "1h", "24h"):
            found = figures_of(site, sent.counted, window)
            assert found["steps"] == sent.counted
        assert {*found["workers"]} >= sent.pids.keys()
        assert len(found["workers"]) <= WORKERS
        assert found["clients"][0] == sent.statuses.total()
    # At the end of the server every worker has written, and none is listed any more.
    with serving(served_statistics.__name__, url) as site:
        found = figures(site)
        assert found["counted"] == sent.counted
        assert not {*found["workers"]} & sent.pids.keys()
        sent.send(site, 100)
        before = figures_of(site, sent.counted)
        with ThreadPoolExecutor(1) as beside:
            flood = beside.submit(sent.send, site, 200)
            os.kill(before["workers"][-1], signal.SIGKILL)
            flood.result()
        sent.send(site, 50)
        time.sleep(EVERY_S + 1)
        admitted, refused = figures(site)["counted"]
        assert admitted == sent.statuses[200] == AMOUNT
        # The killed worker has lost at most what it had counted since its last write: a part of the flood.
        assert before["counted"][1] + 50 <= refused <= sent.statuses[429] + sent.statuses[0]
