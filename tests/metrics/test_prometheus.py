"""The metrics, read by Prometheus parsers; clients cannot create series."""

from __future__ import annotations

import asyncio
import gzip
import os
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

import slidegate
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
from slidegate.core import Reason
from slidegate.limiter.observers import KINDS, Outcome
from slidegate.metrics.definitions import BOUNDS_S
from slidegate.prometheus import PrometheusMetrics
from slidegate.stats.recorder import MAX_SERIES
from slidegate.testing import FakeClock

from ..asgi import call, page
from ..limiter.test_failover import Ward
from ..virtual_time import VirtualTime
from .reading import Exposition, asked, documented, parsed, scraped

PASS = Outcome(True, Reason.OK, ("api",), (), "GET /items/{id}", 200, "success", 0, 0, None, ())
BOUNDS_US = [round(bound_s * 1_000_000) for bound_s in BOUNDS_S]


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
    told = await scraped(site.metrics.app)
    assert told.value("slidegate_requests_total", outcome="refused") == 2
    assert told.value("slidegate_requests_total", route="(no route)", outcome="refused") == 2
    for route, passed in [("GET /items/{id}", 3), ("GET,POST /other", 1), ("(no route)", 1)]:
        assert told.value("slidegate_requests_total", route=route, outcome="passed") == passed, route
        assert told.value("slidegate_request_duration_seconds_count", route=route) == passed
    for rule, passed, total in [("items", 3, 5), ("service", 5, 5)]:
        assert told.value("slidegate_rule_requests_total", rule=rule, outcome="passed") == passed
        assert told.value("slidegate_rule_requests_total", rule=rule) == total
    assert told.value("slidegate_store_up") == 1
    assert told.value("slidegate_keys") == site.limiter.store.stats().keys > 0  # type: ignore[attr-defined]
    assert told.value("slidegate_build_info", version=slidegate.__version__) == 1
    assert all(dict(labels)["store"] == "memory" for _, labels in told.series())


async def test_every_metric_of_the_page_is_exposed_with_its_kind_help_and_labels_and_no_other() -> None:
    site = Site(blocklist=Networks(["192.0.2.0/24"]))
    await call(site.app, "/other")
    told = await scraped(site.metrics.app)
    names = {metric.prometheus.removesuffix("_total"): metric for metric in documented()}
    assert set(told.families) == set(names)
    for name, metric in names.items():
        family = told.families[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == metric.labels, name
    chosen_by_us = {"route", "rule", "outcome", "store", "kind", "list", "version", "compiled"}
    assert set().union(*(metric.labels for metric in names.values())) == chosen_by_us


async def test_a_histogram_holds_every_time_in_the_buckets_of_the_conventions() -> None:
    site = Site()
    times_us = [0, *BOUNDS_US, *(bound_us + 1 for bound_us in BOUNDS_US)]

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        site.clock.advance(us=int(scope["path"][1:]))
        await send({"type": "http.response.body", "body": b""})

    app = RateLimitMiddleware(slow, limiter=site.limiter, limits="1000000/minute")
    for time_us in times_us:
        await call(app, f"/{time_us}")
    told = await scraped(site.metrics.app)
    for bound_us in BOUNDS_US:
        le = str(bound_us / 1_000_000)
        reached = told.value("slidegate_request_duration_seconds_bucket", le=le)
        assert reached == sum(time_us <= bound_us for time_us in times_us), le
    assert told.value("slidegate_request_duration_seconds_bucket", le="+Inf") == len(times_us)
    assert told.value("slidegate_request_duration_seconds_count") == len(times_us)
    assert told.value("slidegate_request_duration_seconds_sum") == pytest.approx(sum(times_us) / 1_000_000)


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
        told = await scraped(site.metrics.app)
        assert told.value("slidegate_requests_total", outcome="refused") == statuses[429]
        assert told.value("slidegate_requests_total") == statuses.total()


async def test_bans_and_lists_are_outcomes_of_their_own(tmp_path: Path) -> None:
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
    told = await scraped(site.metrics.app)
    outcomes = {name: told.value("slidegate_requests_total", outcome=name) for name in ("passed", "refused", "banned")}
    assert outcomes == {"passed": 1, "refused": 2, "banned": 2}
    assert told.value("slidegate_requests_total", outcome="blocked") == 1
    assert told.value("slidegate_events_total", kind="banned") == told.value("slidegate_active_bans") == 1
    assert told.value("slidegate_list_entries", list="drop", kind="blocklist") == 2
    assert told.value("slidegate_list_entries", list="allowlist", kind="allowlist") == 1
    site.clock.advance("2h")
    told = await scraped(site.metrics.app)
    assert (told.value("slidegate_active_bans"), told.value("slidegate_events_total", kind="banned")) == (0, 1)


async def test_a_shadow_rule_shows_what_it_would_have_refused() -> None:
    site = Site([Rule("*", "2/hour", name="trial", shadow=True), Rule("*", "100/hour", name="service")])
    for _ in range(5):
        await call(site.app, "/other")
    told = await scraped(site.metrics.app)
    assert told.value("slidegate_rule_requests_total", rule="trial", outcome="shadow_refused") == 3
    assert told.value("slidegate_requests_total") == told.value("slidegate_requests_total", outcome="passed") == 5


async def test_every_kind_of_event_is_counted_from_the_start_but_those_of_each_request() -> None:
    site = Site(max_keys=1)
    told = await scraped(site.metrics.app)
    kinds = {dict(labels)["kind"] for name, labels in told.series() if name == "slidegate_events_total"}
    assert kinds == set(KINDS) - {"refused", "shadow_refused"}
    await site.limiter.hit("a", "5/hour")
    await site.limiter.hit("b", "5/hour")
    told = await scraped(site.metrics.app)
    assert told.value("slidegate_events_total", kind="keys_shared") == 1
    assert told.value("slidegate_shared_hits_total") == 1


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
    told = await scraped(metrics.app)
    assert (told.value("slidegate_store_up"), told.value("slidegate_store_failures_total")) == (0, 3)
    assert told.value("slidegate_events_total", kind="store_failed") == 1
    ward.recover()
    assert await ward.hit()
    told = await scraped(metrics.app)
    assert (told.value("slidegate_store_up"), told.value("slidegate_store_failures_total")) == (1, 3)


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
    told = await scraped(site.metrics.app)
    assert told.series() == before
    assert told.value("slidegate_requests_total") == 2_300


async def test_beyond_so_many_routes_further_ones_are_one() -> None:
    site = Site()
    site.app.routes.extend(Route(f"/route{number}", page) for number in range(MAX_SERIES + 50))
    for number in range(MAX_SERIES + 50):
        await call(site.app, f"/route{number}")
    told = await scraped(site.metrics.app)
    routes = {dict(labels)["route"] for name, labels in told.series() if name == "slidegate_requests_total"}
    assert len(routes) == MAX_SERIES + 1
    assert told.value("slidegate_requests_total", route="(other)", outcome="passed") == 50


async def test_the_application_answers_as_prometheus_asks() -> None:
    site = Site()
    plain = await asked(site.metrics.app)
    packed = await asked(site.metrics.app, headers={"Accept": "text/plain", "Accept-Encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert parsed(gzip.decompress(packed.body).decode()).series() == parsed(plain.body.decode()).series()
    assert plain.headers["cache-control"] == "no-store"
    assert (await asked(site.metrics.app, method="HEAD")).status == 200
    assert (await asked(site.metrics.app, method="POST")).status == 405
    closed = await asked(site.metrics.app, type="websocket")
    assert [message["type"] for message in closed.messages] == ["websocket.close"]


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
    with pytest.raises(ConfigurationError, match="a process can export the metrics of only one limiter"):
        metrics_of(Limiter())
    first.close()
    metrics_of(Limiter()).close()


async def test_the_gauges_of_a_worker_that_gets_no_further_request_are_right_five_seconds_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = VirtualTime()
    monkeypatch.setattr("slidegate.metrics.prometheus.monotonic", lambda: time.passed_s)
    site = Site([Rule("*", concurrency=5, name="service")])

    async def slow(request: Any) -> PlainTextResponse:
        await asyncio.sleep(float(request.path_params["seconds"]))
        return PlainTextResponse("done")

    def permits() -> float | None:
        return site.metrics.registry.get_sample_value("slidegate_active_permits", {"store": "memory"})

    site.app.routes.append(Route("/slow/{seconds}", slow))
    long = asyncio.create_task(call(site.app, "/slow/8"))
    await asyncio.sleep(6)
    await call(site.app, "/other")
    assert permits() >= 1
    await long
    await asyncio.sleep(5.1)
    assert permits() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limiter": "redis://"}, r"limiter: expected a Limiter, for example Limiter\(\), not 'redis://'"),
        ({"registry": "mine"}, "registry: expected a CollectorRegistry of prometheus_client, not 'mine'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PrometheusMetrics(**{"limiter": Limiter(), "registry": CollectorRegistry(), **options})


async def test_workers_without_a_directory_are_a_finding_and_their_series_say_whose_they_are(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Site()
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    site = Site()
    (finding,) = site.metrics.findings
    assert finding.code == "SG129"
    assert "WEB_CONCURRENCY=2" in finding.message
    assert "PROMETHEUS_MULTIPROC_DIR=" in finding.message
    assert str(finding) in caplog.text
    await call(site.app, "/other")
    told = await scraped(site.metrics.app)
    assert told.value("slidegate_requests_total", process=str(os.getpid())) == 1
    assert all("process" in dict(labels) for _, labels in told.series())
    assert alone.metrics.findings == []
    assert all("process" not in dict(labels) for _, labels in (await scraped(alone.metrics.app)).series())


async def test_what_is_read_is_read_every_five_seconds_while_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("slidegate.metrics.prometheus.monotonic", lambda: now_s[0])
    site = Site()

    def keys() -> float | None:
        return site.metrics.registry.get_sample_value("slidegate_keys", {"store": "memory"})

    for number in range(3):
        await call(site.app, "/other", client=(f"192.0.2.{number}", 1))
        assert keys() == 1
    now_s[0] += 5
    await call(site.app, "/other", client=("192.0.2.9", 1))
    assert keys() == 4


def test_a_worker_that_is_forked_names_itself_and_starts_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "2")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    limiter = Limiter()
    metrics = metrics_of(limiter)

    def request() -> None:
        limiter.engine.observers.request(PASS)

    def told() -> Exposition:
        return parsed(generate_latest(metrics.registry).decode())

    request()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            request()
            processes = {dict(labels)["process"] for _, labels in told().series()}
            os.write(write, f"{processes == {str(os.getpid())}} {told().value('slidegate_requests_total')}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"True 1.0"
    request()
    assert told().value("slidegate_requests_total", process=str(os.getpid())) == 2
