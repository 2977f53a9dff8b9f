"""The metrics of one process: both exporters say what the middleware decided, and clients cannot create series."""

import random
import string
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.routing import Route

from slidegate import BanPolicy, Networks, Rule, header
from slidegate.core import StoreUnavailable
from slidegate.ops.metrics import BOUNDS_S, MAX_NAMES

from ..asgi import call, page
from ..limiter.test_failover import Setup
from .exposition import documented
from .site import Site

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


async def test_counters_add_up_to_all_requests(measured: Measure, rng: random.Random) -> None:
    site = measured([Rule("/items/{id}", "5/10s", name="items"), Rule("*", "20/minute", name="service")])
    statuses = Counter(await site.visit(*["/items/1"] * 6))
    assert statuses == {200: 5, 429: 1}
    for _ in range(9):
        for _ in range(rng.randrange(40)):
            statuses.update(await site.visit(rng.choice(["/items/1", "/items/2", "/other", "/nowhere"])))
            site.clock.advance(us=rng.randrange(10**6))
        site.clock.advance(rng.choice(["1s", "10m", "3d"]))
        assert await site.value("refusals") == statuses[429]
        assert await site.value("request.duration") == statuses.total() - statuses[429]


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


async def test_random_paths_and_clients_leave_the_number_of_series_as_it_was(
    measured: Measure, rng: random.Random
) -> None:
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


async def test_instruments_of_opentelemetry_have_units_descriptions_and_bounds() -> None:
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


async def test_times_of_requests_can_be_left_out() -> None:
    site = Site(to="OpenTelemetry", durations=False)
    await site.visit("/other")
    assert {name for name, _ in await site.samples()} >= {"slidegate.rule.requests", "slidegate.store.up"}
    assert "slidegate.request.duration" not in {name for name, _ in await site.samples()}
