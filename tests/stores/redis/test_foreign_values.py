"""What else may stand in Redis: values of others at keys of ours, and a key with thousands of windows."""

import asyncio
from collections.abc import Iterator

import pytest

from slidegate import BanPolicy, Quota
from slidegate.core import Bucket, Concurrency, StoreUnavailable
from slidegate.stores.redis import RedisStore

from ...contract.harness import bucket
from ...contract.player import settle
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


async def fill(store: RedisStore) -> None:
    """Have every kind of key made."""
    for rule in (LAST, HELD, Bucket("plan", (Quota("10/day"),))):
        assert await settle(store.hit(((rule, "ann", 1),)))
    await store.bans.ban("bob", 3_600_000_000, "", "ann")
    await store.bans.ban("192.0.2.0/24", 3_600_000_000, "", "ann")
    await store.bans.strike(BanPolicy("20/10m", "1h"), "eve", 1, "")


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


async def test_what_cannot_be_read_of_a_key_says_nothing_about_the_server(server: RedisServer) -> None:
    prefix = fresh_prefix()
    async with store_at(server, prefix=prefix, readable=True) as store:
        await fill(store)
        for key in ("ann", "bob"):
            for value in damage(server, f"{{{prefix}}}:w:{key}".encode()):
                asked = asyncio.ensure_future(settle(store.hit(((LAST, key, 1),), (key,))))
                await asyncio.wait([asked])
                error = asked.exception()
                assert error is None or (isinstance(error, StoreUnavailable) and error.concerns == "key"), value
                assert await settle(store.hit(((HELD, f"{value} at {key}"[:60], 1),))), "nobody else is stopped"


async def test_a_foreign_value_at_a_shared_key_is_an_error_until_it_is_gone(server: RedisServer) -> None:
    prefix = fresh_prefix()
    async with store_at(server, prefix=prefix) as store:
        await fill(store)
        for name in ("bans", "bans:index", "bans:networks"):
            for value in damage(server, f"{{{prefix}}}:{name}".encode()):
                if value in ("text", "list", "set"):
                    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
                        await store.bans.ban("192.0.2.0/24", None, "", "ann")
            await store.bans.ban("192.0.2.0/24", None, "", "ann")
