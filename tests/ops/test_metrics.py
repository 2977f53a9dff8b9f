"""The metrics of one process: both exporters say what the middleware decided, and clients cannot create series."""

import asyncio
import json
import logging
import math
import random
import re
import string
from collections import defaultdict
from collections.abc import Callable, Iterable
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
from starlette.responses import Response
from starlette.routing import Route

from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimitMiddleware, Rule, header
from slidegate.core import Decision, Reason, StoreUnavailable
from slidegate.events import Event, Outcome
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES, PART
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page
from ..hurry import at_once
from ..limiter.test_failover import Setup
from ..virtual_time import VirtualTime
from .site import Site, Visitor

DURATION: Final = "slidegate.request.duration"
DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "reference" / "errors.md"
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


class Exporters:
    """Both exporters of a limiter. Samples have their names for OpenTelemetry; that of a histogram is the count."""

    def __init__(self, limiter: Limiter, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.otel = OtelMetrics(limiter, meter_provider=provider, **options)
        self.prometheus = PrometheusMetrics(limiter, registry=CollectorRegistry())

    def instruments(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"slidegate"}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    async def samples(self) -> Samples:
        """Return what both say."""
        names = {one.prometheus + "_count" * (one.kind == "histogram"): one.name for one in documented()}
        scrape = (await scraped(self.prometheus.app)).items()
        known = [(name, labels, value) for (name, labels), value in scrape if name in names and not math.isnan(value)]
        found, exposed = Samples(), {(names[name], labels): value for name, labels, value in known}
        for name, one in self.instruments().items():
            for point in one.data.data_points:
                labels = frozenset((name.removeprefix("slidegate."), value) for name, value in point.attributes.items())
                found[name, labels] = point.count if hasattr(point, "count") else point.value
        assert found == exposed
        return found

    async def value(self, name: str, **labels: str) -> float:
        return (await self.samples()).value(f"slidegate.{name}", **labels)


# -- what both exporters say -------------------------------------------------------------------------------------------


class Scraper(Visitor):
    """A visitor that measures a site and shows its metrics, or those whose names begin as one of some words."""

    async def _measure(self) -> None:
        self.exporters = Exporters(self.site.limiter)

    async def _metrics(self, *names: str) -> str:
        lines = []
        for (name, labels), value in (await self.exporters.samples()).items():
            shown = dict(sorted(labels, reverse=True))
            assert shown.pop("store") == "memory"
            lines.append(" ".join([name.removeprefix("slidegate."), *shown.values(), f"{value:g}"]))
        return "\n".join(sorted(line for line in lines if line.startswith(names or "")))


def test_metrics_say_what_was_decided(clock: FakeClock, tmp_path: Path, texts: Callable[..., None]) -> None:
    with asyncio.Runner() as runner:
        scraper = Scraper(clock, tmp_path)
        texts(Path(__file__).with_name("metrics.txt"), "> ", lambda line: runner.run(scraper.answer(line)))


async def test_a_store_that_fails_is_down_until_it_answers_and_what_it_does_not_know_is_no_number() -> None:
    setup = Setup("deny", inline=True)
    exporters = Exporters(setup.limiter)
    value = exporters.value
    assert math.isnan((await scraped(exporters.prometheus.app)).value("slidegate_active_bans"))
    assert "slidegate.active_bans" not in exporters.instruments()
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


async def test_close_ends_the_counting() -> None:
    limiter = Limiter()
    app, exporters = RateLimitMiddleware(hello, limits="9/day", limiter=limiter), Exporters(limiter)
    assert not limiter.engine.observers.wants("refused"), "an event for each refused request"
    await call(app)
    assert await exporters.value("request.duration") == 1
    for _ in range(2):
        exporters.otel.close()
        exporters.prometheus.close()
    await call(app)
    assert not limiter.engine.observers.requests
    assert generate_latest(exporters.prometheus.registry) == b""
    left = exporters.instruments()
    assert [point.value for point in left["slidegate.rule.requests"].data.data_points] == [1]
    assert "slidegate.store.up" not in left


async def test_random_paths_and_clients_add_no_series(rng: random.Random) -> None:
    rules = [Rule("/articles/{slug}", "3/minute", key=header("X-API-Key"), name="items"), Rule("*", "9/minute")]
    site, series = Site(middleware={"rules": rules}), list[Any]()
    exporters = Exporters(site.limiter)
    letters = string.ascii_letters + string.digits + "\"\\\n%{}'<\u202e"
    for requests in (300, 2_000):
        for number in range(requests):
            word = "".join(rng.choices(letters, k=rng.randrange(1, 12)))
            path = rng.choice([f"/articles/{word}", f"/{word}/{number}", f"/other/{word}"])
            method = rng.choice(["GET", "POST", "BREW", word.upper()])
            client = f"2001:db8:{rng.getrandbits(16):x}:{rng.getrandbits(16):x}::1"
            await call(site.app, path, method, client=(client, 1), headers={"X-API-Key": f"{word}{number}"})
        series.append((await exporters.samples()).keys())
    assert series[0] == series[1]
    assert await exporters.value("request.duration") == 2_300


async def test_beyond_so_many_routes_further_ones_are_one() -> None:
    site = Site(middleware={"rules": [Rule("*", "1000/minute")]})
    exporters = Exporters(site.limiter)
    site.app.routes.extend(Route(f"/route{number}", partial(page)) for number in range(MAX_NAMES + 50))
    for number in range(MAX_NAMES + 50):
        await site.visit(f"/route{number}")
    found = await exporters.samples()
    routes = {dict(labels)["route"] for name, labels in found if name == "slidegate.request.duration"}
    assert len(routes) == MAX_NAMES + 1
    assert await exporters.value("request.duration", route="(other)") == 50


async def test_instruments_have_labels_units_and_bounds_of_the_page_and_times_can_be_left_out(clock: FakeClock) -> None:
    async def slow(request: Request) -> Response:
        clock.advance("30ms")
        return await page(request)

    site = Site(clock)
    site.app.routes.append(Route("/slow", slow))
    exporters, without = Exporters(site.limiter), Exporters(site.limiter, durations=False)
    await site.visit("/slow", times=6)
    await site.visit(times=20)
    labels = {name: set(dict(has)) for name, has in await exporters.samples()}
    assert labels == {metric.name: metric.labels for metric in documented()}
    assert set().union(*labels.values()) == {"route", "rule", "outcome", "store", "reason", "status"}  # chosen by us
    instruments = exporters.instruments()
    for metric in documented():
        instrument = instruments[metric.name]
        assert instrument.description == metric.help
        assert (instrument.unit == "s") == (metric.kind == "histogram")
        assert metric.kind != "counter" or instrument.data.is_monotonic
    of_routes = {one.attributes["slidegate.route"]: one for one in instruments[DURATION].data.data_points}
    times = of_routes["GET /slow"]
    assert (times.count, times.sum, times.explicit_bounds) == (6, pytest.approx(0.18), BOUNDS_S)
    assert times.bucket_counts[BOUNDS_S.index(0.05)] == 6
    assert instruments.keys() - without.instruments().keys() == {DURATION}


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


def test_outcomes_of_threads_are_noted_in_bounds_and_counted_once() -> None:
    metrics = PrometheusMetrics(Limiter(), registry=CollectorRegistry())
    outcome = Outcome(PEER, [Decision(True, Reason.OK)], None, (), "GET /", 200, False, 0, 1)

    def work(number: int) -> None:
        for _ in range(300):
            metrics.request(outcome)
        assert len(metrics._pending) < PART + 4

    at_once(work, threads=4)
    labels = {"route": "GET /", "status": "2xx", "store": "memory"}
    assert metrics.registry.get_sample_value("slidegate_request_duration_seconds_count", labels) == 1_200
    metrics.close()


@pytest.mark.parametrize("directory", ["", "shared"])
def test_two_limiters_need_two_registries(directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        found: float | None = metrics.registry.get_sample_value("slidegate_active_permits", {"store": "memory"})
        return found

    site = Site(middleware={"rules": [Rule("*", concurrency=5, name="service")]})
    metrics = PrometheusMetrics(site.limiter)
    site.app.routes.append(Route("/slow", slow))
    assert permits() == 0
    for _ in range(2):
        long = asyncio.create_task(site.visit("/slow"))
        await asyncio.sleep(6)
        await site.visit()
        assert permits() not in (None, 0)
        await long
        await asyncio.sleep(5.1)
        assert permits() == 0
    metrics.close()


# -- the Grafana dashboard and the alerts of the docs, checked against the metrics of real traffic ---------------------


DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = yaml.safe_load((DOCS / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_ALERTS = [alert["expr"] for alert in ALERTS]
GROUPED = re.compile(r"\bby \(([^)]*)\)")
MATCHED = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
METRIC = re.compile(r"slidegate_\w+")
OF_TARGETS = {"job", "instance"}
"""The labels that Prometheus adds."""
WITHOUT_SAMPLES = {"unavailable"}
"""Values that need a failing store."""


@pytest.fixture
async def series() -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, after traffic of every kind."""
    rules = [Rule("*", "3/hour", name="service"), Rule("*", "1/hour", name="trial", shadow=True)]
    site = Site(middleware={"rules": rules, "bans": BanPolicy(after="2/10m", duration="1h")})
    exporters = Exporters(site.limiter)
    await site.visit(times=7)
    await site.visit(client="192.0.2.129")
    assert await site.visit("/slidegate/", client="198.51.100.7") == [401]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels in await scraped(exporters.prometheus.app):
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
        assert expression in OF_ALERTS or f'{name}{{job=~"$job",instance=~"$instance"' in expression
    grouped = {label for labels in GROUPED.findall(expression) for label in labels.split(", ")}
    assert grouped - OF_TARGETS <= series[metric].keys()
    for label, _, pattern in MATCHED.findall(expression):
        for value in pattern.split("|") if label not in OF_TARGETS else ():
            assert value in series[metric][label] | WITHOUT_SAMPLES, f"{metric} has no {label}={value}"


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_judges_each_service_by_itself_and_names_it(alert: dict[str, Any]) -> None:
    """The traffic of one does not hide that limits refuse another."""
    grouped = [labels.split(", ") for labels in GROUPED.findall(alert["expr"])]
    assert len(grouped) == len(METRIC.findall(alert["expr"]))
    for labels in grouped:
        assert labels[0] == "job"
        assert all(f"{{{{ $labels.{label} }}}}" in alert["annotations"]["summary"] for label in labels)


def test_every_metric_is_on_the_dashboard_and_legends_name_labels(series: dict[str, dict[str, set[str]]]) -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    shown = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    assert variables == {"datasource"} | OF_TARGETS
    assert {name for name in series if name.startswith("slidegate_")} - shown == {
        "slidegate_request_duration_seconds_sum"
    }
    for target in (target for panel in PANELS for target in panel["targets"]):
        grouped = {label for labels in GROUPED.findall(target["expr"]) for label in labels.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped - {"le"}


# -- the levels of events in the log -----------------------------------------------------------------------------------


def test_the_page_says_which_events_are_logged_as_information(caplog: pytest.LogCaptureFixture) -> None:
    """Those of files are logged where they are read, and not again."""
    caplog.set_level(logging.INFO, "slidegate")
    limiter, text = Limiter(), (DOCS / "guides" / "metrics.md").read_text("utf-8")
    section = PAGE.read_text("utf-8").partition("\n## All kinds of events\n")[2]
    kinds = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    for kind in kinds:
        limiter.engine.emit(Event(kind, "a test"))
    levels = {line.message.split(": ")[1]: line.levelname for line in caplog.records}
    (sentence,) = re.findall(r'The logger `"slidegate"` gets (.*?)at\s+level INFO', text, re.DOTALL)
    named = {*re.findall("`(\\w+)`", sentence)}
    assert {kind for kind, level in levels.items() if level == "INFO"} == named - {"list_reloaded", "config_reloaded"}
    assert {*kinds} - {*levels} == {"list_reloaded", "config_reloaded", "list_rejected", "config_rejected"}
