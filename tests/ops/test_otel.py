"""The metrics, read by OpenTelemetry's SDK."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.ops.metrics import BOUNDS_S
from slidegate.otel import OtelMetrics
from slidegate.testing import FakeClock

from ..asgi import call
from .exposition import documented


class Collected:
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
    def __init__(self, *rules: Rule, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.limiter = Limiter(MemoryStore(clock=self.clock))
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = OtelMetrics(self.limiter, meter_provider=self.provider, **options)

        async def item(request: Request) -> PlainTextResponse:
            self.clock.advance("30ms")
            return PlainTextResponse("an item")

        self.app = Starlette(routes=[Route("/items/{id}", item)])
        self.app.add_middleware(RateLimitMiddleware, limiter=self.limiter, rules=list(rules))

    def collect(self) -> Collected:
        return Collected(self.reader)


async def test_instruments_have_what_the_middleware_decided() -> None:
    site = Site(Rule("*", "3/minute", name="visitor"))
    for _ in range(2):
        for number in range(5):
            await call(site.app, f"/items/{number}")
        site.clock.advance("1h")
        found = site.collect()
    assert found.value("slidegate.rule.requests", outcome="passed", store="memory") == 6
    assert found.value("slidegate.refusals", reason="limited") == 4
    assert found.value("slidegate.rule.requests", rule="visitor", outcome="refused") == 4
    (times,) = found.points("slidegate.request.duration", route="GET /items/{id}")
    assert (times.count, times.sum) == (6, pytest.approx(0.18))
    assert times.explicit_bounds == BOUNDS_S
    assert times.bucket_counts[BOUNDS_S.index(0.05)] == 6


async def test_every_metric_of_the_page_has_its_instrument() -> None:
    site = Site(Rule("*", "1/hour", name="items"))
    for _ in range(2):
        await call(site.app, "/items/1")
    await site.limiter.ban("192.0.2.1", "1h")
    found = site.collect()
    assert found.metrics.keys() == {metric.name for metric in documented()}
    for metric in documented():
        instrument = found.metrics[metric.name]
        assert instrument.description == metric.help
        assert (instrument.unit == "s") == (metric.kind == "histogram")
        for point in instrument.data.data_points:
            assert set(point.attributes) == {f"slidegate.{label}" for label in metric.labels}
        if metric.kind == "counter":
            assert instrument.data.is_monotonic
    assert found.value("slidegate.bans") == found.value("slidegate.active_bans") == 1


async def test_close_ends_the_export() -> None:
    site = Site(Rule("*", "1000000/minute"))
    await call(site.app, "/items/1")
    for _ in range(2):
        site.metrics.close()
    await call(site.app, "/items/1")
    assert site.collect().value("slidegate.rule.requests") == 1, "a counter stays as it is"
    assert not site.limiter.engine.observers.requests
    assert site.collect().points("slidegate.store.up") == []


async def test_times_of_requests_can_be_left_out() -> None:
    site = Site(Rule("*", "1000000/minute"), durations=False)
    await call(site.app, "/items/1")
    assert site.collect().value("slidegate.rule.requests", outcome="passed") == 1
    assert site.collect().points("slidegate.request.duration") == []
