"""The metrics of one process: both exporters say what the middleware decided, and clients cannot create series."""

import random
import string
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import BanPolicy, Limiter, Networks, RateLimitMiddleware, Rule, header
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES
from slidegate.otel import OtelMetrics
from slidegate.prometheus import PrometheusMetrics

from ..asgi import call, page
from ..limiter.test_failover import Setup
from .exposition import Samples, documented, scraped, sum_of
from .site import Site


class Exported(ABC):
    """An exporter and what it exports: of a histogram, the count; all by their names for OpenTelemetry."""

    metrics: Any

    @abstractmethod
    async def samples(self) -> Samples: ...

    async def value(self, name: str, **labels: str) -> float:
        return sum_of(await self.samples(), f"slidegate.{name}", labels)


class ToPrometheus(Exported):
    def __init__(self, limiter: Limiter) -> None:
        self.metrics = PrometheusMetrics(limiter, registry=CollectorRegistry())

    async def samples(self) -> Samples:
        names = {
            metric.prometheus + ("_count" if metric.kind == "histogram" else ""): metric.name for metric in documented()
        }
        exposed = (await scraped(self.metrics.app)).samples
        return {(names[name], labels): value for (name, labels), value in exposed.items() if name in names}


class ToOtel(Exported):
    def __init__(self, limiter: Limiter, **options: Any) -> None:
        self.reader = InMemoryMetricReader()
        provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = OtelMetrics(limiter, meter_provider=provider, **options)

    def instruments(self) -> list[Any]:
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"slidegate"}
        return [metric for scope in scopes for metric in scope.metrics]

    async def samples(self) -> Samples:
        found: Samples = {}
        for one in self.instruments():
            for point in one.data.data_points:
                labels = frozenset((name.removeprefix("slidegate."), value) for name, value in point.attributes.items())
                found[one.name, labels] = point.count if hasattr(point, "count") else point.value
        return found


class Measured(Site):
    """A site with an exporter."""

    def __init__(self, exporter: type[Exported], rules: list[Rule] | None = None, **options: Any) -> None:
        super().__init__(rules, **options)
        self.exported = exporter(self.limiter)  # type: ignore[call-arg]
        self.value = self.exported.value


@pytest.fixture(params=[ToPrometheus, ToOtel])
def exporter(request: pytest.FixtureRequest) -> type[Exported]:
    exporter: type[Exported] = request.param
    return exporter


async def test_metrics_say_what_the_middleware_has_decided(exporter: type[Exported]) -> None:
    rules = [Rule("/items/{id}", "3/hour", name="items"), Rule("*", "100/hour", name="service")]
    site = Measured(exporter, [*rules, Rule("*", "2/hour", name="trial", shadow=True)])
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
    assert {dict(labels)["store"] for _, labels in await site.exported.samples()} == {"memory"}


async def test_bans_and_lists_are_reasons_of_their_own(exporter: type[Exported]) -> None:
    site = Measured(
        exporter,
        [Rule("*", "1/hour", name="service")],
        blocklist=Networks(["192.0.2.0/24", "203.0.113.7"]),
        allowlist=Networks(["198.51.100.0/24"]),
        bans=BanPolicy(after="2/10m", duration="1h", ban_private=True),
    )
    await site.visit(*["/other"] * 5)
    await site.visit("/other", client=("192.0.2.1", 1))
    reasons = {reason: await site.value("refusals", reason=reason) for reason in ("limited", "banned")}
    assert reasons == {"limited": 2, "banned": 2}
    assert await site.value("refusals", reason="blocked") == 1
    assert await site.value("bans") == await site.value("active_bans") == 1
    site.clock.advance("2h")
    assert (await site.value("active_bans"), await site.value("bans")) == (0, 1)


async def test_counters_add_up_to_all_requests(exporter: type[Exported], rng: random.Random) -> None:
    site = Measured(exporter, [Rule("/items/{id}", "5/10s", name="items"), Rule("*", "20/minute", name="service")])
    statuses = Counter(await site.visit(*["/items/1"] * 6))
    assert statuses == {200: 5, 429: 1}
    for _ in range(9):
        for _ in range(rng.randrange(40)):
            statuses.update(await site.visit(rng.choice(["/items/1", "/items/2", "/other", "/nowhere"])))
            site.clock.advance(us=rng.randrange(10**6))
        site.clock.advance(rng.choice(["1s", "10m", "3d"]))
        assert await site.value("refusals") == statuses[429]
        assert await site.value("request.duration") == statuses.total() - statuses[429]


async def test_a_store_that_fails_is_down_until_it_answers(exporter: type[Exported]) -> None:
    setup = Setup("deny", inline=True)
    value = exporter(setup.limiter).value  # type: ignore[call-arg]
    await setup.hit()
    assert await value("store.up") == 1
    setup.fall_ill()
    for _ in range(3):
        await setup.hit()
    assert (await value("store.up"), await value("store.failures")) == (0, 3)
    setup.recover()
    assert await setup.hit()
    assert (await value("store.up"), await value("store.failures")) == (1, 3)


async def test_every_metric_of_the_page_is_exported_with_its_labels_and_no_other(exporter: type[Exported]) -> None:
    site = Measured(exporter, [Rule("*", "1/hour", name="items")])
    await site.visit("/items/1", "/items/1")
    assert not site.limiter.engine.observers.wants("refused"), "an event for each refused request"
    labels = {name: set(dict(has)) for name, has in await site.exported.samples()}
    assert labels == {metric.name: metric.labels for metric in documented()}
    chosen_by_us = {"route", "rule", "outcome", "store", "reason"}
    assert set().union(*labels.values()) == chosen_by_us


async def test_close_ends_the_counting(exporter: type[Exported]) -> None:
    site = Measured(exporter)
    await site.visit("/other")
    for _ in range(2):
        site.exported.metrics.close()
    await site.visit("/other")
    assert not site.limiter.engine.observers.requests
    left = await site.exported.samples()
    assert [value for (name, _), value in left.items() if name == "slidegate.rule.requests"] in ([], [1])
    assert "slidegate.store.up" not in {name for name, _ in left}


async def storm(site: Measured, rng: random.Random, requests: int) -> None:
    """Send requests in which every value that a client can choose is different."""
    letters = string.ascii_letters + string.digits + "\"\\\n%{}'<\u202e"
    for number in range(requests):
        word = "".join(rng.choices(letters, k=rng.randrange(1, 12)))
        path = rng.choice([f"/items/{word}", f"/{word}/{number}", f"/other/{word}"])
        method = rng.choice(["GET", "POST", "BREW", word.upper()])
        client = f"2001:db8:{rng.getrandbits(16):x}:{rng.getrandbits(16):x}::1"
        await call(site.app, path, method, client=(client, 1), headers={"X-API-Key": f"{word}{number}"})


async def test_random_paths_and_clients_leave_the_number_of_series_as_it_was(
    exporter: type[Exported], rng: random.Random
) -> None:
    rules = [Rule("/items/{id}", "3/minute", key=header("X-API-Key"), name="items"), Rule("*", "9/minute")]
    site = Measured(exporter, rules)
    await storm(site, rng, 300)
    before = (await site.exported.samples()).keys()
    await storm(site, rng, 2_000)
    assert (await site.exported.samples()).keys() == before
    assert await site.value("request.duration") == 2_300


async def test_beyond_so_many_routes_further_ones_are_one(exporter: type[Exported]) -> None:
    site = Measured(exporter)
    site.app.routes.extend(Route(f"/route{number}", page) for number in range(MAX_NAMES + 50))
    await site.visit(*(f"/route{number}" for number in range(MAX_NAMES + 50)))
    found = await site.exported.samples()
    routes = {dict(labels)["route"] for name, labels in found if name == "slidegate.request.duration"}
    assert len(routes) == MAX_NAMES + 1
    assert await site.value("request.duration", route="(other)") == 50


async def test_instruments_of_opentelemetry_have_units_descriptions_and_bounds() -> None:
    site = Measured(ToOtel)
    await site.visit(*["/items/1"] * 6)
    assert isinstance(site.exported, ToOtel)
    instruments = {one.name: one for one in site.exported.instruments()}
    for metric in documented():
        instrument = instruments[metric.name]
        assert instrument.description == metric.help
        assert (instrument.unit == "s") == (metric.kind == "histogram")
        assert metric.kind != "counter" or instrument.data.is_monotonic
    (times,) = instruments["slidegate.request.duration"].data.data_points
    assert (times.count, times.sum, times.explicit_bounds) == (6, pytest.approx(0.18), BOUNDS_S)
    assert times.bucket_counts[BOUNDS_S.index(0.05)] == 6


async def test_times_of_requests_can_be_left_out() -> None:
    exported = ToOtel(limiter := Limiter(), durations=False)
    await call(RateLimitMiddleware(Starlette(), limits="9/day", limiter=limiter))
    assert {name for name, _ in await exported.samples()} >= {"slidegate.rule.requests", "slidegate.store.up"}
    assert "slidegate.request.duration" not in {name for name, _ in await exported.samples()}
