"""Decisions that no store made, or two."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.decision import Check, Decision, Reason
from ..core.protocols import Store


class Unserved(Decision):
    """A decision without a store. Nothing was counted.

    Args:
        allowed: Whether the request may pass all the same.
        checks: What was asked for.
        wait_us: When to try again.
    """

    __slots__ = ("_wait_us",)

    def __init__(self, allowed: bool, checks: Sequence[Check], wait_us: int) -> None:
        super().__init__(allowed, Reason.UNAVAILABLE, 0, checks)
        self._wait_us = wait_us

    @property
    def states(self) -> tuple[()]:
        """Nothing: no limit was asked."""
        return ()

    @property
    def retry_after_us(self) -> int:
        """Microseconds until the store is asked again: 0 if allowed."""
        return 0 if self.allowed else self._wait_us


class Parted(Decision):
    """A decision with the stores that hold what was charged: the local one, perhaps beside the shared one.

    Args:
        shown: The part that is shown.
        parts: What each store charged, beside it.
    """

    __slots__ = ("_shown", "parts")

    def __init__(self, shown: Decision, parts: Sequence[tuple[Store, Decision]]) -> None:
        super().__init__(shown.allowed, shown.reason, shown.now_us, shown.checks, shown.readings, shown.charge)
        self._shown = shown
        self.parts = parts

    def take_out(self, place: int) -> Parted:
        """Split a charged check off, in every store."""
        taken = [(store, part.take_out(place)) for store, part in self.parts]
        shown = next(own for (_, own), (_, part) in zip(taken, self.parts, strict=True) if part is self._shown)
        self.readings = self._shown.readings
        return Parted(shown, taken)
