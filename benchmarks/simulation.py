"""Simulation: how many lines a minute go through the gate on one core, reading and counting included."""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from slidegate.core.bans.policy import BanPolicy
from slidegate.logs import AccessLogs
from slidegate.simulation.clients import Clients
from slidegate.simulation.replay import Replay
from slidegate.simulation.report import Simulated

from .access_logs import SAMPLE, written
from .report.tables import Cell, Table


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200_000, help="lines in the log")


def tables(options: Namespace) -> Iterator[Table]:
    """Simulate a long log under a limit, with and without bans."""
    rows: list[list[Cell]] = []
    with tempfile.TemporaryDirectory() as directory:
        log = written(Path(directory, "access.log"), SAMPLE.read_text("ascii").splitlines(), options.count)
        for name, bans in (("60/minute", None), ("60/minute, and bans", BanPolicy("20/10m"))):
            simulated = Simulated(Replay("60/minute", bans=bans), Clients())
            started_s = time.perf_counter()
            for record in AccessLogs([log]):
                simulated.add(record)
            took_s = time.perf_counter() - started_s
            rows.append([name, options.count, took_s, options.count / took_s * 60])
    yield Table("", {"limits": "", "lines": ",.0f", "s": ".2f", "lines/minute": ",.0f"}, rows)
