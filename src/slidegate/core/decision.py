"""The complete answer to one question: reading it never needs another call of the store.

A store creates a `Decision` for every request, so it contains only the bare readings, and properties compute the rest
when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from copy import copy
from enum import StrEnum
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from .bans.ban import Ban
from .limits import AnyLimit
from .reservation import Reservation, reserved
from .ring import WindowState

_NOT_IN_NAMES: Final = "[^A-Za-z0-9_.]"
_ENDLESS: Final = 2**62
"""Longer than any finite wait. `OPEN` and `NEVER`, which is the longer one, are added to it."""


class Reason(StrEnum):
    """Why a request was allowed or refused."""

    OK = "ok"
    """Every limit had room."""
    WAITED = "waited"
    """Allowed after waiting for room."""
    LIMITED = "limited"
    """A limit had no room; `Decision.retry_after` is the time until it has."""
    TOO_LARGE = "too_large"
    """The cost exceeds the amount of a limit, so the request can never pass."""
    BANNED = "banned"
    """A ban is in force: `Decision.ban`."""
    BLOCKED = "blocked"
    """The client's address is on the blocklist, or a rule blocks the request; `Decision.by` names the list or rule."""
    ALLOWLISTED = "allowlisted"
    """The client's address is on the allowlist; nothing was counted."""
    EXEMPT = "exempt"
    """No limit applies to this request; nothing was counted."""
    DISABLED = "disabled"
    """slidegate is switched off; nothing was counted."""
    UNAVAILABLE = "unavailable"
    """The store did not answer, and `on_error` is "allow" or "deny"; or the request ended before there was an answer.
    Nothing was counted."""


# For each request, because CPython 3.11 takes 0.2 us to find a member in its class.
OK: Final = Reason.OK
LIMITED: Final = Reason.LIMITED
TOO_LARGE: Final = Reason.TOO_LARGE
BANNED: Final = Reason.BANNED
DISABLED: Final = Reason.DISABLED


class Bucket:
    """A name and the limits that count under it, as a store uses them. Created once, reused, and compared by identity.

    Args:
        name: The owner of the windows, 1 to 64 characters; buckets of one name share their windows.
        limits: The limits that apply together, no two with the same window and resolution; or one `Concurrency`.
        names: The name of each limit on the wire; by default the name, or ``name_<seconds>`` where it has several.
        count_denied: Whether requests that are refused for lack of room are also charged.
        unit: The unit that is counted, if not requests: ``"tokens"``.
        label: The name of the rule in stats; by default `name`.
        on_error: What decides while the store fails: "local", "allow" or "deny"; None for the limiter's own choice.
        by: Who made it, compared by identity: another bucket may have the same name.
        shadow: Whether its rule only reports, and never refuses.
        is_fallback: Whether a function returns the limits of its rule, and these apply only where that fails.

    Attributes:
        configured: The limits as given.
        limits: Copies of the limits, which this bucket and those derived from it own: `AnyLimit.become` changes an
            amount for all of them, and for every question that was prepared with them.
        is_permit: Whether a charge is a permit, which a request holds until it ends, and not units of a window.
    """

    __slots__ = (
        "by",
        "configured",
        "count_denied",
        "is_fallback",
        "is_permit",
        "label",
        "limits",
        "name",
        "names",
        "on_error",
        "shadow",
        "unit",
    )

    def __init__(
        self,
        name: str,
        limits: Sequence[AnyLimit],
        names: Sequence[str] | None = None,
        *,
        count_denied: bool = False,
        unit: str | None = None,
        label: str | None = None,
        on_error: str | None = None,
        by: object = None,
        shadow: bool = False,
        is_fallback: bool = False,
    ) -> None:
        self.name = name
        self.configured = limits
        self.limits = tuple([limit.own() for limit in limits])
        self.is_permit = not all(limit.is_listed for limit in self.limits)
        self.names = tuple(names) if names is not None else wire_names(name, self.limits)
        self.count_denied = count_denied
        self.unit = unit
        self.label = name if label is None else label
        self.on_error = on_error
        self.by = by
        self.shadow = shadow
        self.is_fallback = is_fallback

    def __getnewargs__(self) -> tuple[str, Sequence[AnyLimit]]:
        return self.name, self.limits

    def under(self, name: str) -> Bucket:
        """Return a bucket with the same limits under another name; both have the same amounts for ever."""
        twin = copy(self)
        twin.name = name
        return twin

    def __repr__(self) -> str:
        return f"<Bucket {self.name!r} {'; '.join(map(str, self.limits))}>"


def wire_names(rule: str, limits: Sequence[AnyLimit], taken: Collection[str] = ()) -> tuple[str, ...]:
    """Name each limit for the response headers: its own name, else its rule's; ``name_<seconds>`` if there are several.

    The names consist of letters, digits, ``_`` and ``.``, which all parsers of these headers accept; none is `taken`.
    """
    names: list[str] = []
    for limit in limits:
        name = limit.name or (rule if len(limits) == 1 else f"{rule}_{limit.suffix}")
        names.append(unique_name(spelled(name), {*taken, *names}))
    return tuple(names)


def spelled(name: str) -> str:
    """Return a name as it is written in response headers."""
    return re.sub(_NOT_IN_NAMES, "_", name)


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return `name`, or ``name_2``, ``name_3`` ... if it is taken."""
    unique, numbers = name, count(2)
    while unique in taken:
        unique = f"{name}_{next(numbers)}"
    return unique


def state_of(bucket: Bucket, key: str, at: int, reading: WindowState, now_us: int) -> LimitState:
    """Return the state of a limit, given its index in the bucket and the reading of its window at a time."""
    spent, leaves_us, mark, wait_us = reading
    limit = bucket.limits[at]
    return LimitState(
        bucket.names[at],
        bucket.name,
        key,
        limit,
        remaining=max(limit.amount - spent, 0),
        retry_after_us=None if wait_us < 0 else wait_us,
        # Permits have no times: both are 0.
        more_after_us=max(leaves_us - now_us, 0) if spent else 0,
        # The units of a quota leave together.
        reset_after_us=max((mark + limit.span_us if limit.span_us else leaves_us) - now_us, 0) if spent else 0,
        used=spent,
        label=bucket.label,
        shadow=bucket.shadow,
    )


Check: TypeAlias = tuple[Bucket, str, int]
"""One charge of a question: the bucket, the key (at most 64 bytes) and the cost in units (0 or more)."""
_Limited: TypeAlias = tuple[Bucket, str, int, int]
"""The bucket, the key, the index of a limit in the bucket, and the cost."""


class LimitState(NamedTuple):
    """The window of a key under one limit, as a decision has left it. All spans are microseconds from then."""

    name: str
    rule: str
    key: str
    limit: AnyLimit
    remaining: int
    """Units left, never below 0."""
    retry_after_us: int | None
    """How long this limit refuses the request's cost: 0 if it does not, None if for ever or until a permit is free."""
    more_after_us: int
    """How long until the oldest spent unit leaves; 0 if nothing is spent, and for permits."""
    reset_after_us: int
    """How long until all spent units have left; 0 if nothing is spent, and for permits."""
    used: int
    """Units that count now."""
    label: str
    """The name of the rule in stats."""
    shadow: bool
    """Whether the rule only reports, and never refuses."""


class Decision:
    """The complete answer to a question; `reason` says which kind it is. It is true if the request may pass.

    Attributes:
        allowed: Whether the request may pass.
        reason: Why.
        now_us: The store's time at the decision, in microseconds; its Unix time if a ban refuses.
        checks: The checks of the question: (bucket, key, cost) each.
        readings: The state of each window, in the order of the limits of each check; `states` gives them names. Empty
            if no limit was checked.
        by: The source of a refusal without a limit: the ban's maker, the name of the list, or the rule; else empty.
        ban: The ban that refuses the request, if one does.
        status: The status of the answer over HTTP if a rule sets it, 400 to 599; else 0. For `on_refused` and in a
            `RateLimitExceeded` the status of the default answer, whatever refused.
        at_least_us: A wait that no limit gives, in microseconds: until the ban ends that a refusal has caused, or until
            a failed store is asked again. 0 for none, `OPEN` if its length is unknown.

    Args:
        reservations: What was charged; None if each check charged its cost, and the readings contain its marks.
    """

    allowed: bool
    reason: Reason
    now_us: int
    checks: Any  # a `Question` if one was prepared, which has more attributes
    readings: Sequence[WindowState]
    by: str = ""
    ban: Ban | None = None
    status: int = 0
    at_least_us: int = 0
    released = False
    """Whether `release_permits` has returned its permits, which no reservation contains then."""

    def __init__(
        self,
        allowed: bool,
        reason: Reason,
        now_us: int = 0,
        checks: Sequence[Check] = (),
        readings: Sequence[WindowState] = (),
        reservations: Sequence[Reservation] | None = (),
        by: str = "",
        ban: Ban | None = None,
        status: int = 0,
        at_least_us: int = 0,
    ) -> None:
        self.allowed = allowed
        self.reason = reason
        self.now_us = now_us
        self.checks = checks
        self.readings = readings
        self._reservations = reservations
        if not allowed and (by or ban or status or at_least_us):
            self.by = by
            self.ban = ban
            self.status = status
            self.at_least_us = at_least_us

    def __bool__(self) -> bool:
        return self.allowed

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles have no reservations, because a charge can only be refunded once.
        answer = self.allowed, self.reason, self.now_us, self.checks, self.readings
        return self.__class__, (*answer, (), self.by, self.ban, self.status, self.at_least_us)

    def __repr__(self) -> str:
        binding = self.binding
        subject = f"by={self.by!r}" if binding is None else f"limit={binding.limit} remaining={binding.remaining}"
        waits = f"retry_after_us={self.retry_after_us} reset_after_us={self.reset_after_us}"
        return f"<Decision {self.reason} {subject} {waits}>"

    @property
    def states(self) -> tuple[LimitState, ...]:
        """The result for every limit, in the order of the checks; empty if no limit was checked."""
        if not self.readings:
            return ()
        pairs = zip(self._limited(), self.readings, strict=True)
        return tuple(state_of(*limited[:3], reading, self.now_us) for limited, reading in pairs)

    @property
    def binding(self) -> LimitState | None:
        """The limit with the longest wait, else the one that admits the fewest further requests, if any."""
        if not self.readings:
            return None
        pairs = [*zip(self._limited(), self.readings, strict=True)]
        limited, reading = max(pairs, key=_tightness) if len(pairs) > 1 else pairs[0]
        return state_of(*limited[:3], reading, self.now_us)

    def _limited(self) -> list[_Limited]:
        """Return (bucket, key, index of the limit in the bucket, cost) of each reading."""
        return [(bucket, key, at, cost) for bucket, key, cost in self.checks for at in range(len(bucket.limits))]

    @property
    def is_whole(self) -> bool:
        """Whether all that the question cost is still charged, and nothing of it was reserved for a refund."""
        return self._reservations is None and not self.released

    @property
    def reservations(self) -> Sequence[Reservation]:
        """What is still charged, one for each check in order; empty if nothing was charged."""
        if self._reservations is None:  # the newest units of each window are those that this question charged
            marks = [mark for _, _, mark, _ in self.readings]
            gone = self.released
            units = [0 if gone and bucket.is_permit else cost for bucket, _, cost in self.checks for _ in bucket.limits]
            self._reservations = reserved(self.checks, marks, units)
        return self._reservations

    @reservations.setter
    def reservations(self, reservations: Sequence[Reservation]) -> None:
        self._reservations = reservations

    def begin_refund(
        self, index: int | None = None, units: int | None = None, *, permits: bool | None = None
    ) -> list[Reservation]:
        """Remove charges from the decision and return them for `Store.refund`; `remaining` then includes their units.

        Args:
            index: The index of the check; by default all checks.
            units: The most units of each limit; by default all that are left.
            permits: True for permits only, False for units of windows only.
        """
        returned: list[Reservation] = []
        for own in self.reservations:
            if (index is None or own.index == index) and (permits is None or own.check[0].is_permit == permits):
                part = own.take(units)
                if part is not None:
                    self._uncount(part)
                    returned.append(part)
        return returned

    def _uncount(self, part: Reservation) -> None:
        """Subtract the units of a charge from the readings of its check."""
        readings = list(self.readings)
        for at, units in enumerate(part.units, part.first):
            spent, leaves_us, mark, wait_us = readings[at]
            readings[at] = spent - units, leaves_us, mark, wait_us
        self.readings = readings

    def recount(self, index: int, charged: Decision, at: int = 0) -> None:
        """Replace the readings of one check by those of a later charge of it. Their spans are from the charge.

        Args:
            index: The index of the check.
            charged: The decision about the charge. If either has no readings, because a store failed, nothing changes.
            at: The index of the check in that decision.
        """
        if not self.readings or not charged.readings:
            return
        self.reservations = self.reservations  # made of the marks of the readings that are replaced
        own_first, own_last = _readings_of(self.checks, index)
        first, last = _readings_of(charged.checks, at)
        later = charged.readings_as_of(self.now_us)[first:last]
        self.readings = [*self.readings[:own_first], *later, *self.readings[own_last:]]

    def readings_as_of(self, now_us: int) -> Sequence[WindowState]:
        """Return the readings with the same spans from another moment, perhaps one by the clock of another store."""
        later_us = now_us - self.now_us
        return [(spent, leaves_us + later_us, mark + later_us, wait) for spent, leaves_us, mark, wait in self.readings]

    @property
    def remaining(self) -> int | None:
        """Units left under the binding limit; None if no limit was checked."""
        state = self.binding
        return state.remaining if state else None

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the same cost is admitted if nothing else is charged; 0 if allowed, None if never.

        For a ban, until it ends; None if it is permanent. None also means unknown, while all permits of a concurrency
        limit are taken.
        """
        if self.allowed:
            return 0
        if self.ban is not None:
            return self.ban.left_us(self.now_us)
        state = self.binding
        if state is None:
            return self.at_least_us or None
        wait_us = state.retry_after_us
        if self.at_least_us > 0 and self.reason is not Reason.TOO_LARGE:
            return max(wait_us or 0, self.at_least_us)
        return wait_us

    @property
    def retry_after(self) -> int | None:
        """`retry_after_us` in whole seconds, rounded up, at least 1 for a refusal; None if never or unknown."""
        wait_us = self.retry_after_us
        return None if wait_us is None else ceil_s(wait_us)

    @property
    def reset_after_us(self) -> int:
        """Microseconds until all units spent under the binding limit have left."""
        state = self.binding
        return state.reset_after_us if state else 0

    @property
    def reset_after(self) -> int:
        """`reset_after_us` in whole seconds, rounded up."""
        return ceil_s(self.reset_after_us)

    @property
    def violated(self) -> tuple[LimitState, ...]:
        """The limits that had no room."""
        return tuple(state for state in self.states if state.retry_after_us != 0)


def refused_by_ban(ban: Ban, now_us: int, checks: Sequence[Check] = ()) -> Decision:
    """Return the refusal of a question by a ban. Nothing was counted.

    Args:
        ban: The ban.
        now_us: The store's Unix time at the decision, in microseconds.
        checks: The question.
    """
    return Decision(False, BANNED, now_us, checks, by=ban.by, ban=ban)


def _readings_of(checks: Sequence[Check], index: int) -> tuple[int, int]:
    """Return where the readings of a check begin and end among those of a question."""
    first = sum([len(bucket.limits) for bucket, _, _ in checks[:index]])
    return first, first + len(checks[index][0].limits)


def _tightness(pair: tuple[_Limited, WindowState]) -> tuple[int, float, int]:
    """Rank a limit: by its wait, then by how few further requests of this cost it admits, then by its oldest units."""
    (bucket, _, at, cost), (spent, leaves_us, _, wait_us) = pair
    left = bucket.limits[at].amount - spent
    # A cost of 0 counts as 1: it means that the cost is only known after the request.
    return wait_us if wait_us >= 0 else _ENDLESS + wait_us, -left / max(cost, 1), leaves_us


def refused_later(readings: Sequence[WindowState], decided_us: int, now_us: int, checks: Sequence[Check]) -> Decision:
    """Return a refusal for lack of room as of a later time, provided that its windows have not changed.

    Args:
        readings: The readings of the original decision.
        decided_us: The time of the original decision, in microseconds.
        now_us: The later time, in microseconds.
        checks: The question.
    """
    passed_us = now_us - decided_us
    later = [(spent, leaves_us, mark, wait_us and wait_us - passed_us) for spent, leaves_us, mark, wait_us in readings]
    return Decision(False, Reason.LIMITED, now_us, checks, later)


def ceil_s(span_us: int) -> int:
    """Round microseconds up to whole seconds."""
    return -(-span_us // 1_000_000)
