"""Questions with several checks, as middlewares ask them."""

from collections.abc import Sequence

from slidegate import Decision, Limiter
from slidegate.core import Check
from slidegate.limiter.aio import answer_of


async def hit_all(limiter: Limiter, checks: Sequence[Check]) -> Decision:
    """Charge several buckets and keys together: all of them or none."""
    return await answer_of(limiter.engine.ask(limiter.engine.prepare(checks)))
