"""A replay decides as the live middleware does at the same times."""

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
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
from slidegate.ops.replay import AccessRecord, Played, Replay
from slidegate.ops.replay import replay as replay_module
from slidegate.ops.replay.replay import scope_of
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
