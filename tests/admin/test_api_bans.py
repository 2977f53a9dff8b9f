"""Bans by the admin API: on every store, by two admins at once and very many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore
from slidegate.limiter.aio import STEP
from slidegate.stores.lmdb.store import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock

from ..redis_servers import RedisServer, needs_redis
from .admin_client import NOW_US, AdminClient, Operator, names

Opened = Callable[[Path], AbstractAsyncContextManager[Limiter]]


@asynccontextmanager
async def memory(path: Path) -> AsyncIterator[Limiter]:
    yield Limiter()


@asynccontextmanager
async def lmdb(path: Path) -> AsyncIterator[Limiter]:
    async with Limiter(LmdbStore(path), deadline="30s") as limiter:
        yield limiter


@asynccontextmanager
async def redis(path: Path) -> AsyncIterator[Limiter]:
    with RedisServer() as server:
        async with Limiter(RedisStore(server.url), deadline="30s") as limiter:
            yield limiter


@pytest.mark.parametrize("opened", [memory, lmdb, pytest.param(redis, marks=needs_redis)])
async def test_an_operator_bans_changes_and_frees_a_client(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as limiter:
        admin = AdminClient(limiter)
        operator = admin.operator()
        assert await admin.visit(client="203.0.113.7") == [200]
        made = await operator.ask("POST", "bans", json={"target": "203.0.113.0/24", "duration": "1h", "reason": "why"})
        ban = made.json()
        assert made.status_code == 201
        assert (ban["target"], ban["reason"], ban["level"]) == ("203.0.113.0/24", "why", 0)
        assert ban["until_at"] - ban["since_at"] == 3_600
        assert await admin.visit(client="203.0.113.7") == [403]
        assert (await operator.get("client", key="203.0.113.7"))["ban"] == ban
        longer = await operator.ask("POST", "bans", json={"target": "203.0.113.0/24", "duration": "permanent"})
        assert (longer.json()["until_at"], longer.json()["reason"]) == (None, "")
        assert (await operator.get("bans"))["bans"] == [longer.json()]
        assert (await operator.ask("DELETE", "bans", target="203.0.113.7")).status_code == 404
        assert (await operator.ask("DELETE", "bans", target="203.0.113.0/24")).status_code == 200
        assert (await operator.get("bans")) == {"bans": [], "next": None, "matching": 0, "total": 0}
        # To free a client forgives its strikes, too.
        scanners = BanPolicy("3/10m", "1h", name="scanners")
        await limiter.strike("203.0.113.7", scanners, 2)
        assert (await operator.ask("DELETE", "bans", target="203.0.113.7")).status_code == 200
        assert await limiter.strike("203.0.113.7", scanners) is None


async def test_of_two_admins_at_once_the_last_one_holds_and_there_is_one_ban(operator: Operator) -> None:
    for number in range(25):
        target = f"198.51.100.{number}"
        made = await asyncio.gather(
            operator.ask("POST", "bans", json={"target": target, "duration": "1h", "reason": "ann"}),
            operator.ask("POST", "bans", json={"target": target, "duration": "2h", "reason": "bob"}),
        )
        assert [answer.status_code for answer in made] == [201, 201]
        (ban,) = (await operator.get("bans", q=target))["bans"]
        assert ban in [answer.json() for answer in made]
        freed = await asyncio.gather(*(operator.ask("DELETE", "bans", target=target) for _ in range(2)))
        assert sorted(answer.status_code for answer in freed) == [200, 404]
    assert (await operator.get("bans"))["total"] == 0


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("192.0.2.1", True),
        ("192.0.2.0/24", True),
        ("::ffff:192.0.2.1", True),
        ("192.0.2.2", False),
        ("2001:db8::/32", False),
        ("user:192.0.2.1", False),
    ],
)
async def test_to_ban_the_address_that_one_comes_from_takes_force(target: str, own: bool, operator: Operator) -> None:
    answer = await operator.ask("POST", "bans", json={"target": target, "duration": "1h"})
    assert answer.status_code == (409 if own else 201)
    assert (await operator.get("bans"))["total"] == (0 if own else 1)
    if own:
        assert answer.json()["code"] == "own"
        assert '"force": true bans it all the same' in answer.json()["detail"]
        forced = await operator.ask("POST", "bans", json={"target": target, "duration": "1h", "force": True})
        assert forced.status_code == 201


async def test_bans_are_paged_newest_first_and_filtered() -> None:
    clock = FakeClock(NOW_US)
    admin = AdminClient(Limiter(MemoryStore(clock=clock, wall_clock=clock)))
    operator = admin.operator()
    for number in range(25):
        clock.advance(us=number % 3)  # some begin in the same microsecond
        await admin.limiter.ban(
            f"user:{number:02}", "1h", reason="odd" if number % 2 else "Even", by=f"policy {number % 5}"
        )
    listed = await operator.pages("bans", limit=4)
    assert len(listed) == 25
    assert [ban["since_at"] for ban in listed] == sorted((ban["since_at"] for ban in listed), reverse=True)
    assert len(set(names(listed, "target"))) == 25
    assert len(await operator.pages("bans", limit=4, q="EVEN")) == 13
    assert names(await operator.pages("bans", limit=2, policy="policy 3"), "policy") == ["policy 3"] * 5
    found = await operator.get("bans", q="user:07")
    assert (found["matching"], found["total"]) == (1, 25)


async def test_pages_stay_right_while_bans_come_and_go() -> None:
    clock = FakeClock(NOW_US)
    admin = AdminClient(Limiter(MemoryStore(clock=clock, wall_clock=clock)))
    operator = admin.operator()
    for number in range(30):
        clock.advance(us=1)
        await admin.limiter.ban(f"user:{number:02}", "1h")
    first = await operator.get("bans", limit=10)
    assert names(first["bans"], "target") == [f"user:{number}" for number in range(29, 19, -1)]
    clock.advance(us=1)
    await admin.limiter.ban("user:new", "1h")
    await admin.limiter.unban("user:20")  # the one at which the page ended
    await admin.limiter.unban("user:15")
    second = await operator.get("bans", limit=10, cursor=first["next"])
    assert names(second["bans"], "target") == [f"user:{n}" for n in (19, 18, 17, 16, 14, 13, 12, 11, 10)] + ["user:09"]


async def test_a_page_of_many_bans_lets_other_tasks_run() -> None:
    admin = AdminClient(Limiter(MemoryStore(max_bans=40_000)))
    rows: list[dict[str, object]] = [{"slidegate": "bans", "version": 3, "written_us": NOW_US}]
    rows += [
        {"ban": f"user:{n}", "reason": "why", "by": "me", "level": 0, "made_us": NOW_US, "ends_us": None,
         "since_us": NOW_US}
        for n in range(30_000)
    ]  # fmt: skip
    admin.limiter.store.bans.load(rows)
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    page = await admin.operator().get("bans", limit=5)
    ticking.cancel()
    assert (len(page["bans"]), page["total"]) == (5, 30_000)
    assert turns >= 30_000 // STEP
