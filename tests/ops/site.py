"""An application behind a middleware, which an exporter of metrics observes."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock

from ..asgi import call, page
from .exposition import Samples, documented, scraped

EVERY = [Rule("*", "1000000/minute", name="all")]


class Site:
    """Items take 30 ms by its clock. Samples have their names for OpenTelemetry; that of a histogram is the count."""

    def __init__(
        self,
        rules: Sequence[Rule] = EVERY,
        to: str = "Prometheus",
        *,
        limiter: Limiter | None = None,
        durations: bool = True,
        **options: Any,
    ) -> None:
        self.clock, self.reader = FakeClock(10**15), InMemoryMetricReader()
        self.limiter = limiter or Limiter(MemoryStore(clock=self.clock))
        self.app = Starlette(routes=[Route("/items/{id}", self.item), Route("/other", page, methods=["GET", "POST"])])
        self.app.add_middleware(RateLimitMiddleware, limiter=self.limiter, rules=rules, **options)
        provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics: Any = (
            PrometheusMetrics(self.limiter, registry=CollectorRegistry())
            if to == "Prometheus"
            else OtelMetrics(self.limiter, meter_provider=provider, durations=durations)
        )

    async def item(self, request: Request) -> PlainTextResponse:
        self.clock.advance("30ms")
        return PlainTextResponse("an item")

    async def visit(self, *paths: str, method: str = "GET", **more: Any) -> list[int]:
        """Request some paths one after the other; return the statuses."""
        return [(await call(self.app, path, method, **more)).status for path in paths]

    def instruments(self) -> list[Any]:
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"slidegate"}
        return [metric for scope in scopes for metric in scope.metrics]

    async def samples(self) -> Samples:
        if isinstance(self.metrics, PrometheusMetrics):
            names = {one.prometheus + "_count" * (one.kind == "histogram"): one.name for one in documented()}
            exposed = (await scraped(self.metrics.app)).items()
            return Samples({(names[name], labels): value for (name, labels), value in exposed if name in names})
        found = Samples()
        for one in self.instruments():
            for point in one.data.data_points:
                labels = frozenset((name.removeprefix("slidegate."), value) for name, value in point.attributes.items())
                found[one.name, labels] = point.count if hasattr(point, "count") else point.value
        return found

    async def value(self, name: str, **labels: str) -> float:
        return (await self.samples()).value(f"slidegate.{name}", **labels)
