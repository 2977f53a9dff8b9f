"""The complete answer to one question: reading it never needs another call of the store.

A store creates a `Decision` for every request, so it contains only the bare readings, and properties compute the rest
when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from .bans.ban import Ban, longest
from .buckets import Check, windows_of
from .readings import LimitState, by_check, ceil_s, limits_read, state_of, tightness
from .reservation import Reservation, reserved
from .ring import WindowState


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
        at_least_us: A wait that no limit gives, in microseconds: until the ban ends that a refusal has caused, until a
            failed store is asked again, or until what requests under way have reserved may be back. 0 for none.
        shadow_rules: The labels of the shadow rules that would have refused the request, in `decision_of(request)`.

    Args:
        reservations: What was charged; None if each check charged its cost, and the readings contain its marks.
    """

    allowed: bool
    reason: Reason
    now_us: int
    checks: Sequence[Check]
    readings: Sequence[WindowState]
    by: str = ""
    ban: Ban | None = None
    status: int = 0
    at_least_us: int = 0
    shadow_rules: Sequence[str] = ()
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
        if binding is None:
            subject = f"by={self.by!r}"
        else:
            subject = f"limit={binding.limit} remaining={binding.remaining}"
        waits = f"retry_after_us={self.retry_after_us} reset_after_us={self.reset_after_us}"
        return f"<Decision {self.reason} {subject} {waits}>"

    @property
    def states(self) -> tuple[LimitState, ...]:
        """The result for every limit, in the order of the checks; empty if no limit was checked."""
        limits = limits_read(self.checks, self.readings)
        return tuple([state_of(limit, self.now_us) for limit in limits])

    @property
    def binding(self) -> LimitState | None:
        """The limit with the longest wait, else the one that admits the fewest further requests, if any."""
        if not self.readings:
            return None
        limits = limits_read(self.checks, self.readings)
        tightest = limits[0]
        if len(limits) > 1:
            tightest = max(limits, key=tightness)
        return state_of(tightest, self.now_us)

    @property
    def is_whole(self) -> bool:
        """Whether all that the question cost is still charged, and nothing of it was reserved for a refund."""
        return self._reservations is None and not self.released

    @property
    def reservations(self) -> Sequence[Reservation]:
        """What is still charged, one for each check in order; empty if nothing was charged.

        They are made once, by the marks that the readings have then.
        """
        if self._reservations is None:
            # The newest units of each window are those that this question charged.
            self._reservations = reserved(self.checks, self.readings)
            for reservation in self._reservations:
                if self.released and reservation.check[0].is_permit:
                    reservation.ended = True
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
        for reservation in self.reservations:
            if index is not None and reservation.index != index:
                continue
            if permits is not None and reservation.check[0].is_permit != permits:
                continue
            part = reservation.split_off(units)
            if part is None:
                continue
            returned.append(part)
            readings = list(self.readings)
            for at, refunded in enumerate(part.units, part.first):
                spent, leaves_us, mark, wait_us = readings[at]
                readings[at] = spent - refunded, leaves_us, mark, wait_us
            self.readings = readings
        return returned

    def recount(self, index: int, charged: Decision, at: int = 0) -> None:
        """Replace the readings of one check by those of a later charge of it. Their spans are from the charge.

        Args:
            charged: The decision about the charge. If either has no readings, because a store failed, nothing changes.
            at: The index of the check in that decision.
        """
        if not self.readings or not charged.readings:
            return
        self._reservations = self.reservations  # by the marks of the readings, which are replaced here
        own = by_check(self.checks, self.readings)
        own[index] = by_check(charged.checks, charged.readings_as_of(self.now_us))[at]
        self.readings = [*chain.from_iterable(own)]

    def readings_as_of(self, now_us: int) -> Sequence[WindowState]:
        """Return the readings with the same spans from another moment, perhaps one by the clock of another store."""
        later_us = now_us - self.now_us
        readings = self.readings
        return [(spent, leaves_us + later_us, mark + later_us, wait_us) for spent, leaves_us, mark, wait_us in readings]

    @property
    def remaining(self) -> int | None:
        """Units left under the binding limit; None if no limit was checked."""
        state = self.binding
        if state is None:
            return None
        return state.remaining

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the same cost is admitted if nothing else is charged; 0 if allowed, None if never.

        For a ban, until it ends; None if it is permanent. None also means unknown, while all permits of a concurrency
        limit are taken. A second, if only what other requests under way may hand back causes the refusal.
        """
        if self.allowed:
            return 0
        if self.ban is not None:
            return self.ban.left_us(self.now_us)
        state = self.binding
        if state is None:
            # Without a limit, 0 says that no wait is known.
            return self.at_least_us or None
        wait_us = state.retry_after_us
        # What is too large can never pass, whatever else ends.
        if self.at_least_us > 0 and self.reason is not Reason.TOO_LARGE:
            return max(wait_us or 0, self.at_least_us)
        return wait_us

    @property
    def retry_after(self) -> int | None:
        """`retry_after_us` in whole seconds, rounded up, at least 1 for a refusal; None if never or unknown."""
        wait_us = self.retry_after_us
        if wait_us is None:
            return None
        return ceil_s(wait_us)

    @property
    def reset_after_us(self) -> int:
        """Microseconds until all units spent under the binding limit have left."""
        state = self.binding
        if state is None:
            return 0
        return state.reset_after_us

    @property
    def reset_after(self) -> int:
        """`reset_after_us` in whole seconds, rounded up."""
        return ceil_s(self.reset_after_us)

    @property
    def violated(self) -> tuple[LimitState, ...]:
        """The limits that had no room."""
        return tuple(state for state in self.states if state.retry_after_us != 0)


def refused_by_bans(bans: Iterable[Ban], now_us: int, checks: Sequence[Check] = ()) -> Decision | None:
    """Return the refusal of a question by the ban that ends last; None if none of these bans is in force.

    Args:
        bans: Those of its keys, and of the networks that contain its addresses; some may be over.
        now_us: The store's Unix time, in microseconds.
        checks: The question.
    """
    ban = longest(bans, now_us)
    if ban is None:
        return None
    return refused_by_ban(ban, now_us, checks)


def refused_by_ban(ban: Ban, now_us: int, checks: Sequence[Check] = ()) -> Decision:
    """Return the refusal of a question by a ban. Nothing was counted.

    Args:
        now_us: The store's Unix time at the decision, in microseconds.
    """
    return Decision(False, BANNED, now_us, checks, by=ban.by, ban=ban)


def refused_later(
    readings: Sequence[WindowState],
    decided_us: int,
    now_us: int,
    checks: Sequence[Check],
    reason: Reason = Reason.LIMITED,
) -> Decision:
    """Return a refusal by limits as of a later time, provided that its windows have not changed.

    Args:
        readings: The readings of the original decision.
        decided_us: The time of the original decision, in microseconds.
        now_us: The later time, in microseconds.
        reason: The reason of the original decision.
    """
    passed_us = now_us - decided_us
    later: list[WindowState] = []
    for spent, leaves_us, mark, wait_us in readings:
        # A limit that has room has no wait, and that for a permit no length.
        if wait_us > 0:
            wait_us = max(wait_us - passed_us, 1)
        later.append((spent, leaves_us, mark, wait_us))
    return Decision(False, reason, now_us, checks, later)


def joined(decisions: Sequence[Decision]) -> Decision:
    """Return the decisions of a request that name limits as one, in which the last reading of each window counts.

    Each reading keeps its spans, which are from the decision that has made it. If none names limits, it is the last.
    """
    if len(decisions) == 1:
        return decisions[0]
    named = [decision for decision in decisions if decision.readings]
    last = (named or decisions)[-1]
    if len(named) < 2:
        return last
    latest: dict[object, tuple[Check, Sequence[WindowState]]] = {}
    for decision in named:
        states = by_check(decision.checks, decision.readings_as_of(last.now_us))
        for check, own in zip(decision.checks, states, strict=True):
            latest[windows_of(check)] = check, own
    checks = [check for check, _ in latest.values()]
    readings = [state for _, own in latest.values() for state in own]
    return Decision(last.allowed, last.reason, last.now_us, checks, readings)
