"""What only Prometheus has: its exposition, registries, and the files that processes share."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, Rule
from slidegate.core import Decision, Reason
from slidegate.events import Outcome
from slidegate.ops.metrics import BOUNDS_S
from slidegate.ops.prometheus import PART
from slidegate.prometheus import PrometheusMetrics

from ..asgi import call, page
from ..hurry import at_once
from ..virtual_time import VirtualTime
from .exposition import documented, scraped


async def test_every_metric_has_the_kind_and_the_help_of_the_page() -> None:
    metrics = PrometheusMetrics(limiter := Limiter(), registry=CollectorRegistry())
    await call(RateLimitMiddleware(Starlette(), limits="9/day", limiter=limiter))
    alone = metrics.registry.restricted_registry(["slidegate_request_duration_seconds_count"])
    assert b"} 1.0" in generate_latest(alone), "a scrape of one metric finds all requests"
    found = await scraped(metrics.app)
    names = {metric.prometheus.removesuffix("_total"): metric for metric in documented()}
    assert {one.name: (one.type, one.documentation) for one in metrics.registry.collect()} == {
        name: (metric.kind, metric.help) for name, metric in names.items()
    }
    bounds = {dict(labels)["le"] for name, labels in found if name.endswith("_bucket")}
    assert bounds == {*map(str, BOUNDS_S), "+Inf"}
    metrics.close()
    assert generate_latest(metrics.registry) == b""


def test_outcomes_of_threads_are_noted_in_bounds_and_counted_once() -> None:
    metrics = PrometheusMetrics(Limiter(), registry=CollectorRegistry())
    outcome = Outcome([Decision(True, Reason.OK)], None, (), "GET /", 200, "success", 0, 1)

    def work(number: int) -> None:
        for _ in range(300):
            metrics.request(outcome)
        assert len(metrics._pending) < PART + 4

    at_once(work, threads=4)
    labels = {"route": "GET /", "store": "memory"}
    assert metrics.registry.get_sample_value("slidegate_request_duration_seconds_count", labels) == 1_200
    metrics.close()


@pytest.mark.parametrize("directory", ["", "shared"])
def test_two_limiters_need_two_registries_or_processes(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if directory:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    registry, second = CollectorRegistry(), Limiter()
    first = PrometheusMetrics(Limiter(), registry=registry)
    with pytest.raises(
        ConfigurationError, match=r"already has the metrics of another .*registry=CollectorRegistry\(\)"
    ):
        PrometheusMetrics(second, registry=CollectorRegistry() if directory else registry)
    assert not second.engine.observers.requests, "a constructor that failed left an observer behind"
    first.close()
    PrometheusMetrics(second, registry=registry).close()


async def test_shared_gauges_are_set_every_five_seconds_and_after_the_last_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = VirtualTime()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr("slidegate.ops.prometheus.monotonic", lambda: time.passed_s)

    async def slow(request: Any) -> PlainTextResponse:
        await asyncio.sleep(float(request.path_params["seconds"]))
        return PlainTextResponse("done")

    metrics = PrometheusMetrics(limiter := Limiter(), registry=CollectorRegistry())
    app = Starlette(routes=[Route("/slow/{seconds}", slow), Route("/other", page)])
    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("*", concurrency=5, name="service")])

    def permits() -> float | None:
        return metrics.registry.get_sample_value("slidegate_active_permits", {"store": "memory"})

    assert permits() == 0
    long = asyncio.create_task(call(app, "/slow/8"))
    await asyncio.sleep(6)
    await call(app, "/other")
    assert permits() not in (None, 0)
    await long
    await asyncio.sleep(5.1)
    assert permits() == 0
    metrics.close()


async def test_a_gauge_that_a_store_does_not_know_is_not_a_number() -> None:
    metrics = PrometheusMetrics(limiter := Limiter(), registry=CollectorRegistry())

    class Unknown(type(limiter.store.bans)):  # type: ignore[misc]
        def count(self) -> None:
            return None

    limiter.store.bans.__class__ = Unknown
    assert math.isnan((await scraped(metrics.app)).value("slidegate_active_bans"))
