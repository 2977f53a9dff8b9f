"""The Lua scripts, and the binary format of their requests and answers.

A request has a byte for the operation, the number of its asks, the indexes of the keys whose bans refuse it, and the
asks; each ask has the index of its key, the cost and the limit. The requests of a call are concatenated. An answer has
a byte for the status and a reading for each ask; see ``lua/windows.lua``.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2b, sha1
from importlib import resources
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from ...core.bans.policy import BanPolicy
from ...core.decision import Bucket, Check, Decision, Reason
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.quotas import Quota
from ...core.reservation import Reservation, reserved
from ...core.ring import MAX_UNITS, OPEN
from ...core.store import Clock
from ..leases import WORKER_BYTES, HeldPermits
from .errors import refusal, unexpected

LAYOUT: Final = 10
"""The version of the stored format, a part of every key: other versions use other keys."""
DIGEST_BYTES: Final = 16
"""Long enough that nobody can search for two keys with the same digest."""

HIT, PEEK, CHARGE, REFUND, INSPECT, STRIKE, RESET = 1, 2, 3, 4, 5, 6, 7
OK, LIMITED, UNSETTLED, TOO_LARGE, NOTHING, CHANGED, BANNED, FAILED = 0, 1, 2, 3, 4, 5, 6, 255
QUOTA: Final = 2
"""The mode of a quota; the mode of counting refusals, 1, may be added to it."""
PERMITS: Final = 4
"""The mode of a concurrency limit."""
STRIKES: Final = 8
"""The mode of the limit of a ban policy; that of a shadow policy, 16, may be added to it."""
SHADOW: Final = 16

REQUEST: Final = Struct("<BHB")
_BAN_OF: Final = Struct("<H")
_ASK: Final = Struct("<HqI")
_PLAN: Final = Struct("<8sIqqqHB")
_STRIKES_PLAN: Final = Struct("<8sIqq8sHB")
_PERMITS_PLAN: Final = Struct(f"<8sI{WORKER_BYTES}sqqHB")
_STATE: Final = Struct("<Qqqq")
_COUNTED: Final = Struct("<I")
_LENGTH: Final = Struct("<I")
_REASONS: Final = {
    OK: Reason.OK,
    LIMITED: Reason.LIMITED,
    UNSETTLED: Reason.LIMITED,
    TOO_LARGE: Reason.TOO_LARGE,
}


PermitsRow: TypeAlias = tuple[bytes, bytes]
"""A hash, and the name of a field in it without the prefix of permits."""


class Script(NamedTuple):
    """A script and its SHA-1 digest in hex, by which EVALSHA names it."""

    source: bytes
    name: bytes


def _script(*parts: str) -> Script:
    lua = resources.files(__package__) / "lua"
    source = b"".join((lua / f"{part}.lua").read_bytes() for part in parts)
    return Script(source, sha1(source).hexdigest().encode())


# Read at import: a child that is forked while a thread imports could deadlock on the import lock.
WINDOWS_SCRIPT: Final = _script("locals", "banned", "ring", "permits", "windows")
"""The script that decides about windows, quotas and permits."""
BANS_SCRIPT: Final = _script("locals", "banned", "bans")
"""The script that reads and writes bans, and writes stats."""


class Packing:
    """Builds the names of keys in Redis, and packs requests. Its only state is a memo of packed keys and limits.

    Args:
        prefix: The start of all names.
        unix_us: Returns Unix time in microseconds, by the clock of this process.
        readable: Whether names contain readable keys; otherwise digests.

    Attributes:
        meta: The hash with the identity of the data and the version of the network bans; a prefix of all names that
            are shared by all keys. All names have the same hash tag, so a cluster keeps them in one slot.
        windows: The start of the names of hashes of windows; the key or its digest follows.
        strikes: The same of strikes and levels.
    """

    def __init__(self, prefix: str, unix_us: Clock, *, readable: bool) -> None:
        self.meta, self.windows, self.strikes = (
            f"{{{prefix}}}:{LAYOUT}:{kind}".encode() for kind in ("bans", "w:", "s:")
        )
        self._unix_us = unix_us
        self._readable = readable
        self._known: dict[str, bytes] = {}
        self._plans: dict[Bucket, tuple[list[int], tuple[bytes, ...]]] = {}  # with the amounts in them
        self._fields: dict[str, bytes] = {}  # of permits, by rule

    def name_of(self, key: str) -> bytes:
        """Return the name of the hash with the windows and the ban of a key."""
        name = self._known.get(key)
        if name is None:
            text = key.encode()
            if not self._readable:
                text = urlsafe_b64encode(blake2b(text, digest_size=DIGEST_BYTES).digest()).rstrip(b"=")
            name = remember(self._known, key, self.windows + text)
        return name

    def strikes_name(self, key: str) -> bytes:
        """Return the name of the hash with the strikes and levels of a key."""
        return self.strikes + self.name_of(key)[len(self.windows) :]

    def question(
        self, what: int, checks: Sequence[Check], banned: Iterable[str], held: HeldPermits, names: dict[bytes, int]
    ) -> bytes:
        """Pack a request with checks.

        Args:
            what: The operation.
            checks: The checks.
            banned: The keys whose bans refuse the question.
            held: The permits of the worker that asks.
            names: The names in the call with their indexes; names that it lacks are added.
        """
        bans = b"".join([_BAN_OF.pack(names.setdefault(self.name_of(key), len(names))) for key in banned])
        asks, many = b"", 0
        for bucket, key, cost in checks:
            if bucket.is_permit:
                row, amount = self.permits_row(bucket, key), bucket.limits[0].amount
                plans: Sequence[bytes] = (_permits_plan(row, amount, held),)
            else:
                plans = self._plans_of(bucket)
            ask = _ASK.pack(names.setdefault(self.name_of(key), len(names)), 0, min(cost, MAX_UNITS))
            for plan in plans:
                asks += ask + plan
                many += 1
        return REQUEST.pack(what, many, len(bans) // _BAN_OF.size) + bans + asks

    def strike(self, policy: BanPolicy, key: str, weight: int, names: dict[bytes, int]) -> bytes:
        """Pack strikes, which the ban of the key refuses.

        Args:
            policy: The policy.
            key: The key.
            weight: The number of strikes.
            names: As for `question`.
        """
        (limit,) = policy.strikes.limits
        assert isinstance(limit, Limit), "strikes are counted by one limit"
        ban = _BAN_OF.pack(names.setdefault(self.name_of(key), len(names)))
        ask = _ASK.pack(names.setdefault(self.strikes_name(key), len(names)), 0, min(weight, MAX_UNITS))
        modes = STRIKES | SHADOW if policy.shadow else STRIKES
        fields = strikes_field(policy), *limit.counter.terms, level_field(policy), limit.resolution, modes
        return REQUEST.pack(STRIKE, 1, 1) + ban + ask + _STRIKES_PLAN.pack(*fields)

    def refund(self, reservation: Reservation, names: dict[bytes, int]) -> bytes:
        """Pack a refund.

        Args:
            reservation: The charge.
            names: As for `question`.
        """
        bucket, key, _ = reservation.check
        if bucket.is_permit:
            return self.renewal(self.permits_row(bucket, key), reservation.holder, names)
        place = names.setdefault(self.name_of(key), len(names))
        charged = zip(self._plans_of(bucket), reservation.marks, reservation.units, strict=True)
        asks = [_ASK.pack(place, mark, units) + plan for plan, mark, units in charged]
        return REQUEST.pack(REFUND, len(asks), 0) + b"".join(asks)

    @staticmethod
    def renewal(row: PermitsRow, held: HeldPermits, names: dict[bytes, int]) -> bytes:
        """Pack a renewal of permits, or their release: it writes how many the worker has.

        Args:
            row: Their row.
            held: The permits of the worker.
            names: As for `question`.
        """
        ask = _ASK.pack(names.setdefault(row[0], len(names)), 0, 0)
        return REQUEST.pack(REFUND, 1, 0) + ask + _permits_plan(row, 0, held)

    def reset(self, name: bytes, names: dict[bytes, int]) -> bytes:
        """Pack a reset of the windows in one hash.

        Args:
            name: The name of the hash.
            names: As for `question`.
        """
        return REQUEST.pack(RESET, 1, 0) + _ASK.pack(names.setdefault(name, len(names)), 0, 0) + bytes(_PLAN.size)

    def permits_row(self, bucket: Bucket, key: str) -> PermitsRow:
        """Return the names of the hash and of the field with the permits of a key."""
        field = self._fields.get(bucket.name)
        if field is None:
            field = remember(self._fields, bucket.name, _field(bucket.name, bucket.limits[0]))
        return self.name_of(key), field

    def _plans_of(self, bucket: Bucket) -> tuple[bytes, ...]:
        """Return the packed limits of a bucket, by the amounts in force."""
        known, amounts = self._plans.get(bucket), [limit.amount for limit in bucket.limits]
        if known is not None and known[0] == amounts:
            return known[1]
        plans: list[bytes] = []
        for limit in bucket.limits:
            field = _field(bucket.name, limit)
            if isinstance(limit, Limit):
                plans.append(_PLAN.pack(field, *limit.counter.terms, 0, limit.resolution, bucket.count_denied))
            else:
                plans.append(self._plan_of_quota(field, limit, bucket.count_denied))
        if not all(isinstance(limit, Limit) for limit in bucket.limits):
            return tuple(plans)  # not memoized: a quota's period changes
        return remember(self._plans, bucket, (amounts, tuple(plans)))[1]

    def _plan_of_quota(self, field: bytes, quota: AnyLimit, count_denied: bool) -> bytes:
        """Pack a quota, with period boundaries in the fields that a ring uses for lengths."""
        assert isinstance(quota, Quota), "only limits and quotas have plans"
        start_us, end_us, next_end_us = quota.period_at(self._unix_us())
        return _PLAN.pack(field, quota.amount, start_us, end_us, next_end_us, 0, QUOTA | count_denied)


def _permits_plan(row: PermitsRow, amount: int, held: HeldPermits) -> bytes:
    """Pack a concurrency limit, with the worker and its true count in the fields that a ring uses for lengths."""
    return _PERMITS_PLAN.pack(row[1], amount, held.worker, held.lease_us, held.units(row), 0, PERMITS)


def _field(rule: str, limit: AnyLimit) -> bytes:
    """Return the hash field of a window; it does not depend on the amount."""
    return blake2b("\n".join((rule, *map(str, limit.same_window))).encode(), digest_size=8).digest()


def strikes_field(policy: BanPolicy) -> bytes:
    """Return the hash field of the strikes of a key under a policy."""
    return _field(policy.strikes.name, policy.strikes.limits[0])


def level_field(policy: BanPolicy) -> bytes:
    """Return the hash field of the level of a key under a policy."""
    return blake2b(policy.name.encode(), digest_size=8).digest()


def decision_of(answer: bytes, what: int, checks: Sequence[Check], now_us: int) -> Decision:
    """Unpack the decision in an answer.

    Raises:
        StoreUnavailable: The answer is a failure, or cannot be parsed.
    """
    status, asked = answer[0], 0
    if status == FAILED:
        raise_failure(answer)
    for bucket, _, _ in checks:
        asked += len(bucket.limits)
    end = 1 + asked * _STATE.size
    states = list(_STATE.iter_unpack(answer[1:end]))
    if len(states) != asked:
        raise unexpected(answer)
    for *_, wait_us in states:
        if wait_us < OPEN:
            raise unexpected(answer)
    charged: Sequence[Reservation] | None = ()
    if what == HIT and status == OK:
        charged = None
    elif what == CHARGE and status == OK:
        units = [units for (units,) in _COUNTED.iter_unpack(answer[end:])]
        charged = reserved(checks, [mark for _, _, mark, _ in states], units)
    return Decision(status == OK, _REASONS[status], now_us, checks, states, charged)


def windows_of(answer: bytes, many: int) -> list[bytes]:
    """Unpack the windows in the answer to INSPECT.

    Raises:
        StoreUnavailable: The answer cannot be parsed.
    """
    windows: list[bytes] = []
    at = 1
    for _ in range(many):
        (length,) = _LENGTH.unpack_from(answer, at)
        at += _LENGTH.size + length
        windows.append(answer[at - length : at])
    if at != len(answer):
        raise unexpected(answer)
    return windows


def raise_failure(answer: bytes) -> None:
    """Raise the error of a request that failed while the others of its call may have succeeded.

    Raises:
        StoreUnavailable: The answer is a failure.
    """
    if answer[0] == FAILED:
        raise refusal(answer[1:].decode(errors="replace"))
