"""The protocol: the Lua script, the binary format of its requests and answers, errors, and the time of the server.

A request has a byte for the operation, the numbers of its keys, asks, bans and arguments, the indexes of the keys whose
bans refuse it, and the asks; each ask has the index of its key, the cost and the limit. Indexes count from the first
key of the request; its keys follow those of the requests before it, and so do its arguments. The requests of a call are
concatenated. The answer to a command is what it returns; that to others starts with a status, and has a reading for
each ask, or other rows; see `hits` and ``lua/windows.lua``.
"""

from __future__ import annotations

import math
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from importlib import resources
from struct import Struct, pack
from time import monotonic_ns
from typing import Final, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...core.bans.ban import Ban, BanSubject, read_ban
from ...core.buckets import Bucket, Check
from ...core.errors import Concerns, StoreError, StoreTimeout, StoreUnavailable, quoted
from ...core.limits import AnyLimit, Limit
from ...core.memo import MEMO_SIZE
from ...core.quotas import Quota
from ...core.reservation import Reservation
from ...core.ring import MAX_UNITS
from ...core.store import Clock
from ...core.stored import all_readable
from ..leases import WORKER_BYTES, HeldPermits
from ..shared import digest_of
from ..system_clock import system_us

LAYOUT: Final = 12
"""The version of the format of windows, strikes and permits; their fields contain it, so another version starts empty.

Bans, levels and quotas have no version, because every later one reads them: their formats may only gain what an older
one ignores.
"""
DIGEST_BYTES: Final = 16
"""Long enough that nobody can search for two keys with the same digest."""

# How the names of keys are made; a digest of the key of `KEYED` names follows.
READABLE: Final = b"readable"
UNKEYED: Final = b"digests"
KEYED: Final = b"keyed "

# The operations of requests.
HIT: Final = 1
PEEK: Final = 2
CHARGE: Final = 3
REFUND: Final = 4
INSPECT: Final = 5
COMMAND: Final = 6
LEASE: Final = 7
"""A hit, with which equal ones are charged ahead; its argument says how many at most."""

# The statuses of answers.
OK: Final = 0
LIMITED: Final = 1
UNSETTLED: Final = 2
TOO_LARGE: Final = 3
CHANGED: Final = 5
BANNED: Final = 6
FAILED: Final = 255

# The modes of limits.
QUOTA: Final = 2
"""The mode of a quota; the mode of counting refusals, 1, may be added to it."""
PERMITS: Final = 4
"""The mode of a concurrency limit."""

REQUEST: Final = Struct("<BHHHH")
_ASK: Final = Struct("<HqI")
_LIMIT: Final = Struct("<8sIqqqHB")
_PERMITS: Final = Struct(f"<8sI{WORKER_BYTES}sqqHB")
END: Final = Struct("<q")
"""The first bytes of a row of a ban, a level or a worker: the time when it ends."""


class PermitsRow(NamedTuple):
    """Where the permits of a key are.

    Attributes:
        name: The name of the hash.
        field: The name of the field in it, without the prefix of permits.
    """

    name: bytes
    field: bytes


_LUA: Final = ("locals", "banned", "ring", "permits", "limits", "bans", "windows")
"""The parts of the script, each of which may use what those before it define."""
_CONSTANT: Final = re.compile(rb'^ *local ([A-Z][A-Z_]+) = ("[^"]*"|-?\d+)(?= *(?:--.*)?$)', re.MULTILINE)
_WORD: Final = re.compile(rb'"[^"\n]*"|--.*|\b[A-Z][A-Z_]+\b')
"""A text, a comment or a name: none of the first two has names."""


def with_values(source: bytes) -> bytes:
    """Return the text of a script with the values of its constants in place of their names.

    Each call runs the whole text, and a local that functions refer to costs it 0.3 us, as much as a command of Redis.
    """
    values = {name: b"(%s)" % value for name, value in _CONSTANT.findall(source)}
    return _WORD.sub(lambda word: values.get(word[0], word[0]), _CONSTANT.sub(b"", source))


# Read at import: a child that is forked while a thread imports could deadlock on the import lock.
_FOLDER: Final = resources.files(__package__) / "lua"
SCRIPT: Final = with_values(b"".join([(_FOLDER / f"{part}.lua").read_bytes() for part in _LUA]))
KEY_LOCKING: Final = b"#!lua flags=allow-key-locking\n" + SCRIPT
"""The same for Upstash, which then locks the keys of a call, and not the database; no other server takes it."""


class Packed(NamedTuple):
    """A packed request.

    Attributes:
        names: The hashes that it asks about; it refers to them by their indexes.
        args: The arguments of a command; those of a lease are how many hits it may charge ahead.
    """

    names: Sequence[bytes]
    request: bytes
    args: Sequence[bytes | int] = ()


class Packing:
    """Builds the names of keys in Redis, and packs requests. Its only state is the key of names, and a memo of them.

    Args:
        prefix: The start of all names.
        unix_us: Returns Unix time in microseconds, by the clock of this process.
        readable: Whether names contain readable keys; otherwise digests.

    Attributes:
        meta: The hash with the identity of the data and the version of the network bans; a prefix of all names that
            are shared by all keys. All names have the same hash tag, so a cluster keeps them in one slot.
        windows: The start of the names of hashes of windows; the key or its digest follows.
        strikes: The same of strikes and levels.
        naming: How names are made: the same for two stores that make the same names.
        name_of: Returns the name of the hash with the windows and the ban of a key.
    """

    def __init__(self, prefix: str, unix_us: Clock, *, readable: bool) -> None:
        self.meta = f"{{{prefix}}}:bans".encode()
        self.windows = f"{{{prefix}}}:w:".encode()
        self.strikes = f"{{{prefix}}}:s:".encode()
        self._unix_us = unix_us
        self.naming = UNKEYED
        if readable:
            self.naming = READABLE
        self._key = b""
        self.name_of = lru_cache(MEMO_SIZE)(self._name_of)

    def name_keys(self, by: bytes | None) -> None:
        """Make names that are digests with a key; None for none."""
        if self.naming == READABLE or by is None:
            return
        self.naming = KEYED + blake2b(b"naming", key=by, digest_size=8).hexdigest().encode()
        self._key = by
        self.name_of.cache_clear()

    def _name_of(self, key: str) -> bytes:
        text = key.encode()
        if self.naming != READABLE:
            digest = blake2b(text, key=self._key, digest_size=DIGEST_BYTES).digest()
            text = urlsafe_b64encode(digest).rstrip(b"=")
        return self.windows + text

    def names_of(self, key: str) -> tuple[bytes, bytes]:
        """Return the names of the hash with the windows of a key, and of that with its strikes and levels."""
        name = self.name_of(key)
        return name, self.strikes + name[len(self.windows) :]

    def question(
        self, what: int, checks: Sequence[Check], subjects: Iterable[BanSubject], permits: HeldPermits
    ) -> Packed:
        """Pack a request with checks.

        Args:
            subjects: What bans may refuse the question: those of keys are beside windows, those of networks are not.
            permits: The permits of the worker that asks.
        """
        names: dict[bytes, int] = {}
        bans: set[int] = set()
        for subject in subjects:
            if isinstance(subject, str):
                bans.add(names.setdefault(self.name_of(subject), len(names)))
        asks = []
        for bucket, key, cost in checks:
            ask = _ASK.pack(names.setdefault(self.name_of(key), len(names)), 0, min(cost, MAX_UNITS))
            asks += [ask + self.pack_limit(bucket, limit, key, permits) for limit in bucket.limits]
        packed_bans = pack(f"<{len(bans)}H", *bans)
        head = REQUEST.pack(what, len(names), len(asks), len(bans), what == LEASE)
        return Packed([*names], head + packed_bans + b"".join(asks))

    def refund(self, reservations: Iterable[Reservation]) -> Packed:
        """Pack a refund.

        Args:
            reservations: The charges of one decision.
        """
        names: dict[bytes, int] = {}
        asks = []
        for charged in reservations:
            bucket, key, _ = charged.check
            at = names.setdefault(self.name_of(key), len(names))
            for limit, mark, units in zip(bucket.limits, charged.marks, charged.units, strict=True):
                asks.append(_ASK.pack(at, mark, units) + self.pack_limit(bucket, limit, key, charged.holder))
        return Packed([*names], REQUEST.pack(REFUND, len(names), len(asks), 0, 0) + b"".join(asks))

    def permits_row(self, bucket: Bucket, key: str) -> PermitsRow:
        """Return the names of the hash and of the field with the permits of a key."""
        return PermitsRow(self.name_of(key), window_field(bucket, bucket.limits[0]))

    def pack_limit(self, bucket: Bucket, limit: AnyLimit, key: str, permits: HeldPermits | None = None) -> bytes:
        """Pack a limit; the fields that a ring uses for lengths have the boundaries of the periods of a quota.

        Args:
            bucket: Its bucket.
            key: The key that is counted.
            permits: The permits of the worker that asks; only a concurrency limit needs them.
        """
        if isinstance(limit, Limit):
            field = window_field(bucket, limit)
            return _LIMIT.pack(field, *limit.counter.terms, 0, limit.resolution, bucket.count_denied)
        if isinstance(limit, Quota):
            field = digest_of(bucket.name, *limit.same_window)  # without LAYOUT: every version reads quotas
            periods = limit.calendar.period_at(self._unix_us())
            return _LIMIT.pack(field, limit.amount, *periods, 0, QUOTA | bucket.count_denied)
        assert permits is not None, "permits are held by a worker"
        row = self.permits_row(bucket, key)
        return _pack_permits(row, limit.amount, permits, permits.units(row))


def pack_command(names: Sequence[bytes], *args: bytes | int) -> Packed:
    """Pack a command of ``lua/bans.lua``.

    Args:
        names: Its keys.
        args: Its name and its arguments.
    """
    return Packed(names, REQUEST.pack(COMMAND, len(names), 0, 0, len(args)), args)


def pack_renewal(row: PermitsRow, permits: HeldPermits) -> Packed:
    """Pack a renewal of permits, or their release: it writes how many the worker has.

    Args:
        row: Their row.
        permits: The permits of the worker.
    """
    ask = _ASK.pack(0, 0, 0) + _pack_permits(row, 0, permits, permits.units_to_write(row))
    return Packed((row.name,), REQUEST.pack(REFUND, 1, 1, 0, 0) + ask)


def _pack_permits(row: PermitsRow, amount: int, permits: HeldPermits, units: int) -> bytes:
    """Pack a concurrency limit, with the worker and its true count in the fields that a ring uses for lengths."""
    return _PERMITS.pack(row.field, amount, permits.worker, permits.lease_us, units, 0, PERMITS)


def window_field(bucket: Bucket, limit: AnyLimit) -> bytes:
    """Return the hash field of a window or of permits; it does not depend on the amount."""
    return digest_of(bucket.name, *limit.same_window, LAYOUT)


def read_bans(rows: Iterable[bytes]) -> list[Ban]:
    """Return the bans of rows, which begin with their ends, without those that cannot be read."""
    return all_readable(read_ban, [row[END.size :] for row in rows])


# -- errors ------------------------------------------------------------------------------------------------------------


_SIGNS: Final[dict[Concerns, tuple[str, ...]]] = {
    "request": ("WRONGTYPE", "data string too short"),
    "writes": ("OOM ", "READONLY ", "MISCONF ", "NOREPLICAS "),
}
"""What is in an error about another program's value, or a damaged one, at a key; and in those of a server that is full,
a replica, cannot save, or lacks replicas.
"""
_ARGUMENTS: Final = re.compile(", with args beginning with:.*", re.DOTALL)
_UNKNOWN: Final = re.compile(r"unknown command .(EVAL|EVALSHA|SELECT)\b.*", re.DOTALL)
"""The error of a sentinel, which knows none of these commands."""
_OF_SENTINEL: Final = (
    r"unknown command '\1'; if this is the address of a sentinel, write redis+sentinel://h1:26379,h2:26379/mymaster"
)


def refusal(text: str) -> StoreUnavailable:
    """Return the exception for an error reply of Redis; by default it concerns the server."""
    for concern, signs in _SIGNS.items():
        if any(sign in text for sign in signs):
            return StoreUnavailable(f"redis: {text}", concerns=concern)
    return StoreUnavailable(f"redis: {_UNKNOWN.sub(_OF_SENTINEL, text)}")


def store_error(error: BaseException) -> StoreError:
    """Return an exception, of redis-py or of parsing an answer, as one that waiting tasks raise."""
    if isinstance(error, StoreError):
        return error
    # Arguments may be a password, of AUTH: a server quotes those of what it does not know, Python what has no encoding.
    said = _ARGUMENTS.sub("", str(error))
    if isinstance(error, UnicodeError):
        said = "a text has no such encoding"
    if not said:
        said = "no answer came"
    text = f"{type(error).__name__}: {said}"
    failed: StoreError = refusal(text)
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        failed = StoreTimeout(f"redis: {text}")
    if isinstance(error, RedisConnectionError):  # a traceback shows what others say
        failed.__cause__ = error
    return failed


def unexpected(answer: object, concerns: Concerns = "server") -> StoreUnavailable:
    """Return the error for an answer that has the wrong shape for its command."""
    return StoreUnavailable(f"redis: the server sent an unexpected answer: {quoted(answer)}", concerns=concerns)


# -- time --------------------------------------------------------------------------------------------------------------


STEP_US: Final = 1_000
"""How far the server's clock has to step to be noticed."""


def real_monotonic_us() -> int:
    """Return the monotonic time of the system in microseconds, also where a test has set that of limiters."""
    return monotonic_ns() // 1_000


class StoreTime:
    """The time of a store: the server's, or that of a test clock.

    Args:
        clock: The test clock; None to use the server's time.

    Attributes:
        is_real: Whether the server's time is used.
        local_us: Returns the time of a local clock: the monotonic clock, or the test clock.
        unix_us: Returns Unix time, by the clock of this process.
        for_script: Returns the time argument of a script; -1 makes the script use the server's TIME.
        ahead_us: How far the server's clock is ahead of the local one, at least, by its last answer.
    """

    def __init__(self, clock: Clock | None) -> None:
        self.ahead_us = 0
        self._most_ahead_us = math.inf
        self.is_real = clock is None
        self.local_us: Clock = clock or real_monotonic_us
        self.unix_us: Clock = clock or system_us
        self.for_script: Clock = clock or (lambda: -1)

    def now_us(self) -> int:
        """Return the server's time, estimated from its last answer."""
        return self.local_us() + self.ahead_us

    def sent_us(self, sent_ns: int) -> int:
        """Return a moment of the monotonic clock by the local one; a test's stands still until an answer comes."""
        if self.is_real:
            return sent_ns // 1_000
        return self.local_us()

    def note(self, now_us: int, sent_ns: int) -> bool:
        """Record the server's time, in an answer received now; return whether its clock has stepped.

        Args:
            now_us: The server's time.
            sent_ns: When it was asked for (monotonic).
        """
        if not self.is_real:
            return False
        # It was read between then and now, which bounds how far it is ahead. Unless it has stepped, there is a value
        # within these bounds and those of the answer before.
        least_us, most_us = now_us - real_monotonic_us(), now_us - sent_ns // 1_000
        has_stepped = max(least_us, self.ahead_us - STEP_US) > min(most_us, self._most_ahead_us + STEP_US)
        self.ahead_us, self._most_ahead_us = least_us, most_us
        return has_stepped
