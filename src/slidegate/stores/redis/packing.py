"""The scripts that Redis runs, and how requests and answers are packed for it.

A request is a byte for the operation, the number of its asks, and the asks: the place of the key, the cost and the
limit. The requests of a call stand one behind the other. An answer is a byte for the outcome and a reading for each
ask; see ``lua/windows/7_call.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b, sha1
from importlib import resources
from struct import Struct, pack
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.decision import Bucket, Check, Decision, Reason
from ...core.limits import AnyLimit, Limit
from ...core.memo import remember
from ...core.protocols import Clock
from ...core.quotas import Quota
from ...core.windows.codec import unpack_window
from ...core.windows.places import Places
from ...core.windows.rings import Entry
from ...core.windows.theory import OPEN
from .faults import refusal, unexpected
from .key_names import Names
from .places.held_places import HeldPlaces, Place

HIT, PEEK, CHARGE, REFUND, RESET, LOOK, GLANCE, RENEW, INSPECT = 1, 2, 3, 4, 5, 6, 7, 8, 9
OK, LIMITED, TOO_LARGE, NOTHING, CHANGED, BANNED, UNSETTLED, LET_GO, FAILED = 0, 1, 2, 3, 4, 5, 6, 7, 255
PLACES: Final = 4
"""The mode of a limit that is no window, but places."""
QUOTA: Final = 2
"""The mode of a limit that is no window, but a quota; that of counting refusals may be added to it."""
MOST_UNITS: Final = 2**32 - 1
"""No window can hold more, so no larger cost makes a difference."""

Charged: TypeAlias = "int | tuple[int, int, int] | Place"
"""The charge of one reading: the window's serial, if the cost was charged at the time of the decision; else serial,
moment and units; or the place that is held."""

REQUEST: Final = Struct("<BH")
_ASK: Final = Struct("<HI")
_ONE_ASK: Final = Struct("<BHHI41s")
_NOTE: Final = Struct("<HIqI")
_PLAN: Final = Struct("<8sIqHqHBq")
_PLACES_PLAN: Final = Struct("<8sI8sHqHBq")
_RENEWAL: Final = Struct("<H")
_ONE: Final = Struct("<BQqqqI")
_ONE_BYTES: Final = _ONE.size
_READING: Final = Struct("<QqqqI")
_CHARGED: Final = Struct("<qI")
_LENGTH: Final = Struct("<I")
_TAKEN: Final = Struct("<BQ")
_REASONS: Final = {
    OK: Reason.OK,
    LIMITED: Reason.LIMITED,
    UNSETTLED: Reason.LIMITED,
    TOO_LARGE: Reason.TOO_LARGE,
}


class Script(NamedTuple):
    """A script, and the name that Redis gives it."""

    source: bytes
    name: bytes


@cache
def windows_script() -> Script:
    """Return the script that decides about windows."""
    return _script("rings", "banned", "windows")


@cache
def bans_script() -> Script:
    """Return the script that strikes and bans."""
    return _script("rings", "banned", "bans")


@cache
def figures_script() -> Script:
    """Return the script that writes figures."""
    return _script("figures")


def _script(*parts: str) -> Script:
    lua = resources.files(__package__) / "lua"
    files = [sorted((lua / part).iterdir(), key=lambda file: file.name) for part in parts]
    source = b"".join(file.read_bytes() for part in files for file in part)
    return Script(source, sha1(source).hexdigest().encode())


class Packing:
    """Packs requests for calls. It remembers nothing but how limits are spelled.

    Args:
        names: The names of things in Redis.
        held: The places that are held here.
        unix_us: Returns Unix time in microseconds, as this process sees it.
    """

    def __init__(self, names: Names, held: HeldPlaces, unix_us: Clock) -> None:
        self._names = names
        self._name_of = names.name_of
        self._held = held
        self._unix_us = unix_us
        self._plans: dict[Bucket, tuple[bytes, ...]] = {}
        self._lone_plans: dict[Bucket, bytes] = {}  # of those that have one limit, as most do
        self._fields: dict[str, bytes] = {}  # of places, by rule

    def demand(self, what: int, checks: Sequence[Check], names: dict[bytes, int]) -> bytes:
        """Pack checks; `names` are those in the call with their places, and get the names of the keys."""
        if len(checks) == 1:
            bucket, key, cost = checks[0]
            plan = self._lone_plans.get(bucket)
            if plan is not None and cost < MOST_UNITS:
                return _ONE_ASK.pack(what, 1, names.setdefault(self._name_of(key), len(names)), cost, plan)
        parts = []
        for bucket, key, cost in checks:
            if bucket.held:
                place, plan = self._places(bucket, key, self._held.worker, names)
                parts.append(_ASK.pack(place, 1) + plan)
                continue
            ask = _ASK.pack(self.place_of(key, names), min(cost, MOST_UNITS))
            parts += [ask + plan for plan in self._plans.get(bucket) or self._plan(bucket)]
        return REQUEST.pack(what, len(parts)) + b"".join(parts)

    def refund(self, decision: Decision, charged: Sequence[Charged | None], names: dict[bytes, int]) -> bytes:
        """Pack a refund of everything that `decision` charged; `names` as for `demand`."""
        parts, at = [], 0
        for bucket, key, cost in decision.checks:
            if bucket.held:
                held = charged[at]
                at += 1
                if isinstance(held, Place):
                    set_at, plan = self._places(bucket, key, held.worker, names)
                    parts.append(_NOTE.pack(set_at, held.serial, 0, 1) + plan)
                continue
            place = self.place_of(key, names)
            for plan in self._plans.get(bucket) or self._plan(bucket):
                noted = charged[at]
                at += 1
                if noted is not None and not isinstance(noted, Place):
                    note = (noted, decision.now_us, min(cost, MOST_UNITS)) if isinstance(noted, int) else noted
                    parts.append(_NOTE.pack(place, *note) + plan)
        return REQUEST.pack(REFUND, len(parts)) + b"".join(parts)

    def renewal(
        self, worker: bytes, bucket: Bucket, key: str, serials: Sequence[int], names: dict[bytes, int]
    ) -> bytes:
        """Pack a renewal of places of a worker under one key; `names` as for `demand`."""
        set_at, plan = self._places(bucket, key, worker, names)
        return REQUEST.pack(RENEW, len(serials)) + _RENEWAL.pack(set_at) + plan + pack(f"<{len(serials)}I", *serials)

    def place_of(self, key: str, names: dict[bytes, int]) -> int:
        """Return where in a call the name of a key stands; it is added to `names` where it is missing."""
        return names.setdefault(self._name_of(key), len(names))

    def _places(self, bucket: Bucket, key: str, worker: bytes, names: dict[bytes, int]) -> tuple[int, bytes]:
        """Return where in a call the set of places of a key stands, and the limit of these places."""
        (limit,) = bucket.limits
        field = self._fields.get(bucket.rule) or remember(self._fields, bucket.rule, _field(bucket.rule, limit))
        name = self._names.places_of(key, field)
        plan = _PLACES_PLAN.pack(field, limit.amount, worker, 0, self._held.lease_us, 0, PLACES, 0)
        return names.setdefault(name, len(names)), plan

    def _plan(self, bucket: Bucket) -> tuple[bytes, ...]:
        plans = []
        for limit in bucket.limits:
            field = _field(bucket.rule, limit)
            if isinstance(limit, Limit):
                ring = limit.amount, limit.window_us, limit.resolution, limit.slice_us, limit.slices
                plans.append(_PLAN.pack(field, *ring, bucket.count_denied, 0))
            else:
                plans.append(self._plan_of_quota(field, limit, bucket.count_denied))
        if not all(isinstance(limit, Limit) for limit in bucket.limits):
            return tuple(plans)  # other periods come
        if len(plans) == 1:
            remember(self._lone_plans, bucket, plans[0])
        return remember(self._plans, bucket, tuple(plans))

    def _plan_of_quota(self, field: bytes, quota: AnyLimit, count_denied: bool) -> bytes:
        """Pack a quota: the ends of three periods, two of them where a window has lengths."""
        assert isinstance(quota, Quota), "there are two kinds of limits"
        start_us, end_us, next_end_us = quota.period_at(self._unix_us())
        return _PLAN.pack(field, quota.amount, start_us, 0, end_us, 0, QUOTA | count_denied, next_end_us)


def _field(rule: str, limit: AnyLimit) -> bytes:
    """Return the name of a window, whatever its amount, among those of a key."""
    return blake2b("\n".join((rule, *map(str, limit.same_window))).encode(), digest_size=8).digest()


def decision_of(answer: bytes, what: int, checks: Sequence[Check], now_us: int) -> Decision:
    """Read the answer to a demand.

    Raises:
        StoreUnavailable: There is none.
    """
    status = answer[0]
    if what == HIT and len(answer) == _ONE_BYTES and status != FAILED:
        numbers = _ONE.unpack(answer)
        if numbers[4] < OPEN:  # the wait
            raise unexpected("", answer)
        if status == OK:
            return Decision(True, Reason.OK, now_us, checks, (numbers[1:5],), [numbers[5]])
        return Decision(False, _REASONS[status], now_us, checks, (numbers[1:5],))
    raise_failure(answer)
    asked = sum(len(bucket.limits) for bucket, _, _ in checks)
    end = 1 + asked * _READING.size
    rows = list(_READING.iter_unpack(answer[1:end]))
    if len(rows) != asked or any(row[3] < OPEN for row in rows):
        raise unexpected("", answer)
    charge: Any = ()
    if what in (HIT, CHARGE) and status == OK:
        charge = [serial for *_, serial in rows]
        notes = [*_CHARGED.iter_unpack(answer[end:])]
        charge = [(serial, *note) for serial, note in zip(charge, notes, strict=True)] if notes else charge
    return Decision(status == OK, _REASONS[status], now_us, checks, [row[:4] for row in rows], charge)


def windows_of(answer: bytes, limits: Sequence[AnyLimit], now_us: int) -> list[Entry]:
    """Read the windows that answer an inspection, one for each limit.

    Raises:
        StoreUnavailable: There are none.
    """
    raise_failure(answer)
    windows: list[Entry] = []
    at = 1
    for limit in limits:
        (length,) = _LENGTH.unpack_from(answer, at)
        row = answer[at + _LENGTH.size : at + _LENGTH.size + length]
        at += _LENGTH.size + length
        if row[0]:
            windows.append(unpack_window(row, limit, now_us))
        else:
            windows.append(Places(_TAKEN.unpack(row)[1]))
    return windows


def raise_failure(answer: bytes) -> None:
    """Raise the error that Redis gave to one request alone.

    Raises:
        StoreUnavailable: It is a failure.
    """
    if answer[0] == FAILED:
        raise refusal("", answer[1:].decode(errors="replace"))
