"""Refusals that are given here, without asking Redis.

A question that was refused is refused again until something leaves its windows, or is handed back; a client that was
banned, until the ban ends. Both moments are known to the microsecond. Hand-backs, resets and changes of bans are
numbered in Redis, and answers carry the number: where it has changed, everything here is forgotten. So a refusal is
given from here as long as Redis was heard less than `TRUST_S` ago, and a refund or an unban by one worker is known to
all after that time at the latest. Charges and refunds of this process are known at once: a refusal whose request was
sent before a hand-back of this process is not remembered, though its answer may come while the hand-back is still on
its way.

A refusal that counts (`count_denied`) is given from here for `PAUSE_S`, and how often it was is charged then: a flood
of one client costs ten commands a second for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic, monotonic_ns
from typing import Final

from ...core.bans.ban import Ban, BanSubject
from ...core.decision import BanRefusal, Check, Decision, Reason, refused_later
from ...core.memo import MEMO_SIZE, remember
from ...core.store import Clock
from .strikes import PAUSE_S

TRUST_S: Final = 1.0
"""How long what Redis has said holds here."""


class CachedRefusal:
    """A remembered refusal: its readings, until when nothing leaves by itself, and how often it was given from here.

    Args:
        decision: The refusal. Its time is that of the server, somewhere between the sending and the receipt here.
        clock: Tells how much time has passed.
        between_us: When it was asked for, and when it came, by that clock.
        counts: Whether refusals are charged.
    """

    __slots__ = ("_clock", "_received_us", "_sent_us", "counts", "decision", "given", "next_s", "reset", "until_us")

    def __init__(self, decision: Decision, clock: Clock, between_us: tuple[int, int], *, counts: bool) -> None:
        self.decision = decision
        self._clock = clock
        self._sent_us, self._received_us = between_us
        self.until_us = min(reading[1] for reading in decision.readings if reading[0] and reading[1])  # no places
        self.counts = counts
        self.given = 0
        self.reset: set[str] = set()  # the keys whose windows were forgotten meanwhile
        self.next_s = monotonic() + PAUSE_S if counts else float("inf")

    def lasts(self) -> bool:
        """Return whether Redis would give it again now."""
        elapsed_us = self._clock() - self._sent_us
        return elapsed_us >= 0 and self.decision.now_us + elapsed_us < self.until_us and monotonic() < self.next_s

    def again(self, checks: Sequence[Check]) -> Decision:
        """Return it as it is now."""
        before_us = self.decision.now_us
        now_us = before_us + max(self._clock() - self._received_us, 0)
        return refused_later(self.decision.readings, before_us, now_us, checks)


class CachedBan:
    """A remembered ban: the moment when it was found in force, in its own time and in that of a clock here."""

    __slots__ = ("_at_us", "_ban", "_clock", "_now_us")

    def __init__(self, ban: Ban, now_us: int, clock: Clock) -> None:
        self._ban = ban
        self._now_us = now_us
        self._clock = clock
        self._at_us = clock()

    def again(self, checks: Sequence[Check]) -> BanRefusal | None:
        """Return the refusal as it is now; None where the ban is over, or the clock was set back."""
        elapsed_us = self._clock() - self._at_us
        ban, now_us = self._ban, self._now_us + elapsed_us
        return None if elapsed_us < 0 or ban.is_over(now_us) else BanRefusal(ban.by, ban, now_us, checks)


class RefusalCache:
    """The refusals that are known to last; bounded, and emptied when full.

    Args:
        charge: Charges checks whatever their limits, for refusals that count.
        clock: The clock of a test; refusals that count are then not given from here.

    Attributes:
        bans: The bans by which requests were refused, by the keys and addresses of these.
        outdated: How many refunds, resets and charges this process has sent.
        latest_us: The latest time of a server that this process has seen, or worked out.
    """

    def __init__(self, charge: Callable[[Sequence[Check]], object], clock: Clock | None) -> None:
        self._charge = charge
        self._is_real = clock is None
        self._clock = clock or monotonic_us
        self.bans: dict[str, CachedBan] = {}
        self.known: dict[Sequence[Check], CachedRefusal] = {}
        self.outdated = 0
        self.latest_us = 0
        self._about: dict[str, set[Sequence[Check]]] = {}  # the questions that name a key
        self._state = b""
        self._heard_s = float("-inf")
        self._passed_s: dict[str, float] = {}

    def learn(self, decision: Decision, sent_us: int, outdated: int, *, lasts: bool) -> None:
        """Remember the answer to a hit where it is a refusal that `lasts`.

        One for want of a place may not, nor one because units are kept for those who wait.

        Args:
            decision: The answer.
            sent_us: When it was asked for (monotonic).
            outdated: How many refunds, resets and charges had been sent when the hit was asked for.
            lasts: Whether it lasts until something leaves the windows.
        """
        checks = tuple(decision.checks)
        if decision.reason is not Reason.LIMITED:
            if decision.allowed:
                self.forget(checks)
            return
        counts = any(bucket.count_denied for bucket, _, _ in checks)
        if counts:
            self.forget(checks)  # the charge has changed what other questions see
        if outdated != self.outdated:
            return
        if not lasts or (counts and not self._is_real):
            return
        if max(len(self.known), len(self._about)) >= MEMO_SIZE:
            self._clear_windows()
        # The time in an answer is that of a test's clock, or of one that goes on like the one here.
        between_us = (sent_us, self._clock()) if self._is_real else (decision.now_us, decision.now_us)
        self.known[checks] = CachedRefusal(decision, self._clock, between_us, counts=counts)
        for _, key, _ in checks:
            self._about.setdefault(key, set()).add(checks)

    def answer(self, checks: Sequence[Check]) -> Decision | None:
        """Return the refusal of a question that is known to last."""
        checks = tuple(checks)
        known = self.known.get(checks)
        if known is None:
            return None
        if self.age_s() >= TRUST_S or not known.lasts():
            return None
        known.given += 1
        if known.counts and known.given == 1:
            asyncio.get_running_loop().call_later(known.next_s - monotonic(), self._count, checks, known)
        again = known.again(checks)
        self.saw(again.now_us)
        return again

    def saw(self, now_us: int) -> None:
        """Note the time of a server."""
        if now_us > self.latest_us:
            self.latest_us = now_us

    def forget(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key of a question."""
        for _, key, _ in checks if self.known else ():
            self.forget_key(key)

    def forget_key(self, key: str) -> None:
        """Forget the refusals that name a key."""
        for checks in self._about.pop(key, ()):
            self.known.pop(checks, None)

    def outdate(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key whose units are handed back or charged, also those whose answers are to
        come."""
        if checks:
            self.outdated += 1
            self.forget(checks)

    def forget_windows(self, key: str) -> None:
        """Forget the refusals of a key whose windows are reset, and their charges that were not sent yet."""
        self.outdated += 1
        for checks in self._about.get(key, ()):
            if checks in self.known:
                self.known[checks].reset.add(key)
        self.forget_key(key)

    def forget_all_windows(self) -> None:
        """Forget all refusals, because the windows of all keys are reset, and their charges that were not sent yet."""
        self.outdated += 1
        for known in self.known.values():
            known.reset.update(key for _, key, _ in known.decision.checks)
        self._clear_windows()

    def clear(self) -> None:
        """Forget everything."""
        self._clear_windows()
        self.bans.clear()
        self._passed_s.clear()

    def heard(self, state: bytes, sent_s: float) -> None:
        """Record the number of the last change in an answer; `sent_s` is when its call was sent (monotonic)."""
        self._heard_s = max(self._heard_s, sent_s)
        if state != self._state:
            self._state = state
            self.clear()

    def age_s(self) -> float:
        """Return how long ago Redis was asked for what was heard last."""
        return monotonic() - self._heard_s

    # -- bans --------------------------------------------------------------------------------------------------------

    def learn_ban(self, subjects: Sequence[BanSubject], ban: Ban, now_us: int) -> None:
        """Remember a ban that refuses keys and addresses at a moment of its time."""
        remember(self.bans, repr(subjects), CachedBan(ban, now_us, self._clock))

    def banned(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject], *, stale: bool = False
    ) -> BanRefusal | None:
        """Return the refusal by a ban that is known; with `stale` also where Redis was not heard lately."""
        known = self.bans.get(repr(subjects))
        if known is None or (not stale and self.age_s() >= TRUST_S):
            return None
        return known.again(checks)

    def let_pass(self, subjects: Sequence[BanSubject], sent_s: float) -> None:
        """Remember that Redis, asked at a moment (monotonic), has found no ban of keys and addresses."""
        remember(self._passed_s, repr(subjects), sent_s)

    def passes(self, subjects: Sequence[BanSubject]) -> bool:
        """Tell whether no ban of keys and addresses was found lately."""
        return monotonic() - self._passed_s.get(repr(subjects), float("-inf")) < TRUST_S

    def _clear_windows(self) -> None:
        self.known.clear()
        self._about.clear()

    def _count(self, checks: Sequence[Check], known: CachedRefusal) -> None:
        if self.known.get(checks) is known:
            del self.known[checks]
        due = [check for check in checks if check[0].count_denied and check[1] not in known.reset]
        if due:
            self._charge([(bucket, key, cost * known.given) for bucket, key, cost in due])


def monotonic_us() -> int:
    """Return the time of a clock that never runs back, in microseconds."""
    return monotonic_ns() // 1_000
