"""What else may stand in Redis: values of others at keys of ours, and a key with thousands of windows."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from slidegate import BanPolicy, Quota
from slidegate.core import Bucket, Concurrency, Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore

from ...contract.harness import bucket
from ...contract.player import settle
from ...redis_servers import RedisCluster, RedisServer, needs_redis
from .stores import fresh_prefix, store_at

pytestmark = needs_redis


async def test_a_key_with_thousands_of_windows_is_forgotten_like_any_other(server: RedisServer) -> None:
    rules = [bucket("5/hour", f"rule-{number}") for number in range(4_500)]
    async with store_at(server) as store:
        await asyncio.gather(*(settle(store.hit(((rule, "ann", 1),))) for rule in rules))
        assert await settle(store.reset("ann")) is True
        assert (await settle(store.peek(((rules[-1], "ann", 0),)))).remaining == 5
        assert await settle(store.reset("ann")) is False


FOREIGN: dict[str, tuple[str, ...]] = {
    "text": ("SET", "{}", "of somebody else"),
    "list": ("RPUSH", "{}", "of", "somebody", "else"),
    "set": ("SADD", "{}", "of", "somebody", "else"),
    "sorted set": ("ZADD", "{}", "7", "of somebody else"),
    "hash": ("HSET", "{}", "of", "somebody else"),
}
GARBAGE = ("", "\0", "7" * 7, "7" * 16, "7" * 24, "\x7f" * 60, "7" * 5_000)
LAST = bucket("5/hour", "last")
HELD = Bucket("held", [Concurrency(5)])
AT_ONCE = BanPolicy("1/hour", "1h", name="at-once")


async def fill(store: RedisStore) -> None:
    """Have every kind of key made."""
    for rule in (LAST, HELD, Bucket("plan", (Quota("10/day"),))):
        assert await settle(store.hit(((rule, "ann", 1),)))
    await store.bans.ban("bob", 3_600_000_000, "", "ann")
    await store.bans.ban("192.0.2.0/24", 3_600_000_000, "", "ann")
    await store.bans.strike(BanPolicy("20/10m", "1h"), "eve", 1, "")


async def ask_everything(store: RedisStore, key: str) -> None:
    """Ask a store everything that a request may, about a key that nobody has touched."""
    checks = ((LAST, key, 1), (HELD, key, 1))
    held = await settle(store.hit(checks, (key, (4, 0xCB007107))))
    assert held.allowed
    assert (await settle(store.peek(((LAST, key, 0),)))).remaining == 4
    charged = await settle(store.charge(((LAST, key, 4),)))
    assert (await settle(store.hit(checks))).reason is Reason.LIMITED
    await store.renew_permits()
    assert await settle(store.refund(held.take_back())) is True
    assert await settle(store.refund(charged.take_back())) is True
    assert await settle(store.hit(((LAST, key, 5),)))
    assert len((await settle(store.inspect(key, [LAST]))).windows) == 1
    assert await settle(store.reset(key)) is True
    assert await store.bans.strike(AT_ONCE, key, 1, "") is not None
    assert (await settle(store.hit(checks, (key,)))).reason is Reason.BANNED
    assert await store.bans.unban(key, "ann") is True
    assert (await settle(store.hit(checks, (key,)))).allowed


def damage(server: RedisServer, name: bytes) -> Iterator[str]:
    """Put one foreign value after the other in the place of a value, and say which it is; restore it at the end."""
    stored = server.command("DUMP", name)
    try:
        for kind, (command, _, *rest) in FOREIGN.items():
            server.command("DEL", name)
            server.command(command, name, *rest)
            yield kind
        server.command("DEL", name)
        server.command("RESTORE", name, 0, stored)
        if server.command("TYPE", name) == b"hash":
            fields = server.command("HKEYS", name)
            for text in GARBAGE:
                for field in fields:
                    server.command("HSET", name, field, text)
                yield f"a hash of {text[:20]!r}"
    finally:
        server.command("DEL", name)
        server.command("RESTORE", name, 0, stored)


@pytest.mark.parametrize("running", ["server", "cluster"])
async def test_a_foreign_value_at_a_key_of_ours_stops_nobody_else(running: str, request: pytest.FixtureRequest) -> None:
    place: RedisServer | RedisCluster = request.getfixturevalue(running)
    servers = [place] if isinstance(place, RedisServer) else place.masters
    numbers = itertools.count()
    prefix, asked = fresh_prefix(), Counter[str]()
    async with store_at(place, prefix=prefix, readable=True, permit_lease="10m") as store:
        await fill(store)
        names = [(server, name) for server in servers for name in server.command("KEYS", f"{prefix}:*")]
        for server, name in names:
            for value in damage(server, name):
                asked[name.decode().removeprefix(prefix)] += 1
                try:
                    await ask_everything(store, f"user:{next(numbers)}")
                    if not name.endswith(b":index"):  # without which nobody knows of all bans
                        await store.bans.dump()
                    if b"{bans}" in name:  # which a worker reads before it answers first
                        async with store_at(place, prefix=prefix, readable=True) as newcomer:
                            await ask_everything(newcomer, f"user:{next(numbers)}")
                except Exception as error:
                    error.add_note(f"{name!r} was {value}")
                    raise
        for name in (":9:w:{ann}", ":9:w:{bob}", ":9:s:{eve}", ":9:{bans}", ":9:{bans}:index", ":9:{bans}:networks"):
            assert asked[name] >= len(FOREIGN), name
        assert any(name.startswith(":9:p:{ann}") for name in asked)


async def test_what_cannot_be_read_of_a_key_says_nothing_about_the_server(server: RedisServer) -> None:
    prefix = fresh_prefix()
    async with store_at(server, prefix=prefix, readable=True) as store:
        await fill(store)
        for key in ("ann", "bob"):
            for value in damage(server, f"{prefix}:9:w:{{{key}}}".encode()):
                asked = asyncio.ensure_future(settle(store.hit(((LAST, key, 1),), (key,))))
                await asyncio.wait([asked])
                error = asked.exception()
                assert error is None or (isinstance(error, StoreUnavailable) and error.concerns == "key"), value
