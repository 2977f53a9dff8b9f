"""A cache of refusals, which are repeated without asking Redis.

A refused question would be refused again until units expire or are refunded; a banned client, until the ban ends. A
refusal is answered from the cache until then, but for at most `TRUST_US` after Redis was asked: that is the delay with
which a refund or an unban by another worker takes effect. Refunds, resets and charges by this process take effect
immediately: they drop the refusals of their keys, and prevent caching of answers to questions sent before them.

A refusal that counts (`count_denied`) is answered from the cache for `PAUSE_S`, and then the refusals given in that
time are charged together: a flood by one client costs ten commands a second for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ...core.bans.ban import BanSubject
from ...core.decision import Check, Decision, Reason, refused_by_ban, refused_later
from ...core.memo import MEMO_SIZE, remember
from .clock import StoreTime
from .strikes import PAUSE_S

TRUST_US: Final = 1_000_000
"""The longest time that a cached refusal is valid."""
_PAUSE_US: Final = int(PAUSE_S * 1_000_000)


class CachedRefusal:
    """A cached refusal, when it expires, and how often it was given.

    Args:
        decision: The refusal. Its time is the server's, at some moment between sending and receipt.
        between_us: When the question was sent and when the answer came, by the cache's clock.
        lasts_us: How long the refusal itself would last.
        counts: Whether refusals are charged.
    """

    __slots__ = ("_received_us", "_sent_us", "amounts", "counts", "decision", "ends_us", "given", "reset")

    def __init__(self, decision: Decision, between_us: tuple[int, int], lasts_us: int, *, counts: bool = False) -> None:
        self.decision = decision
        self._sent_us, self._received_us = between_us
        self.counts = counts
        self.ends_us = self._sent_us + min(lasts_us, TRUST_US)
        if counts:
            self.ends_us = min(self.ends_us, self._received_us + _PAUSE_US)
        self.given = 0
        self.amounts = _amounts(decision.checks)  # of the limits when it was cached; an operator may change them
        self.reset: set[str] = set()  # the keys that were reset since it was cached

    def lasts(self, at_us: int) -> bool:
        """Return whether the refusal is valid at a time of the cache's clock."""
        return self._sent_us <= at_us < self.ends_us

    def now_us(self, at_us: int) -> int:
        """Return the server's time at a time of the cache's clock; it may be slightly too early."""
        return self.decision.now_us + max(at_us - self._received_us, 0)


class RefusalCache:
    """The cached refusals; bounded, and emptied when full.

    The threads of all event loops share it without a lock, so loops iterate over copies.

    Args:
        charge: Charges checks whatever their limits, for refusals that count.
        time: The store's clock. With a test clock, refusals that count are not cached.

    Attributes:
        bans: The refusals by bans, by banned keys and addresses.
        known: The refusals by limits, by question.
        changes: A counter of the refunds, resets and charges that this process has sent, and of their answers.
    """

    def __init__(self, charge: Callable[[Sequence[Check]], object], time: StoreTime) -> None:
        self._charge = charge
        self._is_real = time.is_real
        self._clock = time.local_us
        self.bans: dict[str, CachedRefusal] = {}
        self.known: dict[Sequence[Check], CachedRefusal] = {}
        self.changes = 0
        self._about: dict[str, set[Sequence[Check]]] = {}  # the questions about a key
        self._changed: dict[str, int] = {}  # the value of `changes` at a key's last change
        self._all_changed = 0  # the same for all keys that are not in `_changed`

    def learn(self, decision: Decision, sent_us: int, changes: int, *, lasts: bool) -> None:
        """Cache the answer to a hit if it is a refusal that lasts; an admission drops the refusals of its keys.

        Args:
            decision: The answer.
            sent_us: When the hit was sent (monotonic).
            changes: The value of `changes` when the hit was sent.
            lasts: Whether it lasts until units expire; a refusal for lack of a permit does not.
        """
        checks = tuple(decision.checks)
        if decision.reason is not Reason.LIMITED:
            if decision.allowed:
                self.forget(checks)
            return
        counts = any(bucket.count_denied for bucket, _, _ in checks)
        if counts:
            self.forget(checks)  # the charge may have changed the answers to other questions
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
        """Return the cached refusal of a question; None if there is none."""
        checks = tuple(checks)
        known, at_us = self.known.get(checks), self._clock()
        if known is None or not known.lasts(at_us) or known.amounts != _amounts(checks):
            return None
        known.given += 1
        if known.counts and known.given == 1:
            left_s = (known.ends_us - at_us) / 1_000_000
            asyncio.get_running_loop().call_later(left_s, self._count, checks, known)
        before, now_us = known.decision, known.now_us(at_us)
        return refused_later(before.readings, before.now_us, now_us, checks)

    def forget(self, checks: Sequence[Check]) -> None:
        """Drop the refusals of all keys of a question."""
        for _, key, _ in checks if self.known else ():
            self._forget_key(key)

    def change(self, checks: Sequence[Check]) -> None:
        """Drop the refusals, cached or in flight, of keys whose units are refunded or charged."""
        for _, key, _ in checks:
            self._note(key)
            self._forget_key(key)

    def change_key(self, key: str) -> None:
        """Drop the refusals of a key whose windows are reset, and their unsent charges."""
        self._note(key)
        for checks in [*self._about.get(key, ())]:
            if (known := self.known.get(checks)) is not None:
                known.reset.add(key)
        self._forget_key(key)

    def change_all(self) -> None:
        """Drop all refusals and their unsent charges, because the windows of all keys are reset."""
        for known in [*self.known.values()]:
            known.reset.update(key for _, key, _ in known.decision.checks)
        self._clear_windows()

    def clear(self) -> None:
        """Drop everything."""
        self._clear_windows()
        self.bans.clear()

    def learn_ban(self, subjects: Sequence[BanSubject], refusal: Decision, sent_us: int, changes: int) -> None:
        """Cache the refusal of keys and addresses by a ban, unless this process has lifted one since; see `learn`."""
        if self._all_changed > changes:
            return
        lasts_us = TRUST_US if refusal.retry_after_us is None else refusal.retry_after_us
        remember(self.bans, repr(subjects), CachedRefusal(refusal, self._between(refusal, sent_us), lasts_us))

    def banned(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the cached refusal by a ban; None if there is none."""
        known, at_us = self.bans.get(repr(subjects)), self._clock()
        if known is None or known.decision.ban is None or not known.lasts(at_us):
            return None
        return refused_by_ban(known.decision.ban, known.now_us(at_us), checks)

    def _between(self, decision: Decision, sent_us: int) -> tuple[int, int]:
        """Return when an answer that came now was asked for and received, by the cache's clock."""
        return (sent_us, self._clock()) if self._is_real else (decision.now_us, decision.now_us)

    def _note(self, key: str) -> None:
        if len(self._changed) >= MEMO_SIZE:
            self._changed.clear()
            self._all_changed = self.changes
        self.changes += 1
        self._changed[key] = self.changes

    def _have_changed(self, checks: Sequence[Check], changes: int) -> bool:
        """Return whether units of a question were refunded, reset or charged since `changes` had a value."""
        return max(self._all_changed, *(self._changed.get(key, 0) for _, key, _ in checks)) > changes

    def _forget_key(self, key: str) -> None:
        for checks in [*self._about.pop(key, ())]:
            self.known.pop(checks, None)

    def _clear_windows(self) -> None:
        self.changes += 1
        self._all_changed = self.changes
        self.known.clear()
        self._about.clear()

    def _count(self, checks: Sequence[Check], known: CachedRefusal) -> None:
        if self.known.get(checks) is known:
            self.known.pop(checks, None)
        due = [check for check in checks if check[0].count_denied and check[1] not in known.reset]
        if due:
            self._charge([(bucket, key, cost * known.given) for bucket, key, cost in due])


def _amounts(checks: Sequence[Check]) -> list[int]:
    return [limit.amount for bucket, _, _ in checks for limit in bucket.limits]
