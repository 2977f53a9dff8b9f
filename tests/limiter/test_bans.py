"""Bans by the hundred thousand: listed, exported and imported in steps that no request has to wait for."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

import pytest

from slidegate import Limiter
from slidegate.core import Ban
from slidegate.core.bans.rows import HEADER

MANY: Final = 2_000
MOST_CALLS: Final = 4_000
"""How many functions one iteration of an event loop may call for it: these take about 4 ms."""
NETWORKS: Final = 300


async def count_of(items: AsyncIterator[object]) -> int:
    return len([one async for one in items])


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_no_step_of_many_bans_holds_up_the_event_loop(url: str, calls: list[int]) -> None:
    keys = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(NETWORKS)]
    keys += [f"user:{number}" for number in range(NETWORKS, MANY)]
    bans = [Ban(key, "scan", "ann", 0, 0, None) for key in keys]
    lines = [json.dumps(row) for row in (HEADER, *(ban._asdict() for ban in bans))]
    async with Limiter.from_url(url, deadline="20s") as limiter:
        ways = {
            "import": (limiter.import_bans, (lines,)),
            "import again": (limiter.import_bans, (lines,)),
            "list": (count_of, (limiter.bans(),)),
            "export": (count_of, (limiter.export_bans(),)),
        }
        for name, (way, arguments) in ways.items():
            calls[:] = [0]
            await asyncio.sleep(0)
            assert await way(*arguments) == MANY + (name == "export")
            assert max(calls) <= MOST_CALLS, name
