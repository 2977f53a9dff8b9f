"""The wire to Redis is cut or slow around a strike: who is banned by it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from slidegate import BanPolicy, Limiter, RateLimitMiddleware
from slidegate.core import Event
from slidegate.limiter import failover
from slidegate.stores.redis import RedisStore

from ...asgi import call, hello
from ...fault_proxy import FaultProxy
from ...redis_servers import BOUND_S, RedisServer, needs_redis
from .faults import Place
from .stores import fresh_prefix

pytestmark = [needs_redis, pytest.mark.usefixtures("impatient")]

PLENTY_S = 5.0
NOBODY = 1
"""A port at which nobody listens."""
CLIENTS = 20


def cut(proxy: FaultProxy) -> None:
    """Reset every connection, now and when a new one comes."""
    proxy.target = NOBODY
    proxy.drop()


@asynccontextmanager
async def site(url: str, on_error: failover.OnError, prefix: str) -> AsyncIterator[Limiter]:
    store = RedisStore(url, prefix=prefix, timeout=PLENTY_S)
    async with Limiter(store, secret=b"s" * 32, deadline=PLENTY_S, on_error=on_error) as limiter:
        yield limiter


async def honeypot(server: RedisServer, on_error: failover.OnError, prefix: str, number: int, weight: int) -> int:
    """Return the status of the request whose strike bans its client, and after whose strike the wire is cut."""
    client = f"198.51.100.{number}", 1234
    policy = BanPolicy("3/hour", "1h", signals={"/trap": weight})
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(server.port))
        limiter = await stack.enter_async_context(site(f"redis://127.0.0.1:{proxy.port}/0", on_error, prefix))
        app = RateLimitMiddleware(hello, limits="100/minute", limiter=limiter, bans=policy)
        for _ in range(2 if weight == 1 else 0):
            assert (await call(app, "/trap", client=client)).status == 200

        def when_banned(event: Event) -> None:
            if event.kind == "banned":
                cut(proxy)

        limiter.observe(when_banned)
        return (await call(app, "/trap", client=client)).status


@pytest.mark.parametrize("weight", [1, 3], ids=["third strike", "one strike"])
@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
async def test_a_strike_that_bans_refuses_its_own_request_though_the_wire_is_cut_after_it(
    on_error: failover.OnError, weight: int, server: RedisServer
) -> None:
    prefix = fresh_prefix()
    async with asyncio.timeout(BOUND_S):
        asked = (honeypot(server, on_error, prefix, number, weight) for number in range(CLIENTS))
        assert await asyncio.gather(*asked) == [403] * CLIENTS
        async with site(server.url, on_error, prefix) as well:
            assert len([ban async for ban in well.bans()]) == CLIENTS, "all of them were banned in Redis"


async def test_a_strike_that_bans_says_so_while_the_one_before_is_on_its_way(place: Place) -> None:
    policy = BanPolicy("3/hour", "1h")
    store = RedisStore(place.url, prefix=fresh_prefix(), timeout=BOUND_S)
    async with asyncio.timeout(BOUND_S):
        assert await store.bans.strike(policy, "user:eve", 1, "") is None
        await store.bans.find(("user:eve",))  # from here on nothing is on its way
        place.proxy.freeze()
        sent = place.proxy.requests
        second = asyncio.ensure_future(store.bans.strike(policy, "user:eve", 1, ""))
        while place.proxy.requests == sent:  # noqa: ASYNC110 - it is sent a moment later
            await asyncio.sleep(0.01)
        third = asyncio.ensure_future(store.bans.strike(policy, "user:eve", 1, ""))
        await asyncio.sleep(0)
        place.proxy.thaw()
        assert await second is None
        assert await third is not None
    await store.close()
