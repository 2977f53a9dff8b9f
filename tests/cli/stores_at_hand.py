"""Real stores for the commands, and the command as a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from slidegate import Limiter
from slidegate.cli import main

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 120


def run(*words: str) -> int:
    """Run the command in this process, in a thread without an event loop."""
    return main(list(words))


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), **more}


def start(*words: str, **streams: int) -> subprocess.Popen[bytes]:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    command = [sys.executable, "-m", "slidegate", *words]
    # Background jobs ignore SIGINT, and child processes inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command, env=environment(), preexec_fn=heard, **pipes)  # type: ignore[call-overload,no-any-return]


@contextmanager
def hanging_ends(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process that does not exit, so that a fault is a failure and not a hang."""
    timer = threading.Timer(HANG_S, process.send_signal, [signal.SIGKILL])
    timer.start()
    try:
        with process:
            yield
    finally:
        timer.cancel()


def fill(url: str, do: Callable[[Limiter], Awaitable[T]]) -> T:
    """Use a store like an application, and close it."""

    async def using() -> T:
        async with Limiter.from_url(url, deadline="60s") as limiter:
            return await do(limiter)

    return asyncio.run(using())


async def touch(limiter: Limiter) -> None:
    """Create the store, empty."""
    await limiter.peek("nobody", "1/minute")


async def ban_many(limiter: Limiter, number: int) -> None:
    now_us = 1_700_000_000_000_000
    lines = [f'{{"slidegate": "bans", "version": 3, "written_us": {now_us}}}']
    for place in range(number):
        key = f"user:{place}" if place % 3 else f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}"
        lines.append(
            f'{{"ban": "{key}", "reason": "scan {place % 7}", "by": "{("abuse", "manual")[place % 2]}", "level": 0, '
            f'"made_us": {now_us}, "ends_us": null, "since_us": {now_us}}}'
        )
    await limiter.import_bans(lines)
