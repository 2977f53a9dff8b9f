"""Those who listen to a limiter: functions that are called with each decision, after it is made.

They stand in the way of a question only while there are any; see `Engine.rebuild`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from ..core.bans.in_force import Guarded
from ..core.decision import Check, Decision

AtOnce: TypeAlias = Callable[[Sequence[Check], Sequence[Guarded]], Decision]
"""A function that charges every check or none, and never has to be awaited."""
Listener: TypeAlias = Callable[[Decision], object]
"""Hears a decision, in the thread that asked for it. It must not raise or block."""


class Decide(Protocol):
    """A function that charges every check or none, as `Store.hit` does."""

    def __call__(
        self, checks: Sequence[Check], guarded: Sequence[Guarded] = (), *, first_in_line: bool = False
    ) -> Decision | Awaitable[Decision]:
        """Charge every check or none."""


def heard(decide: Decide, listeners: Sequence[Listener]) -> Decide:
    """Return a function that decides as `decide` does, and lets listeners hear the decision."""

    def decide_and_notify(
        checks: Sequence[Check], guarded: Sequence[Guarded] = (), *, first_in_line: bool = False
    ) -> Decision | Awaitable[Decision]:
        answer = decide(checks, guarded, first_in_line=first_in_line)
        if not isinstance(answer, Decision):
            return notify_later(answer)
        for listener in listeners:
            listener(answer)
        return answer

    async def notify_later(answer: Awaitable[Decision]) -> Decision:
        decision = await answer
        for listener in listeners:
            listener(decision)
        return decision

    return decide_and_notify
