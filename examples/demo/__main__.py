"""Replay an access log through the demo site, then serve the site.

The replay prints which clients were limited or banned, and checks every Retry-After: the client would be admitted at
that time, and refused a microsecond earlier. If one is wrong, the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from slidegate import Limiter, MemoryStore

from .app import DASHBOARD, make_app
from .replay import MINUTE_US, OUTCOMES, LogClock, Result, read, replay

SAMPLE = Path(__file__).with_name("sample.log")
HOST = "127.0.0.1"
CURL = {
    "The sixth response to this is a 429:": 'curl -i -X POST "{url}/login?try=[1-6]"',
    "This client is on the blocklist:": 'curl -iH "X-Forwarded-For: 198.51.100.200" {url}/',
    "The fourth response to this is a ban:": 'curl -iH "X-Forwarded-For: 203.0.113.9" "{url}/.env?[1-4]"',
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, 1 if a Retry-After was wrong, or 2 if the log or the port cannot be used."""
    parser = argparse.ArgumentParser(prog="dev.py demo", description=__doc__)
    parser.add_argument("--log", type=Path, default=SAMPLE, metavar="FILE", help="a common or combined access log")
    parser.add_argument("--no-serve", action="store_true", help="exit after the replay")
    parser.add_argument("--port", type=int, default=8000, help="0 for any free one; by default 8000")
    options = parser.parse_args(arguments)
    try:
        with socket.create_server((HOST, 0 if options.no_serve else options.port)) as listener:
            return run(options.log, None if options.no_serve else listener)
    except (OSError, OverflowError, ValueError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2


def run(path: Path, listener: socket.socket | None) -> int:
    """Replay a log, print the result, and serve the site; return the exit code.

    Raises:
        ValueError: The log has no request.
    """
    requests = read(path)
    if not requests:
        raise ValueError(f"{path}: none of its lines is a request in the common or combined format of access logs")
    # Shift the log to end now, for the dashboard: by whole minutes, so that windows start as in the log.
    later_us = (time.time_ns() // 1_000 - requests[-1].time_us) // MINUTE_US * MINUTE_US
    shifted = [request._replace(time_us=request.time_us + later_us) for request in requests]
    clock, token, console = LogClock(), secrets.token_urlsafe(16), Console()
    limiter = Limiter(MemoryStore(clock=clock))
    # Local requests may choose their address by X-Forwarded-For, as the printed curl commands do.
    app = make_app(limiter, [HOST], token)
    result = asyncio.run(replay(app, limiter, clock, shifted))
    for table in (summary(path, result), limited(result), banned(result, later_us), refused_most(result)):
        console.print(table, "")
    console.print(*map(Text, sentences(result)), sep="\n", soft_wrap=True)
    if listener:
        clock.now_us = None
        console.print(*map(Text, invitation(listener.getsockname()[1], token)), sep="\n", soft_wrap=True)
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        console.print("Stopped.")
    return 1 if result.wrong else 0


def summary(path: Path, result: Result) -> Table:
    """Return a table of the outcomes of all requests."""
    table = Table(show_header=False, box=None, pad_edge=False)
    counts = {outcome: sum(client[outcome] for client in result.clients.values()) for outcome in OUTCOMES}
    total = sum(counts.values())
    table.add_row("Log", Text(str(path)))
    table.add_row("Requests", f"{total:,} of {len(result.clients):,} clients")
    for outcome, count in counts.items():
        table.add_row(outcome.capitalize(), f"{count:,} ({100 * count / total:.1f} %)")
    return table


def number(heading: str) -> Column:
    """Return a column of numbers."""
    return Column(heading, justify="right")


def limited(result: Result) -> Table:
    """Return a table of the refusals of each limit."""
    table = Table("Rule", "Limit", number("Refused"), "Most often", title="Limited", title_justify="left")
    for (rule, limit), clients in sorted(result.limited.items(), key=lambda one: -one[1].total()):
        ((client, count),) = clients.most_common(1)
        table.add_row(rule, limit, f"{clients.total():,}", Text(f"{client}, {count:,} times"))
    return table


def banned(result: Result, later_us: int) -> Table:
    """Return a table of the bans, with their times in the log."""
    table = Table("Client", "For", "From", number("Minutes"), title="Banned", title_justify="left")
    for time_us, ban in result.bans:
        began = datetime.fromtimestamp((time_us - later_us) // 1_000_000, UTC)
        minutes = ban["until"].timestamp() / 60 - time_us / MINUTE_US
        table.add_row(Text(ban["key"]), Text(ban["reason"]), f"{began:%Y-%m-%d %H:%M:%S} UTC", f"{minutes:.0f}")
    return table


def refused_most(result: Result) -> Table:
    """Return a table of the ten clients with the most refusals."""
    table = Table(
        "Client", *(number(outcome.capitalize()) for outcome in OUTCOMES), title="Refused most", title_justify="left"
    )
    refused = sorted(result.clients.items(), key=lambda one: one[1]["admitted"] - one[1].total())
    for client, outcomes in refused[:10]:
        table.add_row(Text(client), *(f"{outcomes[outcome]:,}" for outcome in OUTCOMES))
    return table


def sentences(result: Result) -> Iterator[str]:
    """Yield the results of the replay, one sentence each."""
    reasons = {ban["key"]: ban["reason"] for _, ban in result.bans}
    bans = "; ".join(f"{key} for {reason}" for key, reason in reasons.items())
    yield f"Banned: {bans}." if bans else "No client was banned."
    worst = {name: clients.most_common(1)[0][0] for name, clients in result.limited.items()}
    limits = "; ".join(f"{client} to {limit} of {rule}" for (rule, limit), client in worst.items())
    yield f"Limited (worst client of each rule): {limits}." if limits else "No client was limited."
    checked = f"{result.exact + len(result.wrong):,}"
    if result.wrong:
        yield f"{len(result.wrong):,} of {checked} Retry-After values were wrong, the first for {result.wrong[0]}."
    else:
        yield f"All {checked} Retry-After values were exact to the microsecond."


def invitation(port: int, token: str) -> Iterator[str]:
    """Yield what to try while the site is served."""
    url = f"http://{HOST}:{port}"
    yield f"\nServing the same site at {url} until Ctrl-C.\n"
    yield f"The dashboard is at {url}{DASHBOARD}/?window=6h, and shows the replay."
    yield f"Sign in with any name and this password: {token}"
    for what, command in CURL.items():
        yield f"\n{what}\n  {command.format(url=url)}"


if __name__ == "__main__":
    # Suppress the log of bans, which are shown in a table.
    logging.getLogger("slidegate").addHandler(logging.NullHandler())
    sys.exit(main())
