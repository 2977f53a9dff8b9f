"""Refusals of a client or a request as such, whatever has been spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bans.in_force import Ban
from .decision import Check, Decision, LimitState, Reason


class Barred(Decision):
    """A refusal of a client as such: by a ban, a list, or a rule for nobody. Nothing was counted.

    Args:
        by: See `Decision.by`.
        ban: The ban, if there is one.
        now_us: The store's time, in which the ban ends.
        checks: The checks of the demand.
        reason: Why, where there is no ban.
    """

    __slots__ = ("_ban", "_by")

    def __init__(
        self,
        by: str,
        ban: Ban | None = None,
        now_us: int = 0,
        checks: Sequence[Check] = (),
        reason: Reason = Reason.BLOCKED,
    ) -> None:
        super().__init__(False, reason if ban is None else Reason.BANNED, now_us, checks)
        self._ban = ban
        self._by = by

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self._by,)

    def __repr__(self) -> str:
        return f"<Decision {self.reason} by={self.by!r} retry_after_us={self.retry_after_us}>"

    @property
    def ban(self) -> Ban | None:
        """The ban that refuses the request."""
        return self._ban

    @property
    def by(self) -> str:
        """The maker of the ban, a policy or a person; or the name of the list, or the rule."""
        return self._by

    @property
    def states(self) -> tuple[LimitState, ...]:
        """Nothing: no limit was asked."""
        return ()

    @property
    def retry_after_us(self) -> int | None:
        """Microseconds until the ban ends; None for a permanent one and where there is none."""
        return None if self._ban is None else self._ban.left_us(self.now_us)


class RuleBlock(Barred):
    """A refusal by a rule that blocks. Nothing was counted.

    Args:
        rule: The name of the rule in stats.
        status: The status of the answer over HTTP, 400 to 599.
    """

    __slots__ = ("status",)

    def __init__(self, rule: str, status: int) -> None:
        super().__init__(rule)
        self.status = status

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self._by, self.status
