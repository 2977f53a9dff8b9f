"""The metrics, read by Prometheus parsers; clients cannot create series."""

from __future__ import annotations

import asyncio
import math
import random
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    Networks,
    RateLimitMiddleware,
    Rule,
    header,
)
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES
from slidegate.prometheus import PrometheusMetrics
from slidegate.testing import FakeClock

from ..asgi import call, page
from ..limiter.test_failover import Ward
from ..virtual_time import VirtualTime
from .exposition import documented, scraped


def metrics_of(limiter: Limiter, **options: Any) -> PrometheusMetrics:
    return PrometheusMetrics(limiter, registry=CollectorRegistry(), **options)


class Site:
    def __init__(self, rules: list[Rule] | None = None, max_keys: int = 50_000, **options: Any) -> None:
        self.clock = FakeClock(10**15)
        self.limiter = Limiter(MemoryStore(clock=self.clock, max_keys=max_keys))
        self.metrics = metrics_of(self.limiter)
        self.app = Starlette(routes=[Route("/items/{id}", page), Route("/other", page, methods=["GET", "POST"])])
        self.app.add_middleware(
            RateLimitMiddleware,
            limiter=self.limiter,
            rules=[Rule("*", "1000000/minute", name="visitor")] if rules is None else rules,
            **options,
        )


async def test_the_exposition_says_what_the_middleware_has_seen() -> None:
    site = Site([Rule("/items/{id}", "3/hour", name="items"), Rule("*", "100/hour", name="service")])
    for number in range(5):
        await call(site.app, f"/items/{number}")
    await call(site.app, "/other", "POST")
    await call(site.app, "/nowhere")
    found = await scraped(site.metrics.app)
    assert found.value("slidegate_refusals_total", reason="limited") == found.value("slidegate_refusals_total") == 2
    for route, passed in [("GET /items/{id}", 3), ("GET,POST /other", 1), ("(no route)", 1)]:
        assert found.value("slidegate_request_duration_seconds_count", route=route) == passed
    for rule, passed, total in [("items", 3, 5), ("service", 5, 5)]:
        assert found.value("slidegate_rule_requests_total", rule=rule, outcome="passed") == passed
        assert found.value("slidegate_rule_requests_total", rule=rule) == total
    assert found.value("slidegate_store_up") == 1
    assert all(dict(labels)["store"] == "memory" for _, labels in found.series())


async def test_every_metric_of_the_page_is_exposed_with_its_kind_help_and_labels_and_no_other() -> None:
    site = Site(blocklist=Networks(["192.0.2.0/24"]))
    await call(site.app, "/other")
    found = await scraped(site.metrics.app)
    names = {metric.prometheus.removesuffix("_total"): metric for metric in documented()}
    assert set(found.families) == set(names)
    for name, metric in names.items():
        family = found.families[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == metric.labels, name
    bounds = {dict(labels)["le"] for name, labels in found.samples if name.endswith("_bucket")}
    assert bounds == {*map(str, BOUNDS_S), "+Inf"}
    chosen_by_us = {"route", "rule", "outcome", "store", "reason"}
    assert set().union(*(metric.labels for metric in names.values())) == chosen_by_us


async def test_counters_add_up_to_all_requests(rng: random.Random) -> None:
    site = Site([Rule("/items/{id}", "5/10s", name="items"), Rule("*", "20/minute", name="service")])
    statuses: Counter[int] = Counter()
    assert [(await call(site.app, "/items/1")).status for _ in range(6)] == [200] * 5 + [429]
    statuses.update([200] * 5 + [429])
    for _ in range(9):
        for _ in range(rng.randrange(40)):
            path = rng.choice(["/items/1", "/items/2", "/other", "/nowhere"])
            statuses[(await call(site.app, path)).status] += 1
            site.clock.advance(us=rng.randrange(10**6))
        site.clock.advance(rng.choice(["1s", "10m", "3d"]))
        found = await scraped(site.metrics.app)
        assert found.value("slidegate_refusals_total") == statuses[429]
        assert found.value("slidegate_request_duration_seconds_count") == statuses.total() - statuses[429]


async def test_bans_and_lists_are_reasons_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "drop.netset").write_text("192.0.2.0/24\n203.0.113.7\n")
    site = Site(
        [Rule("*", "1/hour", name="service")],
        blocklist=Networks.from_file(tmp_path / "drop.netset"),
        allowlist=Networks(["198.51.100.0/24"]),
        bans=BanPolicy(after="2/10m", duration="1h", ban_private=True),
    )
    for _ in range(5):
        await call(site.app, "/other")
    await call(site.app, "/other", client=("192.0.2.1", 1))
    found = await scraped(site.metrics.app)
    refusals = {reason: found.value("slidegate_refusals_total", reason=reason) for reason in ("limited", "banned")}
    assert refusals == {"limited": 2, "banned": 2}
    assert found.value("slidegate_refusals_total", reason="blocked") == 1
    assert found.value("slidegate_bans_total") == found.value("slidegate_active_bans") == 1
    site.clock.advance("2h")
    found = await scraped(site.metrics.app)
    assert (found.value("slidegate_active_bans"), found.value("slidegate_bans_total")) == (0, 1)


async def test_a_shadow_rule_shows_what_it_would_have_refused() -> None:
    site = Site([Rule("*", "2/hour", name="trial", shadow=True), Rule("*", "100/hour", name="service")])
    for _ in range(5):
        await call(site.app, "/other")
    found = await scraped(site.metrics.app)
    assert found.value("slidegate_rule_requests_total", rule="trial", outcome="shadow_refused") == 3
    assert found.value("slidegate_rule_requests_total", outcome="passed") == 5
    assert found.value("slidegate_request_duration_seconds_count") == 5


def test_metrics_create_no_event_for_each_refused_request() -> None:
    assert not Site().limiter.engine.observers.wants_refusals()


async def test_a_store_that_fails_is_down_until_it_answers() -> None:
    ward = Ward("deny", inline=True)
    metrics = metrics_of(ward.limiter)
    await ward.hit()
    assert (await scraped(metrics.app)).value("slidegate_store_up") == 1
    ward.fall_ill()
    for _ in range(3):
        await ward.hit()
    found = await scraped(metrics.app)
    assert (found.value("slidegate_store_up"), found.value("slidegate_store_failures_total")) == (0, 3)
    ward.recover()
    assert await ward.hit()
    found = await scraped(metrics.app)
    assert (found.value("slidegate_store_up"), found.value("slidegate_store_failures_total")) == (1, 3)


async def storm(site: Site, rng: random.Random, requests: int) -> None:
    """Send requests in which every value that a client can choose is different."""
    letters = string.ascii_letters + string.digits + "\"\\\n%{}'<\u202e"
    for number in range(requests):
        word = "".join(rng.choices(letters, k=rng.randrange(1, 12)))
        path = rng.choice([f"/items/{word}", f"/{word}/{number}", f"/other/{word}"])
        method = rng.choice(["GET", "POST", "BREW", word.upper()])
        client = f"2001:db8:{rng.getrandbits(16):x}:{rng.getrandbits(16):x}::1"
        await call(site.app, path, method, client=(client, 1), headers={"X-API-Key": f"{word}{number}"})


async def test_random_paths_and_clients_leave_the_number_of_series_as_it_was(rng: random.Random) -> None:
    site = Site([Rule("/items/{id}", "3/minute", key=header("X-API-Key"), name="items"), Rule("*", "9/minute")])
    await storm(site, rng, 300)
    before = (await scraped(site.metrics.app)).series()
    await storm(site, rng, 2_000)
    found = await scraped(site.metrics.app)
    assert found.series() == before
    assert found.value("slidegate_request_duration_seconds_count") == 2_300


async def test_beyond_so_many_routes_further_ones_are_one() -> None:
    site = Site()
    site.app.routes.extend(Route(f"/route{number}", page) for number in range(MAX_NAMES + 50))
    for number in range(MAX_NAMES + 50):
        await call(site.app, f"/route{number}")
    found = await scraped(site.metrics.app)
    routes = {dict(labels)["route"] for name, labels in found.series() if name.endswith("_duration_seconds_count")}
    assert len(routes) == MAX_NAMES + 1
    assert found.value("slidegate_request_duration_seconds_count", route="(other)") == 50


def test_two_limiters_need_two_registries_and_close_makes_room() -> None:
    registry, second = CollectorRegistry(), Limiter()
    first = PrometheusMetrics(Limiter(), registry=registry)
    with pytest.raises(ConfigurationError, match=r"registry=CollectorRegistry\(\)"):
        PrometheusMetrics(second, registry=registry)
    assert not second.engine.observers.requests, "a constructor that failed left an observer behind"
    first.close()
    PrometheusMetrics(second, registry=registry)


def test_a_second_limiter_of_a_process_is_refused_where_processes_share_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    first = metrics_of(Limiter())
    with pytest.raises(ConfigurationError, match="with PROMETHEUS_MULTIPROC_DIR: this process"):
        metrics_of(Limiter())
    first.close()
    metrics_of(Limiter()).close()


async def test_gauges_of_several_processes_are_set_every_five_seconds_and_once_after_the_last_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = VirtualTime()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr("slidegate.ops.prometheus.monotonic", lambda: time.passed_s)
    site = Site([Rule("*", concurrency=5, name="service")])

    async def slow(request: Any) -> PlainTextResponse:
        await asyncio.sleep(float(request.path_params["seconds"]))
        return PlainTextResponse("done")

    def permits() -> float | None:
        return site.metrics.registry.get_sample_value("slidegate_active_permits", {"store": "memory"})

    site.app.routes.append(Route("/slow/{seconds}", slow))
    assert permits() == 0
    long = asyncio.create_task(call(site.app, "/slow/8"))
    await asyncio.sleep(6)
    await call(site.app, "/other")
    assert permits() not in (None, 0)
    await long
    await asyncio.sleep(5.1)
    assert permits() == 0
    site.metrics.close()


async def test_a_gauge_that_a_store_does_not_know_is_not_a_number() -> None:
    site = Site()

    class Unknown(type(site.limiter.store.bans)):  # type: ignore[misc]
        def count(self) -> None:
            return None

    site.limiter.store.bans.__class__ = Unknown
    found = await scraped(site.metrics.app)
    assert math.isnan(found.value("slidegate_active_bans"))


def test_metrics_of_a_closed_exporter_count_nothing() -> None:
    site = Site()
    for _ in range(2):
        site.metrics.close()
    assert not site.limiter.engine.observers.requests
    assert generate_latest(site.metrics.registry) == b""
