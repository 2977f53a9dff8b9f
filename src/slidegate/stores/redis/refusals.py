"""The refusals that a worker repeats without asking Redis.

A question that was refused would be refused again until its wait is over, or something happens to a window that had no
room. Those with room, which others may share, do not matter. A banned client is refused until the ban ends, and a cost
above an amount while that amount stays. So a refusal is repeated with the wait that is left, at most for a second: a
client that goes on asking costs Redis a question a second. What it says of windows with room may be as old.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy

from ...core.decision import Decision, refused_by_ban, refused_later
from ...core.memo import remember
from .changes import TRUST_US, Changes, KeptAnswer, amounts_of, windows_of
from .protocol import StoreTime
from .requests import Question


class Refusals:
    """The refusals that a process knows, in bounded memory. All threads share them without a lock.

    Args:
        time: The clock of the store.
        changes: What ends them.

    Attributes:
        known: Those by limits by the checks, for all clients; those by bans by the question, for one client.
    """

    def __init__(self, time: StoreTime, changes: Changes) -> None:
        self._time = time
        self._changes = changes
        self.known: dict[Hashable, KeptAnswer] = {}
        self._last_until_us = 0
        """When the last of them ends."""

    def repeat(self, question: Question) -> Decision | None:
        """Return the refusal of a hit; None if Redis has to be asked."""
        known = self.known.get(question) or self.known.get(question.checks)
        if known is None:
            return None
        now_us = self._time.local_us()
        if not known.holds(question, now_us, self._changes):
            # A ban's: the next hit then finds what its checks have. One by limits is replaced by the next answer.
            self.known.pop(question, None)
            return None
        decision, by_server_us = known.decision, now_us + self._time.ahead_us
        if decision.ban is not None:
            return refused_by_ban(decision.ban, by_server_us, question.checks)
        return refused_later(decision.readings, decision.now_us, by_server_us, question.checks, decision.reason)

    def keep(self, question: Question, decision: Decision, sent_ns: int) -> None:
        """Keep a refusal until its wait is over, at most for a second.

        Args:
            decision: The decision of Redis.
            sent_ns: When it was asked for (monotonic).
        """
        subject: Hashable = question.checks
        if decision.ban is not None:
            subject = question
        lasts_us = TRUST_US
        wait_us = decision.retry_after_us
        if wait_us is not None:  # else it can never pass, or waits for permits, which come back at no known time
            lasts_us = min(lasts_us, wait_us)
        until_us = self._time.sent_us(sent_ns) + lasts_us
        # Where another thread does the same, one may be lost: that costs old numbers for a second.
        self._last_until_us = max(self._last_until_us, until_us)
        # Only what happens to these can end it; a ban's has none.
        windows = [(state.rule, state.key) for state in decision.violated]
        # A copy, because the decision is handed out, and its request may change it.
        known = KeptAnswer(copy(decision), sent_ns, until_us, amounts_of(question.checks), windows)
        remember(self.known, subject, known)

    def end(self, question: Question) -> None:
        """End the refusals by windows of a question that was charged: they have other numbers now."""
        if self._time.local_us() < self._last_until_us:
            self._changes.note(windows_of(question.checks))
