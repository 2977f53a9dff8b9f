"""The store for many hosts, in Redis or Valkey.

Each counted key is a hash, with a field for each rule and window. One script call decides all requests that arrive in
one iteration of an event loop, using the server's time.

All keys of a store are in one slot of a cluster, so that a question is one script call on a server, behind Sentinel and
on a cluster alike::

    store -> unit_leases, refusals
          -> hits, bans -> batch -> protocol -> link -> Redis -> lua/
               ^                                       |
               +---- unit_leases, refusals, poll <-----+

Each event loop has a `batch`, which packs requests as `protocol` says, and sends them over a `link`, a connection of
redis-py's; `clients` parses addresses and makes it. What a worker remembers of the answers is in `unit_leases`,
`refusals` and `poll`, and in `changes` what ends it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final

from redis.asyncio import Redis, RedisCluster

from ...core.arguments import check_whole
from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.decision import Decision
from ...core.durations import parse_duration_us
from ...core.errors import ConfigurationError, StoreError, quoted
from ...core.memo import MANY, remember
from ...core.passwords import AnyAddress, address_in
from ...core.reservation import Reservation
from ...core.store import COMMAND_DEADLINE_S, Clock, ReadRow, SharedRow, SharedRows, Snapshot, Store
from ..leases import DEFAULT_PERMIT_LEASE, permit_lease_us
from ..shared import DEFAULT_MAX_BANS, in_steps, name_digest, running_loop
from .bans import RedisBans
from .batch import Batcher
from .changes import Changes
from .clients import Client, OwnClients, open_client
from .hits import Hit, charge, peek
from .link import open_link
from .parts import Parts
from .poll import Polled
from .protocol import (
    END,
    INSPECT,
    KEY_LOCKING,
    SCRIPT,
    Packing,
    StoreTime,
    store_error,
)
from .refusals import Refusals
from .requests import Question, read_page
from .unit_leases import UnitLeases

CLOSING_S: Final = 0.5
"""How long the store waits for an answer when it refunds leases at its end."""
RESET_AT_ONCE: Final = 64
"""How many hashes of windows are reset in one request."""


class RedisStore(Store):
    """Stores windows and bans in Redis or Valkey, for all hosts that use it.

    Safe to share between threads and event loops, and after `fork`. Each event loop opens a connection of its own. The
    caller cancels what it awaits at its deadline: no method uses its argument `deadline_s`.

    Args:
        client: An address such as ``"redis://localhost:6379/0"``, see `clients`; or a client of
            `redis.asyncio`, whose connection settings are used.
        prefix: The start of all keys in Redis, and their hash tag: a cluster keeps them on one node. Stores with
            different prefixes are independent.
        readable: Whether keys in Redis are readable; by default they are digests.
        timeout: How long opening a connection, or one reply, may take before it is closed. The time limit of a request
            is the limiter's `deadline`.
        permit_lease: How long the permits of a dead process stay taken, 1 s to 10 minutes. A process renews its permits
            three times in that time.
        max_bans: The most bans in force. Beyond that, automatic bans are not recorded.
        leases: Whether a worker charges units ahead for a question that is asked often, and spends them within the same
            slice without asking Redis; see `unit_leases`.
        key_locking: Whether scripts lock the keys that they use, and not the database: for Upstash alone.
        create: Whether to begin where Redis has no slidegate data under the prefix; if not, every call then raises
            `StoreUnavailable`, for a tool that looks at the data of workers.
        clock: For tests: returns microseconds; by default the server's time is used.

    Raises:
        ConfigurationError: The address or an option cannot be used, or connections like those of the client cannot be
            made.
    """

    bans: RedisBans

    def __init__(
        self,
        client: AnyAddress | Client,
        *,
        prefix: str = "slidegate",
        readable: bool = False,
        timeout: str | timedelta = "1s",
        permit_lease: str | timedelta = DEFAULT_PERMIT_LEASE,
        max_bans: int = DEFAULT_MAX_BANS,
        leases: bool = False,
        key_locking: bool = False,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        address = address_in(client)
        _check(address, prefix, max_bans)
        super().__init__()
        if isinstance(address, str):
            address, _ = open_client(address, {})
        timeout_s = parse_duration_us(timeout, "timeout") / 1_000_000
        changes = Changes()
        time = StoreTime(clock)
        packing = Packing(prefix, time.unix_us, readable=readable)
        script = SCRIPT
        if key_locking:
            script = KEY_LOCKING
        self.parts = Parts(
            packing=packing,
            script=script,
            time=time,
            changes=changes,
            refusals=Refusals(time, changes),
            leases=UnitLeases(time, changes),
            polled=Polled(packing, time, changes, self.observers.tell, begins=create),
            open_link=partial(open_link, OwnClients(address, timeout_s), changes.note_loss),
            lease_us=permit_lease_us(permit_lease),
        )
        self.leases_units = leases
        self.bans = RedisBans(self.parts, self.batcher, self.observers.tell, max_bans)
        self.shared_rows = RedisRows(self.batcher, packing.meta + b":rows:")
        self._prefix = prefix
        self._batchers: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._questions: dict[object, Question] = {}
        self._naming_keys: set[bytes | None] = set()
        """The key of names, or None for names without one; empty before there is a limiter."""

    def __repr__(self) -> str:
        return f"<RedisStore {quoted(self._prefix)}>"

    async def close(self) -> None:
        """Close the connections of all event loops."""
        if self.closed:
            return
        batchers, running = self._batchers.copy(), running_loop()
        if self.parts.leases.by_checks and running in batchers:
            self.parts.leases.refund_all(self.batcher().refund_in_background)
            with suppress(StoreError, TimeoutError):  # else it counts until its slice leaves
                await asyncio.wait_for(self.batcher().server_us(), CLOSING_S)
        self.closed = self.parts.is_closed = True
        self.parts.changes.note()
        self._batchers.clear()
        for loop, batcher in batchers.items():
            if loop is running:
                await batcher.close()
            elif not loop.is_closed():
                asyncio.run_coroutine_threadsafe(batcher.close(), loop)

    def name_keys(self, by: bytes | None) -> None:
        """Make the names of keys, unless they are readable, with a key that the limiter has from its secret.

        Raises:
            ConfigurationError: Another limiter of this store has another secret.
        """
        if by in self._naming_keys:
            return
        if self._naming_keys:
            raise ConfigurationError(
                "secret: another limiter on this store has another secret, or none; give both the same, or each a "
                "RedisStore of its own"
            )
        self._naming_keys.add(by)
        self.parts.packing.name_keys(by)
        self._questions.clear()

    async def connect(self) -> None:
        """Connect the running event loop, and poll; if that fails, the first question tries it again."""
        with suppress(StoreError):
            await self.batcher().server_us()

    def observe_late(self, observer: Callable[[], None]) -> None:
        """Call `observer` for each answer that arrived after its request was cancelled."""
        self.parts.late_observers.append(observer)

    def hit(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        question = self._question(checks, subjects)
        if question.may_lease:
            decision = self.parts.leases.spend(question)
            if decision is not None:
                return decision
        if self.parts.refusals.known:
            decision = self.parts.refusals.repeat(question)
            if decision is not None:
                return decision
        batcher = self.batcher()
        if question.may_lease:
            self.parts.leases.refund_ended(question, batcher.refund_in_background)
        answer: asyncio.Future[Decision] = batcher.loop.create_future()
        batcher.add(Hit(answer, question.has_permits, batcher, question))
        return answer

    def _question(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Question:
        """Return a question, the same one for the same checks and the same object of subjects.

        By identity, because clients could choose addresses with equal hashes. The question keeps the subjects alive.
        """
        name = (id(subjects), *checks)
        question = self._questions.get(name)
        if question is not None and question.subjects is subjects:
            return question
        return remember(self._questions, name, Question(checks, subjects, leases=self.leases_units), MANY)

    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Awaitable[Decision]:
        return peek(self.batcher(), Question(checks, subjects))

    def charge(self, checks: Sequence[Check], deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[Decision]:
        return charge(self.batcher(), Question(checks, ()))

    def refund(
        self, reservations: Sequence[Reservation], deadline_s: float = COMMAND_DEADLINE_S
    ) -> bool | Awaitable[bool]:
        """Refund what was charged; False if all of it has expired or was already refunded.

        If the connection breaks, a refund may be lost, and the units stay charged. Nothing is ever refunded twice.
        """
        if not reservations:
            return False
        own = self.batcher()
        holders = {reservation.holder for reservation in reservations}
        # The event loop that has permits refunds them: it sends one call with permits after another.
        for batcher in list(self._batchers.values()):
            if batcher.permits in holders and batcher is not own and batcher.loop.is_running():
                refund = asyncio.run_coroutine_threadsafe(_refund(batcher, reservations), batcher.loop)
                return asyncio.wrap_future(refund)
        return own.refund(reservations)

    def reset(self, key: str, names: Collection[str] = ()) -> Awaitable[bool]:
        """Forget the windows of `key`; False if there were none. Permits stay taken."""
        return self._reset([self.parts.packing.name_of(key)], key, names)

    async def reset_all(self) -> bool:
        """Forget the windows of all keys under every rule; return whether there were any. Permits stay taken.

        Keys are found by SCAN, so Redis keeps serving; units charged during the scan may remain.
        """
        self.parts.changes.note_loss()
        cursor, has_forgotten = b"0", False
        while True:
            cursor, hashes = await self.batcher().command(
                (), b"names", cursor, self.parts.packing.windows + b"*", read=read_page
            )
            async for some in in_steps(hashes, RESET_AT_ONCE):
                has_forgotten |= await self._reset(some)
            if cursor == b"0":
                return has_forgotten

    def _reset(
        self, hashes: Sequence[bytes], key: str | None = None, names: Collection[str] = ()
    ) -> asyncio.Future[bool]:
        """Forget the windows in some hashes, those of `key` if it is given; by default under all buckets."""

        def read(answer: int, now_us: int) -> bool:
            self.parts.changes.note_loss(key, names)  # again: what was asked meanwhile may be from before the reset
            return answer > 0

        self.parts.changes.note_loss(key, names)
        return self.batcher().command(hashes, b"reset", *map(name_digest, names), read=read)

    def inspect(self, checks: Sequence[Check]) -> Awaitable[Snapshot]:
        return self.batcher().question(INSPECT, checks, (), lambda answer, now_us: Snapshot(now_us, now_us, answer[1:]))

    def permits_held(self) -> int:
        return sum([batcher.permits.count() for batcher in list(self._batchers.values())])

    def renew_permits(self) -> Awaitable[None]:
        """Renew the permits of the running event loop; the store does so automatically."""
        return self.batcher().renew_permits()

    def batcher(self) -> Batcher:
        """Return the batcher of the running event loop."""
        self.expect_open()
        loop = running_loop()
        if loop is None:
            raise ConfigurationError(
                "redis: RedisStore needs asyncio, and no asyncio event loop runs in this thread; under trio use "
                "MemoryStore(), in a thread without a loop use limiter.sync"
            )
        batcher = self._batchers.get(loop)
        if batcher is None:
            for other in list(self._batchers):
                if other.is_closed():
                    self._batchers.pop(other, None)
            try:
                batcher = self._batchers[loop] = Batcher(loop, self.parts)
            except Exception as error:  # in a class of the user's
                raise store_error(error) from error
        return batcher


def _check(client: object, prefix: object, max_bans: object) -> None:
    """Raise for invalid arguments; see `RedisStore`."""
    if not isinstance(prefix, str) or not 0 < len(prefix) <= 64 or re.search(r"[{}*?\[\]\\\ud800-\udfff]", prefix):
        raise ConfigurationError(
            f'prefix: expected 1 to 64 characters, none of {{}}*?[]\\, for example "slidegate", not {quoted(prefix)}'
        )
    check_whole(max_bans, 1, 10**12, "max_bans", "for example 100_000")
    if not isinstance(client, (str, Redis, RedisCluster)):
        raise ConfigurationError(
            f'client: expected an address, for example "redis://localhost:6379/0", or a client of redis.asyncio, '
            f"not {quoted(client)}"
        )


async def _refund(batcher: Batcher, reservations: Sequence[Reservation]) -> bool:
    # A coroutine, because the event loop of the batcher has to run this, too: its queue belongs to one thread.
    return await batcher.refund(reservations)


class RedisRows(SharedRows):
    """The rows that workers keep for each other: a hash for each kind and number, with a field for each worker.

    A hash expires by its TTL; each row starts with the time at which it expires. The commands are in ``lua/bans.lua``.

    Args:
        batcher: Returns the batcher of the running event loop.
        prefix: The start of the names of all rows.
    """

    def __init__(self, batcher: Callable[[], Batcher], prefix: bytes) -> None:
        self._batcher = batcher
        self._prefix = prefix

    def time(self) -> Awaitable[int]:
        return self._batcher().server_us()

    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[None]:
        name = self._name_of(row.kind, row.number)
        args = b"write_row", worker, row.value, row.kept_us
        return self._batcher().command((name,), *args, read=lambda answer, now_us: None)

    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Awaitable[list[ReadRow]]:
        # Asked now, and so in the same call as what is asked next, which a coroutine would be too late for.
        return _joined([self._read(kind, number) for number in range(first, last + 1)])

    def _read(self, kind: str, number: int) -> Awaitable[list[ReadRow]]:
        """Read the rows of one number."""

        def read(fields: list[bytes], now_us: int) -> list[ReadRow]:
            rows = zip(fields[::2], fields[1::2], strict=True)
            return [(number, worker, row[END.size :]) for worker, row in rows]

        return self._batcher().command((self._name_of(kind, number),), b"read_rows", read=read)

    def _name_of(self, kind: str, number: int) -> bytes:
        """Return the name of the hash with the rows of a kind and a number."""
        return b"%s%s:%d" % (self._prefix, kind.encode(), number)


async def _joined(asked: Iterable[Awaitable[list[ReadRow]]]) -> list[ReadRow]:
    return [row for rows in await asyncio.gather(*asked) for row in rows]
