"""Bans in the admin API: making, changing and removing them, the user's own address, pages."""

from __future__ import annotations

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore
from slidegate.testing import FakeClock

from .admin_client import NOW_US, AdminClient, Operator, names


async def test_an_operator_bans_changes_and_frees_a_client(admin: AdminClient, operator: Operator) -> None:
    target = "203.0.113.0/24"
    made = await operator.ask("POST", "bans", json={"target": target, "duration": "1h", "reason": "why"})
    ban = made.json()
    assert (made.status_code, ban["target"], ban["reason"], ban["level"]) == (201, target, "why", 0)
    assert ban["until_at"] - ban["since_at"] == 3_600
    assert await admin.visit(client="203.0.113.7") == [403]
    assert (await operator.get("client", key="203.0.113.7"))["ban"] == ban
    longer = (await operator.ask("POST", "bans", json={"target": target, "duration": "permanent"})).json()
    assert (longer["until_at"], longer["reason"]) == (None, "")
    assert (await operator.get("bans"))["bans"] == [longer]
    assert (await operator.ask("DELETE", "bans", target="203.0.113.7")).status_code == 404
    assert (await operator.ask("DELETE", "bans", target=target)).status_code == 200
    assert (await operator.get("bans")) == {"bans": [], "next": None, "matching": 0, "total": 0}
    # Removing a ban also removes the strikes.
    scanners = BanPolicy("3/10m", "1h", name="scanners")
    await admin.limiter.strike("203.0.113.7", scanners, 2)
    assert (await operator.ask("DELETE", "bans", target="203.0.113.7")).status_code == 200
    assert await admin.limiter.strike("203.0.113.7", scanners) is None


@pytest.mark.parametrize(
    ("target", "own"),
    [
        ("192.0.2.1", True),
        ("192.0.2.0/24", True),
        ("::ffff:192.0.2.1", True),
        ("192.0.2.2", False),
        ("user:192.0.2.1", False),
    ],
)
async def test_to_ban_the_address_that_one_comes_from_takes_force(target: str, own: bool, operator: Operator) -> None:
    answer = await operator.ask("POST", "bans", json={"target": target, "duration": "1h"})
    assert answer.status_code == (409 if own else 201)
    assert (await operator.get("bans"))["total"] == (0 if own else 1)
    if own:
        assert answer.json()["code"] == "own"
        assert 'send "force": true to ban it anyway' in answer.json()["detail"]
        forced = await operator.ask("POST", "bans", json={"target": target, "duration": "1h", "force": True})
        assert forced.status_code == 201


async def test_bans_are_paged_newest_first_and_filtered_and_pages_stay_right_while_bans_come_and_go() -> None:
    clock = FakeClock(NOW_US)
    admin = AdminClient(Limiter(MemoryStore(clock=clock, wall_clock=clock)))
    operator = admin.operator()
    for number in range(30):
        clock.advance(us=number % 3)  # some begin in the same microsecond
        reason = "odd" if number % 2 else "Even"
        await admin.limiter.ban(f"user:{number:02}", "1h", reason=reason, by=f"policy {number % 5}")
    listed = await operator.pages("bans", limit=4)
    assert [ban["since_at"] for ban in listed] == sorted((ban["since_at"] for ban in listed), reverse=True)
    assert len({*names(listed, "target")}) == len(listed) == 30
    assert len(await operator.pages("bans", limit=4, q="EVEN")) == 15
    assert names(await operator.pages("bans", limit=2, policy="policy 3"), "policy") == ["policy 3"] * 6
    found = await operator.get("bans", q="user:07")
    assert (found["matching"], found["total"]) == (1, 30)

    first = await operator.get("bans", limit=10)
    assert first["bans"] == listed[:10]
    clock.advance(us=1)
    await admin.limiter.ban("user:new", "1h")
    for gone in (listed[9], listed[14]):  # the last ban of the page, and one of the next page
        await admin.limiter.unban(gone["target"])
    second = await operator.get("bans", limit=9, cursor=first["next"])
    assert second["bans"] == listed[10:14] + listed[15:20]
