"""Several equal hits as one request, and what each of them is told."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from ...core.buckets import Check
from ...core.decision import OK, Decision
from ...core.reservation import Reservation, reserved
from ...core.ring import WindowState
from .script import REQUEST, SEVERAL, Packed

_ASKED: Final = Struct("<II")
"""How many ask, and how many more may be charged: the mark of the first ask, which is else 0."""
_CHARGED: Final = Struct("<Iq")
"""How many were charged, and how long after that their first slice ends, in microseconds."""


def several(hit: Packed, asked: int, ahead: int = 0) -> Packed:
    """Return a packed hit as a request to charge it several times.

    Args:
        hit: The hit.
        asked: How many ask; they are charged as far as there is room.
        ahead: How many more may be charged, if they are few of those for which there is room.
    """
    request = hit.request
    _, _, _, bans, _ = REQUEST.unpack_from(request)
    mark = REQUEST.size + 2 * bans + 2  # behind the head, the indexes of bans, and that of the first key
    before, after = request[1:mark], request[mark + _ASKED.size :]
    return Packed(hit.names, bytes((SEVERAL,)) + before + _ASKED.pack(asked, ahead) + after)


def charged_of(answer: bytes) -> Sequence[int]:
    """Return how many were charged, and how long after that their first slice ends, in microseconds."""
    return _CHARGED.unpack(answer[-_CHARGED.size :])


def admitted_before(decision: Decision, later: int, now_us: int) -> Decision:
    """Return the admission of one of several equal hits, as it was before some of them were charged.

    Args:
        decision: The decision after all of them.
        later: How many were charged after it.
        now_us: The time of the decision.
    """
    readings: list[WindowState] = []
    for (spent, leaves_us, mark, _), units in zip(decision.readings, _units(decision.checks, later), strict=True):
        readings.append((spent - units, leaves_us, mark, 0))
    return Decision(True, OK, now_us, decision.checks, readings, None)


def charges_of(decision: Decision, times: int) -> Sequence[Reservation]:
    """Return what several equal hits were charged, given the decision after them."""
    return reserved(decision.checks, [mark for _, _, mark, _ in decision.readings], _units(decision.checks, times))


def _units(checks: Sequence[Check], times: int) -> list[int]:
    """Return how many units of each limit several hits are charged."""
    return [times * cost for bucket, _, cost in checks for _ in bucket.limits]
