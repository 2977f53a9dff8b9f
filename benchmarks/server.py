"""Requests a second behind a real server: uvicorn with uvloop and httptools, one worker, 32 connections over loopback.

All servers stand at once, and a client in another process asks one after the other, a second each. Every round has
new servers: one process of a program is some hundredths faster than the next, as its memory happens to lie. The
client is wrk; where there is none, `serving/client.py` stands in. A twin is a bare application that sends the same
fields and body as the gate. Beside requests a second, the processor time of the server for one request is taken: on a
busy machine it says more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median

from .report.tables import Cell, Table
from .serving.apps import APPS, BARE
from .serving.load import Round, Server, ask, load, relative

ROUNDS = 8
PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "asgi-ratelimit", "slowapi", "limits")


@contextmanager
def serving(name: str, path: str = "") -> Iterator[Server]:
    """Start the server of one candidate, and end it afterwards.

    Args:
        name: The candidate.
        path: Where the server finds the package; empty for the source.
    """
    command = [sys.executable, "-m", "benchmarks.serving.worker", name]
    env = {**os.environ, "PYTHONPATH": path} if path else None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
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
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=1, help="of each candidate in each round")


def tables(options: Namespace) -> Iterator[Table]:
    """Let all candidates serve."""
    yield compared("", {name: (name, "") for name in APPS}, options.rounds, options.seconds)


def compared(title: str, candidates: Mapping[str, tuple[str, str]], rounds: int, seconds: int) -> Table:
    """Let candidates serve in turn, each after a second that is thrown away.

    Args:
        title: The heading of the table.
        candidates: The name of each row -> the name of the candidate, and where its server finds the package (empty for
            the source).
        rounds: How often each serves.
        seconds: For how long each time.
    """
    taken: dict[str, list[Round]] = {row: [] for row in candidates}
    for _ in range(rounds):
        with ExitStack() as stack:
            servers = {row: stack.enter_context(serving(*candidate)) for row, candidate in candidates.items()}
            for server in servers.values():
                load(server, 1)
            for row, server in servers.items():
                taken[row].append(load(server, seconds))
    rows: list[list[Cell]] = []
    for row, (name, _) in candidates.items():
        own, twin = taken[row], APPS[name].twin
        cells: list[Cell] = [row, median(one.per_second for one in own)]
        cells += relative(own, taken[BARE]) if name != BARE else [None, None]
        rows.append([*cells, *(relative(own, taken[twin]) if twin else [None, None])])
    columns = {"what": "", "requests/s": ",.0f", "to bare": ".2f", "by CPU time": ".2f", "to its twin": ".2f"}
    client = "wrk" if shutil.which("wrk") else "`benchmarks/serving/client.py`, as there was no wrk"
    return Table(title, {**columns, "to its twin, by CPU time": ".2f"}, rows, f"The client was {client}.")
