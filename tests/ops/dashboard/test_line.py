"""The line on top says what the rows below it show, and accuses no client that is banned by now or stands for many."""

import re
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.ops.dashboard.line import MIN_REFUSALS, Line, Refusals
from slidegate.ops.dashboard.service import Service
from slidegate.ops.dashboard.texts import count, share
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ...asgi import hello, statuses
from ...drawing import examples
from ..site import NOW_US

NUMBER = re.compile(r"\d[\d,.]*(?: %)?")
MANY = ["10.0.0.7", "192.0.2.200"]
"""An address of one's own network, and a trusted proxy that came by itself."""
CLIENTS = ["198.51.100.1", "198.51.100.2", "203.0.113.3", "2001:db8:0:7::1", *MANY]
RULES = [
    Rule("/slidegate/{rest:path}", exempt=True),
    Rule("/api", "2/minute", key=header("X-API-Key"), name="api"),
    Rule("/all", "2/minute", key=everyone, name="all together"),
    Rule("/old", block=True, name="old"),
    Rule("*", "3/minute", name="site"),
]
STEP = st.tuples(st.sampled_from(CLIENTS), st.sampled_from(["/", "/", "/", "/api", "/all", "/old"]), st.integers(1, 60))
BANS = st.dictionaries(st.sampled_from(CLIENTS), st.booleans(), max_size=4)
"""Clients that are banned, and whether with their network."""
INCIDENT = st.tuples(st.lists(STEP, max_size=8), BANS, st.integers(1, 240))
"""Which client sends how many requests to which path, the bans, and how many seconds later an operator looks."""


def check_line(line: Line, refusals: Refusals, banned: set[str]) -> None:
    """Check a line against the rows below it."""
    rows, client = refusals.rows, line.client
    assert {row.key for row in rows if row.is_banned} == banned & {row.key for row in rows}
    left = [row for row in rows if not row.is_banned]
    assert (refusals.clients, refusals.whole) == (len(left), sum(row.refused for row in left))
    assert [row.refused for row in rows] == sorted((row.refused for row in rows), reverse=True)
    shown = {count(refusals.clients), count(refusals.whole), *(count(row.refused) for row in left)}
    shown |= {share(row.refused, refusals.whole) for row in left}
    assert {*NUMBER.findall(line.text.replace(client.key if client else " ", " "))} <= shown, line.text
    if not left:
        assert line.kind == "calm"
        assert ("banned by now" in line.text) == bool(rows)
    elif line.kind == "one":
        (row,) = [row for row in left if row is client]
        assert row.refused == max(one.refused for one in left)
        assert refusals.whole / 2 < row.refused
        assert refusals.whole >= MIN_REFUSALS
        actions = [("ban", row.key), ("look", row.key)]
        if row.many:
            actions = [("look", row.key)]
            if row.rule != "old":  # which has no amount
                actions.append(("raise", row.rule.replace(" ", "_")))
        assert [one[:2] for one in line.actions] == actions
        assert bool(row.many) == (row.key in MANY or row.rule == "all together")
    else:
        assert line.kind == "several"
        by_rule = {row.rule: sum(one.refused for one in left if one.rule == row.rule) for row in left}
        assert by_rule[refusals.rule] == max(by_rule.values())
        assert refusals.rule in line.text
        assert client is None


@settings(max_examples=examples(200))
@given(INCIDENT)
async def test_the_line_of_any_incident_is_that_of_the_rows_below_it(incident: Any) -> None:
    visits, bans, later_s = incident
    with pytest.MonkeyPatch.context() as patch:
        clock = FakeClock(NOW_US)
        patch.setattr("slidegate.ops.dashboard.service.time", lambda: clock.now_us / 1_000_000)
        limiter = Limiter(MemoryStore(clock=clock, wall_clock=clock))
        service = Service(limiter)
        app = RateLimitMiddleware(hello, rules=RULES, client=client_ip(trusted=[f"{MANY[1]}/32"]), limiter=limiter)
        for client, path, times in visits:
            await statuses(app, times, path, client=(client, 1), headers={"x-api-key": client})
        await Statistics.of(limiter).publish()
        clock.advance(f"{later_s}s")
        for client, is_network in bans.items():
            network = "2001:db8::/48" if ":" in client else f"{client.rpartition('.')[0]}.0/24"
            await limiter.ban(network if is_network else client, "1h")
        line = await service.line()
        assert line.refusals is not None
        keys = [row.key for row in line.refusals.rows]
        banned = {key for key in keys if await limiter.banned(key) is not None}
        check_line(line, line.refusals, banned)
        event(f"{line.kind} {[one.does for one in line.actions]}")
