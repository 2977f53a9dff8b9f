"""Busiest moments are those of the log, and refusals those of the real limiter."""

from collections import Counter
from itertools import accumulate
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import Limiter, Networks, RateLimitMiddleware, Rule, client_ip
from slidegate.ops.replay import AccessRecord, Measured, Replay, Simulated
from slidegate.ops.replay.replay import checks_of
from slidegate.ops.replay.report import MINUTE_US, measure, peak, quantile, refused_by

from ...asgi import hello
from .test_replay import OPTIONS, RECORDS, at_times, play, record

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
