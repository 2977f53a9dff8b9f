"""A store on a desk: what the tests of the store contract are written with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...core.decision import Bucket, Decision
from ...core.limits import parse_limits
from ...core.store import Store
from ..clock import FakeClock
from .player import settle
from .programs import YEAR_2100_US

SECOND_US = 1_000_000


class Desk:
    """A store and its clock, with every method awaited."""

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock

    async def hit(self, *checks: tuple[Bucket, str, int]) -> Decision:
        """Charge all checks or none."""
        return await settle(self.store.hit(checks))

    async def peek(self, *checks: tuple[Bucket, str, int]) -> Decision:
        """Ask without charging."""
        return await settle(self.store.peek(checks))

    async def charge(self, *checks: tuple[Bucket, str, int]) -> Decision:
        """Charge whatever the limits."""
        return await settle(self.store.charge(checks))

    async def refund(self, decision: Decision) -> bool:
        """Hand back."""
        return await settle(self.store.refund(decision))

    async def reset(self, key: str) -> bool:
        """Forget a key."""
        return await settle(self.store.reset(key))

    async def reset_all(self) -> bool:
        """Forget all keys."""
        return await settle(self.store.reset_all())


def bucket(limits: str, rule: str = "rule", *, count_denied: bool = False) -> Bucket:
    """Return a bucket for limits as text."""
    return Bucket(rule, parse_limits(limits), count_denied=count_denied)


def at_a_desk(test: Callable[[Any, Desk], Awaitable[None]]) -> Callable[[Any], None]:
    """Turn an asynchronous test of a desk into one that pytest can call."""

    def run(self: Any) -> None:
        async def with_store() -> None:
            clock = FakeClock(YEAR_2100_US)
            store = await settle(self.make_store(clock))
            try:
                await test(self, Desk(store, clock))
            finally:
                await settle(store.close())

        asyncio.run(with_store())

    run.__name__, run.__doc__ = test.__name__, test.__doc__  # not `wraps`: pytest would take `desk` for a fixture
    return run
