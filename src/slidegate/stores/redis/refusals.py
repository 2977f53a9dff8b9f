"""The known refusals, which are repeated without asking Redis.

A refused question would be refused again until units expire or are refunded; a banned client, until the ban ends. A
refusal is repeated until then, but for at most `TRUST_US` after Redis was asked: that is the delay with which a refund
or an unban by another worker takes effect. What this process changes takes effect immediately: a refusal that was asked
for before its windows changed, or before one of its keys was banned, is not repeated.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from time import monotonic_ns
from typing import Final, NamedTuple

from ...core.bans.ban import BanSubject
from ...core.buckets import Check
from ...core.decision import Decision, Reason, refused_by_ban, refused_later
from ...core.memo import MEMO_SIZE, remember
from .clock import StoreTime

TRUST_US: Final = 1_000_000
"""The longest time that a refusal is repeated."""


class KnownRefusal(NamedTuple):
    """A refusal of Redis.

    Attributes:
        decision: The refusal.
        sent_ns: When the question was sent (monotonic).
        came_us: When it came, by the local clock of the store.
        ends_us: Until when it is repeated, by the same clock.
        amounts: The amounts of its limits; an operator may change them.
    """

    decision: Decision
    sent_ns: int
    came_us: int
    ends_us: int
    amounts: Sequence[int]


class Refusals:
    """The refusals that a process knows, in bounded memory. The threads of all event loops share them without a lock.

    Args:
        time: The clock of the store.
    """

    def __init__(self, time: StoreTime) -> None:
        self._time = time
        self.cache: dict[Hashable, KnownRefusal] = {}  # by question; those by bans by keys and addresses
        # When this process last changed a window, by bucket and key, or banned a key.
        self._changed_ns: dict[Hashable, int] = {}
        self._all_changed_ns = 0  # the same of all that are not in it
        self.changes = 0
        """How often a key has changed, or all."""
        self._latest_us = 0  # by the local clock of the store, which steps back in tests alone

    def find(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the known refusal of a question; None if there is none.

        Args:
            checks: The question.
            subjects: The keys and addresses whose bans refuse it.
        """
        now_us = self._time.local_us()
        if now_us < self._latest_us and not self._time.is_real:  # a test has set its clock back, which moves windows
            self.invalidate_all()
        self._latest_us = now_us
        found = self._of(tuple(subjects), subjects, now_us)
        if found is not None and found.decision.ban is not None:
            return refused_by_ban(found.decision.ban, self._now_us(found), checks)
        found = self._of(tuple(checks), chain(subjects, _windows(checks)), now_us)
        if found is None or found.amounts != amounts_of(checks):
            return None
        return refused_later(found.decision.readings, found.decision.now_us, self._now_us(found), checks)

    def record(self, decision: Decision, sent_ns: int, subjects: Sequence[BanSubject]) -> None:
        """Remember a refusal, unless this process has changed its windows or bans since it was asked for.

        Args:
            decision: The refusal: by a ban, or by limits until units leave.
            sent_ns: When the question was sent (monotonic).
            subjects: The keys and addresses whose bans refuse the question.
        """
        subject: Hashable = tuple(subjects)
        changes: list[Hashable] = [*subjects]
        amounts: list[int] = []
        lasts_us = TRUST_US
        if decision.reason is not Reason.BANNED:  # until units leave
            checks = tuple(decision.checks)
            subject, amounts = checks, amounts_of(checks)
            changes += _windows(checks)
            for spent, leaves_us, _, _ in decision.readings:
                if spent and leaves_us:  # permits leave at no known time
                    lasts_us = min(lasts_us, leaves_us - decision.now_us)
        elif decision.retry_after_us is not None:  # until the ban ends
            lasts_us = min(lasts_us, decision.retry_after_us)
        if self.has_changed(changes, sent_ns):
            return
        sent_us, came_us = self._time.sent_us(sent_ns), self._time.local_us()
        self._latest_us = came_us
        remember(self.cache, subject, KnownRefusal(decision, sent_ns, came_us, sent_us + lasts_us, amounts))

    def invalidate(self, checks: Iterable[Check]) -> None:
        """Repeat no refusal of windows that change now, also none that is still on its way."""
        now_ns, changed_ns = monotonic_ns(), self._changed_ns
        for bucket, key, _ in checks:
            changed_ns[bucket.name, key] = now_ns
        if len(changed_ns) > MEMO_SIZE:
            self.invalidate_all()  # as if all had changed now; the same below

    def invalidate_key(self, key: str) -> None:
        """Repeat no refusal of a key that is banned now, because the ban may last longer; leases of it end."""
        self.changes += 1
        self._changed_ns[key] = monotonic_ns()
        if len(self._changed_ns) > MEMO_SIZE:
            self.invalidate_all()

    def invalidate_all(self) -> None:
        """Repeat no refusal that was asked for before now; leases end."""
        self.changes += 1
        self._all_changed_ns = monotonic_ns()
        self._changed_ns.clear()
        self.cache.clear()

    def _of(self, subject: Hashable, changes: Iterable[Hashable], now_us: int) -> KnownRefusal | None:
        """Return what is known of a question, or of keys and addresses; None if it has ended or may have changed."""
        found = self.cache.get(subject)
        if found is None or not found.came_us <= now_us < found.ends_us or self.has_changed(changes, found.sent_ns):
            return None
        return found

    def _now_us(self, known: KnownRefusal) -> int:
        """Return the server's time, counted from that of a refusal; it may be slightly too early."""
        return known.decision.now_us + max(self._time.local_us() - known.came_us, 0)

    def has_changed(self, changes: Iterable[Hashable], since_ns: int) -> bool:
        """Return whether any of some windows, keys and addresses has changed, or all, since then (monotonic)."""
        changed_ns = self._changed_ns
        return self._all_changed_ns >= since_ns or any(changed_ns.get(change, 0) >= since_ns for change in changes)


def _windows(checks: Iterable[Check]) -> Iterator[tuple[str, str]]:
    return ((bucket.name, key) for bucket, key, _ in checks)


def amounts_of(checks: Sequence[Check]) -> list[int]:
    """Return the amounts of all limits."""
    return [limit.amount for bucket, _, _ in checks for limit in bucket.limits]
