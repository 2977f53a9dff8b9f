"""No part of a password is in what an error says, whatever its characters are, and whatever a server answers to it."""

import asyncio
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.sentinel import Sentinel as RedisSentinel

from slidegate.core import StoreUnavailable
from slidegate.stores.redis import RedisStore

from ...redis_servers import HOST, RedisServer, Sentinel, needs_redis
from .stores import hit, server_that_says

Client = Callable[[int, str], Any]
CLIENTS: Final[dict[str, Client]] = {
    "AUTH": lambda port, password: Redis(port=port, password=password),
    "HELLO": lambda port, password: Redis(port=port, username=password, password=password, protocol=3),
    "latin-1": lambda port, password: Redis(port=port, password=password + "\u20ac", encoding="latin-1"),
    "cluster": lambda port, password: RedisCluster(startup_nodes=[ClusterNode(HOST, port)], password=password),
    "sentinel": lambda port, password: RedisSentinel([(HOST, port)], sentinel_kwargs={"password": password}).master_for(
        "mymaster", password=password
    ),
}


def quoting(command: list[bytes]) -> bytes:
    """Answer as a server that does not know a command, with its arguments."""
    arguments = b" ".join(b"'%s'" % argument for argument in command[1:])
    said = b"-ERR unknown command '%s', with args beginning with: %s" % (command[0], arguments)
    return said.replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"


async def told(client: Any) -> str:
    store = RedisStore(client, timeout="20s")
    try:
        with pytest.raises(StoreUnavailable) as caught:
            await hit(store)
        error = caught.value
        return "".join(traceback.format_exception(error)).replace(type(client).__name__, "")
    finally:
        await store.close()


@pytest.mark.parametrize("kind", CLIENTS)
@given(password=st.text(st.characters(codec="utf-8"), min_size=1))
@example(password="a,b c'd\"e)f>g@h:/i\\j")
@settings(max_examples=15, deadline=None)
def test_what_is_told_of_a_password_does_not_depend_on_it(kind: str, password: str) -> None:
    async def ask() -> None:
        async with server_that_says(quoting) as port:
            assert await told(CLIENTS[kind](port, password)) == await told(CLIENTS[kind](port, "x"))

    asyncio.run(ask())


@needs_redis
@pytest.mark.parametrize("kind", ["AUTH", "HELLO", "sentinel"])
async def test_an_error_says_that_a_password_is_wrong(kind: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer("--requirepass", "srv", password="srv"))
        at = stack.enter_context(Sentinel(server, "own")) if kind == "sentinel" else server
        text = await told(CLIENTS[kind](at.port, "wr,on)g,pw x>y'z"))
        assert "invalid username-password pair" in text
        assert not any(part in text for part in ("wr,", "g,pw", "x>y", "'z"))
        if kind == "sentinel":
            assert "redis: no sentinel leads to a master of 'mymaster': invalid username-password pair" in text
