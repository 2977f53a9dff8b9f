"""Refusals that are given here, without asking Redis.

A demand that was refused is refused again until something leaves its windows, or is handed back. The first is known to
the microsecond. Hand-backs and resets are numbered in Redis, and answers carry the number: where it has changed,
everything here is forgotten. So a refusal is given from here as long as Redis was heard less than `TRUST_S` ago, and a
refund by one worker is known to all after that time at the latest. Charges and refunds of this process are known at
once: a refusal whose request was sent before a hand-back of this process is not remembered, though its answer may come
while the hand-back is still on its way.

A refusal that counts (`count_denied`) is given from here for `PAUSE_S`, and how often it was is charged then: a flood
of one client costs ten commands a second for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from ...core.decision import Check, Decision, Reason, refused_later
from ...core.memo import MEMO_SIZE
from .ban_cache import TRUST_S
from .clock import ServerClock
from .strikes import PAUSE_S


class CachedRefusal:
    """A remembered refusal: its readings, until when nothing leaves by itself, and how often it was given from here."""

    __slots__ = ("clock", "counts", "decision", "given", "next_s", "reset", "steps", "until_us")

    def __init__(self, decision: Decision, clock: ServerClock, *, counts: bool) -> None:
        self.decision = decision
        self.clock = clock
        self.steps = clock.steps
        self.until_us = min(reading[1] for reading in decision.readings if reading[0] and reading[1])  # no places
        self.counts = counts
        self.given = 0
        self.reset: set[str] = set()  # the keys whose windows were forgotten meanwhile
        self.next_s = monotonic() + (PAUSE_S if counts else TRUST_S)

    def lasts(self) -> bool:
        """Return whether Redis would give it again now."""
        latest_us = self.clock.most_us()
        return self.decision.now_us <= latest_us < self.until_us and self.clock.steps == self.steps

    def again(self, checks: Sequence[Check]) -> Decision:
        """Return it as it is now."""
        now_us = max(self.clock.least_us(), self.decision.now_us)
        return refused_later(self.decision.readings, self.decision.now_us, now_us, checks)


class RefusalCache:
    """The refusals that are known to last; bounded, and emptied when full.

    Args:
        charge: Charges checks whatever their limits, for refusals that count; None to give none of these from here.

    Attributes:
        hand_backs: How many refunds and resets this process has sent.
        latest_us: The latest time of a server that this process has seen, or worked out.
    """

    def __init__(self, charge: Callable[[Sequence[Check]], object] | None) -> None:
        self._charge = charge
        self.known: dict[Sequence[Check], CachedRefusal] = {}
        self.hand_backs = 0
        self.latest_us = 0
        self._about: dict[str, set[Sequence[Check]]] = {}  # the demands that name a key
        self._hands = b""
        self._heard_s = float("-inf")

    def learn(self, decision: Decision, clock: ServerClock, hand_backs: int, *, lasts: bool) -> None:
        """Remember the answer to a hit where it is a refusal that `lasts`.

        One for want of a place may not, nor one because units are kept for those who wait.

        Args:
            decision: The answer.
            clock: The clock of the server that gave it.
            hand_backs: How many hand-backs had been sent when the hit was asked for.
            lasts: Whether it lasts until something leaves the windows.
        """
        checks = tuple(decision.checks)
        if decision.reason is not Reason.LIMITED:
            if decision.allowed:
                self.forget(checks)
            return
        counts = any(bucket.count_denied for bucket, _, _ in checks)
        if counts:
            self.forget(checks)  # the charge has changed what other demands see
        if hand_backs != self.hand_backs:
            return
        if not lasts or (counts and self._charge is None):
            return
        if max(len(self.known), len(self._about)) >= MEMO_SIZE:
            self.clear()
        self.known[checks] = CachedRefusal(decision, clock, counts=counts)
        for _, key, _ in checks:
            self._about.setdefault(key, set()).add(checks)

    def answer(self, checks: Sequence[Check]) -> Decision | None:
        """Return the refusal of a demand that is known to last."""
        checks = tuple(checks)
        known = self.known.get(checks)
        if known is None:
            return None
        now_s = monotonic()
        if now_s - self._heard_s >= TRUST_S or not known.lasts() or (known.counts and now_s >= known.next_s):
            return None
        known.given += 1
        if known.counts and known.given == 1:
            asyncio.get_running_loop().call_later(known.next_s - now_s, self._count, checks, known)
        again = known.again(checks)
        self.saw(again.now_us)
        return again

    def saw(self, now_us: int) -> None:
        """Note the time of a server."""
        if now_us > self.latest_us:
            self.latest_us = now_us

    def forget(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key of a demand."""
        for _, key, _ in checks if self.known else ():
            self.forget_key(key)

    def forget_key(self, key: str) -> None:
        """Forget the refusals that name a key."""
        for checks in self._about.pop(key, ()):
            self.known.pop(checks, None)

    def hand_back(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key of a demand that is handed back, also those whose answers are to come."""
        if checks:
            self.hand_backs += 1
            self.forget(checks)

    def forget_windows(self, key: str) -> None:
        """Forget the refusals of a key whose windows are reset, and their charges that were not sent yet."""
        self.hand_backs += 1
        for checks in self._about.get(key, ()):
            if checks in self.known:
                self.known[checks].reset.add(key)
        self.forget_key(key)

    def forget_all_windows(self) -> None:
        """Forget all refusals, because the windows of all keys are reset, and their charges that were not sent yet."""
        self.hand_backs += 1
        for known in self.known.values():
            known.reset.update(key for _, key, _ in known.decision.checks)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.known.clear()
        self._about.clear()

    def heard(self, hands: bytes, sent_s: float) -> None:
        """Record the number of the last hand-back in an answer; `sent_s` is when its call was sent (monotonic)."""
        self._heard_s = max(self._heard_s, sent_s)
        if hands != self._hands:
            self._hands = hands
            self.clear()

    def _count(self, checks: Sequence[Check], known: CachedRefusal) -> None:
        if self.known.get(checks) is known:
            del self.known[checks]
        if self._charge is not None:
            due = [check for check in checks if check[0].count_denied and check[1] not in known.reset]
            if due:
                self._charge([(bucket, key, cost * known.given) for bucket, key, cost in due])
