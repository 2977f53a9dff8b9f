"""An onlooker of a limiter reads each of its decisions.

The functions that decide are replaced by others that note each decision, as soon as somebody looks on; before that
nothing is in their way. A note costs one place in a queue, and the onlooker reads many of them at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from threading import Lock
from typing import Final, Protocol, TypeAlias

from ...core.bans.in_force import Guarded
from ...core.decision import Check, Decision

AtOnce: TypeAlias = Callable[[Sequence[Check], Sequence[Guarded]], Decision]

MOST_NOTED: Final = 256
"""How many decisions are noted before they are read."""


class Decide(Protocol):
    """A function that charges every check or none, as `Store.hit` does."""

    def __call__(
        self, checks: Sequence[Check], guarded: Sequence[Guarded] = (), *, first_in_line: bool = False
    ) -> Decision | Awaitable[Decision]:
        """Charge every check or none."""


class Notes:
    """Decisions that nobody has read yet.

    Args:
        read: Reads decisions, in their order; one call at a time. It must not raise.
    """

    def __init__(self, read: Callable[[Sequence[Decision]], object]) -> None:
        self._read = read
        self._noted: deque[Decision] = deque()
        self._reading = Lock()

    def __len__(self) -> int:
        return len(self._noted)

    def fold(self) -> None:
        """Read what is noted. Another thread that is reading reads all of it."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            noted = self._noted
            self._read([noted.popleft() for _ in range(len(noted))])
        finally:
            self._reading.release()

    def noting(self, decide: Decide) -> Decide:
        """Return a function that decides as `decide` does, and notes the decision."""
        noted, note = self._noted, self._noted.append

        def decide_and_note(
            checks: Sequence[Check], guarded: Sequence[Guarded] = (), *, first_in_line: bool = False
        ) -> Decision | Awaitable[Decision]:
            answer = decide(checks, guarded, first_in_line=first_in_line)
            if not isinstance(answer, Decision):
                return self._note_later(answer)
            note(answer)
            if len(noted) >= MOST_NOTED:
                self.fold()
            return answer

        return decide_and_note

    def noting_at_once(self, decide: AtOnce) -> AtOnce:
        """Do the same as `noting` for a function that never has to wait."""
        noted, note = self._noted, self._noted.append

        def decide_and_note(checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
            answer = decide(checks, guarded)
            note(answer)
            if len(noted) >= MOST_NOTED:
                self.fold()
            return answer

        return decide_and_note

    async def _note_later(self, waiting: Awaitable[Decision]) -> Decision:
        answer = await waiting
        self._noted.append(answer)
        if len(self._noted) >= MOST_NOTED:
            self.fold()
        return answer
