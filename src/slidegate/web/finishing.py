"""The ends of things: units that are handed back even if their request is cancelled, and the last figures."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Message, Send

from ..core.decision import Decision
from ..limiter import Limiter
from ..limiter.aio import to_the_end


async def hand_back(parts: Sequence[tuple[Limiter, Decision]]) -> None:
    """Hand back all units of some decisions."""
    if all(limiter.engine.per_process for limiter, _ in parts):
        await _refund(parts)  # there is nothing to wait for, so nothing to cancel
    else:
        await to_the_end(_refund(parts))


async def _refund(parts: Sequence[tuple[Limiter, Decision]]) -> None:
    for limiter, decision in parts:
        await limiter.refund(decision)


def with_last_figures(limiter: Limiter, send: Send) -> Send:
    """Wrap the `send` of a lifespan so that the limiter publishes its last figures before the server ends.

    Many applications never close their limiter. One that publishes nothing leaves `send` as it is.
    """
    if not limiter.engine.figures.publishes:
        return send

    async def send_last(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            await limiter.engine.figures.publish_last()
        await send(message)

    return send_last
