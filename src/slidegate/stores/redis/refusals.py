"""The refusals that a worker repeats without asking Redis.

A question that was refused would be refused again until units leave or are refunded, and a banned client until the ban
ends. A cost above an amount never passes while that amount stays. So a refusal is repeated, with the wait that is left:
a client that goes on asking costs Redis a question a second.
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
        known: By the checks of a question; those by bans by the question, which is that of one client.
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
            self.known.pop(question, None)  # if a ban refused it, so that what its checks have is found again
            return None
        decision, by_server_us = known.decision, now_us + self._time.ahead_us
        if decision.ban is not None:
            return refused_by_ban(decision.ban, by_server_us, question.checks)
        return refused_later(decision.readings, decision.now_us, by_server_us, question.checks, decision.reason)

    def keep(self, question: Question, decision: Decision, sent_ns: int) -> None:
        """Keep a refusal, by a ban until its end, or by limits until units leave.

        Args:
            decision: The decision of Redis.
            sent_ns: When it was asked for (monotonic).
        """
        subject: Hashable = question.checks
        lasts_us = TRUST_US
        # It repeats what it says of each window, also of those with room. A refusal by a ban says nothing of them.
        for spent, leaves_us, _, _ in decision.readings:
            if spent and leaves_us:  # permits leave at no known time
                lasts_us = min(lasts_us, leaves_us - decision.now_us)
        if decision.ban is not None:
            subject = question
            if decision.retry_after_us is not None:  # else it is permanent
                lasts_us = min(lasts_us, decision.retry_after_us)
        until_us = self._time.sent_us(sent_ns) + lasts_us
        self._last_until_us = max(self._last_until_us, until_us)
        windows = windows_of(question.checks)
        # A copy, because the decision is handed out, and its request may change it.
        known = KeptAnswer(copy(decision), sent_ns, until_us, amounts_of(question.checks), windows)
        remember(self.known, subject, known)

    def end(self, question: Question) -> None:
        """End the refusals that share windows with a question that was charged: they have other numbers now."""
        if self._time.local_us() < self._last_until_us:
            self._changes.note(windows_of(question.checks))
