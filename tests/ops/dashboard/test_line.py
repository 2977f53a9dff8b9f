"""The line on top says what the rows below it show, and of a list that is cut that it is; it accuses few clients."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, client_ip, everyone, header
from slidegate.ops.dashboard.line import MIN_REFUSALS, ClientRow, Line, Refusals, line_of
from slidegate.ops.dashboard.service import Service
from slidegate.ops.dashboard.texts import count, timed
from slidegate.ops.rows import share
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ...asgi import hello, statuses
from ...drawing import examples
from ..site import NOW_US

NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?: %)?")
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
INCIDENT = st.tuples(st.lists(STEP, max_size=8), BANS, st.integers(1, 240), st.sampled_from([1, 2, 100]))
"""Which client sends how many requests to which path, the bans, how many seconds later an operator looks, and how many
clients a worker lists."""


def check_line(line: Line, refusals: Refusals, banned: set[str], refused: dict[str, int], ago_min: int) -> None:
    """Check a line against the rows below it, and these against who was refused, how often, so many minutes ago."""
    rows, client = refusals.rows, line.client
    assert {row.key for row in rows if row.is_banned} == banned & {row.key for row in rows}
    assert [row.refused for row in rows] == sorted((row.refused for row in rows), reverse=True)
    assert all(row.refused <= refused[row.key] for row in rows)
    left = [row for row in rows if not row.is_banned]
    assert refusals.whole == sum(row.refused for row in left)
    assert refusals.whole + refusals.of_banned + refusals.unlisted == sum(refused.values())
    assert (refusals.clients, refusals.banned) == (len(left), len(rows) - len(left))
    assert refusals.unlisted or refusals.clients == len({key for key, number in refused.items() if number} - banned)
    assert ("at least" in line.text) <= bool(refusals.unlisted) == ("Not listed" in line.text)
    numbers = (refusals.clients, refusals.whole, refusals.banned, refusals.of_banned, refusals.unlisted)
    shown = {*map(count, numbers), *(share(row.refused, refusals.whole) for row in left)}
    ended = f"its last listed refusals are about {ago_min} min old" if ago_min > 1 else ""
    text = line.text.replace(client.key if client else " ", " ").replace(ended, "")
    assert {*NUMBER.findall(text)} <= shown, line.text
    assert (line.kind == "calm") == (sum(refused.values()) == 0)
    if line.kind == "one":
        (row,) = [row for row in left if row is client]
        assert row.refused == max(one.refused for one in left)
        assert row.refused > sum(times for key, times in refused.items() if key not in banned) / 2
        assert refusals.whole >= MIN_REFUSALS
        nearly_all = row.refused > 0.9 * (refusals.whole + refusals.unlisted)
        may_ban = row.key not in MANY and row.rule in ("site", "api") and nearly_all
        assert line.actions == ["ban"] * (may_ban and not ended) + ["look"] + ["change"] * bool(row.caution)
        assert row.caution == ended or not ended
        assert bool(row.caution) == (row.key in MANY or row.rule not in ("site", "api") or ended != "")
    elif line.kind == "several":
        by_rule = Counter(rule for row in left for rule in Counter(row.by).elements())
        assert by_rule[refusals.rule] == max(by_rule.values(), default=0)
        assert refusals.rule in line.text or not refusals.whole
        assert client is None


@settings(max_examples=examples(200))
@given(INCIDENT)
async def test_the_line_of_any_incident_is_that_of_the_rows_below_it(incident: Any) -> None:
    visits, bans, later_s, listed = incident
    with pytest.MonkeyPatch.context() as patch:
        clock = FakeClock(NOW_US)
        patch.setattr("slidegate.ops.dashboard.service.time", lambda: clock.now_us / 1_000_000)
        limiter = Limiter(MemoryStore(clock=clock, wall_clock=clock))
        service = Service(limiter)
        app = RateLimitMiddleware(hello, rules=RULES, client=client_ip(trusted=[f"{MANY[1]}/32"]), limiter=limiter)
        patch.setattr("slidegate.ops.slices.TOP_CLIENTS", listed)
        refused = Counter[str]()
        for client, path, times in visits:
            key = "2001:db8:0:7::/64" if ":" in client else client
            answers = await statuses(app, times, path, client=(client, 1), headers={"x-api-key": client})
            refused[key] += len([status for status in answers if status >= 400])
        await Statistics.of(limiter).publish()
        clock.advance(f"{later_s}s")
        for client, is_network in bans.items():
            network = "2001:db8::/48" if ":" in client else f"{client.rpartition('.')[0]}.0/24"
            await limiter.ban(network if is_network else client, "1h")
        line = await service.line()
        assert line.refusals is not None
        banned = {key for key in refused if await limiter.banned(key) is not None}
        check_line(line, line.refusals, banned, refused, later_s // 60)
        event(f"{line.kind} {line.actions}")


def test_the_page_shows_the_end_of_a_long_line() -> None:
    row = ClientRow("user:" + "k" * 123, "api", "5/1m", 677, 677, {"api": 677}, False, "several users came from it")
    line = line_of(Refusals([row], 1, 677, "api", 1_200, 24_800, 132))
    assert len(line.text) > 256
    assert timed(line.text).endswith("; Not listed: 132 refusals")
