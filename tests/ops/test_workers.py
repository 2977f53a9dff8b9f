"""Four real uvicorn workers on one store: their statistics and their metrics equal the counts of the client."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slidegate.ops.statistics import EVERY_S

from ..redis_servers import AT_REDIS
from ..served_by_workers import AMOUNT, NAME
from ..workers import PATIENCE_S, ask, serving
from .site import Samples, parsed

pytestmark = pytest.mark.all
SERVED = "tests.served_by_workers"
WORKERS = 4


def send(site: str, requests: int, statuses: Counter[int]) -> set[int]:
    """Send requests and count their statuses, 0 without a response; return the workers that have admitted some."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(f"{site}/item"), range(requests)))
    statuses.update(0 if answer is None else answer.status_code for answer in answers)
    return {answer.json()["pid"] for answer in answers if answer is not None and answer.status_code == 200}


def when(read: Callable[[], Any], is_there: Callable[[Any], bool], within_s: float = PATIENCE_S) -> Any:
    """Return what is read as soon as it is there: a request counts after its answer was sent, and is written later."""
    until_s = time.monotonic() + within_s
    while not is_there(found := read()):
        assert time.monotonic() < until_s, found
        time.sleep(0.1)
    return found


def figures(site: str, window: str = "24h", counted: list[int] | None = None) -> Any:
    """Return the statistics of all workers as one of them reads them, when it is up and all have written theirs."""

    def read() -> Any:
        answer = ask(f"{site}/stats/{window}")
        return answer.json() if answer is not None and answer.status_code == 200 else None

    within_s = PATIENCE_S if counted is None else 4 * EVERY_S  # a write is due within five seconds
    return when(read, lambda found: found and counted in (None, found["counted"]), within_s)


def refusals(found: Samples) -> float:
    return found.value("slidegate_rule_requests_total", rule=NAME, outcome="refused")


def scraped(site: str, refused: int) -> Samples:
    """Scrape one worker for all when so many refusals are counted."""

    def read() -> Samples:
        answer = ask(f"{site}/metrics/")
        assert answer is not None
        return parsed(answer.text)

    found: Samples = when(read, lambda found: refusals(found) >= refused)
    return found


@pytest.mark.parametrize("kind", ["lmdb", AT_REDIS])
def test_workers_sum_up_and_a_killed_one_loses_five_seconds(url: str, tmp_path: Path) -> None:
    statuses = Counter[int]()
    shared = [str(tmp_path / name) for name in ("first", "second")]
    for directory in shared:
        os.mkdir(directory)
    with serving(SERVED, url, WORKERS, PROMETHEUS_MULTIPROC_DIR=shared[0]) as site:
        figures(site)
        pids = send(site, AMOUNT + 100, statuses)
        assert statuses == {200: AMOUNT, 429: 100}
        for window in ("5m", "1h", "24h"):
            found = figures(site, window, [AMOUNT, 100])
            assert found["steps"] == [AMOUNT, 100]
        assert {*found["workers"]} >= pids
        assert len(found["workers"]) <= WORKERS
        assert found["clients"][0] == AMOUNT + 100
        metrics = scraped(site, 100)
        assert refusals(metrics) == metrics.value("slidegate_refusals_total") == 100
        assert metrics.value("slidegate_request_duration_seconds_count", route="GET /item") == AMOUNT
        assert (metrics.value("slidegate_store_up"), metrics.value("slidegate_active_permits")) == (1, 0)
    # At the end of the server every worker has written, and none is listed any more.
    with serving(SERVED, url, WORKERS, PROMETHEUS_MULTIPROC_DIR=shared[1]) as site:
        found = figures(site)
        assert found["counted"] == [AMOUNT, 100]
        assert not {*found["workers"]} & pids
        send(site, 100, statuses)
        before = figures(site, counted=[AMOUNT, 200])
        with ThreadPoolExecutor(1) as beside:
            flood = beside.submit(send, site, 200, statuses)
            os.kill(before["workers"][-1], signal.SIGKILL)
            flood.result()
        send(site, 50, statuses)
        time.sleep(EVERY_S + 1)
        admitted, refused = figures(site)["counted"]
        assert admitted == statuses[200] == AMOUNT
        # The killed worker has lost at most what it had counted since its last write: a part of the flood.
        assert before["counted"][1] + 50 <= refused <= statuses[429] + statuses[0]
        # Its metrics are in files: nothing is lost, and it is counted once after it was replaced.
        answered = statuses[429] - 100
        assert answered <= refusals(scraped(site, answered)) <= answered + statuses[0]
