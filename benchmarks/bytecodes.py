"""The bytecodes and Python calls that one request adds, by configuration: numbers without noise, on any machine.

Between two requests other code runs, so the caches of the processor are cold, and every bytecode costs about the same.
Counted are the functions of slidegate, or of the peer; not those of Starlette, FastAPI or the standard library. A row
is the median of several requests, because now and then one of them sweeps what has expired. The clock of the stores
stands still, because a request in a new slice of its window runs more. `--functions` lists the bytecodes and calls of
each function.
"""

import asyncio
import logging
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any, Final, NamedTuple

import ratelimit

import slidegate
from slidegate.stores.system_clock import SYSTEM

from .apps import App
from .real import APPS
from .rounds import show
from .traffic import Client

REQUESTS: Final = 11
COUNTED: Final = tuple(f"{Path(str(package.__file__)).parent}/" for package in (slidegate, ratelimit))
ROWS: Final = [name for name in APPS if not name.startswith(("bare", "fastapi-limiter")) and "once more" not in name]


class Counts(NamedTuple):
    """What one request ran.

    Attributes:
        bytecodes: The bytecode instructions of each function.
        calls: How often each function was called, or resumed if it is a coroutine.
    """

    bytecodes: Counter[str]
    calls: Counter[str]


async def count(app: App) -> Counts:
    """Return the counts of the median request of a candidate, after requests of every client to every route."""
    made, client, found = await app.warm(), Client(), []
    for scope in app.traffic.round(1, REQUESTS):
        counts = Counts(Counter(), Counter())
        before = sys.gettrace()
        sys.settrace(_tracer(counts))
        try:
            status = await client.ask(made, scope)
        finally:
            sys.settrace(before)
        if status != app.status:
            raise RuntimeError(f"{scope['path']}: expected {app.status}, got {status}")
        found.append(counts)
    middle = median_low([counts.bytecodes.total() for counts in found])
    return next(counts for counts in found if counts.bytecodes.total() == middle)


@contextmanager
def standing_clock() -> Iterator[None]:
    """Stop the clock of the stores, without a function of Python whose bytecodes would be counted."""
    running_ns = SYSTEM.monotonic_ns
    SYSTEM.monotonic_ns = repeat(running_ns()).__next__
    try:
        yield
    finally:
        SYSTEM.monotonic_ns = running_ns


def _tracer(counts: Counts) -> Any:
    def in_function(frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            counts.bytecodes[frame.f_code.co_qualname] += 1
        return in_function

    def at_call(frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(COUNTED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts.calls[frame.f_code.co_qualname] += 1
        return in_function

    return at_call


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW", help=f"repeatable: {', '.join(ROWS)}")
    parser.add_argument("--functions", action="store_true", help="list each function")


def main(options: Namespace) -> None:
    logging.disable()
    rows = []
    for name in options.only or ROWS:
        with standing_clock():
            counts = asyncio.run(count(APPS[name]))
        rows.append([name, f"{counts.bytecodes.total():,}", f"{counts.calls.total()}"])
        if options.functions:
            rows += [[f"`{one}`", f"{codes}", f"{counts.calls[one]}"] for one, codes in counts.bytecodes.most_common()]
    show("One request: bytecodes and Python calls", ["what", "bytecodes", "calls"], rows)
