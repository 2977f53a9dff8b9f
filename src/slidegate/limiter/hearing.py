"""Asks for news beside questions, and holds the answers of a worker that was idle until they have come; see `news`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeAlias

from ..core.bans.ban import Ban, BanSubject
from ..core.buckets import Check
from ..core.decision import Decision
from ..core.reservation import Reservation
from ..stores.system_clock import SystemClock
from .aio import answer_of, on_asyncio, wait_for_end
from .failover import Failover
from .news import Age, News, Running

Hit: TypeAlias = Callable[[Sequence[Check], Sequence[BanSubject]], Decision | Awaitable[Decision]]
"""A function that charges every check or none, as `Store.hit` does, or that says what this would answer."""
FindBan: TypeAlias = Callable[[Sequence[BanSubject]], Ban | Awaitable[Ban | None] | None]
"""A function that returns the ban that refuses some subjects, as `BanStore.find` does."""


class Hearing:
    """What a question does about news.

    Args:
        news: The news of this worker.
        clock: The clock of the limiter.
        failover: Queries the store; None for one that cannot fail.
        refund: Hands back what a decision has charged.
        deadline_s: How long a question and its news may take together.
        answers_threads: Whether the store answers threads without an event loop.

    Attributes:
        question: Asks the store, or what stands in its place while limits are off; `Engine.rebuild` sets it.
        ban_question: Asks it for a ban; set there, too.
    """

    def __init__(
        self,
        news: News,
        clock: SystemClock,
        failover: Failover | None,
        refund: Callable[[Sequence[Reservation]], Awaitable[bool]],
        deadline_s: float,
        *,
        answers_threads: bool,
    ) -> None:
        self.question: Hit
        self.ban_question: FindBan
        self._news = news
        self._clock = clock
        self._failover = failover
        self._refund = refund
        self._deadline_s = deadline_s
        self._answers_threads = answers_threads

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | Awaitable[Decision]:
        """Answer a question, and ask for news in the same call if they are not fresh.

        Args:
            checks: The question.
            subjects: Further keys and addresses whose bans refuse it.
        """
        if self._clock.monotonic_ns() < self._news.fresh_until_ns:
            return self.question(checks, subjects)
        age, reading = self._news.age(), self._begin()
        if reading is None or age is not Age.OLD:
            return self.question(checks, subjects)
        return self._hit_and_hold(reading, checks, subjects)

    async def _hit_and_hold(
        self, reading: Running, checks: Sequence[Check], subjects: Sequence[BanSubject]
    ) -> Decision:
        """Answer when the news have come, too; anew, if they change anything.

        What is asked anew has the whole deadline again; a refusal that counts (`count_denied`) is counted twice then.
        """
        until_s, version = monotonic() + self._deadline_s, self._news.version
        decision = await answer_of(self.question(checks, subjects))
        try:
            await wait_for_end(reading, until_s)
        except asyncio.CancelledError:
            await self._refund(decision.begin_refund())
            raise
        if self._news.version == version:
            return decision
        await self._refund(decision.begin_refund())
        return await answer_of(self.question(checks, subjects))

    def find_ban(self, subjects: Sequence[BanSubject]) -> Ban | Awaitable[Ban | None] | None:
        """Return the ban that refuses an exempt request; none if the news say that limits are off."""
        age = self._news.age()
        if age is not Age.FRESH:
            reading = self._begin()
            if reading is not None and age is Age.OLD:
                return self._find_and_hold(reading, subjects)
        return self.ban_question(subjects)

    async def _find_and_hold(self, reading: Running, subjects: Sequence[BanSubject]) -> Ban | None:
        until_s, version = monotonic() + self._deadline_s, self._news.version
        ban = await answer_of(self.ban_question(subjects))
        await wait_for_end(reading, until_s)
        if self._news.version == version:
            return ban
        return await answer_of(self.ban_question(subjects))

    def ask(self) -> None:
        """Ask for news unless they are fresh, and wait for nothing."""
        if self._news.may_come and self._news.age() is not Age.FRESH:
            self._begin()

    async def hear(self) -> None:
        """Take in the news if they are old."""
        if self._news.age() is Age.OLD:
            reading = self._begin()
            if reading is not None:
                await wait_for_end(reading, monotonic() + self._deadline_s)

    def _begin(self) -> Running | None:
        """Ask for news; return what reads them, or None if they are here, or cannot come now."""
        if self._failover is not None and self._failover.breaker.is_open:
            self._news.put_off()
            return None
        if on_asyncio():
            return self._news.ask()
        if self._answers_threads:
            self._news.ask_in_thread(self._deadline_s)
        return None
