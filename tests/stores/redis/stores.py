"""Stores at a server: each scene has a prefix of its own, and time that only a hang uses up."""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from struct import unpack_from
from typing import Any, Final

import hiredis

from slidegate import BanPolicy, Decision, Limiter, StoreError
from slidegate.core import BanSubject, Bucket, Reason
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_IN_CALL
from slidegate.stores.redis.link import DEPTH
from slidegate.stores.redis.protocol import window_field

from ...contract.player import settle
from ...contract.store_contract import bucket
from ...fault_proxy import stop_listening
from ...redis_servers import HOST

PLENTY_S: Final = 20
PLENTY: Final = f"{PLENTY_S}s"
NUMBER: Final = itertools.count()


@asynccontextmanager
async def server_that_says(reply: Callable[[list[bytes]], bytes]) -> AsyncIterator[int]:
    """Serve connections as a Redis that answers each command as `reply` does; return its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    writer.write(reply(command))
        writer.close()

    listener = await asyncio.start_server(serve, HOST, 0)
    yield listener.sockets[0].getsockname()[1]
    await stop_listening(listener)


@dataclass
class Ahead:
    """By how many seconds the clocks of stores go before those of `time`; see the fixture."""

    by_s: float = 0.0


def fresh_prefix() -> str:
    """Return a prefix that no other store has, also where two runs share a server."""
    return f"t{os.getpid()}-{next(NUMBER)}"


def store_of(server: Any, **options: Any) -> RedisStore:
    """Return a store at a server, an address or a client, with a prefix of its own unless one is given."""
    store = RedisStore(getattr(server, "url", server), **{"prefix": fresh_prefix(), "timeout": PLENTY, **options})
    if "clock" in options:
        end_answers_with_steps_back(store)
    return store


def end_answers_with_steps_back(store: RedisStore) -> None:
    """Have a store use no kept answer after a step back of its clock, by however little: that moves windows."""
    latest_us, clock = 0, store.parts.time.local_us

    def now_us() -> int:
        nonlocal latest_us
        before_us, latest_us = latest_us, clock()
        if latest_us < before_us:
            store.parts.changes.note()
        return latest_us

    store.parts.time.local_us = now_us


usual: Final = cache(bucket)
"""The one bucket for limits: a known refusal is one of a bucket, not of a text."""


async def hit(
    store: RedisStore,
    key: str = "ann",
    limits: str | Bucket = "5/minute",
    cost: int = 1,
    subjects: Sequence[BanSubject] = (),
) -> Decision:
    limited = usual(limits) if isinstance(limits, str) else limits
    return await settle(store.hit(((limited, key, cost),), subjects))


async def struck(store: RedisStore, policy: BanPolicy, key: str) -> int:
    names = store.parts.packing.names_of(key)[1:]
    fields = await store.batcher().command(names, b"read_rows", read=lambda answer, now_us: answer)
    (limit,) = policy.strikes.limits
    packed = dict(zip(fields[::2], fields[1::2], strict=True)).get(window_field(policy.strikes, limit), b"")
    units: int = unpack_from("<I", packed, 8)[0] if packed else 0
    return units


@asynccontextmanager
async def store_at(server: Any, **options: Any) -> AsyncIterator[RedisStore]:
    async with workers_at(server, 1, **options) as (store,):
        yield store


@asynccontextmanager
async def workers_at(server: Any, many: int, **options: Any) -> AsyncIterator[list[RedisStore]]:
    prefix = fresh_prefix()
    stores = [store_of(server, **{"prefix": prefix, **options}) for _ in range(many)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def all_connected(store: RedisStore) -> None:
    """Come back when a store has opened all its connections; have it poll for changes no more."""
    async with asyncio.timeout(PLENTY_S):
        while len(store.batcher()._idle) < DEPTH:
            await asyncio.gather(*(hit(store, "warm", cost=0) for _ in range(DEPTH * MAX_IN_CALL)))
    store.parts.polled.due_ns = sys.maxsize


async def eventually(holds: Callable[[], object], bound_s: float = PLENTY_S) -> None:
    """Come back when something holds that a store or a server does in its own time."""
    async with asyncio.timeout(bound_s):
        while not await settle(holds()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ticks_until_served(limiter: Limiter, most: int = 150) -> int:
    """Return after how many ticks of 20 ms the store decided about several keys at once, -1 if that is too many.

    An outage has a probe each second, and the first one finds a server that is gone: 100 would end amid the second.
    """
    for tick in range(most):
        decisions = await asyncio.gather(*(limiter.hit(f"probe:{number}", "1000/hour") for number in range(3)))
        if all(decision.reason is not Reason.UNAVAILABLE for decision in decisions):
            return tick
        await asyncio.sleep(0.02)
    return -1


async def until_answered(ask: Callable[[], Decision | Awaitable[Decision]]) -> Decision:
    """Ask until the store answers: the first request after a restart finds a connection that is gone."""
    async with asyncio.timeout(PLENTY_S):
        while True:
            with suppress(StoreError):
                return await settle(ask())
            await asyncio.sleep(0.01)
