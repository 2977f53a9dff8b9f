"""What answers in place of a store while nothing counts, or once the limiter is closed."""

from __future__ import annotations

from collections.abc import Callable

from ..core.decision import Decision


class Instead:
    """Answers in place of a store: it has the methods that `Engine.rebuild` takes from one.

    Args:
        decide: Answers a question about limits.
        find: Answers one about bans.
    """

    def __init__(self, decide: Callable[..., Decision], find: Callable[..., None]) -> None:
        self.hit = self.peek = self.charge = decide
        self.find = self.strike = self.ban = find
