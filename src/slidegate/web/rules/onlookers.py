"""Rules that only look on: a shadow reports the requests that it would have refused, tracking tells of hot keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ...core.bans.in_force import shown
from ...core.decision import Check, Decision, Reason
from ...core.store import Event
from ...limiter import Limiter
from .rule_set import BoundRule
from .user_functions import Calls

_MEMO: Final = 4_096


class Onlookers:
    """Lets rules look on, each on windows of its own.

    Args:
        limiter: The limiter that counts.
        calls: Calls the user's functions.
        hit: Puts one question to the limiter.
        figures: Whether the refusals of shadows are figures of their rules.
    """

    def __init__(
        self,
        limiter: Limiter,
        calls: Calls,
        hit: Callable[[Sequence[Check]], Awaitable[Decision]],
        *,
        figures: bool,
    ) -> None:
        self._limiter = limiter
        self._engine = limiter.engine
        self._calls = calls
        self._hit = hit
        self._figures = figures
        self._exceeded: dict[tuple[str, str], None] = {}

    async def look(
        self, bound: BoundRule, scope: Scope, client_key: str, request: HTTPConnection | None = None
    ) -> None:
        """Count a request under a rule that never refuses, and tell of it where the rule says so."""
        checks = await self._calls.checks(bound, scope, self._limiter, client_key, request)
        if not checks:
            return
        (check,) = checks
        seen = await self._hit((check,))
        if seen.reason is Reason.BANNED:
            return  # it was not counted
        if bound.rule.action == "track":
            await self._track(bound, check[1], seen)
        elif not seen.allowed:
            if self._figures:
                self._engine.statistics.add(bound.bucket.label, "shadow_refused", 1)
            message = f"rule {bound.rule.label!r} would have refused {shown(check[1])}"
            self._engine.tell(Event("shadow_refused", message, {"rule": bound.rule.label, "key": check[1]}))

    async def _track(self, bound: BoundRule, key: str, seen: Decision) -> None:
        """Call the user's function when a key passes the limit, and not again before it has cooled."""
        known = bound.bucket.rule, key
        if seen.allowed:
            self._exceeded.pop(known, None)
        elif known not in self._exceeded:
            if len(self._exceeded) >= _MEMO:
                self._exceeded.pop(next(iter(self._exceeded)))
            self._exceeded[known] = None
            await self._calls.exceeded(bound, key, seen)
