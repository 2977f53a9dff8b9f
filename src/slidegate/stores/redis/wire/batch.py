"""One call: its requests on the way to Redis and their answers; and the parts that the lanes of a store share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import getrandbits
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Protocol

from redis.asyncio.sentinel import SentinelConnectionPool

from ....core.errors import StoreError, StoreUnavailable
from ....core.store import Clock, Event
from ..bans.ban_codec import UNGUARDED
from ..bans.bans import RedisBans
from ..faults import SICK, unexpected
from ..packing import bans_script, windows_script
from ..server_clock import ServerClock
from .connection import Connect, Make, Wire, open_wire
from .eviction import Eviction
from .sentinels import open_master

SLACK_MS: Final = 1_000
"""A key lives this much longer than anything in it counts, so that its end need not be moved with every hit."""
TEST_SLACK_MS: Final = 86_400_000

STATE_PARTS: Final = 3
"""An answer begins with the time, the number of the last change of bans, and that of hand-backs."""

NO_BANS: Final = b"", b""
"""The number and the guards in a call that cannot see the bans, or need not."""

_HEAD: Final = Struct("<qIIBq")
_TIME: Final = Struct("<q")
_SERVER_TIME: Final = -1


class Request(Protocol):
    """A request that a lane carries."""

    future: asyncio.Future[Any]
    judged: bytes | None
    """The number of the list of bans that let it pass; None where no ban refuses it, or it was looked up."""

    @property
    def key(self) -> str | None:
        """One of its keys, which all lie in one slot of a cluster; None where it has none."""

    def pack(self, names: dict[bytes, int]) -> bytes:
        """Return the request for the script; `names` are the names in its call with their places, and get its own."""

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Any:
        """Return the result for the task that awaits the request; an error that is raised here is raised there."""

    def missed(self, answer: bytes, now_us: int) -> None:
        """Deal with an answer that nobody waits for any more."""

    def guards(self) -> bytes:
        """Return the keys and addresses whose bans refuse it, packed."""

    def held(self) -> Any:
        """Return the answer where the bans that are held here refuse it, else None."""

    def refused(self, told: bytes) -> Any:
        """Return the answer where Redis has found bans, None where it found none; see `RedisBans.refused`."""


class Unguarded:
    """A request that no ban refuses, and that changes nothing more once it was given up.

    Args:
        future: Gets the result.
    """

    __slots__ = ("future", "judged")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.judged: bytes | None = None

    def missed(self, answer: bytes, now_us: int) -> None:
        """See `Request`."""

    def guards(self) -> bytes:
        """See `Request`."""
        return UNGUARDED

    def held(self) -> None:
        """See `Request`."""

    def refused(self, told: bytes) -> None:
        """See `Request`."""


@dataclass
class Shared:
    """The parts that the lanes of a store share.

    Attributes:
        client: The client, which says where to connect.
        timeout_s: How long the server may take.
        name_of: Returns the name in Redis of the hash for a key.
        meta: The name of the hash with the numbers of changes.
        max_waiting: How many requests may wait in a line.
        clock: The clock of a test.
        bans: The bans of the store.
        tell: Passes events on.
        read_only: Whether nothing is made where nothing of slidegate stands.
        eviction: Finds out whether a server evicts keys.
    """

    client: Any
    timeout_s: float
    name_of: Callable[[str], bytes]
    meta: bytes
    max_waiting: int
    clock: Clock | None
    bans: RedisBans
    tell: Callable[[Sequence[Event]], None]
    read_only: bool
    eviction: Eviction

    async def open_server(self) -> Wire:
        """Connect to the one server, or to the master that sentinels name.

        Raises:
            StoreError: That failed.
        """
        pool = self.client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            return await open_master(pool, self.timeout_s, self._open, self.open)
        return await self.open(pool.make_connection)

    async def open(self, make: Make, name: str = "", connect: Connect | None = None) -> Wire:
        """Connect to a server that knows the scripts; see `open_wire`.

        Raises:
            StoreError: That failed.
        """
        wire = await self._open(make, name, connect)
        try:
            loads = [wire.ask(b"SCRIPT", b"LOAD", script.source) for script in (windows_script(), bans_script())]
            await asyncio.gather(*loads, self.eviction.look(wire))
        except BaseException:
            wire.close(StoreUnavailable("redis: not in use"))
            raise
        return wire

    async def _open(self, make: Make, name: str = "", connect: Connect | None = None) -> Wire:
        return await open_wire(make, self.timeout_s, ServerClock(self.clock), name, connect)


def head(clock: Clock | None, with_meta: int, reset_us: int = -1) -> bytes:
    """Return the head of a call of the script of windows.

    Args:
        clock: The clock of a test.
        with_meta: 1 where the call sees the numbers of changes.
        reset_us: Where it does not: when all windows were reset, as far as is known here.
    """
    if clock is None:
        return _HEAD.pack(_SERVER_TIME, getrandbits(32), SLACK_MS, with_meta, reset_us)
    return _HEAD.pack(clock(), getrandbits(32), TEST_SLACK_MS, with_meta, reset_us)


def says_state(answer: Any) -> bool:
    """Tell whether an answer begins as the script's do; where there is no more of it, nothing was decided."""
    return (
        isinstance(answer, list)
        and len(answer) >= STATE_PARTS
        and type(answer[0]) is type(answer[1]) is type(answer[2]) is bytes
    )


def deliver(wire: Wire, requests: Sequence[Request], sent_s: float, answer: Sequence[bytes]) -> Sequence[Event]:
    """Give the answers of a call to the tasks that wait for them; return the events to tell."""
    try:
        (now_us,) = _TIME.unpack(answer[0])
        if len(answer) != len(requests) + STATE_PARTS:
            raise ValueError
    except (TypeError, ValueError, LookupError, StructError):
        # This server cannot be relied on, whatever it is.
        error = unexpected(wire.place, answer)
        fail(requests, error)
        wire.close(error)
        return ()
    step_us = wire.clock.saw(now_us, int(sent_s * 1_000_000))
    clock = wire.clock
    for request, part in zip(requests, answer[STATE_PARTS:], strict=True):
        future = request.future
        if future.done():
            request.missed(part, now_us)
        else:
            try:
                future.set_result(request.answered(part, now_us, clock))
            except StoreError as error:
                future.set_exception(error)
                if any(word in str(error) for word in SICK):
                    wire.close(error)
            except Exception:  # of any kind: one task waits for this answer, and others for the rest
                future.set_exception(unexpected(wire.place, part))
    if not step_us:
        return ()
    way = "forward, so windows opened early" if step_us > 0 else "back"
    message = f"redis: the clock of {wire.place} was set {abs(step_us) / 1_000_000:.1f} s {way}"
    return (Event("clock_stepped", message, {"server": wire.place, "step_us": step_us}),)


def fail(requests: Sequence[Request], error: StoreError) -> None:
    """Raise an error in the tasks that still wait."""
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)


def store_error(error: BaseException) -> StoreError:
    """Return any error as the StoreError that waiting tasks get."""
    return error if isinstance(error, StoreError) else StoreUnavailable(f"redis: {error!r}")
