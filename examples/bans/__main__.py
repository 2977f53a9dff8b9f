"""``python -m examples.bans``: replay access logs through the middleware, and print whom its policies ban."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo.__main__ import requests
from slidegate import ConfigurationError
from slidegate.logs import AccessLogs

from .replay import Report, replay_bans

SAMPLE = Path(__file__).parents[1] / "demo" / "sample.log"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the replay; return 0, or 2 if a log cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m examples.bans", description=__doc__)
    parser.add_argument("logs", nargs="*", type=Path, default=[SAMPLE], help="access logs; by default a made-up one")
    logs: list[Path] = parser.parse_args(arguments).logs
    console = Console()
    for path in logs:
        try:
            report = asyncio.run(replay_bans(requests(AccessLogs([path]))))
        except ConfigurationError as error:
            sys.stderr.write(f"bans: {error}\n")
            return 2
        console.print(table(path.name, report), "")
    return 0


def table(name: str, report: Report) -> Table:
    """Return what became of one log."""
    grid = Table(show_header=False, box=None, pad_edge=False, title=Text(name), title_justify="left")
    networks = sum(ban.by != "scanning" for ban in report.bans)
    guesses, others = report.limited("login", "login-network"), report.limited("all")
    refused = report.clean & others.keys()
    for what, value in (
        ("Requests", f"{report.requests:,} from {len(report.clients):,} clients"),
        ("Loopback, private", f"{len(report.private):,} clients, never banned by design"),
        ("Scanners", f"{len(report.scanners):,}, {len(report.scanners & report.banned):,} of them banned"),
        ("Bans", f"{len(report.bans):,}, {networks:,} of them of networks; {len(report.banned):,} clients met one"),
        ("Refused by bans", f"{report.refusal:,} requests"),
        ("Refused by limits", f"{sum(guesses.values()):,} logins of {len(guesses):,} clients; "
                              f"{sum(others.values()):,} other requests"),
        ("Never an error", f"{len(report.clean):,} clients: {len(report.clean & report.banned):,} banned, "
                           f"{len(refused):,} refused more than logins"),
    ):  # fmt: skip
        grid.add_row(Text(what, style="bold"), Text(value))
    return grid


if __name__ == "__main__":
    # Each ban is logged as well; here the sums are wanted.
    logging.getLogger("slidegate").addHandler(logging.NullHandler())
    sys.exit(main())
