"""The views of the API: rules, lists, events, shadow rules, nearness and stats; none shows a secret."""

from __future__ import annotations

import asyncio
import json
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, Quota, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.admin import AdminRoutes
from slidegate.admin.activity import KEPT_EVENTS, KEPT_REFUSALS, MAX_REFUSALS_PER_SECOND, ActivityRecorder
from slidegate.core.store import Event
from slidegate.stats.statistics import recording_of
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.testing import FakeClock

from ..asgi import call
from ..stats.shared_store import Board, Staff
from ..virtual_time import turns_during
from ..web.middlewares import end_of_looks
from .admin_client import NOW_US, TOKEN, AdminClient, Operator, names


@RateLimit("3/second", name="there")
async def there(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def holds(found: dict[str, Any], **expected: Any) -> bool:
    return {name: found[name] for name in expected} == expected


async def test_the_rules_of_all_middlewares_on_a_limiter_are_shown(tmp_path: Path) -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock(NOW_US)))
    path = tmp_path / "slidegate.toml"
    path.write_text('[[rules]]\npath = "/from/file"\nlimits = "4/s"\nname = "file"\n')
    routes = [Mount("/admin", AdminRoutes(limiter, token=TOKEN)), Route("/there", there)]
    inner = RateLimitMiddleware(
        Starlette(routes=routes),
        limiter=limiter,
        default_limits="9/minute",
        rules=[
            Rule(["/a", "/b"], "5/minute; 50/hour", methods=["POST"], name="forms", cost=2, wait="1s"),
            Rule("/plans", lambda request: "7/minute", name="plans"),
            Rule("/quota", [Quota("10/day")], name="daily", key=everyone, concurrency=4),
            Rule("/old", block=True, status=410, name="old"),
            Rule("/free", exempt=True),
            Rule("/admin/{rest:path}", exempt=True),
        ],
        bans=BanPolicy("20/10m", "1h", signals={"refused": 1, 401: 2, "/.env": "ban"}, name="abuse"),
        blocklist=Networks(["203.0.113.128/25", "198.51.100.0/24"]),
    )
    app = RateLimitMiddleware.from_file(inner, path, limiter=limiter)
    RateLimitMiddleware(Starlette(), limits="1/s")  # on a separate limiter
    operator = Operator(app, TOKEN)
    by_name = {found["name"]: found for found in (await operator.get("rules"))["middlewares"]}
    assert names(by_name.pop("middleware 2 (slidegate.toml)")["rules"], "name") == ["file"]
    (middleware,) = by_name.values()
    assert holds(middleware, default_limits=["9/1m"], endpoints=[])
    rules = {rule["name"]: rule for rule in middleware["rules"]}
    assert holds(rules["forms"], paths=["/a", "/b"], methods=["POST"], cost=2, wait_s=1.0, limits=["5/1m", "50/1h"])
    assert rules["plans"]["by_request"]
    assert holds(rules["daily"], key="everyone", limits=["10/day from 00:00 in UTC", "4 at a time"])
    assert rules["old"]["action"] == "block"
    assert rules["/free"]["exempt"]
    (policy,) = middleware["policies"]
    assert holds(policy, name="abuse", shadow=False, signals={"refused": "1", "401": "2", "/.env": "ban"})
    (listed,) = (await operator.get("lists"))["lists"]
    assert holds(listed, kind="blocklist", entries=2, status="fixed")
    await call(app, "/there")
    endpoints = [rule["name"] for found in (await operator.get("rules"))["middlewares"] for rule in found["endpoints"]]
    assert sorted(endpoints) == ["per-route GET /there", "there"]


async def test_lists_in_files_are_shown_with_what_became_of_their_last_change(tmp_path: Path) -> None:
    now_s = 0.0
    good, bad = tmp_path / "good.netset", tmp_path / "bad.netset"

    def write(path: Path, text: str, changed_at: int) -> None:
        new = tmp_path / "new"
        new.write_text(text)
        os.utime(new, (changed_at, changed_at))
        new.rename(path)

    for path in (good, bad):
        write(path, "203.0.113.128/25\n198.51.100.0/24\n", 1_700_000_000)
    admin = AdminClient(middleware={"blocklist": Networks.from_file(good, bad, clock=lambda: now_s)})
    operator = admin.operator()
    await admin.visit()
    for name, found in zip(("good", "bad"), (await operator.get("lists"))["lists"], strict=True):
        assert holds(found, name=name, entries=2, changed_at=1_700_000_000.0, status="loaded")
    write(good, "203.0.113.128/25\n198.51.100.0/24\n2001:db8::/32\n", 1_700_000_900)
    write(bad, "no address\n", 1_700_000_900)
    for _ in range(2):
        now_s += 1
        await admin.visit()
        end_of_looks()
    loaded, rejected = (await operator.get("lists"))["lists"]
    assert holds(loaded, entries=3, status="loaded")
    assert holds(rejected, entries=2, status="rejected")
    assert "line 1" in rejected["message"]
    for number in range(KEPT_EVENTS + 5):
        await admin.limiter.ban(f"user:{number}", "1h")
    loaded, rejected = (await operator.get("lists"))["lists"]
    assert [found["status"] for found in (loaded, rejected)] == ["loaded", "rejected"], "after other events, too"


async def test_busy_clients_come_in_the_order_that_is_asked_for_with_the_limit_that_they_are_nearest_to(
    admin: AdminClient, operator: Operator
) -> None:
    for client, times in (("198.51.100.1", 30), ("198.51.100.2", 25), ("198.51.100.3", 4)):
        await admin.visit(times=times, client=client)
    await admin.visit("/api/a", times=4, client="198.51.100.4", **{"X-API-Key": "k"})
    by_requests = (await operator.get("clients", sort="requests"))["clients"]
    assert names(by_requests, "requests") == [30, 25, 4, 4, 4]
    busiest = by_requests[0]
    assert busiest["nearest"] == {"rule": "all", "limit": "20/1m", "used": 20, "amount": 20, "share": 1.0}
    assert (busiest["refused"], busiest["banned"]) == (10, False)
    assert names((await operator.get("clients", sort="refused"))["clients"], "refused") == [10, 5]
    near = (await operator.get("clients", sort="nearness"))["clients"]
    assert [one["nearest"]["share"] for one in near] == [1.0, 1.0, 0.8, 0.2, 0.2]
    assert near[2]["nearest"]["rule"] == "api"
    for sort in ("requests", "refused", "nearness"):
        whole = (await operator.get("clients", sort=sort))["clients"]
        assert (await operator.get("clients", sort=sort, limit=2))["clients"] == whole[:2]
    await admin.limiter.ban("198.51.100.1", "1h")
    assert names((await operator.get("clients"))["clients"], "banned")[0]


@pytest.mark.parametrize(
    ("client", "target"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("198.51.100.1", "198.51.100.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1:2::3"),
        ("2001:db8:1:2::3", "2001:db8::/32"),
    ],
)
@pytest.mark.parametrize("times", [0, 3])
async def test_a_client_is_shown_as_banned_whatever_ban_refuses_it(
    admin: AdminClient, operator: Operator, client: str, target: str, times: int
) -> None:
    """Also one that no rule has counted, because it was banned from the start."""
    await operator.get("clients")
    await admin.visit(times=times, client=client)
    assert names((await operator.get("clients"))["clients"], "banned") == [False][:times]
    await admin.limiter.ban(target, "1h")
    assert await admin.visit(times=2, client=client) == [403, 403]
    (shown,) = (await operator.get("clients"))["clients"]
    assert (shown["banned"], shown["refused"]) == (True, 2)
    assert (await operator.get("client", key=shown["key"]))["ban"] is not None
    await admin.limiter.unban(target)
    assert names((await operator.get("clients"))["clients"], "banned") == [False]


async def test_clients_leave_when_their_window_has_passed(admin: AdminClient, operator: Operator) -> None:
    await operator.get("clients")
    await admin.visit()
    await operator.get("clients")
    admin.clock.advance("5m")
    assert names((await operator.get("clients"))["clients"], "key") == ["203.0.113.9"]
    admin.clock.advance("1m")
    assert (await operator.get("clients"))["clients"] == []


async def test_events_are_shown_newest_first_each_under_a_name_of_its_own(
    admin: AdminClient, operator: Operator
) -> None:
    await admin.limiter.ban("user:1", "1h", reason="<b>")
    await admin.limiter.unban("user:1")
    await admin.limiter.ban("user:2", "1h")
    events = (await operator.get("events"))["events"]
    assert names(events, "kind") == ["banned", "unbanned", "banned"]
    assert events[2]["details"]["reason"] == "<b>"
    assert len(set(names(events, "seq"))) == 3
    assert (await operator.get("events", kind="banned", limit=1))["events"] == events[:1]
    await admin.limiter.unban("user:2")
    assert (await operator.get("events"))["events"][1:] == events


async def test_of_a_flood_of_refusals_a_part_is_taken_each_second_and_all_are_counted(
    admin: AdminClient, operator: Operator
) -> None:
    hub = admin.limiter.engine.observers
    for second in range(3):
        assert hub.wants_refusals()
        await admin.visit(times=MAX_REFUSALS_PER_SECOND + 130)
        assert not hub.wants_refusals()
        refusals = (await operator.get("refusals", limit=500))["refusals"]
        assert len(refusals) == (second + 1) * MAX_REFUSALS_PER_SECOND
        admin.clock.advance("1s")
        await operator.get("refusals")  # each read re-enables the recording of refusals
    await admin.limiter.ban("203.0.113.9", "1h")
    await admin.visit()
    assert (await operator.get("refusals"))["refusals"][0]["reason"] == "banned"
    assert (await operator.get("stats"))["total"]["refused"] == 3 * (MAX_REFUSALS_PER_SECOND + 130) - 20 + 1


async def test_a_flood_of_strangers_does_not_hide_the_busiest(admin: AdminClient, operator: Operator) -> None:
    for turn in range(25):
        for number in range(200):
            await admin.limiter.hit(f"stranger {turn} {number}", "5/minute", rule="api")
        for _ in range(100):
            await admin.limiter.hit("busy", "9/minute; 50/hour", rule="all")
        busiest = (await operator.get("clients"))["clients"][0]
    assert (busiest["key"], busiest["nearest"]["rule"]) == ("busy", "all")
    assert busiest["requests"] > 2_300


async def test_what_a_worker_publishes_for_the_others_is_bounded_whatever_its_clients_send() -> None:
    chance, board = random.Random(1), Board()
    admin = AdminClient(Staff(board))
    operator = admin.operator()
    for number in range(KEPT_REFUSALS + 5):
        long = "".join(chance.choices('a\x00\u202e\U0001f600<"\\\ud800', k=64 * 1024 if number % 100 == 0 else 300))
        details = dict.fromkeys(("key", "client", "rule", "route", "method", "limit"), long)
        if number % (MAX_REFUSALS_PER_SECOND // 2) == 0:
            board.clock.advance("1s")
            await operator.get("refusals", limit=1)  # each read re-enables the recording of refusals
        admin.limiter.engine.observers.emit(Event("refused", "refused", {**details, "reason": "limited"}))
        admin.limiter.engine.observers.emit(Event("shadow_refused", "", {"rule": long, "key": long}))
        if number % 20 == 0:
            admin.limiter.engine.observers.emit(
                Event("banned", long, {f"{long[:100]}{place}": long for place in range(40)})
            )
    await recording_of(admin.limiter).publisher.publish()
    (published,) = [value for (rollup, _, _), (value, _) in board.rows.items() if rollup == "s-activity"]
    assert len(published) < 32 * 1024
    section = json.loads(published)
    assert all(section[part] for part in ("refusals", "events", "shadowed"))
    assert len((await operator.get("refusals", limit=500))["refusals"]) == KEPT_REFUSALS
    for _ in range(KEPT_EVENTS + 5):
        admin.limiter.engine.observers.emit(Event("unbanned", "", {"key": "k"}))
    assert len((await operator.get("events", limit=500))["events"]) == KEPT_EVENTS


@pytest.mark.parametrize("part", [7, {}, {"version": 2, "clients": []}, {"version": 3, "clients": [{"key": 5}]}])
async def test_what_another_worker_has_published_in_another_form_is_passed_over(part: Any) -> None:
    board = Board()
    admin, other = AdminClient(Staff(board)), Staff(board)
    other.publish_section("activity", part)
    await other.publisher.publish()
    await admin.visit(times=3)
    operator = admin.operator()
    assert names((await operator.get("clients"))["clients"], "requests") == [3]
    assert len((await operator.get("config"))["workers"]) == 2


async def test_stats_are_those_of_the_application_and_not_of_looks_that_a_rule_exempts(
    admin: AdminClient, operator: Operator
) -> None:
    await admin.visit(times=23)
    for _ in range(9):
        stats = await operator.get("stats", window="5m")
    assert (stats["total"]["passed"], stats["total"]["refused"]) == (20, 3)
    assert stats["rules"]["all"]["passed"] == 20
    assert sum(one["passed"] for one in stats["routes"].values()) == 20
    (worker,) = stats["workers"]
    assert worker["pid"] == os.getpid()
    chart = await operator.get("history", window="5m")
    assert (sum(chart["passed"]), sum(chart["refused"])) == (20, 3)
    assert len(chart["passed"]) * chart["step_s"] >= 300
    assert sum((await operator.get("history", window="5m", rule="all"))["passed"]) == 20
    assert sum((await operator.get("history", window="5m", rule="none"))["passed"]) == 0


async def test_each_worker_answers_for_all(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        limiters = [Limiter(LmdbStore(tmp_path), deadline="30s") for _ in range(2)]
        admins = [AdminClient(await stack.enter_async_context(limiter)) for limiter in limiters]
        for number, admin in enumerate(admins, 1):
            await admin.visit("/shadow", times=24, client=f"198.51.100.{number}")
            await admin.limiter.ban(f"user:{number}", "1h")
        for admin in admins:
            await recording_of(admin.limiter).publisher.publish()
        for admin in admins:
            operator = admin.operator()
            stats = await operator.get("stats")
            assert len(stats["workers"]) == 2
            assert holds(stats["total"], passed=40, refused=8)
            clients = (await operator.get("clients"))["clients"]
            assert [
                (found["key"], found["requests"], found["refused"], found["nearest"]["used"]) for found in clients
            ] == [("198.51.100.1", 24, 4, 20), ("198.51.100.2", 24, 4, 20)]
            refusals = (await operator.get("refusals"))["refusals"]
            assert sorted(names(refusals, "client")) == ["198.51.100.1"] * 4 + ["198.51.100.2"] * 4
            assert len(set(names(refusals, "worker"))) == 2
            events = (await operator.get("events", kind="banned"))["events"]
            assert {event["details"]["key"] for event in events} == {"user:1", "user:2"}
            (rule,) = (await operator.get("shadow"))["rules"]
            assert holds(rule, passed=40, would_refuse=36, share=0.9)
            assert {found["key"] for found in rule["clients"]} == {"198.51.100.1", "198.51.100.2"}
            config = await operator.get("config")
            assert (len(config["workers"]), config["per_process"], config["on_error"]) == (2, False, "local")


async def test_a_client_is_shown_its_own_plan_and_one_that_did_not_ask_the_fall_back() -> None:
    limiter = Limiter(MemoryStore(clock=FakeClock(NOW_US)))
    plans = {"192.0.2.1": "5/minute", "192.0.2.2": "10/minute"}
    rule = Rule("/api", lambda request: plans[request.client.host], fallback_limits="2/minute", name="plan")
    admin = Starlette(routes=[Mount("/admin", AdminRoutes(limiter, token=TOKEN))])
    app = RateLimitMiddleware(admin, rules=[rule], limiter=limiter)
    operator = Operator(app, TOKEN)
    for client in plans:
        await call(app, "/api", client=(client, 1))
    await limiter.hit("192.0.2.3", "2/minute", rule="plan")
    shown = {}
    for client in (*plans, "192.0.2.3"):
        windows = (await operator.get("client", key=client))["windows"]
        shown[client] = [(window["amount"], window["fallback"]) for window in windows]
    assert shown == {"192.0.2.1": [(5, False)], "192.0.2.2": [(10, False)], "192.0.2.3": [(2, True)]}


async def test_others_run_between_the_parts_that_a_worker_publishes() -> None:
    board = Board()
    staff = Staff(board)
    AdminRoutes(staff, token=TOKEN)
    turns = await turns_during(staff.publisher.publish())
    assert turns >= len(json.loads(board.rows["s-activity", 0, staff.publisher.worker][0]))


def test_a_child_of_fork_shows_nothing_of_its_parent() -> None:
    admin = AdminClient(Staff(Board()))

    async def act() -> None:
        await admin.visit(times=30)
        await admin.limiter.ban("user:1", "1h")

    def shown() -> tuple[int, int, int]:
        found = asyncio.run(ActivityRecorder.of(admin.limiter).all_workers())
        return len(found.clients), len(found.refusals), len(found.events)

    asyncio.run(act())
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(shown()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"(0, 0, 0)"
    assert shown() == (1, 10, 1)
