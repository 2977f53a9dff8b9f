"""A store that processes share, in one file: windows, bans, permits and rows in a table of PostgreSQL.

A question is a transaction in a thread. It locks its keys, reads the time and rows, lets the core decide, and writes
what has changed. The rules of bans are those of `BanBook`, which reads and writes rows of the table.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial, wraps
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias, TypeVar

import psycopg

from slidegate import Decision, core
from slidegate.core import COMMAND_DEADLINE_S as DEADLINE_S
from slidegate.core import AnyLimit, Ban, BanSubject, Bucket, Check, Clock, Concurrency, Level, Reservation, SharedRow
from slidegate.stores import BanBook, BookBans, HeldPermits

T = TypeVar("T")
Checks: TypeAlias = Sequence[Check]
Subjects: TypeAlias = Sequence[BanSubject]
Name: TypeAlias = tuple[str, bytes, bytes]
"""The kind of a row, its key, and its name among those of the key. Keys may have NULs, which no text of SQL has."""
TABLE = """CREATE TABLE IF NOT EXISTS slidegate (
        kind text, key bytea, name bytea, value bytea, ends_us bigint, network cidr, PRIMARY KEY (key, kind, name));
    CREATE INDEX IF NOT EXISTS slidegate_ends ON slidegate (kind, ends_us);
    CREATE INDEX IF NOT EXISTS slidegate_network ON slidegate USING gist (network inet_ops) WHERE network IS NOT NULL;
    SET statement_timeout = '30s'; SET synchronous_commit = off"""
READ = "SELECT kind, key, name, value FROM slidegate WHERE"
WRITE = """INSERT INTO slidegate VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (key, kind, name)
    DO UPDATE SET value = EXCLUDED.value, ends_us = EXCLUDED.ends_us"""
NAMED = "(kind, key, name) = (%s, %s, %s)"
ENDED = """DELETE FROM slidegate WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM slidegate WHERE kind = ANY(%s) AND ends_us <= %s LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING key"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# Locks with two numbers, which last until the end of the transaction; a key has one with a single number.
SHARE_ALL, LOCK_ALL, LOCK_BANS = (f"pg_advisory_xact_lock{of}" for of in ("_shared(7217, 0)", "(7217, 0)", "(7217, 1)"))
LEASE_US, SWEEP_US, SWEEP_STEP, PAGE, MAX_BANS = 10_000_000, 1_000_000, 1_000, 500, 100_000


def in_thread(method: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """Run a method in a thread of its store; the limiter enforces deadlines."""

    @wraps(method)
    async def ask(owner: Any, *args: Any, **named: Any) -> Any:
        return await owner.answer(partial(method, owner, *args, **named))

    return ask


class Transaction:
    """A transaction: the time in it, and the rows with which it began."""

    def __init__(self, cursor: psycopg.ClientCursor[Any], now_us: int, read: list[Any]) -> None:
        self.cursor, self.now_us, self.read = cursor, now_us, read

    def rows(self, query: str, *values: object) -> list[Any]:
        """Run a query; return its rows."""
        self.cursor.execute(query, values)
        return self.cursor.fetchall() if self.cursor.description else []

    def deletes_any(self, where: str, *values: object) -> bool:
        """Delete rows; return whether one of them was not over."""
        rows = self.rows(f"DELETE FROM slidegate WHERE {where} RETURNING ends_us", *values)
        return any(ends_us > self.now_us for (ends_us,) in rows)


class PostgresStore(core.Store):
    """Stores everything in a database, whose clock counts; for asyncio and `Limiter.sync`.

    A crash of the server forgets the counts of about a second, and no ban. A forked child makes a store of its own.

    Args:
        conninfo: The address, ``"postgresql://user@host/database"``.
        connections: The most connections of this process.
        clock: Returns microseconds; by default the server does.
    """

    def __init__(self, conninfo: str, connections: int = 8, clock: Clock | None = None) -> None:
        super().__init__()
        self.conninfo, self.clock = conninfo, clock
        self.permits = HeldPermits(LEASE_US, self.renew_permits)
        self.bans = PostgresBans(self)
        self.shared_rows = PostgresRows(self)
        self.threads = ThreadPoolExecutor(connections, "slidegate-postgres")
        self.own, self.opened = threading.local(), list[psycopg.Connection[Any]]()
        self.permits_lock, self.sweep_us = threading.Lock(), 0

    async def answer(self, work: Callable[[], T]) -> T:
        """Work in a thread."""
        self.expect_open()
        answer = await asyncio.wrap_future(self.threads.submit(work))
        self.permits.begin_renewing()  # on this event loop
        return answer

    @contextmanager
    def transaction(self, *locks: str, read: str = READ + " false", of: Sequence[object] = ()) -> Iterator[Transaction]:
        """Begin a transaction: take locks, then read the time and some rows."""
        self.expect_open()
        try:
            connection = self._connection()
            with connection.transaction():
                cursor = psycopg.ClientCursor(connection)
                cursor.execute(f"SELECT {', '.join(locks) or 1}; {NOW}; {read}", of)
                _, [(now_us,)], rows = [cursor.fetchall() for _ in cursor.results()]
                yield Transaction(cursor, self.clock() if self.clock else now_us, rows)
        except psycopg.Error as error:
            raise core.StoreUnavailable(f"postgres: {error}") from error

    def _connection(self) -> psycopg.Connection[Any]:  # of this thread
        connection: psycopg.Connection[Any] | None = getattr(self.own, "connection", None)
        if connection is None or connection.closed:
            connection = self.own.connection = psycopg.connect(self.conninfo, autocommit=True)
            self.opened = [*(other for other in self.opened if not other.closed), connection]
            with connection.transaction():  # of two processes that make a table at once, one would fail
                connection.execute(f"SELECT {LOCK_ALL}; {TABLE}")
        return connection

    async def connect(self) -> None:
        with suppress(psycopg.Error):  # the first question tries it again
            await self.answer(self._connection)

    def close(self) -> Awaitable[None] | None:
        """Close the connections when the questions in progress have ended."""
        if self.closed:
            return None
        super().close()
        self.permits.is_open = False
        return asyncio.to_thread(self._end)

    def _end(self) -> None:
        self.threads.shutdown()
        for connection in self.opened:
            connection.close()

    # -- questions: see `Store` ----------------------------------------------------------------------------------------

    @in_thread
    def hit(self, checks: Checks, subjects: Subjects = (), deadline_s: float = DEADLINE_S) -> Decision:
        with self.windows(checks, subjects) as windows:
            if windows.refusal is not None:  # it is false
                return windows.refusal
            return windows.hold(core.decide(checks, windows.refs, windows.now_us))

    @in_thread
    def peek(self, checks: Checks, subjects: Subjects = (), deadline_s: float = DEADLINE_S) -> Decision:
        with self.windows(checks, subjects) as windows:
            if windows.refusal is not None:
                return windows.refusal
            stored = windows.stored.copy()
            decision = core.decide(checks, windows.refs, windows.now_us)
            windows.stored.update(stored)  # nothing is charged
            decision.reservations = ()
            return decision

    @in_thread
    def charge(self, checks: Checks, deadline_s: float = DEADLINE_S) -> Decision:
        with self.windows(checks) as windows:
            return windows.hold(core.charge_all(checks, windows.refs, windows.now_us))

    @in_thread
    def refund(self, reservations: Sequence[Reservation], deadline_s: float = DEADLINE_S) -> bool:
        # Permits count no longer since the refund began; their rows are renewed as by any question.
        others = [reservation for reservation in reservations if not reservation.check[0].is_permit]
        with self.windows([reservation.check for reservation in reservations]) as windows:
            refs = [ref for ref in windows.refs if not isinstance(ref[0], core.PermitCounter)]
            return core.refund_all(others, refs, windows.now_us) or len(others) < len(reservations)

    @in_thread
    def reset(self, key: str, names: Collection[str] = ()) -> bool:
        where, of = "kind = 'window' AND key = %s", key.encode()
        with self.transaction(SHARE_ALL, lock_of(of), read=f"{READ} {where}", of=[of]) as transaction:
            meant = [name for _, _, name, _ in transaction.read if not names or json.loads(name)[0] in names]
            return transaction.deletes_any(f"{where} AND name = ANY(%s)", of, meant)

    @in_thread
    def reset_all(self) -> bool:
        with self.transaction(LOCK_ALL) as transaction:
            return transaction.deletes_any("kind = 'window'")

    @in_thread
    def inspect(self, checks: Checks) -> core.Snapshot:
        with self.windows(checks) as windows:
            stored = [windows.stored[name] for _, _, _, name, _ in windows.refs]
            return core.Snapshot(windows.now_us, windows.now_us, stored)

    @contextmanager
    def windows(self, checks: Checks, subjects: Subjects = ()) -> Iterator[Windows]:
        """Read the windows of a question, and the bans that may refuse it; write what changes."""
        keys = {key.encode() for _, key, _ in checks}
        of: list[object] = [[*keys, *(subject.encode() for subject in subjects if isinstance(subject, str))]]
        addresses = [subject for subject in subjects if not isinstance(subject, str)]
        of += [IPv4Address(address) if version == 4 else IPv6Address(address) for version, address in addresses]
        read = f"{READ} key = ANY(%s) AND kind IN ('window', 'permits', 'ban')"
        read += f" UNION ALL {READ} network >>= %s" * len(addresses)
        locks = sorted(map(lock_of, keys))  # in one order, so that no two transactions wait for each other
        with self.transaction(SHARE_ALL, *locks, read=read, of=of) as transaction:
            windows = Windows(self, transaction, checks)
            yield windows
            windows.write()
        if transaction.now_us >= self.sweep_us:
            self.sweep_us = transaction.now_us + SWEEP_US
            with self.transaction() as transaction:  # a row that others are using stays
                transaction.rows(ENDED, ["window", "permits", "strikes", "row"], transaction.now_us, SWEEP_STEP)

    def permits_held(self) -> int:
        return self.permits.count()

    @in_thread
    def renew_permits(self) -> None:
        """Renew the permits of this process; `HeldPermits` does this on its event loop."""
        with self.permits_lock:
            names: list[Name] = self.permits.rows()
        for name in names:
            with self.transaction(SHARE_ALL, lock_of(name[1]), read=f"{READ} {NAMED}", of=name) as transaction:
                with self.permits_lock:
                    value = transaction.read[0][3] if transaction.read else b""
                    value = self.permits.renewed(name, value, transaction.now_us)
                transaction.rows(WRITE, *name, value, Concurrency(1).expires_us(value), None)


class Windows:
    """The windows of a question in a transaction, and the refusal by a ban, if one is in force."""

    def __init__(self, store: PostgresStore, transaction: Transaction, checks: Checks) -> None:
        self.store, self.permits, self.rows, self.now_us = store, store.permits, transaction.rows, transaction.now_us
        bans = [ban_of(row) for row in transaction.read if row[0] == "ban"]
        self.refusal = core.refused_by_bans(bans, self.now_us, checks)
        self.before = {(kind, key, name): value for kind, key, name, value in transaction.read}
        self.stored: dict[Name, bytes] = {}
        self.limits: dict[Name, AnyLimit] = {}
        self.refs: list[core.WindowRef] = []
        for bucket, key, cost in checks:
            for limit in bucket.limits:
                name = name_of(bucket, key, limit)
                self.stored[name], self.limits[name] = self.before.get(name, b""), limit
                counter: Any = limit.counter_by(lambda: self.now_us)
                if bucket.is_permit:
                    counter = core.PermitCounter(limit, self.permits.worker, self.now_us + LEASE_US)
                    with store.permits_lock:
                        self.stored[name] = self.permits.renewed(name, self.stored[name], self.now_us)
                self.refs.append((counter, cost, self.stored, name, bucket.count_denied))

    def hold(self, decision: Decision) -> Decision:
        """Count the permits of a decision, as long as it exists: from before the commit on, as others ask after it."""
        with self.store.permits_lock:
            self.permits.hold(decision, lambda bucket, key: name_of(bucket, key, bucket.limits[0]))
        return decision

    def write(self) -> None:
        for name, value in self.stored.items():
            if value != self.before.get(name, b""):
                self.rows(WRITE, *name, value, self.limits[name].expires_us(value), None)


class PostgresBans(BookBans):
    """The bans of all processes."""

    def __init__(self, store: PostgresStore) -> None:
        self.store, self.answer = store, store.answer
        self.throttle = core.Throttle(60_000_000)

    @in_thread
    def change(self, do: Callable[[BanBook, int], T], deadline_s: float = DEADLINE_S) -> T:
        with self.store.transaction(LOCK_BANS) as transaction:
            transaction.rows("SET LOCAL synchronous_commit = on")
            rows = BanTable(transaction)
            book = BanBook(rows, rows, MAX_BANS, 0, self.throttle)
            answer = do(book, transaction.now_us)
        self.store.observers.tell(*book.events)
        return answer

    @in_thread
    def find(self, subjects: Subjects, deadline_s: float = DEADLINE_S) -> Ban | None:
        with self.store.windows((), subjects) as windows:
            return None if windows.refusal is None else windows.refusal.ban

    async def pages(self) -> AsyncIterator[list[Ban]]:
        bans = await self.all()
        for first in range(0, len(bans), PAGE):
            yield bans[first : first + PAGE]

    @in_thread
    def all(self) -> list[Ban]:
        with self.store.transaction(read=f"{READ} kind = 'ban'") as transaction:
            return [ban for ban in map(ban_of, transaction.read) if not ban.is_over(transaction.now_us)]


class BanTable:
    """The rows of bans, levels and strikes in a transaction: see `BanRows` and `StrikeWindows`."""

    def __init__(self, transaction: Transaction) -> None:
        self.now_us, self.rows, self.deletes_any = transaction.now_us, transaction.rows, transaction.deletes_any
        self.networks: core.BannedNetworks | None = None  # once read

    def bans_of(self, key: str) -> list[Ban]:
        return [*map(ban_of, self.rows(f"{READ} kind = 'ban' AND key = %s", key.encode()))]

    def put_ban(self, ban: Ban) -> None:
        cidr = None
        if ban.network() is not None:
            if self.networks is None:
                self.networks = core.BannedNetworks(map(ban_of, self.rows(f"{READ} kind = 'ban' AND name = 'network'")))
            cidr, before = ban.key, self.networks
            self.networks = before.with_ban(ban, self.now_us)
            for key in before.bans.keys() - self.networks.bans.keys():
                self.remove_ban(before.bans[key])
        name, value = b"network" if cidr else b"", json.dumps(ban._asdict()).encode()
        self.rows(WRITE, "ban", ban.key.encode(), name, value, ban.until_us, cidr)

    def remove_ban(self, ban: Ban) -> None:
        name = b""
        if ban.network() is not None:
            name, self.networks = b"network", self.networks and self.networks.without(ban.key)
        self.rows(f"DELETE FROM slidegate WHERE {NAMED}", "ban", ban.key.encode(), name)

    def ban_count(self) -> int:
        return int(self.rows("SELECT count(*) FROM slidegate WHERE kind = 'ban'")[0][0])

    def level_count(self) -> int:
        return int(self.rows("SELECT count(*) FROM slidegate WHERE kind = 'level'")[0][0])

    def level(self, policy: str, key: str) -> Level | None:
        rows = self.rows(f"{READ} {NAMED}", "level", key.encode(), policy.encode())
        return Level(*json.loads(rows[0][3])) if rows else None

    def put_level(self, policy: str, key: str, level: Level) -> None:
        self.rows(WRITE, "level", key.encode(), policy.encode(), json.dumps(level).encode(), level.over_us, None)

    def remove_levels(self, key: str) -> list[Level]:
        rows = self.rows("DELETE FROM slidegate WHERE kind = 'level' AND key = %s RETURNING value", key.encode())
        return [Level(*json.loads(value)) for (value,) in rows]

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        return len(self.rows(ENDED, ["ban", "level"], now_us, max_count)) == max_count

    def strike(self, bucket: Bucket, key: str, weight: int) -> int:
        (limit,) = bucket.limits
        name, counter = name_of(bucket, key, limit, "strikes"), limit.counter_by(lambda: self.now_us)
        rows = self.rows(f"{READ} {NAMED}", *name)
        value, _ = counter.charge(rows[0][3] if rows else b"", self.now_us, weight)
        self.rows(WRITE, *name, value, limit.expires_us(value), None)
        return counter.spend(value, self.now_us, 0)[1][0]

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        if bucket is None:
            return self.deletes_any("kind = 'strikes' AND key = %s", key.encode())
        return self.deletes_any(NAMED, *name_of(bucket, key, bucket.limits[0], "strikes"))


class PostgresRows(core.SharedRows):
    """What workers keep for each other: a row of a worker, whose name is its kind and number."""

    def __init__(self, store: PostgresStore) -> None:
        self.store, self.answer = store, store.answer

    @in_thread
    def time(self) -> int:
        with self.store.transaction() as transaction:
            return transaction.now_us

    @in_thread
    def write(self, worker: bytes, row: SharedRow, deadline_s: float = DEADLINE_S) -> None:
        with self.store.transaction() as transaction:
            ends_us = transaction.now_us + row.kept_us  # one that has ended is not read, and swept
            transaction.rows(WRITE, "row", worker, numbered(row.kind, row.number), row.value, ends_us, None)

    @in_thread
    def read(self, kind: str, first: int, last: int, deadline_s: float = DEADLINE_S) -> list[tuple[int, bytes, bytes]]:
        where, of = f"{READ} kind = 'row' AND name BETWEEN %s AND %s", (numbered(kind, first), numbered(kind, last))
        with self.store.transaction() as transaction:
            rows = transaction.rows(f"{where} AND ends_us > %s", *of, transaction.now_us)
            return [(int.from_bytes(name[-8:], "big"), worker, value) for _, worker, name, value in rows]


def numbered(kind: str, number: int) -> bytes:
    return kind.encode() + b":" + number.to_bytes(8, "big")


def name_of(bucket: Bucket, key: str, limit: AnyLimit, kind: str = "") -> Name:
    """Return the name of a window; limits that differ in their amount alone share one."""
    kind = kind or ("permits" if bucket.is_permit else "window")
    return kind, key.encode(), json.dumps([bucket.name, limit.same_window], default=str).encode()


def lock_of(key: bytes) -> str:
    """Return the call that takes the lock of a key."""
    return f"pg_advisory_xact_lock({int.from_bytes(blake2b(key, digest_size=8).digest(), 'big', signed=True)})"


def ban_of(row: Sequence[Any]) -> Ban:
    return Ban(**json.loads(row[3]))
