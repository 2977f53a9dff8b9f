"""What tests do to the limits of a whole application: forget what was counted, or let everything pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from slidegate.core.bans.ban import Ban, BanSubject
from slidegate.core.bans.policy import BanPolicy
from slidegate.core.decision import Check, Decision, Reason
from slidegate.limiter.engine import Engine, all_engines
from slidegate.web.middleware import RateLimitMiddleware
from slidegate.web.scope_keys import OFF


def forget_limits() -> None:
    """Forget the windows, bans, strikes and figures of every limiter of this process that counts in memory.

    Stores that others may share are left alone. Requests under way keep their places under concurrency limits.
    """
    for engine in all_engines():
        engine.forget()


@contextmanager
def without_limits() -> Iterator[None]:
    """Let everything pass until the block ends, through each middleware and each limiter, also those made before.

    Nothing is counted or asked of a store meanwhile, so nothing is left to forget after it.
    """
    guard = RateLimitMiddleware.__call__

    async def let_through(self: RateLimitMiddleware, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await guard(self, scope, receive, send)
            return
        scope[OFF] = True
        await self.app(scope, receive, send)

    async def peek(self: Engine, checks: list[Check], subjects: list[BanSubject]) -> Decision:
        return Decision(True, Reason.EXEMPT)

    async def charge(self: Engine, checks: list[Check]) -> Decision:
        return Decision(True, Reason.EXEMPT)

    async def find_ban(self: Engine, subjects: list[BanSubject]) -> Ban | None:
        return None

    def strike_target(self: Engine, target: tuple[str, str], policy: BanPolicy, weight: int, reason: str) -> Ban | None:
        return None

    uncounted = patch.multiple(
        Engine, counting=False, peek=peek, charge=charge, find_ban=find_ban, strike_target=strike_target
    )
    try:
        with patch.object(RateLimitMiddleware, "__call__", let_through), uncounted:
            _rebuild_all()
            yield
    finally:
        _rebuild_all()


def _rebuild_all() -> None:
    for engine in all_engines():
        engine.rebuild()
