"""Workers that write their values into one directory: whichever is asked, the sums are those of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware
from slidegate.metrics import worker_files
from slidegate.prometheus import PrometheusMetrics

from ..asgi import call, hello
from .reading import scraped


class Worker:
    """One worker, in a process of its own as far as the files can tell."""

    def __init__(self, directory: Path) -> None:
        worker_files._in_use.clear()
        self.limiter = Limiter()
        self.metrics = PrometheusMetrics(
            self.limiter, registry=CollectorRegistry(), directory=directory, interval="100ms"
        )
        self.app = RateLimitMiddleware(hello, limiter=self.limiter, limits="1000/minute")

    async def passed(self) -> float:
        told = await scraped(self.metrics.app)
        return told.value("slidegate_requests_total", outcome="passed")


async def test_each_worker_tells_the_sum_of_all_also_of_those_that_are_gone(tmp_path: Path) -> None:
    first, second = Worker(tmp_path), Worker(tmp_path)
    for worker, requests in ((first, 3), (second, 4)):
        for _ in range(requests):
            await call(worker.app)
        await worker.passed()
    assert [await worker.passed() for worker in (first, second)] == [7, 7]
    await second.limiter.close()
    assert await first.passed() == 7
    await first.limiter.close()
    third = Worker(tmp_path)
    await call(third.app)
    assert await third.passed() == 8
    await third.limiter.close()


def test_another_limiter_of_this_process_cannot_use_the_directory(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    with pytest.raises(ConfigurationError, match=r"another limiter of this process uses .*; give each limiter its own"):
        PrometheusMetrics(Limiter(), registry=CollectorRegistry(), directory=tmp_path)
    first.metrics.close()
    PrometheusMetrics(Limiter(), registry=CollectorRegistry(), directory=tmp_path).close()
