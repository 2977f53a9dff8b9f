"""``slidegate simulate``: what limits would have done to the requests of access logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..core.logs import escaped
from ..simulation.clients import Clients, ClientTally
from ..simulation.html import html_report
from ..simulation.replay import Replay
from ..simulation.report import MAX_SHOWN, FirstRefusal, Simulated
from ..web.keys import header
from .exits import INTERRUPTED, OK
from .logs import Logs, check_header, header_of, log_options
from .report import Report, Reporter, Result, Table, silent_log, time_of, with_report

_CLIENT_COLUMNS: Final = ("client", "requests", "refused", "banned", "kind", "why")
_MAX_CELL: Final = 80


@click.command()
@click.option("--limit", metavar="LIMITS", help='The limits of every client: "60/minute; 1000/hour".')
@click.option("--rules", metavar="FILE", help="A configuration file with rules and bans instead.")
@click.option("--key", default="ip", show_default=True, metavar="KEY", help="Who is counted: ip, or header:NAME.")
@click.option("--ban-after", metavar="LIMIT", help='With --limit: ban who is refused so often, "20/10m".')
@click.option("--html", metavar="FILE", help="Write a report with charts into this file, too.")
@log_options
@with_report("json", "csv")
def simulate(
    out: Reporter,
    /,
    limit: str | None,
    rules: str | None,
    key: str,
    ban_after: str | None,
    html: str | None,
    **logs: Any,
) -> Result:
    """Replay access logs through the middleware in virtual time, and say whom its limits would have touched.

    \b
    Example: slidegate simulate access.log --limit "60/minute" --ban-after 20/10m
    """
    if (limit is None) == (rules is None):
        raise click.UsageError('give --limit "60/minute" or --rules slidegate.toml, one of them')
    if rules is not None and (ban_after is not None or key != "ip"):
        raise click.UsageError("--key and --ban-after go with --limit; with --rules, keys and bans stand in the file")
    named = header_of(key)
    counted = None if named is None else header(named)
    bans = None if ban_after is None else BanPolicy(ban_after, key=counted)
    reading = Logs(**logs)
    if html is not None:
        _check_writable(html)
    code = OK
    with silent_log():
        replay = Replay(limit, rules=rules, key=counted, bans=bans)
        if replay.unwaited:
            out.note(f"without waits and permits, which logs do not tell of: {', '.join(replay.unwaited)}")
        simulated = Simulated(replay, Clients(named))
        try:
            reading.read(out, "Replaying", simulated.add)
        except KeyboardInterrupt:
            code = INTERRUPTED
            out.note("stopped; this is about the requests so far")
    reading.remarks(out)
    check_header(out, simulated.clients)
    if html is not None:
        Path(html).write_text(html_report(simulated, str(limit or rules)), encoding="utf-8")
    every = sorted(simulated.clients.tallies.items(), key=lambda pair: (-pair[1].refused, -pair[1].requests, pair[0]))
    return Report(_value(simulated), _text(simulated), Table(_CLIENT_COLUMNS, _clients(every)), code)


def _check_writable(file: str) -> None:
    """Refuse a file that cannot be written before the replay, which may take long.

    Raises:
        ConfigurationError: It cannot.
    """
    try:
        open(file, "a").close()
    except OSError as error:
        raise ConfigurationError(
            f"--html: expected a file in a directory that is there, and {file} cannot be written: {error.strerror}"
        ) from None


def _value(simulated: Simulated) -> dict[str, Any]:
    """Return everything that a simulation has found."""
    return {
        **simulated.summary(),
        "rules": dict(simulated.rules.most_common()),
        "shadow_rules": dict(simulated.shadows.most_common()),
        "policies": dict(simulated.bans.most_common()),
        "shadow_policies": dict(simulated.shadow_bans.most_common()),
        "routes": [{"route": name, **counts} for name, counts in simulated.busiest_routes()],
        "first": [first._asdict() for first in simulated.first],
        "touched": _clients(simulated.touched()[:MAX_SHOWN]),
        "banned": _banned(simulated),
    }


def _text(simulated: Simulated) -> Iterator[str | Table]:
    for name, value in simulated.summary().items():
        shown = f"{value:.4%}" if isinstance(value, float) else f"{value:,}"
        yield f"{name.replace('_', ' ') + ':':<20} {shown:>12}"
    if simulated.clients.requests:
        first, last = (time_of(at_us / 1_000_000) for at_us in (simulated.clients.first_us, simulated.clients.last_us))
        yield f"{'from, until:':<20} {first}, {last}"
    routes = [
        {"route": name, "requests": counts["requests"], "refused": counts.total() - counts["requests"]}
        for name, counts in simulated.busiest_routes()[:MAX_SHOWN]
    ]
    for title, columns, rows in (
        ("Refusals by rule", ("rule", "refused"), _counted("rule", "refused", simulated.rules)),
        ("Shadow rules would have refused", ("rule", "requests"), _counted("rule", "requests", simulated.shadows)),
        ("Routes, guessed from the paths", ("route", "requests", "refused"), routes),
        ("First refusals", FirstRefusal._fields, [first._asdict() for first in simulated.first[:5]]),
        ("Clients refused most", _CLIENT_COLUMNS, _clients(simulated.touched()[:MAX_SHOWN])),
        ("Clients banned", ("client", "at"), _banned(simulated)),
    ):
        if rows:
            yield from ("", title, Table(columns, [_cut(row) for row in rows]))


def _cut(row: dict[str, Any]) -> dict[str, Any]:
    return {name: escaped(value, _MAX_CELL) if isinstance(value, str) else value for name, value in row.items()}


def _counted(name_column: str, count_column: str, counts: Counter[str]) -> list[dict[str, Any]]:
    return [{name_column: name, count_column: count} for name, count in counts.most_common(MAX_SHOWN)]


def _clients(clients: Iterable[tuple[str, ClientTally]]) -> list[dict[str, Any]]:
    rows = ((name, one.requests, one.refused, one.banned, *one.look()) for name, one in clients)
    return [dict(zip(_CLIENT_COLUMNS, row, strict=True)) for row in rows]


def _banned(simulated: Simulated) -> list[dict[str, Any]]:
    first = sorted(simulated.banned.items(), key=lambda pair: (pair[1], pair[0]))[:MAX_SHOWN]
    return [{"client": client, "at": at_us / 1_000_000} for client, at_us in first]
