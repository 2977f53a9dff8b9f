"""Each row is a fact: what it says a rule refuses is compared with what the next request gets from a real application.

A situation is a set of rules, lists and policies, perhaps with a second group of workers, and what has happened before.
A row refuses only if every request is refused that it names, and that no row above it lets pass; and a request that is
refused has a row that refuses or may, or the answer says that the key is another one, or that something was not read.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    header,
    settle,
)
from slidegate.core import ConfigurationError, Limit, Quota
from slidegate.core.exceeded import RateLimitExceeded
from slidegate.limiter import Publication, PublishedRule
from slidegate.ops.explain import Facts, facts_in, facts_of
from slidegate.ops.facts import Fact, Verdict
from slidegate.ops.published_rules import CALLS, EVERY
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock
from slidegate.web.keys import everyone

from ..asgi import Answer, call, page
from ..drawing import examples
from ..redis_servers import needs_redis
from ..web.middlewares import operators
from .shared_rows import START_US, SharedRows

CLIENT, NEIGHBOUR, STRANGER = "203.0.113.7", "203.0.200.1", "198.51.100.1"
VALUE = "k123"


@RateLimit("2/minute")
async def limited(request: Any) -> Any:
    return await page(request)


def routes() -> list[Route]:
    paths = ("/", "/health", "/old", "/search", "/items/{id}")
    login = Route("/login", page, methods=["GET", "POST"])
    return [*(Route(path, page) for path in paths), login, Route("/limited", limited)]


RULES: dict[str, Callable[[], Rule]] = {
    "health": lambda: Rule("/health", exempt=True, name="health"),
    "free": lambda: Rule("*", exempt=True, name="free"),
    "login": lambda: Rule("/login", "2/minute", methods=["POST"], name="login"),
    "all": lambda: Rule("*", "3/minute", name="all"),
    "pair": lambda: Rule("*", "3/minute; 4/hour", name="pair"),
    "keyed": lambda: Rule("*", "2/minute", key=header("X-API-Key"), name="keyed"),
    "service": lambda: Rule("*", "6/minute", key=everyone, name="service"),
    "old": lambda: Rule("/old", block=True, name="old"),
    "old again": lambda: Rule("/old", block=True, name="old"),
    "closed": lambda: Rule("*", block=True, name="closed"),
    "evil": lambda: Rule("*", block=True, when=lambda request: "evil" in request.headers, name="evil"),
    "search": lambda: Rule("/search", "2/minute", final=True, name="search"),
    "vip": lambda: Rule("*", exempt=True, when=lambda request: "vip" in request.headers, name="vip"),
    "tried": lambda: Rule("*", "1/minute", shadow=True, name="tried"),
    "plans": lambda: Rule("*", lambda request: "2/minute; 9/hour", fallback_limits="6/minute; 60/hour", name="plans"),
    "tried dear": lambda: Rule("*", "90/minute", cost=lambda request: 2, shadow=True, name="tried dear"),
    "login again": lambda: Rule("/login", exempt=True, methods=["POST"], name="login again"),
    "search at night": lambda: Rule(
        "/search", "9/m; 90/h", final=True, when=lambda request: "night" in request.headers, name="nights"
    ),
    "search again": lambda: Rule("/search", "1/minute", name="searches"),
    "keyed plans": lambda: Rule("*", lambda request: "2/minute", key=header("X-API-Key"), name="customers"),
    "tenants": lambda: Rule("*", "2/minute", key=lambda request: "tenant:a", name="tenants"),
    "costly": lambda: Rule("*", "5/minute", cost=2, name="costly"),
    "dear": lambda: Rule("*", "5/minute", cost=lambda request: 2, name="dear"),
    "wide": lambda: Rule("*", "4/minute", key=client_ip(ipv4_prefix=16), name="wide"),
    "night": lambda: Rule("*", "1/minute", when=lambda request: "night" in request.headers, name="night"),
    "keyed at night": lambda: Rule(
        "/search", "9/minute", key=header("X-API-Key"), when=lambda request: "night" in request.headers, name="nightly"
    ),
    "posts": lambda: Rule("/login", "2/minute", key=header("X-API-Key"), methods=["POST"], name="posts"),
    "posts a day": lambda: Rule("/login", "9/h; 20/d", key=header("X-API-Key"), methods=["POST"], name="posts-day"),
    "sockets": lambda: Rule("*", "1/minute", connection="websocket", name="sockets"),
}
LONG = [f"198.{18 + n // 256}.{n % 256}.0/25" for n in range(1_001)]
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "default limits": lambda: {"default_limits": "2/minute"},
    "default limits by key": lambda: {"default_limits": "2/minute", "key": header("X-API-Key")},
    "blocked": lambda: {"blocklist": Networks([f"{CLIENT}/32"])},
    "network blocked": lambda: {"blocklist": Networks(["203.0.113.0/24", "10.0.0.0/8"])},
    "neighbour blocked": lambda: {"blocklist": Networks([NEIGHBOUR])},
    "allowed": lambda: {"allowlist": Networks(["203.0.113.0/28"])},
    "stranger allowed": lambda: {"allowlist": Networks([STRANGER])},
    "bans": lambda: {"bans": BanPolicy("2/10m", "1h")},
    "bans by key": lambda: {"bans": BanPolicy("2/10m", "1h", key=header("X-API-Key"))},
    "shadow bans": lambda: {"bans": BanPolicy("1/10m", "1h", shadow=True)},
    "networks": lambda: {"client": client_ip(ipv4_prefix=24)},
    "named": lambda: {"name": "outer"},
    "within an exempt one": lambda: {"within": {"rules": [Rule("*", exempt=True, name="all of them")]}},
    "within an allowlist": lambda: {"within": {"allowlist": Networks([f"{CLIENT}/32"])}},
    "long blocklist": lambda: {"blocklist": Networks(LONG)},
    "long allowlist": lambda: {"allowlist": Networks([*LONG, CLIENT])},
}


class Request(NamedTuple):
    """A request of a client, or several."""

    method: str = "GET"
    path: str = "/"
    fields: tuple[str, ...] = ()
    client: str = CLIENT
    times: int = 1


PATHS = ("/", "/health", "/login", "/old", "/search", "/items/7", "/limited", "/nowhere")
PROBES = [Request("POST", "/login"), Request("POST", "/login/"), *(Request(path=path) for path in PATHS)]
PROBES += [Request(fields=(name,)) for name in ("x-api-key", "vip", "evil", "night")]
PROBES += [Request(path="/search", fields=("x-api-key", "night"))]
DEEDS: dict[str, Callable[[Limiter], Any]] = {
    "bans it": lambda limiter: limiter.ban(CLIENT, "1h", by="ann"),
    "bans its network": lambda limiter: limiter.ban("203.0.113.0/24", "1h"),
    "bans a neighbour": lambda limiter: limiter.ban(NEIGHBOUR, "1h"),
    "bans a value": lambda limiter: limiter.ban(header("X-API-Key").of(VALUE), "1h"),
    "bans everyone": lambda limiter: limiter.ban("everyone", "1h"),
    "bans a wide network": lambda limiter: limiter.ban("203.0.0.0/16", "1h"),
    "lowers": lambda limiter: limiter.override("all", "1/minute", "1h", by="ann"),
    "raises": lambda limiter: limiter.override("all", "90/minute", "1h", by="ann"),
    "switches off": lambda limiter: limiter.override("*", "off", "1h", by="ann"),
}
OPTION_SETS = st.lists(st.sampled_from([*OPTIONS]), max_size=3, unique=True)
RULE_SETS = st.lists(st.sampled_from([*RULES]), max_size=5, unique=True)
GROUPS = st.lists(st.tuples(RULE_SETS, OPTION_SETS), min_size=1, max_size=2)
HISTORIES = st.lists(
    st.sampled_from([*DEEDS])
    | st.builds(
        Request,
        st.sampled_from(["GET", "POST"]),
        st.sampled_from([*PATHS, "/login/"]),
        st.sampled_from([(), ("x-api-key",)]),
        st.sampled_from([CLIENT, CLIENT, NEIGHBOUR, STRANGER]),
        st.integers(1, 7),
    ),
    max_size=4,
)


async def send(app: Any, request: Request) -> Answer:
    """Send a request, and return its answer."""
    fields = dict.fromkeys(request.fields, VALUE)
    for _ in range(request.times):
        answer = await call(app, request.path, request.method, headers=fields, client=(request.client, 1234))
    return answer


def new_store() -> MemoryStore:
    """Return a store that has rows of several workers."""
    clock = FakeClock(START_US)
    store = MemoryStore(clock=clock, wall_clock=clock)
    store.shared_rows = SharedRows(clock)
    return store


async def play(groups: list[tuple[list[str], list[str]]], history: list[Any], *, attached: bool = False) -> list[Any]:
    """Return the middlewares of groups of workers on one store, after what has happened before."""
    store, apps = new_store(), list[Any]()
    for rules, options in groups:
        given: dict[str, Any] = {"rules": [RULES[name]() for name in rules]} if rules else {}
        given.update(pair for name in options for pair in OPTIONS[name]().items())
        within = given.pop("within", None)
        app = RateLimitMiddleware(Starlette(routes=routes()), limiter=Limiter(store), **given)
        if within is not None:  # as around a mounted application
            app = RateLimitMiddleware(app, limiter=app.limiter, **within)
        apps.append(app)
        if attached:
            Statistics.of(apps[-1].limiter)
    for app in apps:
        await send(app, Request(client="192.0.2.99"))
    for number, one in enumerate(history):
        if isinstance(one, Request):
            await send(apps[number % len(apps)], one)
        else:
            with suppress(ConfigurationError):  # a limit that no worker has
                await DEEDS[one](Limiter(store))
            for app in apps:
                await app.limiter.overrides()
    for app in apps:
        await app.limiter.engine.workers.write(1.0)
        if attached:
            await Statistics.of(app.limiter).publish()
    return apps


def names(row: Fact, request: Request) -> bool:
    """Return whether a row, in whose words some requests are named, speaks of a request."""
    requests, _, without = row.requests.partition(" of the middleware ")[0].partition(" without ")
    if without and without.removeprefix("header:") in request.fields:
        return False
    if requests == EVERY:
        return True
    if requests.startswith("where "):  # of the rules of these tests, `everyone` alone is read on every request
        return row.key == "everyone"
    path = "/items/{id}" if request.path.startswith("/items/") else request.path.rstrip("/") or "/"
    *words, last = requests.removeprefix("endpoint ").split(" ")
    if requests == "*":  # paths without a route
        return request.path in ("/nowhere", "/login/")
    if requests.startswith("websocket"):
        return False
    methods = words[0].split(",") if words else [request.method]
    return request.method in methods and path == last


def check(found: Facts, request: Request, answer: Answer) -> None:
    """Compare what is said with what a request got."""
    passed = answer.status not in (403, 429, 503)
    if found.off is not None:
        assert passed
        return
    naming = [row for row in found.rows if names(row, request)]
    sure = "workers" not in "".join(row.note for row in naming)
    # What is exempt or final does not reach the rows below; limits at endpoints and bans hold all the same.
    for number, row in enumerate(naming):
        passing = any(above.does is Verdict.PASSES or "final" in above.note for above in naming[:number])
        # Whether other workers have no limit of a route, or have not met it yet, is not known.
        if found.workers > 1 and row.rule.startswith("per-route "):
            continue
        if row.does is Verdict.REFUSES and sure and not (passing and row.ban is None and "/limited" not in row.rule):
            assert not passed, f"{row} refuses, but it passed"
    if passed:
        return
    refused_by = json.loads(answer.body).get("violated-policies", []) if answer.body.startswith(b"{") else []
    # Of a request without a header's key, that key is no excuse.
    texts = [text for text in found.left_out if request.fields or not text.startswith("its header")]
    elsewhere = any(name.partition("_")[0] in text for name in refused_by for text in texts)
    refusing = any(row.does in (Verdict.REFUSES, Verdict.MAY_REFUSE) for row in naming)
    assert refusing or elsewhere, "it was refused, and nothing says so"
    assert found.refused_by or found.perhaps or elsewhere, "it was refused, and the verdict denies it"


@settings(max_examples=examples(60))
@given(GROUPS, HISTORIES, st.permutations(PROBES), st.booleans())
@example([(["keyed"], [])], [Request(times=3)], [Request(fields=("x-api-key",))], False)
@example([(["all"], ["bans by key"])], ["bans a value"], [Request(fields=("x-api-key",))], False)
@example([(["closed"], ["allowed"])], ["bans it"], PROBES, False)
@example([(["service"], [])], ["bans everyone"], [Request()], False)
@example([(["costly"], [])], [Request(times=2)], [Request()], False)
@example([(["free"], [])], [Request("GET", "/limited", times=3)], [Request("GET", "/limited")], False)
@example([(["health", "all"], ["bans", "networks"])], [Request(times=6)], [Request("GET", "/health")], False)
@example([(["health", "all"], ["networks"])], ["bans its network"], [Request("GET", "/health")], True)
@example([(["closed"], ["long allowlist", "blocked"])], ["bans it"], PROBES, False)
@example([(["keyed plans"], [])], [Request(times=2)], [Request()], False)
@example([(["posts", "posts a day"], [])], ["bans a value"], [], False)
@example([(["keyed at night"], [])], ["bans a value"], PROBES[-1:], False)
@example([(["all"], ["within an exempt one"])], [Request(times=4)], [Request()], False)
@example([(["all"], ["within an allowlist"])], [Request(times=4)], [Request()], False)
@example([(["login again", "login"], [])], [Request("POST", "/login/", times=3)], [Request("POST", "/login/")], False)
@example([(["plans", "tried dear"], [])], [Request(times=3)], [Request()], True)
@example([([], ["default limits by key", "bans by key"])], [Request(fields=("x-api-key",), times=4)], PROBES, False)
def test_each_claim_is_what_the_next_request_gets_and_said_once(
    groups: list[tuple[list[str], list[str]]], history: list[Any], probes: list[Request], attached: bool
) -> None:
    async def compare() -> None:
        apps = await play(groups, history, attached=attached)
        store = apps[0].limiter.store
        for key in ("203.0.113.0/24", header("X-API-Key").of(VALUE)):
            rows = (await facts_of(Limiter(store), key)).rows
            assert len(rows) == len({*rows})
        for number, probe in enumerate(probes):
            found, of_value = [await facts_of(Limiter(store), key) for key in (CLIENT, header("X-API-Key").of(VALUE))]
            event(str(found.refused_by is not None))
            assert (found.refusals is not None) == attached
            assert (found.workers, len(found.rows)) == (len(groups), len({*found.rows}))
            answer = await send(apps[number % len(groups)], probe)
            if "x-api-key" in probe.fields and any(row.ban for row in of_value.rows):
                # Another key of this request is banned: the ban is the answer about this key, unless something else is.
                is_banned = b"banned" in answer.body and found.refused_by is None
                assert not is_banned or of_value.refused_by is not None, of_value.rows
                continue
            check(found, probe, answer)

    asyncio.run(compare())


CALLERS = st.sampled_from(["user:ann", "smtp", CLIENT])


@settings(max_examples=examples(40))
@given(
    st.lists(st.tuples(CALLERS, st.integers(1, 4), st.booleans()), max_size=4), st.none() | CALLERS, st.integers(1, 2)
)
@example([("smtp", 3, False), (CLIENT, 3, True)], None, 2)
@example([], "smtp", 1)
def test_a_call_of_a_function_or_a_block_is_refused_as_its_row_says(
    calls: list[tuple[str, int, bool]], banned: str | None, cost: int
) -> None:
    async def compare() -> None:
        (app,) = await play([(["free", "all"], ["allowed"])], [])  # which exempt no call
        limiter = app.limiter

        @limiter.limited("3/minute", key=lambda key: key, cost=cost, rule="function")
        async def function(key: str) -> None:
            pass

        async def passes(key: str, in_block: bool) -> bool:
            with suppress(RateLimitExceeded):
                if not in_block:
                    await function(key)
                    return True
                async with limiter.limited("3/minute", key=key, cost=cost, rule="block"):
                    return True
            return False

        for key, times, in_block in calls:
            for _ in range(times):
                await passes(key, in_block)
        if banned:
            await limiter.ban(banned, "1h")
        await limiter.engine.workers.write(1.0)
        for key in ("user:ann", "smtp", CLIENT):
            found = await facts_of(Limiter(limiter.store), key)
            for rule in ("function", "block"):
                said = [row for row in found.rows if row.requests == CALLS and (row.ban or row.rule == rule)]
                refuses = any(row.does is Verdict.REFUSES for row in said)
                assert refuses != await passes(key, rule == "block"), (key, rule, found)
                assert found.refused_by is not None or not refuses

    asyncio.run(compare())


async def of_one(rule: Rule, requests: int) -> tuple[Any, list[Fact]]:
    """Return an application with one rule, after some requests, and what is said of its workers."""
    store = new_store()
    app = RateLimitMiddleware(Starlette(routes=routes()), limiter=Limiter(store), rules=[rule])
    for _ in range(requests):
        await call(app, client=(CLIENT, 1234))
    await app.limiter.engine.workers.write(1.0)
    return app, [row for row in (await facts_of(Limiter(store), CLIENT)).rows if row.rule == rule.label]


@settings(max_examples=examples(40))
@given(st.integers(1, 4), st.integers(1, 10), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=9))
@example(3, 7, [(0, 0), (2, 0), (2, 0)])
@example(5, 4, [])
@example(4, 10, [(0, 1), (10, 8)])
def test_until_when_a_limit_refuses_is_when_it_admits_or_not_said(
    cost: int, lowered: int, requests: list[tuple[int, int]]
) -> None:
    units = cost

    async def settled(request: Any) -> Any:
        await settle(request, units)
        return await page(request)

    async def compare() -> None:
        nonlocal units
        store = new_store()
        app = RateLimitMiddleware(
            Starlette(routes=[Route("/", settled)]),
            limiter=Limiter(store),
            rules=[Rule("*", "10/minute", cost=cost, name="all")],
        )
        for pause_s, units in [(0, cost), *requests]:  # noqa: B007 - the endpoint reads it
            store.clock.advance(us=pause_s * 1_000_000)
            await send(app, Request())
        await app.limiter.override("all", f"{lowered}/minute", "1h")
        await app.limiter.engine.workers.write(1.0)
        found = await facts_of(Limiter(store), CLIENT)
        (row,) = found.rows
        until_us = row.until_us(found.now_us)
        if row.does is Verdict.HAS_ROOM:
            assert until_us == found.now_us
        elif until_us is None:
            assert cost > 1
        else:
            store.clock.advance(us=until_us - found.now_us - 1)
            assert (await send(app, Request())).status == 429
            store.clock.advance(us=1)
        assert ((await send(app, Request())).status == 200) == (until_us is not None)

    asyncio.run(compare())


async def test_a_request_that_waits_long_enough_is_not_said_to_be_refused() -> None:
    _, (row,) = await of_one(Rule("*", "2/second", wait="2s", name="short"), 2)
    assert (row.does, row.note) == (Verdict.MAY_REFUSE, "requests may wait, up to 2 s")
    app, (row,) = await of_one(Rule("*", "2/hour", wait="2s", name="long"), 2)
    assert row.does is Verdict.REFUSES
    assert (await call(app, client=(CLIENT, 1234))).status == 429


async def test_a_client_that_holds_all_permits_is_refused_until_a_request_ends() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await page(request)

    store = new_store()
    rule = Rule("*", "9/minute", concurrency=1, name="busy")
    app = RateLimitMiddleware(Starlette(routes=[Route("/", slow)]), limiter=Limiter(store), rules=[rule])
    held = asyncio.create_task(call(app, client=(CLIENT, 1234)))
    await begun.wait()
    await app.limiter.engine.workers.write(1.0)
    found = await facts_of(Limiter(store), CLIENT)
    row = found.refused_by
    assert row is not None
    assert row.window is not None
    assert (row.rule, row.window.used, row.until_us(found.now_us)) == ("busy", 1, None)
    assert (await call(app, client=(CLIENT, 1234))).status == 429
    goes_on.set()
    assert (await held).status == 200
    found = await facts_of(Limiter(store), CLIENT)
    assert (found.refused_by, [row.does for row in found.rows]) == (None, [Verdict.HAS_ROOM, Verdict.HAS_ROOM])


async def test_rules_that_cannot_be_read_are_named() -> None:
    (app,) = await play([(["all"], [])], [])
    rows = app.limiter.store.shared_rows.rows
    for name in [*rows]:
        if name[0] == "rules":
            del rows[name]
    found = await facts_of(Limiter(app.limiter.store), CLIENT)
    assert (found.workers, found.rows, found.left_out[1:]) == (1, [], ["rules of another version (1 workers)"])
    assert found.is_open


async def test_a_quota_in_a_time_zone_that_is_not_known_here_is_left_out_alone() -> None:
    """As on a host with an older time zone database than that of the workers."""
    rules = [
        PublishedRule(rule="q", name="q", bucket="q", limit="9/month", key="address", zone="Mars/Base", starts="1"),
        PublishedRule(rule="g", name="g", bucket="g", limit="5/1h", key="address", order=1),
    ]
    facts = await facts_in(Limiter(), "203.0.113.7", [Publication(1, rules)], [], [], [], [])
    assert ([row.rule for row in facts.rows], facts.is_open) == (["g"], True)
    assert facts.left_out == ["limits in a time zone that is not known here (q)"]


async def test_a_customer_at_its_plan_is_answered_with_the_limits_of_the_plan() -> None:
    """The limits of a function are those that statistics have seen in decisions about the key, a quota in its zone."""
    store = new_store()
    month = Quota("40/month", zone="Asia/Tokyo", starts=3, name="month")
    plans = {"bob": ["9/minute", month], "eve": ["1000/minute"]}
    rule = Rule("*", lambda request: plans[request.headers["X-API-Key"]], key=header("X-API-Key"), name="plan")
    app = RateLimitMiddleware(Starlette(routes=routes()), limiter=Limiter(store), rules=[rule])
    statistics = Statistics.of(app.limiter)
    for _ in range(12):
        await call(app, headers={"X-API-Key": "bob"})
        await call(app, headers={"X-API-Key": "eve"})
    await app.limiter.engine.workers.write(1.0)
    tool, bob = Limiter(store), header("X-API-Key").of("bob")
    found = await facts_of(tool, bob)
    assert (found.rows, found.is_open) == ([], True)
    assert "limits that functions return (plan)" in found.left_out
    await statistics.publish()
    found = await facts_of(tool, bob)
    assert [(row.what, row.window and row.window.used, row.does) for row in found.rows] == [
        ("9/1m", 9, Verdict.REFUSES),
        ("40/month from 3 in Asia/Tokyo", 9, Verdict.HAS_ROOM),
    ]
    assert found.refusals is not None
    assert [(one.details["rule"], one.details["limit"]) for one in found.refusals] == [("plan", "9/1m")] * 3
    (row,) = (await facts_of(tool, header("X-API-Key").of("eve"))).rows
    assert (row.what, row.window and row.window.remaining) == ("1000/1m", 988)
    assert row.note == "by a function, as statistics have seen it"


STARTS: dict[str, st.SearchStrategy[Any]] = {
    "day": st.none() | st.times().map(lambda time: f"{time:%H:%M}"),
    "week": st.none() | st.sampled_from(["monday", "wednesday", "sunday"]),
    "month": st.none() | st.integers(1, 31),
    "year": st.none() | st.sampled_from(["01-01", "04-01", "02-29"]),
}
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])


@settings(max_examples=examples(30))
@given(st.sampled_from([*STARTS]).flatmap(lambda unit: st.tuples(st.just(unit), STARTS[unit])), ZONES, st.booleans())
@example(("day", None), "Europe/Berlin", False)
@example(("day", "06:00"), "UTC", True)
def test_a_quota_is_read_in_its_zone_from_its_start(period: tuple[str, Any], zone: str, is_changed: bool) -> None:
    """A worker counts it in the window of its zone and start, also after a change, whose text names neither."""
    unit, starts = period

    async def compare() -> None:
        quota = Quota(f"5/{unit}", zone=zone, starts=starts)
        app, (row,) = await of_one(Rule("*", quota, name="quota"), 2)
        if is_changed:
            await app.limiter.override("quota", f"7/{unit}", "1h")
            (row,) = [one for one in (await facts_of(Limiter(app.limiter.store), CLIENT)).rows if one.rule == "quota"]
            quota = Quota(f"7/{unit}", zone=zone, starts=starts)
        assert row.window is not None
        assert (row.what, row.window.used, row.window.remaining) == (str(quota), 2, quota.amount - 2)

    asyncio.run(compare())


@pytest.mark.parametrize(("limit", "text"), [(Limit(5, "1d"), "7/day"), (Limit(5, "1m", resolution=7), "7/1m")])
async def test_a_changed_limit_is_read_in_the_window_in_code(limit: Limit, text: str) -> None:
    """The text of a change may leave out the resolution, and write the window as that of a quota."""
    app, _ = await of_one(Rule("*", limit, name="all"), 2)
    await app.limiter.override("all", text, "1h")
    (row,) = [one for one in (await facts_of(Limiter(app.limiter.store), CLIENT)).rows if one.rule == "all"]
    assert row.window is not None
    assert (row.window.limit.same_window, row.window.used, row.window.remaining) == (limit.same_window, 2, 5)


@needs_redis
@pytest.mark.parametrize("kind", ["redis"])
async def test_units_that_workers_have_leased_may_let_requests_pass_where_the_window_has_no_room(url: str) -> None:
    """A hot key has units charged ahead: its window looks full, and requests pass all the same."""
    limiter = Limiter.from_url(f"{url}&leases=true", deadline="20s")
    rules = [Rule("*", "99/minute", name="leased"), Rule("/login", "5/minute", name="exact")]
    app = RateLimitMiddleware(Starlette(routes=routes()), limiter=limiter, rules=rules)
    for _ in range(99):
        await call(app, client=(CLIENT, 1234))
    await limiter.engine.workers.write(20.0)
    tool = Limiter.from_url(url, deadline="20s")
    found = await facts_of(tool, CLIENT)
    rows = {row.rule: (row.does, row.note) for row in found.rows if row.rule in ("leased", "exact")}
    assert rows["leased"] == (Verdict.MAY_REFUSE, "workers may have leased units for a second")
    assert rows["exact"] == (Verdict.HAS_ROOM, "")
    await limiter.close()
    await tool.close()


async def test_the_ban_of_an_operator_refuses_its_addresses_where_somebody_knows_them(tmp_path: Path) -> None:
    """A command has no file of operators: it cannot say whose an address is, but that some are banned."""
    store = new_store()
    limiter = Limiter(store, networks=[operators(tmp_path)])
    app = RateLimitMiddleware(Starlette(routes=routes()), limiter=limiter, limits="9/minute")
    await limiter.ban("asn:132203", "1h", reason="scan")
    assert (await call(app, client=("43.128.0.1", 1234))).status == 403
    await limiter.engine.workers.write(1.0)
    found = await facts_of(limiter, "43.128.0.1")
    assert found.refused_by is not None
    assert (found.refused_by.key, found.refused_by.note) == ("asn:132203", "scan")
    assert (await facts_of(limiter, STRANGER)).refused_by is None
    for key, is_open in (("43.128.0.1", True), ("user:42", False)):
        found = await facts_of(Limiter(store), key)
        assert (found.refused_by, found.is_open) == (None, is_open)
        assert ("whether a banned operator has its address (asn:132203)" in found.left_out) == is_open
