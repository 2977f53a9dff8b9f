"""An onlooker keeps what operators ask about, and no more than its bounds, whatever clients send."""

from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from slidegate import MemoryStore
from slidegate.core import Bucket, Check, parse_limits
from slidegate.core.protocols import Event
from slidegate.limiter.events.kinds import KINDS
from slidegate.ops.admin.onlooker import KEPT_EVENTS, KEPT_REFUSALS, LOGGED, Onlooker, name_of
from slidegate.ops.admin.seen_by_all import published
from slidegate.testing import FakeClock

SECTION_BYTES = 32 * 1024
API, ALL = Bucket("api", parse_limits("5/minute")), Bucket("all", parse_limits("9/minute; 50/hour"))


def looking(clock: FakeClock) -> Onlooker:
    return Onlooker(clock, wall_us=lambda: 1_800_000_000_000_000)


def refused(**details: object) -> Event:
    return Event(
        "refused", "refused", {"key": "k", "client": "192.0.2.7", "rule": "api", "reason": "limited", **details}
    )


@given(st.lists(st.tuples(st.sampled_from("abcdefg"), st.booleans()), max_size=200), st.integers(1, 50))
def test_the_busiest_clients_are_counted_once_a_decision(asked: list[tuple[str, bool]], at_a_time: int) -> None:
    clock = FakeClock(10**12)
    store, onlooker = MemoryStore(clock=clock), looking(clock)
    decisions = []
    requests: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    for key, both in asked:
        checks: tuple[Check, ...] = ((API, key, 1), (ALL, key, 1)) if both else ((API, key, 1),)
        decisions.append(store.hit(checks))
        requests[key] += 1
        refusals[key] += not decisions[-1].allowed
    for first in range(0, len(decisions), at_a_time):
        onlooker.read(decisions[first : first + at_a_time])
    busy = onlooker.busiest(50)
    assert {one["key"]: one["requests"] for one in busy} == requests
    assert {one["key"]: one["refused"] for one in busy} == {key: refusals[key] for key in requests}
    for one in busy:
        assert name_of(API) in one["rules"]
        assert (name_of(ALL) in one["rules"]) == ((one["key"], True) in asked)
        assert all(onlooker.bucket(name) in (API, ALL) for name in one["rules"])


def test_clients_leave_when_their_window_has_passed() -> None:
    clock = FakeClock(10**12)
    store, onlooker = MemoryStore(clock=clock), looking(clock)
    onlooker.read([store.hit(((API, "a", 1),))])
    clock.advance("5m")
    assert [one["key"] for one in onlooker.busiest(5)] == ["a"]
    clock.advance("1m")
    assert onlooker.busiest(5) == []


def test_a_flood_of_strangers_neither_grows_the_onlooker_nor_hides_the_busiest() -> None:
    clock = FakeClock(10**12)
    store, onlooker = MemoryStore(clock=clock), looking(clock)
    for turn in range(60):
        onlooker.read([store.hit(((API, f"stranger {turn} {number}", 1),)) for number in range(200)])
        onlooker.read([store.hit(((ALL, "busy", 1),)) for _ in range(100)])
    busy = onlooker.busiest(20)
    assert busy[0]["key"] == "busy"
    assert busy[0]["requests"] > 5_500
    assert busy[0]["rules"] == [name_of(ALL)]
    assert len(onlooker._counted_by) <= 4_096


def test_a_refusal_is_kept_with_what_the_event_says_of_it() -> None:
    onlooker = looking(FakeClock())
    onlooker.hear_refusal(refused(limit="5/1m", route="GET /a", method="GET", status=429, retry_after_s=12))
    onlooker.hear_refusal(refused(limit=None, route="", method=None, status=None, retry_after_s=None, reason="banned"))
    first, second = onlooker.refusals()
    assert first == {
        "at": 1_800_000_000.0, "key": "k", "client": "192.0.2.7", "rule": "api", "limit": "5/1m", "reason": "limited",
        "route": "GET /a", "method": "GET", "status": 429, "retry_after_s": 12, "worker": "",
    }  # fmt: skip
    assert [second[name] for name in ("limit", "route", "method", "status", "retry_after_s")] == [None] * 5  # type: ignore[literal-required]


def test_the_last_events_are_kept_and_not_those_that_come_with_every_request() -> None:
    assert set(KINDS) - LOGGED == {"refused", "shadow_refused", "near_limit"}
    onlooker = looking(FakeClock())
    for number in range(KEPT_EVENTS + 7):
        onlooker.hear(Event("unbanned", f"{number}", {"key": "k"}))
    assert [event["number"] for event in onlooker.events()] == list(range(8, KEPT_EVENTS + 8))
    for _ in range(KEPT_REFUSALS + 7):
        onlooker.hear_refusal(refused())
    assert len(onlooker.refusals()) == KEPT_REFUSALS


def test_shadow_refusals_are_counted_by_rule_and_client() -> None:
    onlooker = looking(FakeClock(10**12))
    for rule, key, times in (("a", "x", 3), ("a", "y", 1), ("b", "x", 2)):
        for _ in range(times):
            onlooker.hear_shadow(Event("shadow_refused", "would", {"rule": rule, "key": key}))
    assert onlooker.would_refuse(2) == [("a", "x", 3), ("b", "x", 2)]
    assert sorted(onlooker.would_refuse(9)) == [("a", "x", 3), ("a", "y", 1), ("b", "x", 2)]


def test_a_section_fits_whatever_the_events_hold() -> None:
    chance = random.Random(1)
    clock = FakeClock(10**12)
    store, onlooker = MemoryStore(clock=clock), looking(clock)
    signs = 'a\x00\u202e\U0001f600<"\\\ud800'
    for number in range(KEPT_REFUSALS + 50):
        long = "".join(chance.choices(signs, k=64 * 1024 if number % 50 == 0 else 300))
        details = {f"{long[:100]}{place}": long for place in range(40)}
        onlooker.hear(Event("banned", long, details))
        onlooker.hear_refusal(refused(key=long, rule=long, route=long, method=long, limit=long, client=long))
        onlooker.hear_shadow(Event("shadow_refused", "", {"rule": long, "key": long}))
        onlooker.read([store.hit(((API, long[:16] + str(number), 1),))])
    section = published(onlooker)
    assert len(json.dumps(section)) < SECTION_BYTES
    assert all(section[part] for part in ("busy", "refusals", "events", "shadowed"))
    assert max(len(json.dumps(event)) for event in onlooker.events()) < 64 * 1024
    assert all(isinstance(value, str) for event in onlooker.events() for value in event["details"].values())
