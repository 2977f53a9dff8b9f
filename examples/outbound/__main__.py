"""Sixteen tasks ask an API that allows 10 requests a second, without and with `LimitedTransport`.

The API runs in this process, behind a middleware of ours; nothing leaves the machine. ``python -m examples.outbound``
"""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
from starlette.types import Receive, Scope, Send

from slidegate import RateLimitMiddleware
from slidegate.httpx import LimitedTransport

LIMIT = "10/second"
TASKS = 16
REQUESTS = 24


async def prices(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a price."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"42"})


async def ask_all(transport: httpx.AsyncBaseTransport, requests: int = REQUESTS) -> Counter[int]:
    """Send requests from all tasks; return how often each status came."""
    statuses = Counter[int]()
    numbers = iter(range(requests))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.example.com") as client:

        async def one() -> None:
            for number in numbers:
                statuses[(await client.get(f"/prices/{number}")).status_code] += 1

        await asyncio.gather(*(one() for _ in range(TASKS)))
    return statuses


async def main() -> None:
    """Print what both clients see."""
    for title, limited in (("without limits of its own", False), ("with LimitedTransport", True)):
        api = httpx.ASGITransport(app=RateLimitMiddleware(prices, limits=LIMIT))
        statuses = await ask_all(LimitedTransport(limits=LIMIT, transport=api) if limited else api)
        print(f"{title}: {statuses[200]} answers, {statuses[429]} refusals")


if __name__ == "__main__":
    asyncio.run(main())
