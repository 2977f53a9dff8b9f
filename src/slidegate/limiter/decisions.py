"""Decisions that are made without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.decision import Check, Decision, Reason
from ..core.ring import OPEN


class StoreDown(Decision):
    """The decision during an outage with ``on_error="allow"`` or ``"deny"``. Nothing was counted.

    Args:
        allowed: Whether the request may pass.
        checks: The checks of the request.
        wait_us: How long a refused client should wait.
    """

    __slots__ = ("_wait_us",)

    def __init__(self, allowed: bool, checks: Sequence[Check], wait_us: int) -> None:
        super().__init__(allowed, Reason.UNAVAILABLE, 0, checks)
        self._wait_us = wait_us

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.allowed, self.checks, self._wait_us)

    @property
    def states(self) -> tuple[()]:
        """Empty: no limit was checked."""
        return ()

    @property
    def retry_after_us(self) -> int:
        """Microseconds until the store is queried again; 0 if allowed."""
        return 0 if self.allowed else self._wait_us


class LocalRefusal(Decision):
    """A refusal of the local store of an outage, which was asked for some checks alone: others pass uncounted.

    Args:
        refused: The refusal.
        question: All checks of the request: if it waits, the store that answers by then is asked for them.
    """

    __slots__ = ("question",)

    def __init__(self, refused: Decision, question: Sequence[Check]) -> None:
        super().__init__(False, refused.reason, refused.now_us, refused.checks, refused.readings)
        self.question = question

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (Decision(False, self.reason, self.now_us, self.checks, self.readings), self.question)


class NotAsked(Decision):
    """The provisional refusal of a request that has to queue, before the store was queried.

    Args:
        check: The check whose queue the request has to join.
        question: All checks of the request.
    """

    __slots__ = ("check",)

    def __init__(self, check: Check, question: Sequence[Check]) -> None:
        readings = [(0, 0, 0, OPEN if other is check else 0) for other in question for _ in other[0].limits]
        super().__init__(False, Reason.LIMITED, 0, question, readings)
        self.check = check

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.check, self.checks)
