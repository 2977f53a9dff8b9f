"""The scripts that Redis runs, and how requests and answers are packed for it.

A request is a byte for the operation, the number of its asks, and the asks: the place of the key, the cost, the number
of the check, and the limit. An answer is a byte for the outcome and a reading
for each ask; see ``lua/windows/7_call.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b, sha1
from importlib import resources
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from ...core.decision import Bucket, Check, Decision, Reason
from ...core.memo import remember
from ...core.windows.theory import NEVER
from .faults import refusal, unexpected

HIT, PEEK, CHARGE, REFUND, RESET, LOOK, GLANCE = 1, 2, 3, 4, 5, 6, 7
OK, LIMITED, TOO_LARGE, WAITED, NOTHING, CHANGED, BANNED, UNSETTLED, FAILED = 0, 1, 2, 3, 4, 5, 6, 7, 255
MOST_UNITS: Final = 2**32 - 1
"""No window can hold more, so no larger cost makes a difference."""

Charged: TypeAlias = "int | tuple[int, int, int, int]"
"""The charge of one reading: the window's serial, if the cost was charged at the time of the decision; else serial,
moment, units and whether a place to wait was taken."""

REQUEST: Final = Struct("<BH")
_ASK: Final = Struct("<HIH")
_NOTE: Final = Struct("<HIqIB")
_PLAN: Final = Struct("<8sIqHqHBqI")
_ONE: Final = Struct("<BQqqqI")
_READING: Final = Struct("<QqqqI")
_CHARGED: Final = Struct("<qIB")
_REASONS: Final = {
    OK: Reason.OK,
    LIMITED: Reason.LIMITED,
    UNSETTLED: Reason.LIMITED,
    TOO_LARGE: Reason.TOO_LARGE,
    WAITED: Reason.WAITED,
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


def _script(*parts: str) -> Script:
    lua = resources.files(__package__) / "lua"
    files = [sorted((lua / part).iterdir(), key=lambda file: file.name) for part in parts]
    source = b"".join(file.read_bytes() for part in files for file in part)
    return Script(source, sha1(source).hexdigest().encode())


class Packing:
    """Packs requests for calls. It remembers nothing but how limits are spelled."""

    def __init__(self) -> None:
        self._plans: dict[Bucket, tuple[bytes, ...]] = {}

    def demand(self, what: int, checks: Sequence[Check], places: Sequence[int]) -> bytes:
        """Pack checks whose keys stand at `places`."""
        if len(checks) == 1:
            bucket, _, cost = checks[0]
            plans = self._plans.get(bucket) or self._plan(bucket)
            if len(plans) == 1:
                return REQUEST.pack(what, 1) + _ASK.pack(places[0], min(cost, MOST_UNITS), 0) + plans[0]
        parts = []
        for number, (bucket, _, cost) in enumerate(checks):
            ask = _ASK.pack(places[number], min(cost, MOST_UNITS), number)
            parts += [ask + plan for plan in self._plans.get(bucket) or self._plan(bucket)]
        return REQUEST.pack(what, len(parts)) + b"".join(parts)

    def refund(self, decision: Decision, charged: Sequence[Charged | None], places: Sequence[int]) -> bytes:
        """Pack a refund of everything that `decision` charged."""
        parts, at = [], 0
        for number, (bucket, _, cost) in enumerate(decision.checks):
            for plan in self._plans.get(bucket) or self._plan(bucket):
                noted = charged[at]
                at += 1
                if noted is not None:
                    note = (noted, decision.now_us, min(cost, MOST_UNITS), 0) if isinstance(noted, int) else noted
                    parts.append(_NOTE.pack(places[number], *note) + plan)
        return REQUEST.pack(REFUND, len(parts)) + b"".join(parts)

    def _plan(self, bucket: Bucket) -> tuple[bytes, ...]:
        plans = []
        for limit in bucket.limits:
            identity = f"{bucket.rule}\n{limit.window_us}\n{limit.resolution}".encode()
            field = blake2b(identity, digest_size=8).digest()
            ring = limit.amount, limit.window_us, limit.resolution, limit.slice_us, limit.slices
            plans.append(_PLAN.pack(field, *ring, bucket.count_denied, bucket.wait_us, bucket.wait_max))
        return remember(self._plans, bucket, tuple(plans))


def decision_of(answer: bytes, what: int, checks: Sequence[Check], now_us: int) -> Decision:
    """Read the answer to a demand.

    Raises:
        StoreUnavailable: There is none.
    """
    status = answer[0]
    if len(answer) == _ONE.size and what == HIT and status != FAILED:
        _, spent, leaves_us, newest_us, wait_us, serial = _ONE.unpack(answer)
        if wait_us < NEVER:
            raise unexpected("", answer)
        return Decision(
            status == OK,
            _REASONS[status],
            now_us,
            checks,
            ((spent, leaves_us, newest_us, wait_us),),
            [serial] if status == OK else (),
        )
    raise_failure(answer)
    asked = sum(len(bucket.limits) for bucket, _, _ in checks)
    end = 1 + asked * _READING.size
    rows = list(_READING.iter_unpack(answer[1:end]))
    if len(rows) != asked or any(row[3] < NEVER for row in rows):
        raise unexpected("", answer)
    charge: Any = ()
    if what in (HIT, CHARGE) and status in (OK, WAITED):
        charge = [serial for *_, serial in rows]
        notes = [*_CHARGED.iter_unpack(answer[end:])]
        charge = [(serial, *note) for serial, note in zip(charge, notes, strict=True)] if notes else charge
    return Decision(status in (OK, WAITED), _REASONS[status], now_us, checks, [row[:4] for row in rows], charge)


def raise_failure(answer: bytes) -> None:
    """Raise the error that Redis gave to one request alone.

    Raises:
        StoreUnavailable: It is a failure.
    """
    if answer[0] == FAILED:
        raise refusal("", answer[1:].decode(errors="replace"))
