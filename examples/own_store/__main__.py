"""Use the store of this example: four requests, and one a minute later."""

from __future__ import annotations

import asyncio

from slidegate import Decision, Limiter
from slidegate.testing import FakeClock

from .dict_store import DictStore


def said(decision: Decision) -> str:
    """Return a decision as text."""
    return f"passes, {decision.remaining} left" if decision else f"refused for {decision.retry_after} s"


async def walk() -> None:
    """Hit a limiter on the store."""
    clock = FakeClock()
    async with Limiter(DictStore(clock=clock)) as limiter:
        for number in range(1, 5):
            print(f"{number}. request: {said(await limiter.hit('ann', '3/minute'))}")
        clock.advance("1m")
        print(f"a minute later: {said(await limiter.hit('ann', '3/minute'))}")


def main() -> None:
    """Run the example."""
    asyncio.run(walk())


if __name__ == "__main__":
    main()
