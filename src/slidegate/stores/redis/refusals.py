"""Refusals that are given here, without asking Redis.

A question that was refused is refused again until something leaves its windows, or is handed back; a client that was
banned, until the ban ends. A refusal is given from here until then, and for `TRUST_US` after Redis was asked at most: a
refund or an unban by another worker is known after that time. What this process hands back, resets or charges is known
at once: it forgets the refusals that name its keys, and remembers none that was asked for before Redis had answered.

A refusal that counts (`count_denied`) is given from here for `PAUSE_S`, and how often it was is charged then: a flood
of one client costs ten commands a second for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ...core.bans.ban import BanSubject
from ...core.decision import BanRefusal, Check, Decision, Reason, refused_later
from ...core.memo import MEMO_SIZE, remember
from .clock import StoreTime
from .strikes import PAUSE_S

TRUST_US: Final = 1_000_000
"""How long what Redis has said holds here."""
_PAUSE_US: Final = int(PAUSE_S * 1_000_000)


class CachedRefusal:
    """A remembered refusal, until when it is given, and how often it was given from here.

    Args:
        decision: The refusal. Its time is that of the server, somewhere between the sending and the receipt here.
        between_us: When it was asked for, and when it came, by the clock of the cache.
        lasts_us: How long it lasts by itself.
        counts: Whether refusals are charged.
    """

    __slots__ = ("_received_us", "_sent_us", "counts", "decision", "ends_us", "given", "reset")

    def __init__(self, decision: Decision, between_us: tuple[int, int], lasts_us: int, *, counts: bool = False) -> None:
        self.decision = decision
        self._sent_us, self._received_us = between_us
        self.counts = counts
        self.ends_us = self._sent_us + min(lasts_us, TRUST_US)
        if counts:
            self.ends_us = min(self.ends_us, self._received_us + _PAUSE_US)
        self.given = 0
        self.reset: set[str] = set()  # the keys whose windows were forgotten meanwhile

    def lasts(self, at_us: int) -> bool:
        """Return whether Redis would give it again, as far as is known here."""
        return self._sent_us <= at_us < self.ends_us

    def now_us(self, at_us: int) -> int:
        """Return the server's time at a moment of the clock of the cache, or somewhat less."""
        return self.decision.now_us + max(at_us - self._received_us, 0)


class RefusalCache:
    """The refusals that are known to last; bounded, and emptied when full.

    Args:
        charge: Charges checks whatever their limits, for refusals that count.
        time: The time; by that of a test, refusals that count are not given from here.

    Attributes:
        bans: The refusals by bans, by the keys and addresses that were banned.
        known: The refusals by limits, by their questions.
        changes: How many refunds, resets and charges this process has sent, and had answered.
        latest_us: The latest time of a server that this process has seen, or worked out.
    """

    def __init__(self, charge: Callable[[Sequence[Check]], object], time: StoreTime) -> None:
        self._charge = charge
        self._is_real = time.is_real
        self._clock = time.local_us
        self.bans: dict[str, CachedRefusal] = {}
        self.known: dict[Sequence[Check], CachedRefusal] = {}
        self.changes = 0
        self.latest_us = 0
        self._about: dict[str, set[Sequence[Check]]] = {}  # the questions that name a key
        self._changed: dict[str, int] = {}  # the number of the last change of a key
        self._all_changed = 0  # the number of the last change of a key that is not among them

    def learn(self, decision: Decision, sent_us: int, changes: int, *, lasts: bool) -> None:
        """Remember the answer to a hit where it is a refusal that `lasts`; one for want of a permit does not.

        Args:
            decision: The answer.
            sent_us: When it was asked for (monotonic).
            changes: What `changes` was when the hit was asked for.
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
        if not lasts or (counts and not self._is_real) or self._have_changed(checks, changes):
            return
        if max(len(self.known), len(self._about)) >= MEMO_SIZE:
            self.known.clear()
            self._about.clear()
        leaves_us = min(reading[1] for reading in decision.readings if reading[0] and reading[1])  # no permits
        lasts_us = leaves_us - decision.now_us
        self.known[checks] = CachedRefusal(decision, self._between(decision, sent_us), lasts_us, counts=counts)
        for _, key, _ in checks:
            self._about.setdefault(key, set()).add(checks)

    def answer(self, checks: Sequence[Check]) -> Decision | None:
        """Return the refusal of a question that is known to last."""
        checks = tuple(checks)
        known, at_us = self.known.get(checks), self._clock()
        if known is None or not known.lasts(at_us):
            return None
        known.given += 1
        if known.counts and known.given == 1:
            left_s = (known.ends_us - at_us) / 1_000_000
            asyncio.get_running_loop().call_later(left_s, self._count, checks, known)
        before, now_us = known.decision, known.now_us(at_us)
        self.saw(now_us)
        return refused_later(before.readings, before.now_us, now_us, checks)

    def saw(self, now_us: int) -> None:
        """Note the time of a server."""
        if now_us > self.latest_us:
            self.latest_us = now_us

    def forget(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key of a question."""
        for _, key, _ in checks if self.known else ():
            self._forget_key(key)

    def change(self, checks: Sequence[Check]) -> None:
        """Forget the refusals that name a key whose units are handed back or charged, also those on their way."""
        for _, key, _ in checks:
            self._note(key)
            self._forget_key(key)

    def change_key(self, key: str) -> None:
        """Forget the refusals of a key whose windows are reset, and their charges that were not sent yet."""
        self._note(key)
        for checks in self._about.get(key, ()):
            if checks in self.known:
                self.known[checks].reset.add(key)
        self._forget_key(key)

    def change_all(self) -> None:
        """Forget all refusals and their unsent charges, because the windows of all keys are reset."""
        for known in self.known.values():
            known.reset.update(key for _, key, _ in known.decision.checks)
        self._clear_windows()

    def clear(self) -> None:
        """Forget everything."""
        self._clear_windows()
        self.bans.clear()

    def learn_ban(self, subjects: Sequence[BanSubject], refusal: BanRefusal, sent_us: int, changes: int) -> None:
        """Remember a refusal of keys and addresses by a ban, unless this process has lifted one since; see `learn`."""
        if self._all_changed > changes:
            return
        lasts_us = TRUST_US if refusal.retry_after_us is None else refusal.retry_after_us
        remember(self.bans, repr(subjects), CachedRefusal(refusal, self._between(refusal, sent_us), lasts_us))

    def banned(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> BanRefusal | None:
        """Return the refusal by a ban that is known to last."""
        known, at_us = self.bans.get(repr(subjects)), self._clock()
        if known is None or not known.lasts(at_us):
            return None
        return BanRefusal(known.decision.by, known.decision.ban, known.now_us(at_us), checks)

    def _between(self, decision: Decision, sent_us: int) -> tuple[int, int]:
        """Return when a question was asked that is answered now, by the clock of this cache."""
        return (sent_us, self._clock()) if self._is_real else (decision.now_us, decision.now_us)

    def _note(self, key: str) -> None:
        if len(self._changed) >= MEMO_SIZE:
            self._changed.clear()
            self._all_changed = self.changes
        self.changes += 1
        self._changed[key] = self.changes

    def _have_changed(self, checks: Sequence[Check], changes: int) -> bool:
        """Return whether units of a question were refunded, reset or charged since a number of changes."""
        return max(self._all_changed, *(self._changed.get(key, 0) for _, key, _ in checks)) > changes

    def _forget_key(self, key: str) -> None:
        for checks in self._about.pop(key, ()):
            self.known.pop(checks, None)

    def _clear_windows(self) -> None:
        self.changes += 1
        self._all_changed = self.changes
        self.known.clear()
        self._about.clear()

    def _count(self, checks: Sequence[Check], known: CachedRefusal) -> None:
        if self.known.get(checks) is known:
            del self.known[checks]
        due = [check for check in checks if check[0].count_denied and check[1] not in known.reset]
        if due:
            self._charge([(bucket, key, cost * known.given) for bucket, key, cost in due])
