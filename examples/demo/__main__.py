"""``python -m examples.demo``: replay an access log through the demo site, then serve the site."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from slidegate import Limiter, MemoryStore
from slidegate.ops.access_logs import AccessLog, AccessRecord

from .app import make_app
from .figures import Figures, ReplayClock
from .replay import Report, replay

SAMPLE = Path(__file__).with_name("sample.log")
HOST = "127.0.0.1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, 1 if a Retry-After was wrong, or 2 if something cannot be used."""
    options = parse(arguments)
    log, console = AccessLog(options.log), Console()
    try:
        with console.status("Reading the log"):
            records = sorted(log, key=lambda record: record.time_us)
    except OSError as error:
        return fail(f"cannot read {options.log}: {error.strerror or error}")
    if not records:
        return fail(f"{options.log} holds no line of an access log that can be read ({describe(log)})")
    requests = [record for record in records if record.method]
    report, figures = asyncio.run(replay_all(requests, console))
    console.print(summary(log, requests, report), "", refusals(report), "", worst(report), "")
    console.print(by_route(figures), "")
    console.print(verdict(report), soft_wrap=True)
    if report.violations:
        return 1
    return 0 if options.no_serve else serve(options.port, console)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--log", type=Path, default=SAMPLE, metavar="FILE", help="an access log; by default a made-up one"
    )
    parser.add_argument("--no-serve", action="store_true", help="end after the replay")
    parser.add_argument("--port", type=port_number, default=8000, help="0 for any free one; by default 8000")
    return parser.parse_args(arguments)


def port_number(text: str) -> int:
    """Read a port."""
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 65535, not {text!r}")
    return int(text)


def fail(message: str) -> int:
    """Say what is wrong; return the exit code for it."""
    sys.stderr.write(f"demo: {message}\n")
    return 2


async def replay_all(records: Sequence[AccessRecord], console: Console) -> tuple[Report, Figures]:
    """Replay all records under a progress bar."""
    clock = ReplayClock()
    limiter = Limiter(MemoryStore(clock=clock))
    report, figures = Report(), Figures(limiter, clock)
    with Progress(console=console) as progress:
        task = progress.add_task("Replaying in the log's own time", total=len(records))
        async for answer in replay(make_app(limiter), limiter, clock, figures.following(records)):
            report.add(answer)
            progress.advance(task)
    return report, figures


def summary(log: AccessLog, requests: Sequence[AccessRecord], report: Report) -> Table:
    """Return a table of the lines that were read and the fate of the requests."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for what, value in (
        ("Log", printable(str(log.path))),
        ("Lines", f"{log.read:,} read, {describe(log)}"),
        ("No HTTP request", f"{log.read - len(requests):,} of the lines read: TLS bytes, idle connections"),
        ("Requests", f"{len(requests):,} from {len(report.clients):,} clients"),
        ("Time", " to ".join(moment(record) for record in requests[:: max(1, len(requests) - 1)]) or "none"),
        *((outcome.capitalize(), share(report.count(outcome), len(requests))) for outcome in ("admitted", "refused")),
        ("Blocked", f"{share(report.count('blocked'), len(requests))} by blocked.netset"),
    ):
        table.add_row(Text(what, style="bold"), Text(value))
    return table


def refusals(report: Report) -> Table:
    """Return which limits refused how often."""
    table = Table("Rule", "Limit", Column("Refused", justify="right"), title="Refused by rule", title_justify="left")
    for (rule, limit), count in report.refused.most_common():
        table.add_row(rule, limit, f"{count:,}")
    return table


def worst(report: Report) -> Table:
    """Return the clients that were turned away most often."""
    table = Table("Client", title="Most refused clients", title_justify="left")
    for outcome in ("admitted", "refused", "blocked"):
        table.add_column(outcome.capitalize(), justify="right")
    for client, outcomes in report.most_refused(10):
        counts = (f"{outcomes[outcome]:,}" for outcome in ("admitted", "refused", "blocked"))
        table.add_row(Text(printable(client)), *counts)
    return table


def by_route(figures: Figures) -> Table:
    """Return what the limiter's statistics say of each route."""
    table = Table(
        "Route",
        title="By route",
        title_justify="left",
        caption="QPS: admitted, in the busiest minute of the log. p95: through gate and application, on this machine.",
        caption_justify="left",
    )
    for heading in ("Admitted", "Refused", "Blocked", "Exceptions", "QPS", "p95 ms"):
        table.add_column(heading, justify="right")
    for route, seen in sorted(figures.routes.items(), key=lambda entry: (-entry[1].events["pass"], entry[0])):
        refused = seen.events["block"] - seen.events["blocked"]
        counts = seen.events["pass"], refused, seen.events["blocked"], seen.events["exception"]
        p95 = "" if seen.p95_us is None else f"{seen.p95_us / 1_000:.2f}"
        table.add_row(Text(route), *(f"{count:,}" for count in counts), f"{seen.busiest_qps:.2f}", p95)
    return table


def verdict(report: Report) -> Text:
    """Return what came of putting every Retry-After to the test."""
    if not report.retries_checked:
        return Text("Retry-After: no request was refused by a limit, so there was none to check")
    text = Text(f"Retry-After: {report.retries_checked:,} checked; ")
    text.append("retried then: admitted, a microsecond earlier: refused; ")
    text.append(f"{len(report.violations):,} violations", style="bold red" if report.violations else "bold green")
    for answer in report.violations:
        record = answer.record
        asked = printable(f"{record.client} {record.method} {record.path}")
        text.append(f"\n{moment(record)} {asked}: {answer.violation}")
    return text


def moment(record: AccessRecord) -> str:
    """Return when a request came in."""
    return f"{datetime.fromtimestamp(record.time_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def describe(log: AccessLog) -> str:
    """Say how many lines were skipped, and why."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in log.skipped.most_common())
    return f"{log.skipped.total():,} skipped" + (f" ({reasons})" if reasons else "")


def share(count: int, total: int) -> str:
    """Return a count with its share of the total."""
    return f"{count:,} ({100 * count / max(total, 1):.1f} %)"


def printable(text: str) -> str:
    """Return text from a log without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def serve(port: int, console: Console) -> int:
    """Serve the site, with fresh counts and the real clock, until Ctrl-C."""
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        return fail(f"cannot listen on {HOST}:{port}: {error.strerror or error}; --port 0 takes any free one")
    with listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        console.print(
            f"\nServing the same site at {url} until Ctrl-C. The sixth answer to this is a 429:\n", soft_wrap=True
        )
        console.print(Text(f'  curl -i -X POST "{url}/login?try=[1-6]"\n', style="bold"), soft_wrap=True)
        app = make_app(Limiter(MemoryStore()))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        console.print("Stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
