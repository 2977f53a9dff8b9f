"""Questions with several keys on a cluster. The keys are in different slots, which no single script can access.

Units are charged in order, key by key. If one key refuses, fails or is cancelled, those charged before it are refunded.
So no limit is ever exceeded, but another client may be refused because of units that are refunded a moment later. If
the process dies in between, the units stay charged for one window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ...core.bans.ban import BanSubject
from ...core.decision import Check, Decision, Reason, refused_by_ban, uncounted
from ...core.reservation import Reservation
from ...core.ring import NEVER, WindowState
from .script import CHARGE, LOOK, PEEK

Ask: TypeAlias = Callable[[int, Sequence[Check], Sequence[BanSubject]], "asyncio.Future[Decision]"]
HandBack: TypeAlias = Callable[[Sequence[Reservation]], object]


class MultiSlot:
    """A question split into parts, one for each key.

    Args:
        checks: The checks of the question.
        keys: The keys of the checks, and those whose bans refuse the question.
        ask: Sends a part.
        hand_back: Refunds a part, without waiting.
    """

    def __init__(self, checks: Sequence[Check], keys: Sequence[str], ask: Ask, hand_back: HandBack) -> None:
        self._checks = checks
        self._ask = ask
        self._hand_back = hand_back
        # The indexes of each key's checks. Keys without checks, which are only looked up for bans, come first.
        groups = {key: [at for at, check in enumerate(checks) if check[1] == key] for key in keys}
        self._groups = dict(sorted(groups.items(), key=lambda group: bool(group[1])))

    async def decide(self, what: int) -> Decision:
        """Return the decision on the whole question.

        Raises:
            StoreError: A part failed; what was charged is refunded, as far as Redis can be reached.
        """
        if what == PEEK:
            parts = await self._ask_all(LOOK)
            return self._whole(parts if _refused(parts) else await self._ask_all(PEEK))
        charged, refused = await self._charge(what)
        if refused is None:
            return self._whole(charged, charged=True)
        for part in charged:
            self._hand_back(part.take_back())
        if refused.ban is not None:
            return self._whole([refused])
        parts = await self._ask_all(LOOK)
        parts[len(charged)] = refused
        denied = [(uncounted(bucket), key, cost) for bucket, key, cost in self._checks if bucket.count_denied]
        if denied and not any(part.reason in (Reason.TOO_LARGE, Reason.BANNED) for part in parts):
            await asyncio.gather(*(self._ask(CHARGE, [check], ()) for check in denied))
            parts = await self._ask_all(LOOK)
        return self._whole(parts, Reason.LIMITED)

    async def _charge(self, what: int) -> tuple[list[Decision], Decision | None]:
        """Charge one part after another; return the charged parts, and the refused one or None."""
        charged: list[Decision] = []
        for key in self._groups:
            future = self._part(what, key)
            try:
                await asyncio.wait((future,))  # a cancellation here leaves it running: it may already be charged
                part = future.result()
            except BaseException:
                future.add_done_callback(self._undo)
                for before in charged:
                    self._hand_back(before.take_back())
                raise
            if not part.allowed:
                return charged, part
            charged.append(part)
        return charged, None

    def _undo(self, future: asyncio.Future[Decision]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._hand_back(future.result().take_back())

    async def _ask_all(self, what: int) -> list[Decision]:
        return await asyncio.gather(*(self._part(what, key) for key in self._groups))

    def _part(self, what: int, key: str) -> asyncio.Future[Decision]:
        checks = [(uncounted(self._checks[at][0]), *self._checks[at][1:]) for at in self._groups[key]]
        return self._ask(what, checks, () if checks else (key,))

    def _whole(self, parts: Sequence[Decision], least: Reason = Reason.OK, *, charged: bool = False) -> Decision:
        """Merge the decisions on the parts.

        Args:
            parts: The decisions, in the order of the keys.
            least: The reason to use if no part refuses any more.
            charged: Whether the parts stay charged.
        """
        for part in parts:
            if part.ban is not None:
                return refused_by_ban(part.ban, part.now_us, self._checks)
        now_us = parts[0].now_us
        readings: dict[int, list[WindowState]] = {}
        reservations: list[Reservation] = []
        for group, part in zip(self._groups.values(), parts, strict=True):
            ahead_us, first = now_us - part.now_us, 0
            for at in group:
                last = first + len(self._checks[at][0].limits)
                readings[at] = [
                    (spent, leaves_us + ahead_us, newest_us + ahead_us, wait_us)
                    for spent, leaves_us, newest_us, wait_us in part.readings[first:last]
                ]
                first = last
            for reservation in part.reservations if charged else ():
                reservation.index = at = group[reservation.index]
                reservation.check = self._checks[at]
                reservations.append(reservation)
        whole = [reading for at in range(len(self._checks)) for reading in readings[at]]
        reason = _reason([least, *(part.reason for part in parts)], whole)
        reservations.sort(key=lambda reservation: reservation.index)
        return Decision(reason is Reason.OK, reason, now_us, self._checks, whole, reservations)


def _refused(parts: Sequence[Decision]) -> bool:
    return any(part.reason is not Reason.OK for part in parts)


def _reason(reasons: Iterable[Reason], readings: Iterable[WindowState]) -> Reason:
    if all(reason is Reason.OK for reason in reasons):
        return Reason.OK
    return Reason.TOO_LARGE if any(reading[3] == NEVER for reading in readings) else Reason.LIMITED
