"""The sentence that an operator reads first names who and what it is about, accuses nobody wrongly, and tells no more
than was looked at: in incidents of many kinds, whose requests went through real middlewares and statistics.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, StoreError, cookie, everyone, header
from slidegate.ops.incident import Kind, Outage, Seen, Statement
from slidegate.ops.look import Outages, look, read_recent, seen_nothing
from slidegate.ops.statements import stands_for, statement_of
from slidegate.ops.statistics import Statistics
from slidegate.ops.traffic import ClientTraffic, Ranking, Traffic
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, limits_clock

from ..asgi import call, hello, page
from ..redis_servers import free_port
from ..virtual_time import turns
from .shared_rows import SharedRows, limiter_on

NOW_US = 1_800_000_000_000_000
RULES = [
    Rule("/login", "5/minute", methods=["POST"], name="login", final=True),
    Rule("/api/{rest:path}", "30/minute", key=header("X-API-Key"), name="api", final=True),
    Rule("/search", "60/minute", key=everyone, name="search", final=True),
    Rule("*", "500/minute", key=cookie("session"), name="session"),
    Rule("*", "40/minute", name="visitor"),
]
PATHS = {
    "login": ("/login", "POST"),
    "api": ("/api/items", "GET"),
    "search": ("/search", "GET"),
    "visitor": ("/", "GET"),
}
PER_MINUTE = {"login": 5, "api": 30, "search": 60, "visitor": 40}


@dataclass
class Incident:
    """An application whose workers share a store, and what really happened in it.

    Attributes:
        sent: The time, client, rule and status of each request.
        offender: Who is to be named; empty if nobody is.
        rule: The rule that is to be named.
        kinds: What the sentence may be about.
        are_many: The clients that stand for many people.
    """

    clock: FakeClock
    limiters: list[Limiter]
    chance: random.Random
    sent: list[tuple[int, str, str, int]] = field(default_factory=list)
    offender: str = ""
    rule: str = ""
    kinds: tuple[Kind, ...] = ()
    are_many: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.apps = []
        for limiter in self.limiters:
            Statistics.of(limiter)
            routes = [Route(path, page, methods=[method]) for path, method in PATHS.values()]
            app = Starlette(routes=routes)
            app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=RULES)
            self.apps.append(app)
        self.outages = [Outages(limiter) for limiter in self.limiters]

    async def send(self, client: str, rule: str, times: int = 1, who: str = "") -> None:
        path, method = PATHS[rule]
        headers = {}
        if rule == "api":
            headers = {"x-api-key": who or client}
        elif who:
            headers = {"cookie": f"session={who}"}
        for _ in range(times):
            app = self.chance.choice(self.apps)
            answer = await call(app, path, method, client=(client, 1), headers=headers)
            self.sent.append((self.clock(), client, rule, answer.status))

    async def later(self, seconds: float) -> None:
        for limiter in self.limiters:
            await Statistics.of(limiter).publish()
        self.clock.advance(us=int(seconds * 1_000_000))

    async def look(self) -> tuple[Seen, Statement]:
        limiter, outage = self.limiters[0], self.outages[0].current()
        for one in self.limiters:
            try:
                await Statistics.of(one).publish()
            except StoreError:
                assert outage is not None
        try:
            recent = await read_recent(Statistics.of(limiter))
            seen = await look(limiter, recent, await limiter.published(), outage)
        except StoreError:
            seen = seen_nothing(limiter, outage)
        return seen, statement_of(seen)

    def refused(self, rule: str, client: str = "") -> list[int]:
        """Return when requests were refused by a rule."""
        return [at for at, who, of, status in self.sent if status == 429 and of == rule and client in ("", who)]


async def visitors(incident: Incident) -> None:
    """Send a few requests of ordinary clients."""
    for number in range(incident.chance.randint(3, 12)):
        await incident.send(f"203.0.113.{number}", "visitor", incident.chance.randint(1, 5))


async def over(incident: Incident, client: str, rule: str, factor: float, whos: list[str], noise: int = 2) -> None:
    """Send more than a rule admits in each of some minutes, after some quiet ones."""
    for _ in range(incident.chance.randint(0, 3)):
        await visitors(incident)
        await incident.later(incident.chance.randint(20, 70))
    for _ in range(incident.chance.choice([1, 2, 3, 7])):
        await visitors(incident)
        for number in range(incident.chance.randint(0, noise)):  # who are refused a few times as well
            other = f"192.0.2.{number}"
            await incident.send(other, rule, PER_MINUTE[rule] + incident.chance.randint(1, 2))
        for _ in range(int(factor * PER_MINUTE[rule])):
            await incident.send(client, rule, 1, incident.chance.choice(whos))
        await incident.later(60)
    incident.rule = rule


async def scanner(incident: Incident, noise: int = 2) -> None:
    rule = incident.chance.choice(["login", "visitor"])
    await over(incident, "198.51.100.77", rule, incident.chance.uniform(6.5, 12), [""], noise)
    incident.offender, incident.kinds = "198.51.100.77", (Kind.FLOOD,)


async def customer(incident: Incident) -> None:
    await over(incident, "198.51.100.20", "api", incident.chance.uniform(1.3, 6), ["customer"])
    incident.kinds = (Kind.AT_LIMIT,)
    incident.offender = incident.limiters[0].key_for(header("X-API-Key").of("customer"))


async def office(incident: Incident) -> None:
    """People behind one address: some applications give each a session, others show nothing of them."""
    client = incident.chance.choice(["198.51.100.30", "10.0.0.1", "192.168.3.4"])
    people = [f"ann{number}" for number in range(incident.chance.randint(3, 15))]
    if incident.chance.random() < 0.5:
        people = [""]
    shows = len(people) > 1 or not client.startswith("198")
    most, incident.kinds = 4, (Kind.AT_LIMIT,)
    if shows:  # that they are many, they may be refused like a scanner
        most, incident.kinds = 12, (Kind.SHARED_ADDRESS,)
    await over(incident, client, "visitor", incident.chance.uniform(1.3, most), people)
    incident.offender, incident.are_many = client, {client}


async def botnet(incident: Incident) -> None:
    rule = incident.chance.choice(["login", "visitor"])
    await visitors(incident)
    for number in range(incident.chance.randint(20, 60)):
        await incident.send(f"192.0.2.{number}", rule, PER_MINUTE[rule] + incident.chance.randint(1, 4))
    await incident.later(5)
    incident.rule, incident.kinds = rule, (Kind.CROWD,)


async def together(incident: Incident) -> None:
    for number in range(30):
        await incident.send(f"192.0.2.{number}", "search", incident.chance.randint(3, 6))
    await visitors(incident)
    await incident.later(5)
    incident.rule, incident.kinds = "search", (Kind.EVERYONE,)


async def outage(incident: Incident) -> None:
    await visitors(incident)
    incident.kinds = (Kind.AWAY,)


async def ban_in_force(incident: Incident) -> None:
    await scanner(incident, noise=0)
    for limiter in incident.limiters[:1]:
        await limiter.ban("198.51.100.77", "1h")
    await incident.send("198.51.100.77", "visitor", incident.chance.randint(200, 300))
    incident.rule, incident.kinds = "", (Kind.STOPPED,)


async def nothing(incident: Incident) -> None:
    if incident.chance.random() < 0.7:
        await visitors(incident)
        await incident.later(incident.chance.randint(1, 200))
        incident.kinds = (Kind.QUIET,)
    else:
        incident.kinds = (Kind.NO_REQUESTS,)


HAPPENINGS = [scanner, customer, office, botnet, together, outage, ban_in_force, nothing]
ROUNDS = 25


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    clock = FakeClock(NOW_US)
    monkeypatch.setattr(time, "time", lambda: clock.now_us / 1_000_000)

    with limits_clock(clock):
        yield clock


@pytest.fixture
def make(clock: FakeClock, tmp_path: Path) -> Iterator[Callable[[Any, int], Incident]]:
    opened = []

    def made(happening: Any, number: int) -> Incident:
        chance = random.Random(f"{happening.__name__} {number}")
        clock.now_us += chance.randint(0, 300_000_000)
        if happening is outage:
            limiters = [Limiter(RedisStore(f"redis://127.0.0.1:{free_port()}/0"))]
        elif number % 2:
            from slidegate.stores.lmdb import LmdbStore  # not every Python has LMDB

            store = LmdbStore(tmp_path / f"{happening.__name__}{number}", clock=clock, max_map_size=2**20)
            opened.append(store)
            limiters = [Limiter(store, deadline="30s"), Limiter(store, deadline="30s")]
        else:
            limiters = [Limiter(MemoryStore(clock=clock, wall_clock=clock))]
        return Incident(clock, limiters, chance)

    yield made
    for store in opened:
        store.close()


async def test_of_200_incidents_the_sentence_names_whom_and_what_and_accuses_nobody_who_stands_for_many(
    make: Callable[[Any, int], Incident],
) -> None:
    named, wrong = Counter[str](), list[str]()
    for happening in HAPPENINGS:
        for number in range(ROUNDS):
            incident = make(happening, number)
            await happening(incident)
            seen, statement = await incident.look()
            about = f"{happening.__name__} {number}: {statement.kind} {statement.text} {statement.values}"
            if (statement.offender, statement.rule) == (incident.offender, incident.rule):
                named[happening.__name__] += 1
            if statement.kind not in incident.kinds:
                wrong.append(about)
            bans = {action.target for action in statement.actions if action.does == "ban"}
            assert not bans & incident.are_many, about
            assert bans == ({incident.offender} if statement.kind is Kind.FLOOD else set()), about
            check_told(incident, seen, statement, about)
            for limiter in incident.limiters[1:]:  # on the same store, which the first one closes
                await Statistics.of(limiter).end()
            if happening is not outage:
                await incident.limiters[0].close()
    total = ROUNDS * len(HAPPENINGS)
    assert total == 200
    assert named.total() >= 0.95 * total, (named, wrong)
    assert len(wrong) <= 0.05 * total, wrong


def check_told(incident: Incident, seen: Seen, statement: Statement, about: str) -> None:
    """Check what a sentence says against what really happened."""
    values, now_us = statement.values, incident.clock()
    is_memory = isinstance(incident.limiters[0].store, MemoryStore)
    assert ("This worker alone: the store is in memory." in statement.notes) == is_memory, about
    if statement.kind is Kind.AWAY:
        assert seen.total is None
        assert not {"part", "whole", "share", "rule"} & values.keys(), about
        return
    recent = [one for one in incident.sent if one[0] >= now_us - 300_000_000]
    if statement.kind is Kind.NO_REQUESTS:
        assert incident.sent == []
    if statement.kind is Kind.QUIET:
        assert not [one for one in recent if one[3] >= 400], about
        assert values["whole"] <= len(incident.sent)
    if statement.rule:
        assert incident.refused(statement.rule), about
        assert values.get("whole", 0) <= max(len(incident.refused(statement.rule)), len(incident.sent)), about
    if statement.kind in (Kind.FLOOD, Kind.AT_LIMIT, Kind.SHARED_ADDRESS):
        client = {"api": "198.51.100.20"}.get(statement.rule, statement.offender)
        refused = incident.refused(statement.rule, client)
        assert 0 < values["part"] <= len(refused), about
        assert values["part"] <= values["whole"], about
        if "since" in values:
            first_us = next(at for at in refused if at >= seen.from_us)  # before that, nobody looked
            assert abs(values["since"] - first_us / 1_000_000) <= 1, about
        else:
            assert "or longer" in statement.text
            assert refused[0] / 1_000_000 <= seen.from_us / 1_000_000 + 60, about


def refused_client(key: str, passed: int = 5, refused: int = 95, **more: Any) -> ClientTraffic:
    return ClientTraffic(key, passed, refused, refused_by={"all": refused}, rule="all", **more)


def seen_of(*clients: ClientTraffic, **more: Any) -> Seen:
    total = Traffic(sum(one.passed for one in clients), sum(one.refused for one in clients))
    ranking = Ranking([*clients], [one for one in clients if one.refused])
    return Seen(total, {"all": total}, ranking, is_shared=True, **more)


ONE_OR_MANY = {
    "198.51.100.7": False,
    "2001:db8:1:2::/64": False,
    "198.51.100.0/24": True,
    "2001:db8::/48": True,
    "10.1.2.3": True,
    "192.168.1.1": True,
    "172.20.0.1": True,
    "100.64.0.9": True,
    "127.0.0.1": True,
    "fd00:1::/64": True,
    "fe80::/64": True,
    "unknown-peer": True,
    "peer:proxy": True,
    "asn:64500": True,
    "user:ann": False,
}


@pytest.mark.parametrize(("key", "is_many"), ONE_OR_MANY.items())
def test_what_stands_for_many_is_called_so_and_no_ban_is_proposed(key: str, is_many: bool) -> None:
    one = refused_client(key)
    statement = statement_of(seen_of(one))
    assert bool(stands_for(one)) == is_many == ("any share" in statement.text or "any may share" in statement.text)
    assert statement.kind is (Kind.SHARED_ADDRESS if is_many else Kind.FLOOD)
    assert ("ban" in [action.does for action in statement.actions]) != is_many


@pytest.mark.parametrize("others", [0, 1, 2, 3, 8])
def test_an_address_with_several_users_stands_for_many(others: int) -> None:
    one = refused_client("198.51.100.7", others=[*range(others)])
    assert (statement_of(seen_of(one)).kind is Kind.SHARED_ADDRESS) == (others >= 3)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("user", "user:ann"),
        ("user", "user:ann#1"),
        ("user", f"long#{'9e' * 16}"),
        ("header:x-internal-service-account-id", f"header:x-internal-service-accou#{'9e' * 16}"),
        ("cookie:a#b", f"cookie:a#b#{'9e' * 16}"),
        ("user+header:x-api-key", f"combined#{'9e' * 16}"),
        ("network:country", "country:NL"),
    ],
)
def test_the_key_that_a_rule_refuses_is_named_and_not_its_address(kind: str, key: str) -> None:
    keys = Ranking([refused_client(key)], [refused_client(key)])
    statement = statement_of(seen_of(refused_client("198.51.100.7"), keys=keys, kinds={"all": kind}))
    assert statement.values["offender"] == key


def test_who_leaves_after_a_refusal_or_is_refused_little_is_not_accused() -> None:
    for passed, refused in ((30, 95), (0, 19), (1, 3)):
        assert statement_of(seen_of(refused_client("198.51.100.7", passed, refused))).kind is Kind.AT_LIMIT


SYSTEM: list[tuple[Seen, str]] = [
    (Seen(off_until=9.0, off_by="ann"), "All workers are switched off until 9.0 by ann: every request passes"),
    (Seen(outage=Outage(5_000_000, "allow")), "The store is away since 5.0; requests pass uncounted"),
    (Seen(outage=Outage(0, "deny")), "The store is away; requests are refused"),
    (Seen(), "The store did not answer this page, so nothing is known of the last five minutes"),
    (
        Seen(Traffic(passed=3, unavailable=2)),
        "The store did not answer in time for 2 of 5 requests, which were refused",
    ),
    (Seen(Traffic(), span="40 s", workers=1), "No request was counted in 40 s"),
    (Seen(Traffic(passed=3)), "Nothing was refused in 5 min, of 3 requests"),
    (Seen(Traffic(passed=3, refused=1, blocked=1)), "Limits refuse nobody; bans and lists refuse 25.0"),
]


@pytest.mark.parametrize(("seen", "text"), SYSTEM, ids=lambda one: one[:30] if isinstance(one, str) else "")
def test_the_state_of_the_store_comes_before_what_it_counts(seen: Seen, text: str) -> None:
    statement = statement_of(seen)
    assert statement.text.format(**statement.values) == text


@pytest.mark.parametrize("is_shared", [False, True])
async def test_an_empty_page_of_a_limiter_that_no_middleware_uses_says_so(is_shared: bool) -> None:
    """Where others may use the store, only that none has said so lately is known; with a middleware nothing is said."""
    limiter, other = Limiter(), Limiter()
    if is_shared:
        rows = SharedRows()
        limiter, other = limiter_on(rows), limiter_on(rows)

    async def said() -> str:
        seen = await look(limiter, await read_recent(Statistics.of(limiter)), await limiter.published(), None)
        return statement_of(seen).text.partition(seen.span)[2]

    unused = ": no middleware uses this limiter; give RateLimitMiddleware(limiter=...) the one of the dashboard"
    if is_shared:
        unused = ", and no worker has published its rules within a minute"
    elsewhere = RateLimitMiddleware(hello, limits="9/minute", limiter=other)
    assert await said() == unused
    if is_shared:
        await call(elsewhere, client=("198.51.100.7", 1))
        await turns()
        assert await said() == ""
    own = RateLimitMiddleware(hello, rules=[Rule("*", exempt=True)], limiter=limiter)
    assert await said() == ""
    assert (own.limiter, elsewhere.limiter) == (limiter, other), "limiters refer weakly to middlewares"


def test_counts_of_some_workers_alone_are_called_so() -> None:
    assert statement_of(seen_of(workers=4, counted_workers=3)).notes == (
        "Counts of 3 of 4 workers: the others have written none.",
    )
    assert statement_of(seen_of(workers=3, counted_workers=4)).notes == ()


def test_after_a_ban_the_next_offender_is_named() -> None:
    one, other = refused_client("198.51.100.7"), refused_client("198.51.100.8", 5, 40)
    assert statement_of(seen_of(one, other)).offender == one.key
    statement = statement_of(seen_of(one, other, banned=frozenset([one.key])))
    assert (statement.offender, statement.values["part"], statement.values["whole"]) == (other.key, 40, 40)
    assert "{part} of {whole} refusals of clients that are not banned are {offender}" in statement.text
    many = [refused_client(f"192.0.2.{number}", 5, 40) for number in range(9)]
    statement = statement_of(seen_of(one, *many, banned=frozenset([one.key])))
    assert "with more than {part} of {whole} refusals of clients that are not banned" in statement.text
    statement = statement_of(seen_of(one, banned=frozenset([one.key])))
    assert statement.kind is Kind.STOPPED
    assert [action.does for action in statement.actions] == ["look", "unban"]


@pytest.mark.parametrize("later_s", [1, 59, 130, 250])
async def test_the_limit_that_is_to_be_raised_is_the_one_that_refused_also_when_its_window_is_empty_again(
    later_s: int, clock: FakeClock
) -> None:
    limiter = Limiter(MemoryStore(clock=clock, wall_clock=clock))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "5/minute; 20/hour", name="login")])
    statistics = Statistics.of(limiter)
    for _ in range(40):
        await call(app, client=("198.51.100.7", 1))
    await statistics.publish()
    clock.advance(f"{later_s}s")
    seen = await look(limiter, await read_recent(statistics), await limiter.published(), None)
    assert seen.larger == {"login": ("login_60", "10/1m")}


async def test_a_long_window_that_is_full_is_to_be_raised(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock, wall_clock=clock))
    app = RateLimitMiddleware(hello, limiter=limiter, rules=[Rule("*", "50/minute; 20/hour", name="login")])
    statistics = Statistics.of(limiter)
    for _ in range(40):
        await call(app, client=("198.51.100.7", 1))
    clock.advance("2m")
    seen = await look(limiter, await read_recent(statistics), await limiter.published(), None)
    assert seen.larger == {"login": ("login_3600", "40/1h")}
