"""OpenTelemetry's own SDK reads what the limiter knows."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core.statistics.series import MAX_NOTED
from slidegate.metrics.definitions import BOUNDS_S, METRICS
from slidegate.otel import OtelMetrics
from slidegate.testing import FakeClock

from ..asgi import call
from .reading import documented


class Collected:
    """What a reader of the SDK has collected."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data = reader.get_metrics_data()
        self.metrics: dict[str, Any] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                assert scope.scope.name == "slidegate"
                self.metrics |= {metric.name: metric for metric in scope.metrics}

    def points(self, name: str, **attributes: str) -> list[Any]:
        wanted = {f"slidegate.{key}": value for key, value in attributes.items()}
        points = self.metrics[name].data.data_points if name in self.metrics else ()
        return [point for point in points if wanted.items() <= dict(point.attributes).items()]

    def value(self, name: str, **attributes: str) -> int:
        found = self.points(name, **attributes)
        assert found, f"no point of {name} has {attributes}"
        return sum(point.value for point in found)


class Site:
    def __init__(self, *rules: Rule) -> None:
        self.clock = FakeClock(10**15)
        self.limiter = Limiter(MemoryStore(clock=self.clock))
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = OtelMetrics(self.limiter, meter_provider=self.provider)

        async def item(request: Request) -> PlainTextResponse:
            self.clock.advance("30ms")
            return PlainTextResponse("an item")

        self.app = Starlette(routes=[Route("/items/{id}", item)])
        self.app.add_middleware(RateLimitMiddleware, limiter=self.limiter, rules=list(rules))

    def collect(self) -> Collected:
        return Collected(self.reader)


async def test_instruments_say_what_the_gate_has_seen() -> None:
    site = Site(Rule("*", "3/minute", name="visitor"))
    for _ in range(2):
        for number in range(5):
            await call(site.app, f"/items/{number}")
        site.clock.advance("1h")
        told = site.collect()
    assert told.value("slidegate.requests", route="GET /items/{id}", outcome="passed", store="memory") == 6
    assert told.value("slidegate.requests", outcome="refused") == 4
    assert told.value("slidegate.rule.requests", rule="visitor", outcome="refused") == 4
    (times,) = told.points("slidegate.request.duration", route="GET /items/{id}")
    assert (times.count, times.sum) == (6, pytest.approx(0.18))
    assert times.explicit_bounds == BOUNDS_S
    assert times.bucket_counts[BOUNDS_S.index(0.05)] == 6


async def test_every_metric_of_the_page_has_its_instrument() -> None:
    site = Site(Rule("*", "2/s", wait="600ms", name="slow"))
    for _ in range(2):
        await call(site.app, "/items/1")
    began_us = site.limiter.engine.waits.begin()
    site.clock.advance("40ms")
    site.limiter.engine.waits.end(began_us, "passed")
    told = site.collect()
    for metric in documented():
        if metric.name == "slidegate.list.entries":  # there is none
            continue
        found = told.metrics[metric.name]
        assert (found.unit, found.description) == (metric.unit, metric.help)
        for point in found.data.data_points:
            assert set(point.attributes) == {f"slidegate.{label}" for label in metric.labels}
        if metric.kind == "counter":
            assert found.data.is_monotonic
    (waited,) = told.points("slidegate.request.time_in_queue", outcome="passed")
    assert (waited.count, waited.sum) == (1, pytest.approx(0.04))


async def test_every_time_is_recorded_once_whether_a_buffer_was_full_or_somebody_looked() -> None:
    site = Site(Rule("*", "1000000/minute"))
    requests = 2 * MAX_NOTED + 10
    for number in range(requests):
        await call(site.app, "/items/1")
        if number % 100 == 0:
            site.collect()
    for _ in range(2):
        (times,) = site.collect().points("slidegate.request.duration")
        assert (times.count, times.sum) == (requests, pytest.approx(0.03 * requests))


async def test_an_exporter_that_fails_hurts_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(Rule("*", "1000000/minute", name="all"))

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(type(site.metrics._histograms[METRICS["request.duration"]]), "record", broken)
    with caplog.at_level(logging.ERROR):
        answers = await asyncio.gather(*(call(site.app, "/items/1") for _ in range(MAX_NOTED + 1)))
    assert {answer.status for answer in answers} == {200}
    assert "recording times" in caplog.text
    assert site.limiter.stats("1m").rules["all"].passed == MAX_NOTED + 1


async def test_close_ends_what_was_begun() -> None:
    site = Site(Rule("*", "1000000/minute"))
    await call(site.app, "/items/1")
    with pytest.raises(ConfigurationError, match="it has an OtelMetrics already"):
        OtelMetrics(site.limiter, meter_provider=site.provider)
    for _ in range(2):
        site.metrics.close()
    assert site.collect().points("slidegate.requests") == []
    assert not site.limiter.engine.events.hears("banned")
    reader = InMemoryMetricReader()
    OtelMetrics(site.limiter, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    await call(site.app, "/items/1")
    assert Collected(reader).value("slidegate.requests", outcome="passed") == 2


async def test_times_of_requests_and_looks_at_decisions_can_be_left_out() -> None:
    site = Site(Rule("*", "1000000/minute"))
    site.metrics.close()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = OtelMetrics(site.limiter, meter_provider=provider, near_limit=False, durations=False)
    await call(site.app, "/items/1")
    told = Collected(reader)
    assert told.value("slidegate.requests", outcome="passed") == 1
    assert told.points("slidegate.request.duration") == []
    assert told.points("slidegate.events", kind="near_limit") == []
    assert not site.limiter.engine.events.near_limit
    metrics.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limiter": 5}, r"limiter: expected a Limiter, for example Limiter\(\), not 5"),
        ({"near_limit": 0.8}, "near_limit: expected True or False, not 0.8"),
        ({"durations": None}, "durations: expected True or False, not None"),
        ({"meter_provider": "mine"}, "meter_provider: expected a MeterProvider of opentelemetry, not 'mine'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        OtelMetrics(**{"limiter": Limiter(), **options})
