"""What is said of a client is true: each claim is compared with what its next request gets from a real application.

A situation is a set of rules, lists and policies, perhaps with a second group of workers, and what has happened before.
"Not refused" may be said only if every request passes, a reason only if all requests that it names are refused, and a
request that is refused has a reason, or something was not looked at.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import (
    BanPolicy,
    ConfigurationError,
    Limiter,
    MemoryStore,
    Networks,
    RateLimit,
    RateLimitMiddleware,
    Rule,
    client_ip,
    cookie,
    everyone,
    header,
    user,
)
from slidegate.ops.cli.explain import group_lines
from slidegate.ops.explained import Explained, explained
from slidegate.ops.standing import EVERY, Standing, Verdict
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ..asgi import call, page
from ..redis_servers import needs_redis
from .shared_rows import START_US, SharedRows

CLIENT, NEIGHBOUR, STRANGER = "203.0.113.7", "203.0.200.1", "198.51.100.1"
VALUE = "k123"
LONG_HEADER = header("X-Internal-Service-Account-Id")


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
    "plans": lambda: Rule("*", lambda request: "2/minute", name="plans"),
    "tenants": lambda: Rule("*", "2/minute", key=lambda request: "tenant:a", name="tenants"),
    "costly": lambda: Rule("*", "5/minute", cost=2, name="costly"),
    "dear": lambda: Rule("*", "5/minute", cost=lambda request: 2, name="dear"),
    "wide": lambda: Rule("*", "4/minute", key=client_ip(ipv4_prefix=16), name="wide"),
    "night": lambda: Rule("*", "1/minute", when=lambda request: "night" in request.headers, name="night"),
    "posts": lambda: Rule("/login", "2/minute", key=header("X-API-Key"), methods=["POST"], name="posts"),
    "posts a day": lambda: Rule("/login", "9/h; 20/d", key=header("X-API-Key"), methods=["POST"], name="posts-day"),
    "sockets": lambda: Rule("*", "1/minute", connection="websocket", name="sockets"),
}
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
    "long blocklist": lambda: {"blocklist": Networks([f"198.{18 + n // 256}.{n % 256}.0/25" for n in range(1_001)])},
}


@dataclass(frozen=True)
class Request:
    """A request of a client, or several."""

    method: str = "GET"
    path: str = "/"
    fields: tuple[str, ...] = ()
    client: str = CLIENT
    times: int = 1


PROBES = [
    Request(),
    Request("GET", "/health"),
    Request("POST", "/login"),
    Request("GET", "/login"),
    Request("GET", "/old"),
    Request("GET", "/search"),
    Request("GET", "/items/7"),
    Request("GET", "/limited"),
    Request("GET", "/nowhere"),
    Request(fields=("x-api-key",)),
    Request(fields=("vip",)),
    Request(fields=("evil",)),
    Request(fields=("night",)),
]
DEEDS: dict[str, Callable[[Limiter], Any]] = {
    "bans it": lambda limiter: limiter.ban(CLIENT, "1h", by="ann"),
    "bans its network": lambda limiter: limiter.ban("203.0.113.0/24", "1h"),
    "bans a neighbour": lambda limiter: limiter.ban(NEIGHBOUR, "1h"),
    "bans a value": lambda limiter: limiter.ban(header("X-API-Key").of(VALUE), "1h"),
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
        st.sampled_from(["/", "/login", "/search", "/items/7", "/limited", "/nowhere"]),
        st.sampled_from([(), ("x-api-key",)]),
        st.sampled_from([CLIENT, CLIENT, NEIGHBOUR, STRANGER]),
        st.integers(1, 7),
    ),
    max_size=4,
)


@dataclass
class Situation:
    """Groups of workers on one store, and what has happened before."""

    store: MemoryStore
    apps: list[Any] = field(default_factory=list)
    limiters: list[Limiter] = field(default_factory=list)

    def add(self, rules: list[str], options: list[str]) -> None:
        """Add a worker."""
        given: dict[str, Any] = {}
        for name in options:
            given |= OPTIONS[name]()
        if rules:
            given["rules"] = [RULES[name]() for name in rules]
        limiter = Limiter(self.store)
        middleware = RateLimitMiddleware(Starlette(routes=routes()), limiter=limiter, **given)
        self.apps.append(middleware)
        self.limiters.append(limiter)

    async def send(self, app: Any, request: Request) -> bool:
        """Send a request, and return whether it passed."""
        fields = dict.fromkeys(request.fields, VALUE)
        for _ in range(request.times):
            answer = await call(app, request.path, request.method, headers=fields, client=(request.client, 1234))
        return answer.status not in (403, 429, 503)


def new_store() -> MemoryStore:
    """Return a store that has rows of several workers."""
    clock = FakeClock(START_US)
    store = MemoryStore(clock=clock, wall_clock=clock)
    store.shared_rows = SharedRows(clock)
    return store


async def play(groups: list[tuple[list[str], list[str]]], history: list[Any], *, attached: bool = False) -> Situation:
    situation = Situation(new_store())
    for rules, options in groups:
        situation.add(rules, options)
    if attached:
        for limiter in situation.limiters:
            Statistics.of(limiter)
    for app in situation.apps:
        await situation.send(app, Request(client="192.0.2.99"))
    for number, one in enumerate(history):
        if isinstance(one, Request):
            await situation.send(situation.apps[number % len(situation.apps)], one)
        else:
            with suppress(ConfigurationError):  # a limit that no worker has
                await DEEDS[one](Limiter(situation.store))
            for limiter in situation.limiters:
                await limiter.overrides()
    for limiter in situation.limiters:
        await limiter.engine.workers.write(1.0)
        if attached:
            await Statistics.of(limiter).publish()
    return situation


async def group_of(situation: Situation, app: Any, found: Explained) -> Standing:
    """Return what is said of the workers of one application."""
    published = await Limiter(situation.store).published()
    own = (await app.limiter.published())[0].text.rules
    (at,) = [number for number, one in enumerate(published) if one.text.rules == own]
    return found.groups[at]


def names(requests: str, request: Request) -> bool:
    """Return whether a reason, in whose words some requests are named, speaks of a request."""
    requests, _, without = requests.partition(" of the middleware ")[0].partition(" without ")
    if without and without.removeprefix("header:") in request.fields:
        return False
    if requests == EVERY:
        return True
    path = "/items/{id}" if request.path.startswith("/items/") else request.path
    *words, last = requests.removeprefix("endpoint ").split(" ")
    if requests == "paths without a route":
        return path == "/nowhere"
    if requests.startswith("websocket"):
        return False
    methods = words[0].split(",") if words else [request.method]
    return request.method in methods and path == last


def check(found: Explained, group: Standing, request: Request, passed: bool) -> None:
    """Compare what is said with what a request got."""
    if found.off is not None:
        assert passed
        return
    naming = []
    for reason in group.reasons:
        if names(reason.requests, request) and not any(names(one, request) for one in reason.apart_from):
            naming.append(reason)
    assert not (passed and naming), f"{naming} refuse, but it passed"
    of_all = [reason for reason in group.reasons if reason.is_of_each]
    assert not (passed and of_all), f"{of_all} refuse all requests, but it passed"
    if passed:
        return
    assert found.verdict is not Verdict.NOT_REFUSED, "it was refused"
    assert naming or group.unseen or group.other_keys, "it was refused, and nothing says so"


@settings(max_examples=60)
@given(GROUPS, HISTORIES, st.permutations(PROBES), st.booleans())
@example([(["keyed"], [])], [Request(times=3)], [Request(fields=("x-api-key",))], False)
@example([(["all"], ["bans by key"])], ["bans a value"], [Request(fields=("x-api-key",))], False)
@example([(["closed"], ["allowed"])], ["bans it"], PROBES, False)
@example([(["costly"], [])], [Request(times=2)], [Request()], False)
@example([(["free"], [])], [Request("GET", "/limited", times=3)], [Request("GET", "/limited")], False)
@example([(["health", "all"], ["bans", "networks"])], [Request(times=6)], [Request("GET", "/health")], False)
@example([(["health", "all"], ["networks"])], ["bans its network"], [Request("GET", "/health")], True)
def test_each_claim_is_what_the_next_request_gets(
    groups: list[tuple[list[str], list[str]]], history: list[Any], probes: list[Request], attached: bool
) -> None:
    async def compare() -> None:
        situation = await play(groups, history, attached=attached)
        for number, probe in enumerate(probes):
            found = await explained(Limiter(situation.store), CLIENT)
            event(found.verdict.value)
            assert (found.refusals is not None) == attached
            assert sum(one.workers for one in found.groups) == len(groups)
            app = situation.apps[number % len(groups)]
            group = await group_of(situation, app, found)
            check(found, group, probe, await situation.send(app, probe))

    asyncio.run(compare())


@settings(max_examples=60)
@given(GROUPS, HISTORIES, st.sampled_from([CLIENT, "203.0.113.0/24", header("X-API-Key").of(VALUE)]))
@example([(["posts", "posts a day"], [])], ["bans a value"], header("X-API-Key").of(VALUE))
@example([(["old", "old again"], [])], [], CLIENT)
def test_nothing_is_said_twice(groups: list[tuple[list[str], list[str]]], history: list[Any], key: Any) -> None:
    async def look() -> None:
        situation = await play(groups, history)
        found = await explained(Limiter(situation.store), key)
        for group in found.groups:
            lines = [*group_lines(group, found)]
            assert len(lines) == len({*lines})

    asyncio.run(look())


async def of_one(rule: Rule, requests: int) -> tuple[Any, Standing]:
    """Return an application with one rule, after some requests, and what is said of its workers."""
    store = new_store()
    app = RateLimitMiddleware(Starlette(routes=routes()), limiter=Limiter(store), rules=[rule])
    for _ in range(requests):
        await call(app, client=(CLIENT, 1234))
    await app.limiter.engine.workers.write(1.0)
    found = await explained(Limiter(store), CLIENT)
    return app, found.groups[0]


async def test_who_waits_long_enough_is_not_said_to_be_refused() -> None:
    _, group = await of_one(Rule("*", "2/second", wait="2s", name="short"), 2)
    assert (group.verdict, [*group.unseen]) == (
        Verdict.UNKNOWN,
        ["whether requests may wait for short, up to 2 s"],
    )
    app, group = await of_one(Rule("*", "2/hour", wait="2s", name="long"), 2)
    assert group.verdict is Verdict.REFUSED
    assert (await call(app, client=(CLIENT, 1234))).status == 429


async def test_who_holds_all_permits_is_refused_until_a_request_ends() -> None:
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
    (reason,) = (await explained(Limiter(store), CLIENT)).groups[0].reasons
    assert reason.window is not None
    assert (reason.by, reason.window.used, reason.window.retry_after_us) == ("busy", 1, None)
    assert (await call(app, client=(CLIENT, 1234))).status == 429
    goes_on.set()
    assert (await held).status == 200
    group = (await explained(Limiter(store), CLIENT)).groups[0]
    assert (group.verdict, len(group.windows)) == (Verdict.NOT_REFUSED, 2)


async def test_rules_that_cannot_be_read_are_no_rules_without_a_reason() -> None:
    situation = await play([(["all"], [])], [])
    rows = situation.store.shared_rows.rows
    for name in [*rows]:
        if name[0] == "rules":
            del rows[name]
    found = await explained(Limiter(situation.store), CLIENT)
    assert (found.verdict, found.unreadable, found.groups) == (Verdict.UNKNOWN, 1, [])


async def test_the_bans_of_others_are_named_where_a_request_may_meet_them() -> None:
    situation = await play([(["keyed", "all"], [])], [])
    tool = Limiter(situation.store)
    await tool.ban(header("X-API-Key").of("another"), "1h")
    await tool.ban(header("X-Other").of("another"), "1h")
    await tool.ban("user:ann", "1h")
    found = await explained(Limiter(situation.store), CLIENT)
    assert [*found.groups[0].unseen] == ["bans of its header:x-api-key"]


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
    group = (await explained(tool, CLIENT)).groups[0]
    assert {one.rule.name: one.rule.leased for one in group.windows if not one.rule.at_endpoint} == {
        "leased": True,
        "exact": False,
    }
    (unseen,) = group.unseen
    assert (group.verdict, unseen.partition(" that ")[0]) == (Verdict.UNKNOWN, "units of leased")
    await limiter.close()
    await tool.close()


KEYS: dict[str, tuple[Any, Any]] = {
    "a user": (user, "user:ann"),
    "a user with a sign": (user, "user:ann#1"),
    "a user with a long name": (user, f"user:{'x' * 70}"),
    "a header": (header("X-API-Key"), header("X-API-Key").of(VALUE)),
    "a header with a long name": (LONG_HEADER, LONG_HEADER.of(VALUE)),
    "a cookie with a sign": (cookie("a#b"), cookie("a#b").of(VALUE)),
}


@pytest.mark.parametrize("case", KEYS)
async def test_the_ban_of_a_key_is_a_reason_whatever_is_in_its_name(case: str) -> None:
    reads, key = KEYS[case]
    limiter = Limiter(MemoryStore())
    app = RateLimitMiddleware(page, limiter=limiter, rules=[Rule("*", "5/minute", key=reads)])
    await limiter.ban(key, "1h")
    found = await explained(limiter, key)
    assert [group.verdict for group in found.groups] == [Verdict.REFUSED], app
