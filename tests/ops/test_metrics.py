"""The metrics of one process: both exporters say what the middleware decided, and clients cannot create series."""

import asyncio
import json
import math
import random
import re
import string
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import BanPolicy, ConfigurationError, Limiter, Networks, RateLimitMiddleware, Rule, header
from slidegate.core import Decision, Reason, StoreUnavailable
from slidegate.events import Outcome
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES
from slidegate.ops.prometheus import PART
from slidegate.prometheus import PrometheusMetrics

from ..asgi import call, page
from ..hurry import at_once
from ..limiter.test_failover import Setup
from ..virtual_time import VirtualTime
from .site import Site, documented, scraped

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
