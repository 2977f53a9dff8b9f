"""The example of requests to others does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx

from examples.outbound.__main__ import REQUESTS, ask_all, prices
from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]


def test_it_shows_refusals_without_the_transport_and_none_with_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.outbound"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    without, with_it = ended.stdout.splitlines()
    assert without.startswith("without limits of its own: ")
    assert not without.endswith(" 0 refusals")
    assert with_it == f"with LimitedTransport: {REQUESTS} answers, 0 refusals"


async def test_a_client_without_it_is_refused() -> None:
    middleware = RateLimitMiddleware(prices, limits="10/second", limiter=Limiter(MemoryStore(clock=FakeClock())))
    assert await ask_all(httpx.ASGITransport(app=middleware), 15) == {200: 10, 429: 5}
