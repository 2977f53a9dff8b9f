"""What operators have done lately: the latest 200 actions, read by name, and never in the way of an action."""

import json
import logging
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter
from slidegate.core import SharedRow, StoreUnavailable
from slidegate.limiter.rows import HISTORY, MOST
from slidegate.testing import FakeClock

from ..ops.shared_rows import SharedRows, limiter_on
from ..stores.conftest import Opened


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_bans_and_changes_by_hand_are_listed_and_those_of_policies_are_not(opened_as: Opened, kind: str) -> None:
    clock = FakeClock(4_102_444_800_000_000)
    limiter = Limiter(opened_as(kind, clock=clock), deadline="20s")
    await limiter.ban("203.0.113.7", "1h", reason="scan", by="ann")
    clock.advance("1s")
    await limiter.strike("user:bob", BanPolicy("1/hour", "1h"))
    await limiter.override("api", "5/minute", "2h", reason="slow", by="ann")
    clock.advance("1s")
    assert await limiter.restore("api", by="bob")
    assert not await limiter.restore("api")
    clock.advance("1s")
    assert await limiter.unban("203.0.113.7", by="bob")
    assert not await limiter.unban("203.0.113.7")
    found = await limiter.history()
    assert [(one.kind, one.target, one.by, one.reason, one.limit) for one in found] == [
        ("unban", "203.0.113.7", "bob", "", ""),
        ("restore", "api", "bob", "", ""),
        ("override", "api", "ann", "slow", "5/1m"),
        ("ban", "203.0.113.7", "ann", "scan", ""),
    ]
    ban = found[-1]
    assert ban.until_us is not None
    assert (ban.until_us - ban.at_us, ban.until is not None, found[0].until) == (3_600_000_000, True, None)


async def test_the_latest_200_of_all_workers_are_kept() -> None:
    rows = SharedRows(FakeClock())
    limiters = [limiter_on(rows) for _ in range(3)]
    for number in range(300):
        rows.clock.advance("1s")
        await limiters[number % 3].ban(f"user:{number}", "1h")
    ends_us = [ends_us for name, (_, ends_us) in rows.rows.items() if name[0] == HISTORY]
    kept = sum(one > rows.clock() for one in ends_us)
    assert MOST <= kept < MOST + 20 * len(limiters)
    assert [one.target for one in await limiters[0].history()] == [f"user:{number}" for number in range(299, 99, -1)]


async def test_what_a_later_version_writes_is_read_by_name_or_left_out() -> None:
    rows = SharedRows(FakeClock())
    limiter = limiter_on(rows)
    await limiter.ban("user:ann", "1h")
    ((value, _),) = [row for name, row in rows.rows.items() if name[0] == HISTORY]
    said = json.loads(value)
    odd: list[Any] = [{**said, "more": [1], "target": "user:bob"}, {**said, "by": 7}, {**said, "at_us": "x"}, {}, [], 7]
    odd += [{**said, name: moment} for name in ("at_us", "until_us") for moment in (2**70, -1, 1e300, True, "1")]
    for number, one in enumerate(odd):
        await rows.write(bytes([255, number]), SharedRow(HISTORY, 0, json.dumps(one).encode(), 10**9))
    await rows.write(b"\xff\xff", SharedRow(HISTORY, 0, b"\xff", 10**9))
    read = await limiter.history()
    assert [one.target for one in read] == ["user:bob", "user:ann"]
    assert all(one.until and one.until > one.at for one in read)


async def test_a_ban_stands_if_the_history_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    class Full(SharedRows):
        async def write(self, *given: Any) -> None:
            raise StoreUnavailable("no room")

    limiter = limiter_on(Full(FakeClock()))
    with caplog.at_level(logging.WARNING, logger="slidegate"):
        await limiter.ban("user:ann", "1h", by="bob")
    assert await limiter.banned("user:ann")
    assert "the history lacks an action (ban user:ann by bob): no room" in caplog.text
