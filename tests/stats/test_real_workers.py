"""Real uvicorn workers on a shared store: their stats match the counts of the client."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .. import served_by_workers
from ..redis_servers import AT_REDIS
from ..served_by_workers import AMOUNT, INTERVAL_S
from ..workers import PATIENCE_S, ask, serving

pytestmark = pytest.mark.all


def send(url: str, requests: int, seen: Counter[int]) -> set[int]:
    """Send requests and count their statuses, 0 without a response; return the workers that admitted some."""
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: ask(f"{url}/item"), range(requests)))
    seen.update(0 if answer is None else answer.status_code for answer in answers)
    return {answer.json()["pid"] for answer in answers if answer is not None and answer.status_code == 200}


def figures(url: str, window: str = "24h", least: Sequence[int] = (0, 0)) -> Any:
    """Return the stats of a worker when it is up and all workers have counted the given number of requests."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        answer = ask(f"{url}/stats/{window}")
        if answer is not None and answer.status_code == 200 and answer.json()["counted"] >= [*least]:
            return answer.json()
        assert time.monotonic() < until_s, (answer and answer.text, least)
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
def test_the_sums_are_those_of_the_client_over_stops_in_order_and_a_kill(url: str) -> None:
    seen: Counter[int] = Counter()
    with serving(served_by_workers.__name__, url) as site:
        figures(site)  # a worker is up
        workers = send(site, AMOUNT + 40, seen)
        assert seen == {200: AMOUNT, 429: 40}
        for window in ("5m", "1h", "24h"):
            found = figures(site, window, [AMOUNT, 40])
            assert found["counted"] == found["charted"] == [AMOUNT, 40]
        assert {pid for pid, _ in found["workers"]} >= workers
    # After an orderly shutdown, all counts are published and the workers are not listed.
    with serving(served_by_workers.__name__, url) as site:
        found = figures(site)
        assert found["counted"] == [AMOUNT, 40]
        assert not {pid for pid, _ in found["workers"]} & workers
        send(site, 40, seen)
        found = figures(site, least=[AMOUNT, 80])
        with ThreadPoolExecutor(1) as beside:
            storm = beside.submit(send, site, 60, seen)
            os.kill(found["workers"][-1][0], signal.SIGKILL)
            storm.result()
        send(site, 20, seen)
        # All were refused. The killed worker has lost at most its unpublished counts, a part of the storm.
        figures(site, least=[AMOUNT, 100])
        time.sleep(5 * INTERVAL_S)
        admitted, refused = figures(site)["counted"]
        assert admitted == seen[200] == AMOUNT
        assert 100 <= refused <= seen[429] + seen[0]
