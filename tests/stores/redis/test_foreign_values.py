"""What else may stand in Redis: values of others at keys of ours, and a key with thousands of windows."""

from __future__ import annotations

import asyncio

import pytest

from slidegate import BanPolicy
from slidegate.testing.contract.harness import bucket
from slidegate.testing.contract.player import settle

from ...redis_servers import RedisServer, needs_redis
from .stores import fresh_prefix, store_at

pytestmark = needs_redis


async def test_a_key_with_thousands_of_windows_is_forgotten_like_any_other(server: RedisServer) -> None:
    rules = [bucket("5/hour", f"rule-{number}") for number in range(4_500)]
    async with store_at(server) as store:
        await asyncio.gather(*(settle(store.hit(((rule, "ann", 1),))) for rule in rules))
        assert await settle(store.reset("ann")) is True
        assert (await settle(store.peek(((rules[-1], "ann", 0),)))).remaining == 5
        assert await settle(store.reset("ann")) is False


@pytest.mark.xfail(strict=True, reason="stores: a foreign value at the key of all bans stops everybody")
async def test_a_foreign_value_at_a_key_of_ours_stops_nobody_else(server: RedisServer) -> None:
    prefix, rule = fresh_prefix(), bucket("5/hour")
    async with store_at(server, prefix=prefix) as store:
        assert await settle(store.hit(((rule, "ann", 1),)))
        await store.bans.ban("bob", 3_600_000_000, "", "ann")
        await store.bans.strike(BanPolicy("20/10m", "1h"), "eve", 1, "")
        for number, key in enumerate(server.command("KEYS", f"{prefix}*")):
            server.command("DEL", key)
            server.command("SET", key, "of somebody else")
            assert (await settle(store.hit(((rule, f"user:{number}", 1),)))).allowed, key
            server.command("DEL", key)
