"""The metrics of one process: both exporters say what the middleware decided, and clients cannot create series."""

import asyncio
import json
import math
import random
import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import BanPolicy, ConfigurationError, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, header
from slidegate.core import Decision, Reason, StoreUnavailable
from slidegate.events import Outcome
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES
from slidegate.ops.prometheus import PART
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock

from ..asgi import call, page
from ..hurry import at_once
from ..limiter.test_failover import Setup
from ..virtual_time import VirtualTime

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


# -- what both exporters say -------------------------------------------------------------------------------------------


Measure = Callable[..., Site]


@pytest.fixture(params=["Prometheus", "OpenTelemetry"])
def measured(request: pytest.FixtureRequest) -> Measure:
    return partial(Site, to=request.param)


async def test_metrics_say_what_the_middleware_has_decided(measured: Measure) -> None:
    rules = [Rule("/items/{id}", "3/hour", name="items"), Rule("*", "100/hour", name="service")]
    site = measured([*rules, Rule("*", "2/hour", name="trial", shadow=True)])
    await site.visit(*(f"/items/{number}" for number in range(5)), "/nowhere")
    await site.visit("/other", method="POST")
    assert await site.value("refusals", reason="limited") == await site.value("refusals") == 2
    for route, passed in [("GET /items/{id}", 3), ("GET,POST /other", 1), ("(no route)", 1)]:
        assert await site.value("request.duration", route=route) == passed
    for rule, passed, total in [("items", 3, 5), ("service", 5, 5)]:
        assert await site.value("rule.requests", rule=rule, outcome="passed") == passed
        assert await site.value("rule.requests", rule=rule) == total
    assert await site.value("rule.requests", rule="trial") == 3, "would have been refused"
    assert await site.value("rule.requests", rule="trial", outcome="shadow_refused") == 3
    assert await site.value("store.up") == 1
    assert {dict(labels)["store"] for _, labels in await site.samples()} == {"memory"}


async def test_bans_and_lists_are_reasons_of_their_own(measured: Measure) -> None:
    site = measured(
        [Rule("*", "1/hour", name="service")],
        blocklist=Networks(["192.0.2.0/24", "203.0.113.7"]),
        allowlist=Networks(["198.51.100.0/24"]),
        bans=BanPolicy(after="2/10m", duration="1h", ban_private=True),
    )
    await site.visit(*["/other"] * 5)
    await site.visit("/other", client=("192.0.2.1", 1))
    await site.visit("/other", "/other", client=("192.0.3.1", 1))
    reasons = {reason: await site.value("refusals", reason=reason) for reason in ("limited", "banned")}
    assert reasons == {"limited": 3, "banned": 2}
    assert await site.value("refusals", reason="blocked") == 1
    assert await site.value("bans") == await site.value("active_bans") == 1
    site.clock.advance("2h")
    assert (await site.value("active_bans"), await site.value("bans")) == (0, 1)


async def test_a_store_that_fails_is_down_until_it_answers(measured: Measure) -> None:
    setup = Setup("deny", inline=True)
    value = measured(limiter=setup.limiter).value
    await setup.hit()
    assert await value("store.up") == 1
    setup.store.error = StoreUnavailable("gone")
    for _ in range(3):
        await setup.hit()
    assert (await value("store.up"), await value("store.failures")) == (0, 3)
    setup.store.error = None
    setup.clock.advance("61s")
    assert await setup.hit()
    assert (await value("store.up"), await value("store.failures")) == (1, 3)


async def test_every_metric_of_the_page_is_exported_with_its_labels_and_no_other(measured: Measure) -> None:
    site = measured([Rule("*", "1/hour", name="items")])
    await site.visit("/items/1", "/items/1")
    assert not site.limiter.engine.observers.wants("refused"), "an event for each refused request"
    labels = {name: set(dict(has)) for name, has in await site.samples()}
    assert labels == {metric.name: metric.labels for metric in documented()}
    chosen_by_us = {"route", "rule", "outcome", "store", "reason"}
    assert set().union(*labels.values()) == chosen_by_us


async def test_close_ends_the_counting(measured: Measure) -> None:
    site = measured()
    await site.visit("/other")
    for _ in range(2):
        site.metrics.close()
    await site.visit("/other")
    assert not site.limiter.engine.observers.requests
    left = await site.samples()
    assert [value for (name, _), value in left.items() if name == "slidegate.rule.requests"] in ([], [1])
    assert "slidegate.store.up" not in {name for name, _ in left}


async def test_random_paths_and_clients_add_no_series(measured: Measure, rng: random.Random) -> None:
    rules = [Rule("/items/{id}", "3/minute", key=header("X-API-Key"), name="items"), Rule("*", "9/minute")]
    site, series = measured(rules), list[Any]()
    letters = string.ascii_letters + string.digits + "\"\\\n%{}'<\u202e"
    for requests in (300, 2_000):
        for number in range(requests):
            word = "".join(rng.choices(letters, k=rng.randrange(1, 12)))
            path = rng.choice([f"/items/{word}", f"/{word}/{number}", f"/other/{word}"])
            method = rng.choice(["GET", "POST", "BREW", word.upper()])
            client = f"2001:db8:{rng.getrandbits(16):x}:{rng.getrandbits(16):x}::1"
            await call(site.app, path, method, client=(client, 1), headers={"X-API-Key": f"{word}{number}"})
        series.append((await site.samples()).keys())
    assert series[0] == series[1]
    assert await site.value("request.duration") == 2_300


async def test_beyond_so_many_routes_further_ones_are_one(measured: Measure) -> None:
    site = measured()
    site.app.routes.extend(Route(f"/route{number}", page) for number in range(MAX_NAMES + 50))
    await site.visit(*(f"/route{number}" for number in range(MAX_NAMES + 50)))
    found = await site.samples()
    routes = {dict(labels)["route"] for name, labels in found if name == "slidegate.request.duration"}
    assert len(routes) == MAX_NAMES + 1
    assert await site.value("request.duration", route="(other)") == 50


async def test_instruments_of_opentelemetry_have_units_descriptions_and_bounds_and_times_can_be_left_out() -> None:
    site = Site(to="OpenTelemetry")
    await site.visit(*["/items/1"] * 6)
    instruments = {one.name: one for one in site.instruments()}
    for metric in documented():
        instrument = instruments[metric.name]
        assert instrument.description == metric.help
        assert (instrument.unit == "s") == (metric.kind == "histogram")
        assert metric.kind != "counter" or instrument.data.is_monotonic
    (times,) = instruments["slidegate.request.duration"].data.data_points
    assert (times.count, times.sum, times.explicit_bounds) == (6, pytest.approx(0.18), BOUNDS_S)
    assert times.bucket_counts[BOUNDS_S.index(0.05)] == 6
    without = Site(to="OpenTelemetry", durations=False)
    await without.visit("/other")
    left_out = instruments.keys() - {one.name for one in without.instruments()}
    assert left_out == {"slidegate.request.duration"}


# -- what only Prometheus has: its exposition, registries, and the files that processes share --------------------------


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

    async def slow(request: Any) -> Any:
        await asyncio.sleep(8)
        return await page(request)

    def permits() -> float | None:
        found: float | None = site.metrics.registry.get_sample_value("slidegate_active_permits", {"store": "memory"})
        return found

    site = Site([Rule("*", concurrency=5, name="service")])
    site.app.routes.append(Route("/slow", slow))
    assert permits() == 0
    for _ in range(2):
        long = asyncio.create_task(site.visit("/slow"))
        await asyncio.sleep(6)
        await site.visit("/other")
        assert permits() not in (None, 0)
        await long
        await asyncio.sleep(5.1)
        assert permits() == 0
    site.metrics.close()


async def test_a_gauge_that_a_store_does_not_know_is_not_a_number() -> None:
    site = Site()
    bans = site.limiter.store.bans
    bans.__class__ = type("Unknown", (type(bans),), {"count": lambda bans: None})
    assert math.isnan(await site.value("active_bans"))


# -- the Grafana dashboard and the alerts of the docs, checked against the metrics of real traffic ---------------------


DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_ALERTS = [alert["expr"] for alert in ALERTS]
GROUPED = re.compile(r"\bby \(([^)]*)\)")
MATCHED = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
METRIC = re.compile(r"slidegate_\w+")
WITHOUT_SAMPLES = {"unavailable"}
"""Values that need a failing store."""


@pytest.fixture
async def series() -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, after traffic of every kind."""
    rules = [Rule("*", "3/hour", name="service"), Rule("*", "1/hour", name="trial", shadow=True)]
    bans = BanPolicy(after="2/10m", duration="1h", ban_private=True)
    site = Site(rules, blocklist=Networks(["192.0.2.0/24"]), bans=bans)
    await site.visit(*["/items/1"] * 7)
    await site.visit("/items/1", client=("192.0.2.1", 1))
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels in await scraped(site.metrics.app):
        for label, value in labels:
            found[name][label].add(value)
    return found


@pytest.mark.parametrize("expression", [*EXPRESSIONS, *OF_ALERTS])
async def test_an_expression_has_labels_and_values_that_exist_and_reads_counters_as_rates_and_gauges_as_they_are(
    expression: str, series: dict[str, dict[str, set[str]]]
) -> None:
    (metric, *others) = dict.fromkeys(METRIC.findall(expression))
    assert expression.count("(") == expression.count(")")
    for name in (metric, *others):
        assert name in series, f"{name} is not exported"
        is_counter = name.endswith(("_total", "_count", "_bucket"))
        has_range = re.match(r"(\{[^}]*\})?\[(\$__rate_interval|10m)\]", expression.partition(name)[2]) is not None
        assert is_counter == has_range, name
    grouped = {label for labels in GROUPED.findall(expression) for label in labels.split(", ")}
    assert grouped <= series[metric].keys()
    for label, _, pattern in MATCHED.findall(expression):
        for value in pattern.split("|"):
            assert value in series[metric][label] | WITHOUT_SAMPLES, f"{metric} has no {label}={value}"


def test_every_metric_is_on_the_dashboard_and_legends_name_labels(series: dict[str, dict[str, set[str]]]) -> None:
    shown = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    assert {name for name in series if name.startswith("slidegate_")} - shown == {
        "slidegate_request_duration_seconds_sum"
    }
    for target in (target for panel in PANELS for target in panel["targets"]):
        grouped = {label for labels in GROUPED.findall(target["expr"]) for label in labels.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped - {"le"}
