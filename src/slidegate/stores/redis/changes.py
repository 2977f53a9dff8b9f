"""What a worker has changed, which ends the answers of Redis that it keeps.

A worker keeps refusals, see `refusals`, and leases, see `unit_leases`. What it changes itself takes effect at once: it
uses no answer that was *asked for* before a change of what the answer is about. It uses none about amounts that an
operator has changed since the answer came; one that was on its way then, like all that others change, may be used until
it ends, at most `TRUST_US` after it was asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from ...core.buckets import Check
from ...core.decision import Decision
from ...core.memo import MEMO_SIZE
from .requests import Question

TRUST_US: Final = 1_000_000
"""The longest time for which an answer is used, and how old the last poll may be when a lease is spent."""


class Moments:
    """When something last happened to what has a name, by the monotonic clock. All threads share it without a lock.

    Attributes:
        last_ns: When it last happened to anything.
    """

    def __init__(self) -> None:
        self.last_ns = 0
        self._all_ns = 0
        self._by_name: dict[Hashable, int] = {}

    def note(self, names: Iterable[Hashable] | None = None) -> None:
        """Note that it happens now, by default to everything."""
        self.last_ns = now_ns = monotonic_ns()
        # Too many names are noted as everything.
        if names is None or len(self._by_name) > MEMO_SIZE:
            self._all_ns = now_ns
            self._by_name = {}
            self._all_ns = monotonic_ns()  # again: what another thread noted meanwhile is in the old dict
        for name in names or ():
            self._by_name[name] = monotonic_ns()  # again: another thread may have noted it later than this began

    def since(self, since_ns: int, names: Iterable[Hashable]) -> bool:
        """Return whether it has happened since then to one of some names."""
        by_name = self._by_name
        return self._all_ns >= since_ns or any(by_name.get(name, 0) >= since_ns for name in names)


class Changes(Moments):
    """The changes of a process: of windows, see `windows_of`, and of bans, by their key.

    Attributes:
        losses: Where Redis may have lost units, by window or key.
        polled_until_ns: Until when the bans of networks are as they were polled (monotonic).
    """

    def __init__(self) -> None:
        super().__init__()
        self.losses = Moments()
        self.polled_until_ns = 0

    def note_loss(self, key: str | None = None, names: Iterable[str] = ()) -> None:
        """Note that Redis may have lost units; no answer of any kind is used from before now.

        Args:
            key: Whose units; by default those of all keys.
            names: Under which buckets; by default all.
        """
        self.note()
        if key is None:
            self.losses.note()
        else:
            self.losses.note([(name, key) for name in names] or [key])


@dataclass(slots=True, eq=False)
class KeptAnswer:
    """An answer of Redis about a question.

    Attributes:
        decision: The decision.
        sent_ns: When it was asked for (monotonic).
        until_us: Until when it is used, by the local clock of the store.
        amounts: The amounts of its limits; an operator may change them.
        windows: The windows whose changes end it; changes of bans of the question's keys and addresses end it, too.
    """

    decision: Decision
    sent_ns: int
    until_us: int
    amounts: Sequence[int]
    windows: Sequence[Hashable]

    def holds(self, question: Question, now_us: int, changes: Changes) -> bool:
        """Return whether it may still be used for a question, which is the same but perhaps of another client."""
        # None lasts longer: else the clock of a test was set back, which moves windows.
        if not 0 < self.until_us - now_us <= TRUST_US or self.amounts != amounts_of(question.checks):
            return False
        if changes.last_ns < self.sent_ns:  # as most often
            return True
        return not changes.since(self.sent_ns, (*question.refusing, *self.windows))


def windows_of(checks: Iterable[Check]) -> list[tuple[str, str]]:
    """Return the names of the windows of a question."""
    return [(bucket.name, key) for bucket, key, _ in checks]


def amounts_of(checks: Sequence[Check]) -> list[int]:
    """Return the amounts of all limits."""
    return [limit.amount for bucket, _, _ in checks for limit in bucket.limits]
