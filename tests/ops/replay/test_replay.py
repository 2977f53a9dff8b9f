"""A replay decides as the live middleware does at the same times; a report has the numbers of the log."""

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    Networks,
    Quota,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    header,
)
from slidegate.ops.replay import AccessRecord, Measured, Played, Replay, Simulated
from slidegate.ops.replay import replay as replay_module
from slidegate.ops.replay.replay import checks_of, scope_of
from slidegate.ops.replay.report import MINUTE_US, measure, peak, quantile, refused_by
from slidegate.testing import FakeClock

from ...asgi import hello, send_scope

START_US = 1_772_532_000_000_000
CLIENTS = ("192.0.2.7", "192.0.2.8", "192.0.2.70", "198.51.100.3", "2001:db8::7", "2001:db8::8", "203.0.113.9")
PATHS = ("/", "/login", "/items/7", "/items/8?a=b", "/.env", "/health", "/blocked", "/odd%20path")
RULES = [
    Rule("/health", exempt=True),
    Rule("/blocked", block=True),
    Rule("/login", "2/minute", methods=["POST"], count_if=lambda status: status == 401, name="login"),
    Rule("/items/{id}", "3/10s; 8/minute", name="items"),
    Rule("/items/{id}", "2/10s", shadow=True, name="stricter"),
    Rule("/items/{id}", concurrency=2, methods=["PUT"], final=True, name="uploads"),  # one for each middleware
    Rule("*", "20/minute", key=header("X-API-Key"), name="keys"),
    Rule(
        "*",
        ["6/10s", Quota("30/day")],
        when=lambda request: "user-agent" in request.headers,
        count_denied=True,
        name="tools",
    ),
    Rule("*", lambda request: f"{len(request.url.path)}/hour", name="by path"),
    Rule("*", "7/hour"),
]
DEFAULTS = ("3/hour", lambda request: "2/hour" if "x-api-key" in request.headers else "1/minute")
RECORDS = st.lists(
    st.builds(
        AccessRecord,
        st.sampled_from([0, 1, 400_000, 1_000_000, 9_999_999, 61_000_000]),
        st.sampled_from(CLIENTS),
        st.sampled_from(["GET", "POST", "PUT"]),
        st.sampled_from(PATHS),
        st.sampled_from([200, 304, 401, 404, 500]),
        st.sampled_from([(), (("x-api-key", "k1"),), (("user-agent", "curl/8"), ("x-api-key", "k2"))]),
    ),
    min_size=1,
    max_size=120,
)
OPTIONS = st.fixed_dictionaries(
    {"rules": st.lists(st.sampled_from(RULES), unique=True)},
    optional={
        "default_limits": st.sampled_from(DEFAULTS),
        "key": st.just(header("X-API-Key")),
        "client": st.just(client_ip(trusted=["203.0.113.9"])),
        "blocklist": st.just(Networks(["198.51.100.3"])),
        "allowlist": st.just(Networks(["192.0.2.64/26"])),
        "bans": st.just(BanPolicy("6/10m", "5m", signals={404: 1, "refused": 1, "/.env": "ban"})),
    },
)
LAYERS = st.lists(st.tuples(st.sampled_from([None, "inner", "outer"]), OPTIONS), min_size=1, max_size=2)
"""Middlewares around each other, with their names; their rules may have the same ones."""


def at_times(gaps: list[AccessRecord]) -> list[AccessRecord]:
    """Return records whose times are gaps as records at the times that follow."""
    moments = accumulate(record.time_us for record in gaps)
    return [record._replace(time_us=START_US + moment) for record, moment in zip(gaps, moments, strict=True)]


async def play(replay: Replay, *records: AccessRecord) -> list[Played]:
    return [await replay.play(record) for record in records]


async def admits(replay: Replay | RateLimitMiddleware, *records: AccessRecord) -> list[bool]:
    """Return which records a replay admits, or that of one middleware."""
    replay = replay if isinstance(replay, Replay) else Replay([replay])
    return [result.allowed for result in await play(replay, *records)]


def record(second: float, client: str = "192.0.2.7", path: str = "/", **more: Any) -> AccessRecord:
    at_us = START_US + round(second * 1_000_000)
    return AccessRecord(at_us, client, "GET", path, 200)._replace(**more)


@given(RECORDS, LAYERS, st.booleans())
async def test_a_replay_decides_as_the_live_application_does(
    gaps: list[AccessRecord], layers: list[tuple[str | None, dict[str, Any]]], is_shared: bool
) -> None:
    async def answer(request: Request) -> Response:
        return Response(status_code=int(request.headers["x-status"]))

    clock = FakeClock()
    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PUT"])])
    shared, middlewares = Limiter(MemoryStore(clock=clock)), list[Any]()
    for name, options in layers:
        inner = middlewares[0] if middlewares else app
        limiter = shared if is_shared else Limiter(MemoryStore(clock=clock))
        middlewares.insert(0, RateLimitMiddleware(inner, limiter=limiter, name=name, **options))
    replay = Replay(middlewares)
    for record in at_times(gaps):
        clock.set(record.time_us)
        scope = scope_of(record)
        scope["headers"].append((b"x-status", str(record.status).encode()))
        assert (await replay.play(record)).status == (await send_scope(middlewares[0], scope)).status


async def fail(*_: Any) -> Any:
    raise AssertionError("it is called")


async def test_a_replay_calls_no_application_store_or_callback() -> None:
    store = MemoryStore()
    middleware = RateLimitMiddleware(fail, limits="1/minute", limiter=Limiter(store), on_refused=fail)
    assert [result.status for result in await play(Replay([middleware]), record(0), record(1))] == [200, 429]
    assert store.key_count() == 0


async def test_limits_of_each_route_use_the_routes_of_the_application() -> None:
    @RateLimit.exempt
    async def free(request: Request) -> Response:
        return await fail()

    routes = [Route("/a/{x}", fail), Route("/free", free), Mount("/sub", routes=[Route("/b", fail)])]
    middleware = RateLimitMiddleware(Starlette(routes=routes), default_limits="1/minute")
    paths = ("/a/1", "/sub/b", "/free", "/a/2", "/sub/b", "/free", "/none", "/nope")
    found = await admits(middleware, *(record(0, path=path) for path in paths))
    assert found == [True, True, True, False, False, True, True, False]


async def test_a_rule_that_shares_permits_fairly_is_replayed() -> None:
    rule = Rule("*", "1/minute", concurrency=2, wait="1s", fair=header("X-Tenant"))
    assert await admits(RateLimitMiddleware(hello, rules=[rule]), record(0), record(59.5)) == [True, False]
    assert rule.wait_us == 1_000_000


async def test_a_late_record_counts_at_the_time_of_the_one_before() -> None:
    replay = Replay.of(limits="1/10s")
    assert await admits(replay, record(100), record(0)) == [True, False]
    assert replay.now_us == record(100).time_us
    assert await admits(replay, record(110)) == [True]


async def test_a_log_that_needs_too_many_windows_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "MAX_KEYS", 10)
    replay = Replay.of(limits="5/minute")
    with pytest.raises(ConfigurationError, match="more than 10 windows or bans at a time; pass a shorter part"):
        await play(replay, *(record(0, f"192.0.2.{host}") for host in range(100)))


# -- busiest moments are those of the log, and refusals those of the real limiter --------------------------------------


GAPS = st.lists(
    st.sampled_from([0, 1, 900, 15_625, 15_626, 100_000, 499_999, 1_000_000, 30_000_000]), min_size=1, max_size=150
)

ENDS = ({"exempt": True}, {"block": True}, {"limits": "1/minute", "final": True}, {"limits": "1/minute"})


@example([[0, 60_000_000, *[0] * 99]], 100)  # beyond 64, a window may count what is a little older
@given(st.lists(GAPS, min_size=1, max_size=3), st.integers(1, 120))
async def test_a_limit_refuses_exactly_what_the_real_limiter_refuses(gaps: list[list[int]], amount: int) -> None:
    clients = [[10**15 + moment for moment in accumulate(one)] for one in gaps]
    found = refused_by(amount, clients)
    records = sorted(
        AccessRecord(time_us, f"192.0.2.{number}", "GET", "/", 200)
        for number, times in enumerate(clients)
        for time_us in times
    )
    replay = Replay.of(limits=f"{amount}/1m")
    refused = Counter(result.client for result in await play(replay, *records) if not result.allowed)
    assert found == {"limit": f"{amount}/1m", "clients": len(refused), "requests": refused.total()}


@example([1, 30_000_000, 30_000_000])  # the last is a minute after the first, which no longer counts
@given(GAPS)
def test_a_peak_is_the_most_requests_in_any_minute(gaps: list[int]) -> None:
    times = list(accumulate(gaps))
    assert peak(times) == max(sum(end - MINUTE_US < time <= end for time in times) for end in times)


@given(st.lists(st.integers(1, 50), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_smallest_value_that_covers_a_share(values: list[int], share: float) -> None:
    values.sort()
    found = quantile(values, share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-5
    smaller = [value for value in values if value < found]
    assert len(smaller) < share * len(values) + 1e-5


@given(st.lists(GAPS, min_size=1, max_size=5))
def test_the_suggested_limit_is_twice_the_busiest_minute(gaps: list[list[int]]) -> None:
    found = measure("all", [list(accumulate(one)) for one in gaps])
    assert found["suggested"] == f"{2 * found['most']}/1m"
    (row,) = (row for row in found["would_refuse"] if row["limit"] == found["suggested"])
    assert (row["clients"], row["requests"]) == (0, 0)


@given(RECORDS, OPTIONS, st.booleans())
async def test_counts_of_a_simulation_are_those_of_its_requests(
    gaps: list[AccessRecord], options: dict[str, Any], have_one_limiter: bool
) -> None:
    records, limiter = at_times(gaps), Limiter()
    inner = RateLimitMiddleware(hello, limiter=limiter if have_one_limiter else Limiter(), **options)
    outer = RateLimitMiddleware(inner, rules=[Rule("*", "9/hour", name="all")], limiter=limiter)
    simulated = Simulated(Replay([outer, inner]))
    for one in records:
        await simulated.add(one)
    results = await play(Replay([outer, inner]), *records)
    value = simulated.value()
    refused = Counter(result.client for result in results if not result.allowed)
    assert value["requests"] == len(records)
    assert value["passed"] == sum(result.allowed for result in results)
    assert (value["refused"], value["refused_clients"]) == (refused.total(), len(refused))
    assert {row["client"]: row["refused"] for row in value["most_refused"]} == refused
    rows = {(row["kind"], row["rule"]): row for row in value["rules"]}
    kinds = Counter(event.kind for result in results for event in result.events)
    assert sum(row["refused"] for (kind, _), row in rows.items() if kind == "shadow") == kinds["shadow_refused"]
    assert rows["limit", "all"]["requests"] <= len(records), "once each, unless they are banned"
    assert {kind for (kind, _), row in rows.items() if row["requests"] is not None} == {"limit"}
    outcomes = [result.outcome for result in results]
    for name, row in [(name, row) for (kind, name), row in rows.items() if kind == "limit"]:
        assert row["refused"] == sum(not outcome.allowed and name in outcome.rules for outcome in outcomes)
        assert row["requests"] == sum(
            bucket.label == name for outcome in outcomes for bucket, _, _ in checks_of(outcome)
        )
        assert row["refused_clients"] <= row["refused"]


async def test_routes_are_measured_apart_however_long_they_are() -> None:
    long = "/api/v1/organizations/{organization}/projects/{project}"
    app = Starlette(routes=[Route(f"{long}/members", hello), Route(f"{long}/settings", hello)])
    measured = Measured(app)
    for n, path in enumerate(["members", "settings", "members", "none"]):
        await measured.add(record(n, path=f"/api/v1/organizations/a/projects/b/{path}"))
    counts = {route["route"]: route["requests"] for route in measured.routes()}
    assert counts == {"all": 4, f"GET {long}/members": 2, f"GET {long}/settings": 1, "(no route)": 1}


@given(st.lists(st.tuples(st.sampled_from(["/a", "/b", "*"]), st.sampled_from(ENDS))))
async def test_the_first_rule_that_ends_the_list_decides_what_is_measured(listed: list[tuple[str, Any]]) -> None:
    app = Starlette(routes=[Route("/a", hello), Route("/b", hello)])
    rules = [Rule(path, name=f"rule-{n}", **options) for n, (path, options) in enumerate(listed)]
    measured = Measured(app, RateLimitMiddleware(app, rules=[*rules, Rule("*", "9/minute")]))
    expected: Counter[str] = Counter()
    for n, path in enumerate(["/a", "/b", "/b", "/none"]):
        await measured.add(record(n, path=path))
        ends = [options for one, options in listed if one in (path, "*") and options != ENDS[-1]]
        if not ends or "limits" in ends[0]:
            expected += Counter(["all", "(no route)" if path == "/none" else f"GET {path}"])
    found = measured.routes() if expected else ()
    assert Counter({route["route"]: route["requests"] for route in found}) == expected
    assert bool(measured.clients) == bool(expected)


async def test_exempt_requests_are_not_measured() -> None:
    rules = [Rule("/health", exempt=True), Rule("/no", block=True), Rule("/", "1/minute", final=True)]
    lists = {"blocklist": Networks(["192.0.2.8"]), "allowlist": Networks(["192.0.2.9"])}
    middleware = RateLimitMiddleware(hello, rules=rules, client=client_ip(ipv4_prefix=24), **lists)
    measured = Measured(middleware=middleware)
    for host, path in enumerate(["/health", "/no", "/", "/a", "/", "/"], start=4):
        await measured.add(record(host, f"192.0.2.{host}", path))
    assert measured.requests == 6
    assert {client: len(times) for client, times in measured.clients.items()} == {"192.0.2.0/24": 2}
