"""Requests a second behind a real server: uvicorn with uvloop and httptools, one worker, 32 connections over loopback.

All servers stand at once, and a client in another process asks one after the other, a second each, round by round. The
client is wrk; where there is none, `serving/client.py` stands in. A twin is a bare application that sends the same
fields and body as the gate. Beside requests a second, the processor time of the server for one request is taken: on a
busy machine it says more.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from .report.tables import Cell, Table
from .serving.apps import APPS, BARE
from .serving.load import Round, Server, ask, load, relative

PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "asgi-ratelimit", "slowapi", "limits")


@contextmanager
def serving(name: str) -> Iterator[Server]:
    """Start the server of one candidate, and end it afterwards."""
    command = [sys.executable, "-m", "benchmarks.serving.worker", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"the server of {name!r} did not start")
            app = APPS[name]
            statuses = [ask(int(line)) for _ in range(2)]
            if statuses != [app.first, app.status]:
                sys.exit(f"{name!r} answers {statuses}; expected {[app.first, app.status]}")
            yield Server(int(line), process.pid, app.status)
        finally:
            process.kill()


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=1, help="of each candidate in each round")


def tables(options: Namespace) -> Iterator[Table]:
    """Let all candidates serve in turn, after one round that is thrown away."""
    taken: dict[str, list[Round]] = {name: [] for name in APPS}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(name)) for name in APPS}
        for number in range(options.rounds + 1):
            for name, server in servers.items():
                found = load(server, options.seconds)
                if number:
                    taken[name].append(found)
    rows: list[list[Cell]] = []
    for name, own in taken.items():
        row: list[Cell] = [name, median(one.per_second for one in own)]
        row += relative(own, taken[BARE]) if name != BARE else [None, None]
        twin = APPS[name].twin
        rows.append([*row, *(relative(own, taken[twin]) if twin else [None, None])])
    columns = {"what": "", "requests/s": ",.0f", "to bare": ".2f", "by CPU time": ".2f", "to its twin": ".2f"}
    client = "wrk" if shutil.which("wrk") else "`benchmarks/serving/client.py`, as there was no wrk"
    yield Table("", {**columns, "to its twin, by CPU time": ".2f"}, rows, f"The client was {client}.")
