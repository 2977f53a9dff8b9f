"""The command in this process and as a process of its own, and the stores that it is used with."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from slidegate import Limiter

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
HANG_S = 120


class Ended(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """The output of a command with ``--json``."""
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Ended]
"""Runs the command with some arguments: the fixture `slidegate`."""


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), **more}


def use_store(url: str, work: Callable[[Limiter], Awaitable[T]]) -> T:
    """Use a store like an application, and close it."""

    async def used() -> T:
        async with Limiter.from_url(url, deadline="60s") as limiter:
            return await work(limiter)

    return asyncio.run(used())


def create_store(url: str) -> str:
    """Create an empty store, and return its address."""
    use_store(url, lambda limiter: limiter.peek("nobody", "1/minute"))
    return url


async def ban_many(limiter: Limiter, count: int) -> None:
    now_us = 1_700_000_000_000_000
    rows = ['{"slidegate": "bans", "version": 4}']
    for n in range(count):
        key = f"user:{n}" if n % 3 else f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"
        rows.append(
            f'{{"key": "{key}", "reason": "scan {n % 7}", "by": "{("abuse", "manual")[n % 2]}", "level": 0, '
            f'"since_us": {now_us}, "until_us": null}}'
        )
    await limiter.import_bans(rows)
