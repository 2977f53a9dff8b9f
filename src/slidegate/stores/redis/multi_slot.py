"""Questions with several keys on a cluster. They lie in different slots, which no script can see together.

All keys are looked at first, at the same time; a question that one of them refuses changes nothing. Otherwise all are
charged, again at the same time. Where one refuses after all, because somebody came between, the others are handed
back, also when the request was given up meanwhile: never more than the limits, though somebody else may be refused by
units that are handed back a moment later. Where a process dies in between, units stay charged for a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from ...core.bans.ban import BanSubject
from ...core.decision import BanRefusal, Check, Decision, Reason
from ...core.reservation import Reservation
from ...core.ring import NEVER, WindowState
from .script import CHARGE, GLANCE, HIT, LOOK

TRIES: Final = 3

Ask: TypeAlias = Callable[[int, Sequence[Check], Sequence[BanSubject]], "asyncio.Future[Decision]"]
HandBack: TypeAlias = Callable[[Sequence[Reservation]], object]


class MultiSlot:
    """A question in parts, one for each key.

    Args:
        checks: The question.
        keys: The keys that it names, and those whose bans refuse it.
        ask: Asks for a part.
        hand_back: Hands a part back, without waiting for it.
    """

    def __init__(self, checks: Sequence[Check], keys: Sequence[str], ask: Ask, hand_back: HandBack) -> None:
        self._checks = checks
        self._ask = ask
        self._hand_back = hand_back
        # The places of the checks of each key; none for a key that is only looked up among the bans.
        self._groups = {key: [at for at, check in enumerate(checks) if check[1] == key] for key in keys}

    async def decide(self, what: int) -> Decision:
        """Return the answer to the whole question.

        Raises:
            StoreError: A part got none; nothing stays charged, as far as Redis can be reached.
        """
        if what == CHARGE:
            return self._whole(await self._ask_all(CHARGE), True)
        parts: list[Decision] = []
        for _ in range(TRIES):
            parts = await self._ask_all(LOOK if what == HIT else GLANCE)
            if any(part.reason is not Reason.OK for part in parts):
                break
            parts = await self._ask_all(what)
            if all(part.allowed for part in parts):
                return self._whole(parts, what == HIT)
            for part in parts:
                self._hand_back(part.take_back())
        else:
            return self._whole(parts, False)
        if what == HIT and all(part.reason is not Reason.TOO_LARGE for part in parts):
            parts = await self._count_denied(parts)
        return self._whole(parts, False)

    async def _count_denied(self, parts: list[Decision]) -> list[Decision]:
        """Charge a refusal where that counts, and look again."""
        denied = [(bucket.uncounted, key, cost) for bucket, key, cost in self._checks if bucket.count_denied]
        if not denied or any(isinstance(part, BanRefusal) for part in parts):
            return parts
        await asyncio.gather(*(self._ask(CHARGE, [check], ()) for check in denied))
        return await self._ask_all(LOOK)

    async def _ask_all(self, what: int) -> list[Decision]:
        futures = []
        for key, group in self._groups.items():
            checks = [(self._checks[at][0].uncounted, *self._checks[at][1:]) for at in group]
            if checks or what != CHARGE:
                futures.append(self._ask(what, checks, () if checks else (key,)))
        try:
            await asyncio.wait(futures)  # and not `gather`: a request that is given up on its way may be charged
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.add_done_callback(self._undo)
            raise

    def _undo(self, future: asyncio.Future[Decision]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._hand_back(future.result().take_back())

    def _whole(self, parts: Sequence[Decision], charged: bool) -> Decision:
        for part in parts:
            if isinstance(part, BanRefusal):
                return BanRefusal(part.by, part.ban, part.now_us, self._checks)
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
        reason = _reason([part.reason for part in parts], whole)
        reservations.sort(key=lambda reservation: reservation.index)
        return Decision(reason is Reason.OK, reason, now_us, self._checks, whole, reservations)


def _reason(reasons: Iterable[Reason], readings: Iterable[WindowState]) -> Reason:
    if all(reason is Reason.OK for reason in reasons):
        return Reason.OK
    return Reason.TOO_LARGE if any(reading[3] == NEVER for reading in readings) else Reason.LIMITED
