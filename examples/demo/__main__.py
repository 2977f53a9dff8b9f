"""``python -m examples.demo``: replay an access log through the demo site, then serve the site."""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.table import Column, Table
from rich.text import Text

from slidegate import ConfigurationError, Limiter, MemoryStore
from slidegate.logs import AccessLogs, AccessRecord
from slidegate.stats import Statistics

from .app import DASHBOARD, make_app
from .figures import MINUTE_US, Figures, ReplayClock
from .replay import OUTCOMES, Report, bans_of, replay

SAMPLE = Path(__file__).with_name("sample.log")
HOST = "127.0.0.1"
HOUR_US = 3_600_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, 1 if a Retry-After was wrong, or 2 if the log or the port cannot be used."""
    options, site = parse(arguments), Site()
    if options.no_serve:
        return show(options.log, Console(), site)
    # Check the port before the replay.
    try:
        listener = socket.create_server((HOST, options.port))
    except OSError as error:
        return fail(f"cannot listen on {HOST}:{options.port}: {error.strerror or error}; --port 0 takes any free one")
    with listener:
        console = Console()
        return show(options.log, console, site) or serve(listener, console, site)


class Site:
    """The site through which the log is replayed, and which is served afterwards."""

    def __init__(self) -> None:
        self.clock = ReplayClock()
        self.limiter = Limiter(MemoryStore(clock=self.clock))
        self.figures = Figures(self.limiter, self.clock)
        self.report = Report()
        self.token = secrets.token_urlsafe(16)
        # Local requests may choose their address by X-Forwarded-For, as the printed curl commands do.
        self.app = make_app(self.limiter, [HOST], self.token)


def show(path: Path, console: Console, site: Site) -> int:
    """Replay a log and print the result; return the exit code."""
    try:
        log = AccessLogs([path])
        last_us = max((record.time_us for record in log), default=None)
        if last_us is None:
            return fail(f"{printable(str(path))}: none of {log.counts.lines:,} lines is a record of an access log")
        # Shift the log to end now, for the dashboard: by whole minutes, so that windows start as in the log.
        later_us = (time.time_ns() // 1_000 - last_us) // MINUTE_US * MINUTE_US
        log = AccessLogs([path])
        site.report = asyncio.run(replay_all(log, later_us, site, console))
    except (ConfigurationError, OSError) as error:
        return fail(printable(str(error)))
    report = site.report
    console.print(summary(path, log, report), "", refusals(report), "", bans(report), "", worst(report), "")
    console.print(by_route(site.figures), "")
    console.print(*map(Text, shown(report)), sep="\n", soft_wrap=True)
    return 1 if report.violations else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--log", type=Path, default=SAMPLE, metavar="FILE", help="an access log; by default a fictional one"
    )
    parser.add_argument("--no-serve", action="store_true", help="exit after the replay")
    parser.add_argument("--port", type=port_number, default=8000, help="0 for any free one; by default 8000")
    return parser.parse_args(arguments)


def port_number(text: str) -> int:
    """Parse a port."""
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 65535, not {text!r}")
    return int(text)


def fail(message: str) -> int:
    """Print an error; return its exit code."""
    sys.stderr.write(f"demo: {message}\n")
    return 2


async def replay_all(log: AccessLogs, later_us: int, site: Site, console: Console) -> Report:
    """Replay all records, shifted by `later_us`, with a progress bar."""
    report = Report(bans=bans_of(site.limiter, site.clock), later_us=later_us)
    with Progress(console=console) as progress:
        task = progress.add_task("Replaying in the log's own time", total=log.size_bytes)
        records = site.figures.following(requests(log, later_us))
        async for answer in replay(site.app, site.limiter, site.clock, records):
            report.add(answer)
            progress.update(task, completed=log.taken_bytes)
    return report


def requests(records: Iterable[AccessRecord], later_us: int = 0) -> Iterator[AccessRecord]:
    """Yield the records that are HTTP requests; one that is out of order gets the time of its predecessor."""
    latest_us = 0
    for record in records:
        if record.method:
            latest_us = max(latest_us, record.time_us + later_us)
            yield record._replace(time_us=latest_us)


def summary(path: Path, log: AccessLogs, report: Report) -> Table:
    """Return a table of the lines read and the outcomes of the requests."""
    table = Table(show_header=False, box=None, pad_edge=False)
    counts = {outcome: report.count(outcome) for outcome in OUTCOMES}
    total = sum(counts.values())
    times = [] if report.first_us is None else [moment(report, report.first_us), moment(report, report.last_us)]
    by = {"blocked": " by blocked.netset", "banned": " by bans"}
    for what, value in (
        ("Log", printable(str(path))),
        ("Lines", f"{log.counts.records:,} read, {describe(log)}"),
        ("No HTTP request", f"{log.counts.records - total:,} of the lines read: TLS bytes, idle connections"),
        ("Requests", f"{total:,} from {len(report.clients):,} clients"),
        ("Time", " to ".join(times) or "none"),
        *((what.capitalize(), share(count, total) + by.get(what, "")) for what, count in counts.items()),
    ):
        table.add_row(Text(what, style="bold"), Text(value))
    return table


def refusals(report: Report) -> Table:
    """Return a table of the refusals of each limit."""
    table = Table("Rule", "Limit", Column("Refused", justify="right"), title="Refused by rule", title_justify="left")
    for (rule, limit), count in report.refused.most_common():
        table.add_row(rule, limit, f"{count:,}")
    return table


def bans(report: Report) -> Table:
    """Return a table of the bans."""
    table = Table("Banned", "By", "From", Column("For", justify="right"), title="Bans", title_justify="left")
    for ban in report.bans:
        length = "ever" if ban.until is None else f"{ban.until.timestamp() / 60 - ban.made_us / 60_000_000:.0f} min"
        table.add_row(Text(printable(ban.key)), ban.by, moment(report, ban.made_us), length)
    return table


def worst(report: Report) -> Table:
    """Return a table of the clients with the most refusals."""
    table = Table("Client", title="Most refused clients", title_justify="left")
    for outcome in OUTCOMES:
        table.add_column(outcome.capitalize(), justify="right")
    for client, outcomes in report.most_refused(10):
        table.add_row(Text(printable(client)), *(f"{outcomes[outcome]:,}" for outcome in OUTCOMES))
    return table


def by_route(figures: Figures) -> Table:
    """Return a table of the limiter's statistics by route."""
    table = Table(
        "Route",
        title="By route",
        title_justify="left",
        caption="QPS: admitted, in the busiest minute. p95: through middleware and application.",
        caption_justify="left",
    )
    for heading in ("Admitted", "Refused", "Blocked", "Banned", "QPS", "p95 ms"):
        table.add_column(heading, justify="right")
    for route, seen in sorted(figures.routes.items(), key=lambda entry: (-entry[1].events["pass"], entry[0])):
        blocked, banned = seen.events["blocked"], seen.events["banned"]
        counts = seen.events["pass"], seen.events["block"] - blocked - banned, blocked, banned
        p95 = "" if seen.p95_us is None else f"{seen.p95_us / 1_000:.2f}"
        table.add_row(Text(route), *(f"{count:,}" for count in counts), f"{seen.busiest_qps:.2f}", p95)
    return table


def shown(report: Report) -> Iterator[str]:
    """Yield the results of the replay, one sentence each."""
    reasons = {ban.key: ban.reason for ban in report.bans}
    banned = "; ".join(f"{printable(key)} for {reason}" for key, reason in reasons.items())
    yield f"Banned: {banned}." if banned else "No client was banned."
    worst = {(rule, limit): client for (rule, limit, client), _ in reversed(report.held.most_common())}
    held = "; ".join(f"{printable(worst[rule, limit])} to {limit} of {rule}" for rule, limit in report.refused)
    yield f"Limited (worst client of each rule): {held}." if held else "No client was limited."
    yield retries(report)


def retries(report: Report) -> str:
    """Return whether every Retry-After was exact, and list those that were not."""
    if not report.retries_checked:
        return "No limit and no ban refused a request, so there was no Retry-After to check."
    if not report.violations:
        return f"All {report.retries_checked:,} Retry-After values were exact to the microsecond."
    text = f"{len(report.violations):,} of {report.retries_checked:,} Retry-After values were wrong:"
    for answer in report.violations:
        record = answer.record
        asked = printable(f"{record.client} {record.method} {record.path}")
        text += f"\n{moment(report, record.time_us)} {asked}: {answer.violation}"
    return text


def moment(report: Report, time_us: int) -> str:
    """Format a time of the replay, in microseconds of Unix time, as the time in the log."""
    return f"{datetime.fromtimestamp((time_us - report.later_us) // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def describe(log: AccessLogs) -> str:
    """Return how many lines were skipped, by reason."""
    skipped = log.counts.skipped
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.most_common())
    return f"{skipped.total():,} skipped" + (f" ({reasons})" if reasons else "")


def share(count: int, total: int) -> str:
    """Return a count with its share of the total."""
    return f"{count:,} ({100 * count / max(total, 1):.1f} %)"


def printable(text: str) -> str:
    """Return text from a log with control characters replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def serve(listener: socket.socket, console: Console, site: Site) -> int:
    """Serve the site, with a dashboard of the replay, in real time until Ctrl-C."""
    site.clock.release()
    with listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        console.print(f"\nServing the same site at {url} until Ctrl-C.\n", soft_wrap=True)
        console.print(
            f"The dashboard is at {url}{DASHBOARD}/#now?window={window(site.report)}, and shows the replay.",
            soft_wrap=True,
        )
        console.print(f"Sign in with any name and this password: {site.token}\n", soft_wrap=True)
        for what, command in (
            ("The sixth response to this is a 429:", f'curl -i -X POST "{url}/login?try=[1-6]"'),
            ("This client is on the blocklist:", f'curl -iH "X-Forwarded-For: 198.51.100.200" {url}/'),
            ("The fourth response to this is a ban:", f'curl -iH "X-Forwarded-For: 203.0.113.9" "{url}/.env?[1-4]"'),
        ):
            console.print(what, Text(f"  {command}\n", style="bold"), sep="\n", soft_wrap=True)
        server = uvicorn.Server(uvicorn.Config(site.app, log_level="warning"))
        with Live(
            console=console, get_renderable=lambda: counts(site.limiter), refresh_per_second=2, transient=True
        ) as live:
            live.auto_refresh = console.is_terminal
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        console.print(counts(site.limiter), "Stopped.", sep="\n")
    return 0


def window(report: Report) -> str:
    """Return the window of the dashboard that shows the whole replay, at most 24 hours."""
    hours = (report.last_us - (report.first_us or 0)) / HOUR_US
    return next((f"{most}h" for most in (1, 3, 6, 12) if hours < most), "24h")


def counts(limiter: Limiter) -> Text:
    """Return the counts of the middleware so far, including the replay, in one line."""
    seen = Statistics(limiter).stats("24h").total
    refused = seen.refused - seen.blocked - seen.banned
    return Text(f"{seen.passed:,} admitted, {refused:,} refused, {seen.blocked:,} blocked, {seen.banned:,} banned")


if __name__ == "__main__":
    # Suppress the log of bans, which are shown in a table.
    logging.getLogger("slidegate").addHandler(logging.NullHandler())
    sys.exit(main())
