"""Several equal hits as one request, and the decision for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ...core.buckets import Check
from ...core.decision import OK, Decision
from ...core.reservation import Reservation, reserved
from ...core.ring import WindowState
from .script import REQUEST, SEVERAL, Packed

_NUMBERS: Final = Struct("<II")
"""How many hits are awaited, and how many more may be charged. They take the place of the mark of the first ask, which
no other hit has."""
_CHARGED: Final = Struct("<Iq")
"""The end of an answer, see `Charged`."""


class Charged(NamedTuple):
    """What the script has charged of several hits.

    Attributes:
        hits: How many hits.
        lasts_us: How long after that their first slice ends, in microseconds.
    """

    hits: int
    lasts_us: int


def several(hit: Packed, awaited: int, ahead: int = 0) -> Packed:
    """Return a packed hit as a request to charge it several times.

    Args:
        hit: The hit.
        awaited: How many hits are awaited; they are charged as far as there is room.
        ahead: How many more may be charged, if they are few of those for which there is room.
    """
    request = hit.request
    _, _, _, bans, _ = REQUEST.unpack_from(request)
    mark_at = REQUEST.size + 2 * bans + 2  # behind the head, the indexes of bans, and that of the first key
    before, after = request[1:mark_at], request[mark_at + _NUMBERS.size :]
    operation = bytes((SEVERAL,))
    return Packed(hit.names, operation + before + _NUMBERS.pack(awaited, ahead) + after)


def charged_of(answer: bytes) -> Charged:
    """Return what was charged, given the answer."""
    return Charged._make(_CHARGED.unpack(answer[-_CHARGED.size :]))


def admitted_before(decision: Decision, later: int, now_us: int) -> Decision:
    """Return the admission of one of several equal hits, as it was before some of them were charged.

    Args:
        decision: The decision after all of them.
        later: How many were charged after it.
        now_us: The time of the decision.
    """
    units_later = _units(decision.checks, later)
    readings: list[WindowState] = []
    for (spent, leaves_us, mark, _), units in zip(decision.readings, units_later, strict=True):
        readings.append((spent - units, leaves_us, mark, 0))
    return Decision(True, OK, now_us, decision.checks, readings, None)


def charges_of(decision: Decision, times: int) -> Sequence[Reservation]:
    """Return what several equal hits were charged, given the decision after them."""
    marks = [mark for _, _, mark, _ in decision.readings]
    return reserved(decision.checks, marks, _units(decision.checks, times))


def _units(checks: Sequence[Check], times: int) -> list[int]:
    """Return how many units of each limit several hits are charged."""
    units: list[int] = []
    for bucket, _, cost in checks:
        units += [times * cost] * len(bucket.limits)
    return units
