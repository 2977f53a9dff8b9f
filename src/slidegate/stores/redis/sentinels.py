"""Finds the master of a service through Redis Sentinel.

redis-py queries a sentinel and validates its answer. Each sentinel is queried through a new client, because the
connections of the user's client may belong to another event loop, and have the user's timeouts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ...core.errors import StoreError, StoreTimeout, StoreUnavailable
from .errors import sensible
from .link import Connection, open_connection


async def open_master(pool: Any, timeout_s: float) -> Connection:
    """Connect to the master of the service that a redis-py pool names.

    Sentinels are queried one after another: each has an equal share of the timeout, and an outdated one may name a
    server that is no longer the master.

    Args:
        pool: The pool.
        timeout_s: How long all sentinels together may take, and then the server.

    Raises:
        StoreError: No sentinel leads to a master.
    """
    name, manager = pool.service_name, pool.sentinel_manager
    failed: StoreError = StoreUnavailable("there are no sentinels")
    for sentinel in manager.sentinels:
        try:
            address = await _ask(sentinel, manager, name, timeout_s / len(manager.sentinels))
            shown = f"{name} ({address[0]}:{address[1]})"
            connection = await open_connection(pool.make_connection(), timeout_s, shown, address)
            with connection.closed_on_error():
                await _check_role(connection)
        except StoreError as error:
            failed = error
        else:
            return connection
    reason = str(failed).removeprefix("redis: ")
    raise type(failed)(f"redis: no sentinel leads to a master of service {name!r}: {reason}") from failed


@sensible
async def _ask(sentinel: Any, manager: Any, service: str, timeout_s: float) -> tuple[str, int]:
    """Return the address of the master according to one sentinel.

    Raises:
        StoreError: The sentinel does not answer, sees the master as down, or sees too few other sentinels.
    """
    known = sentinel.connection_pool
    bounds = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "retry": Retry(NoBackoff(), 0)}
    client: Any = Redis(connection_pool=ConnectionPool(known.connection_class, **{**known.connection_kwargs, **bounds}))
    try:
        async with asyncio.timeout(timeout_s):
            state = await client.sentinel_master(service)
    except TimeoutError as error:
        raise StoreTimeout(f"redis: a sentinel of {service!r} has not answered for {timeout_s:g} s") from error
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"redis: a sentinel of {service!r}: {error}") from error
    finally:
        await client.aclose(close_connection_pool=True)
    if not manager.check_master_state(state, service):
        raise StoreUnavailable(f"redis: a sentinel of {service!r} does not confirm {state['ip']}:{state['port']}")
    return str(state["ip"]), int(state["port"])


async def _check_role(connection: Connection) -> None:
    """Check that a server is a master, if the user may run ROLE.

    Raises:
        StoreUnavailable: The server is not a master.
    """
    try:
        role = await connection.ask(b"ROLE")
    except StoreUnavailable as error:
        if "NOPERM" in str(error):
            return
        raise
    if not isinstance(role, list) or role[:1] != [b"master"]:
        raise StoreUnavailable(f"redis: {connection.name} is no longer a master")
