"""Overload: the share of useful answers at twice the load that an application can take, with and without shedding.

One worker of uvicorn serves an endpoint that takes some processor time. Clients in this process come at a fixed rate,
whatever becomes of those before them, and give up after a second. The rate is a multiple of what the endpoint alone
could serve.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from .overloads.client import Tally, offer
from .report.tables import Cell, Table

PACKAGES = ("uvicorn", "uvloop", "starlette")
WAYS = {"without shedding": "none", "with shedding": "shed"}


@contextmanager
def serving(how: str, work_ms: float, loop: str) -> Iterator[int]:
    """Start a server, and end it afterwards."""
    command = [sys.executable, "-m", "benchmarks.overloads.worker", how, str(work_ms), loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"the server {how!r} did not start")
            yield int(line)
        finally:
            process.kill()


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of each round")
    parser.add_argument("--work-ms", type=float, default=8, help="the processor time of a request")


def tables(options: Namespace) -> Iterator[Table]:
    """Offer each load to both servers in turn, each round to fresh ones."""
    rows: list[list[Cell]] = []
    for times, loop in ((0.5, "asyncio"), (2.0, "asyncio"), (4.0, "asyncio"), (2.0, "uvloop")):
        taken: dict[str, list[Tally]] = {name: [] for name in WAYS}
        for _ in range(options.rounds):
            for name, how in WAYS.items():
                with serving(how, options.work_ms, loop) as port:
                    asyncio.run(offer(port, 5, 0.4))  # the first requests pay for imports
                    taken[name].append(asyncio.run(offer(port, times * 1000 / options.work_ms, options.seconds)))
        for name, tallies in taken.items():
            rows.append([f"{times:g} times the load, {loop}, {name}", *_row(tallies, options.seconds)])
    columns = {
        "what": "", "sent/s": ".0f", "served in time/s": ".0f", "refused/s": ".0f", "given up/s": ".0f",
        "p99 of those served, ms": ".0f", "of the important, %": ".0f",
    }  # fmt: skip
    yield Table("", columns, rows)


def _row(tallies: list[Tally], seconds: float) -> list[Cell]:
    waits = [tally.p99_ms for tally in tallies if tally.p99_ms is not None]
    return [
        median(tally.sent for tally in tallies) / seconds,
        median(len(tally.in_time_s) for tally in tallies) / seconds,
        median(tally.refused for tally in tallies) / seconds,
        median(tally.given_up for tally in tallies) / seconds,
        median(waits) if waits else None,
        median(100 * tally.important_in_time / max(tally.important, 1) for tally in tallies),
    ]
