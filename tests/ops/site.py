"""An application that an exporter of metrics observes, and an exposition, read by the parsers of Prometheus."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock

from ..asgi import call, page

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "metrics.md"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


class Metric(NamedTuple):
    """A row of the table in the documentation."""

    name: str
    prometheus: str
    kind: str
    labels: set[str]
    help: str


def documented() -> list[Metric]:
    """Return the table of metrics in the documentation, whose names for Prometheus follow the rule above it."""
    endings, found = {"counter": "_total", "histogram": "_seconds"}, []
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| `slidegate."):
            name, kind, labels, text = re.split(r" *\| *", line.replace("`", "", 2).strip("| "))
            prometheus = name.replace(".", "_") + endings.get(kind, "")
            found.append(Metric(name, prometheus, kind, {*filter(None, labels.split(", ")), "store"}, text))
    return found


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """The values by the metric's name and its labels."""

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of all samples with this name and these labels."""
        found = [value for (other, has), value in self.items() if other == name and labels.items() <= has]
        assert found, f"no sample of {name} has {labels}"
        return sum(found)


def parsed(text: str, parse: Callable[[str], Iterable[Any]] = parse_text) -> Samples:
    """Return the samples of an exposition, without those that prometheus_client adds to each counter and histogram."""
    families, samples = list(parse(text)), Samples()
    assert len({family.name for family in families}) == len(families), "a family comes twice"
    for sample in (sample for family in families for sample in family.samples if not sample.name.endswith("_created")):
        series = sample.name, frozenset(sample.labels.items())
        assert series not in samples, f"{series} comes twice"
        samples[series] = sample.value
    return samples


async def scraped(app: Any) -> Samples:
    """Scrape in both formats, which must agree."""
    answer = await call(app, headers={"Accept": "text/plain"})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    text = parsed(answer.body.decode())
    other = await call(app, headers={"Accept": OPENMETRICS})
    assert other.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.body.endswith(b"# EOF\n")
    openmetrics = parsed(other.body.decode(), parse_openmetrics)
    ours = [{series for series in one if series[0].startswith("slidegate_")} for one in (text, openmetrics)]
    assert ours[0] == ours[1]
    return text


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
