"""The bytecodes and Python calls that one request adds, by configuration: numbers without noise, on any machine.

Between two requests other code runs, so the caches of the processor are cold, and every bytecode costs about the same.
Counted are the functions of slidegate, or of the peer; not those of Starlette, FastAPI or the standard library. A row
is the median of several requests, because now and then one of them sweeps what has expired. The clock of the stores
stands still, because a request in a new slice of its window runs more.
"""

import asyncio
import logging
import sys
from argparse import ArgumentParser
from collections import Counter
from itertools import repeat
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any, Final

import ratelimit

import slidegate
from slidegate.stores.system_clock import SYSTEM

from .apps import App
from .real import APPS
from .rounds import show
from .traffic import Client

REQUESTS: Final = 11
COUNTED: Final = tuple(f"{Path(str(package.__file__)).parent}/" for package in (slidegate, ratelimit))
ROWS: Final = [name for name in APPS if not name.startswith(("bare", "fastapi-limiter"))]


async def count(app: App) -> tuple[int, int]:
    """Return the bytecodes and calls of the median request, after requests of every client to every route."""
    made, client, found = await app.warm(), Client(), []
    for scope in app.traffic.round(1, REQUESTS):
        events: Counter[str] = Counter()
        sys.settrace(tracer(events))
        status = await client.ask(made, scope)
        sys.settrace(None)
        if status != app.status:
            raise RuntimeError(f"{scope['path']}: expected {app.status}, got {status}")
        found.append((events["opcode"], events["call"]))
    return median_low(found)


def tracer(events: Counter[str]) -> Any:
    """Return a function for `sys.settrace` that counts the events; a coroutine that is resumed is called."""

    def in_function(frame: FrameType, event: str, arg: object) -> Any:
        events[event] += 1
        return in_function

    def at_call(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return in_function(frame, event, arg)

    return at_call


def main(parser: ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=ROWS, metavar="NAME", help="a row; repeatable")
    options = parser.parse_args()
    logging.disable()
    # Not by a function of Python, whose bytecodes would be counted.
    SYSTEM.monotonic_ns = repeat(SYSTEM.monotonic_ns()).__next__
    rows = []
    for name in options.only or ROWS:
        bytecodes, calls = asyncio.run(count(APPS[name]))
        rows.append([name, f"{bytecodes:,}", str(calls)])
    show("One request: bytecodes and Python calls", ["what", "bytecodes", "calls"], rows)
