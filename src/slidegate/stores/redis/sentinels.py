"""The master of a service, as its sentinels know it.

Sentinels are asked side by side, each a little later than the one before, and any of them may be dead or hang. What one
says may be out of date, so the server that it names has to say itself that it is a master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from ...core.errors import StoreError, StoreUnavailable
from .faults import unexpected
from .link import Connection, first_of

AT_ONCE: Final = 10
"""While one sentinel has not answered, the next is asked after a tenth of the timeout."""
_DOWN: Final = ("s_down", "o_down", "disconnected")

Open: TypeAlias = Callable[..., Awaitable[Connection]]
"""Opens a connection, given its settings, a name for the server, and its address."""


async def open_master(pool: Any, timeout_s: float, to_sentinel: Open, to_server: Open) -> Connection:
    """Connect to the master of the service of a pool of redis-py.

    Args:
        pool: The pool.
        timeout_s: How long a sentinel, or a server, may take.
        to_sentinel: Opens connections to sentinels.
        to_server: Opens connections to servers.

    Raises:
        StoreError: No sentinel leads to a master.
    """
    name, manager = pool.service_name, pool.sentinel_manager

    async def through(sentinel: Any) -> Connection:
        connection = await to_sentinel(sentinel.connection_pool.make_connection(), f"a sentinel of {name!r}")
        try:
            row = await connection.ask(b"SENTINEL", b"MASTER", name)
        finally:
            connection.close(StoreUnavailable("redis: not in use"))
        host, port = _address(connection.name, row, manager.min_other_sentinels)
        connection = await to_server(pool.make_connection(), f"{name} ({host}:{port})", (host, port))
        try:
            await _check_role(connection)
        except BaseException:
            connection.close(StoreUnavailable("redis: not in use"))
            raise
        return connection

    try:
        tries = [partial(through, sentinel) for sentinel in manager.sentinels]
        return await first_of(tries, timeout_s / AT_ONCE, "there are no sentinels", _close)
    except StoreError as error:
        told = str(error).removeprefix("redis: ")
        raise type(error)(f"redis: no sentinel leads to a master of service {name!r}: {told}") from error


def _address(place: str, row: Any, others: int) -> tuple[str, int]:
    """Return where a sentinel says that the master is.

    Raises:
        StoreUnavailable: It does not, or it sees the master down, or too few other sentinels.
    """
    try:
        said = dict(zip(row[::2], row[1::2], strict=True))
        host, flags = said[b"ip"].decode(), said[b"flags"].decode().split(",")
        port, seen = int(said[b"port"]), int(said[b"num-other-sentinels"])
    except (TypeError, ValueError, LookupError, AttributeError):
        raise unexpected(place, row) from None
    down = [flag for flag in _DOWN if flag in flags]
    if down or seen < others:
        why = f"it is {down[0]}" if down else f"{seen} other sentinels are seen, and {others} are asked for"
        raise StoreUnavailable(f"redis: {place} does not trust {host}:{port}: {why}")
    return host, port


async def _check_role(connection: Connection) -> None:
    """See that a server is a master, unless it does not let us ask.

    Raises:
        StoreUnavailable: It is not.
    """
    try:
        role = await connection.ask(b"ROLE")
    except StoreUnavailable as error:
        if "NOPERM" in str(error):
            return
        raise
    if not isinstance(role, list) or role[:1] != [b"master"]:
        raise StoreUnavailable(f"redis: {connection.name} is no master by now")


def _close(connection: Connection) -> None:
    """Close a connection that came too late."""
    connection.close(StoreUnavailable("redis: not in use"))
