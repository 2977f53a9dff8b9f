"""``slidegate simulate``: what limits would have done to the requests of access logs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..simulation.clients import ClientTally
from ..simulation.html import html_report
from ..simulation.replay import Clients, Replay
from ..simulation.report import MAX_SHOWN, Simulated
from ..web.keys import header
from .logs import Logs, check_header, header_of, log_options
from .output import Output, clean, silent_log, time_of, with_output

_CLIENT_COLUMNS: Final = ("client", "requests", "refused", "banned", "kind", "why")


@click.command()
@click.option("--limit", metavar="LIMITS", help='The limits of every client: "60/minute; 1000/hour".')
@click.option("--rules", metavar="FILE", help="A configuration file with rules and bans instead.")
@click.option("--key", default="ip", show_default=True, metavar="KEY", help="Who is counted: ip, or header:NAME.")
@click.option("--ban-after", metavar="LIMIT", help='With --limit: ban who is refused so often, "20/10m".')
@click.option("--html", metavar="FILE", help="Write a report with charts into this file, too.")
@log_options
@with_output()
def simulate(
    out: Output,
    /,
    limit: str | None,
    rules: str | None,
    key: str,
    ban_after: str | None,
    html: str | None,
    **logs: Any,
) -> None:
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
        _check_writable(Path(html))
    with silent_log():
        replay = Replay(limit, rules=rules, key=counted, bans=bans)
        if replay.unwaited:
            out.note(f"without waits and places, which logs do not tell of: {', '.join(replay.unwaited)}")
        clients = Clients(named)
        simulated = Simulated(replay, clients)
        interrupted: KeyboardInterrupt | None = None
        try:
            with closing(reading.read(out, "Replaying")) as records:
                for record in records:
                    simulated.add(record)
        except KeyboardInterrupt as stop:
            interrupted = stop
            out.note("stopped; this is about the requests so far")
    reading.remarks(out)
    check_header(out, named, clients, simulated.requests)
    what = str(limit if limit is not None else rules)
    if html is not None:
        Path(html).write_text(html_report(simulated, what), encoding="utf-8")
    _write(out, simulated)
    if interrupted is not None:
        raise interrupted


def _check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before the replay, which may take long.

    Raises:
        ConfigurationError: It is a directory, or its directory is not there or not to be written to.
    """
    if path.is_dir():
        raise ConfigurationError(f"--html: expected the name of a file, and {path} is a directory")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--html: expected a file in a directory that is there; {path.parent} is none")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"--html: {path} cannot be written")


def _write(out: Output, simulated: Simulated) -> None:
    if out.form == "json":
        out.value(report(simulated))
    elif out.form == "csv":
        out.rows(_CLIENT_COLUMNS, _clients(simulated, len(simulated.clients)))
    else:
        _write_text(out, simulated)


def report(simulated: Simulated) -> dict[str, Any]:
    """Return everything that a simulation has found, for JSON."""
    return {
        **simulated.summary(),
        "rules": dict(simulated.rules.most_common()),
        "shadow_rules": dict(simulated.shadows.most_common()),
        "policies": dict(simulated.bans.most_common()),
        "shadow_policies": dict(simulated.shadow_bans.most_common()),
        "routes": [{"route": name, **counts} for name, counts in _routes(simulated)],
        "first": [{**first._asdict(), "time": time_of(first.time_us)} for first in simulated.first],
        "touched": [dict(zip(_CLIENT_COLUMNS, row, strict=True)) for row in _clients(simulated)],
        "banned": [{"client": client, "time": time_of(at_us)} for client, at_us in _banned(simulated)],
    }


def _write_text(out: Output, simulated: Simulated) -> None:
    for name, value in simulated.summary().items():
        shown = f"{value:.4%}" if isinstance(value, float) else f"{value:,}"
        out.say(f"{name.replace('_', ' ') + ':':<20} {shown:>12}")
    if simulated.first_us:
        out.say(f"{'from, until:':<20} {time_of(simulated.first_us)}, {time_of(simulated.last_us)}")
    _table(out, "Refusals by rule", ("rule", "refused"), simulated.rules.most_common(MAX_SHOWN))
    _table(out, "Shadow rules would have refused", ("rule", "requests"), simulated.shadows.most_common(MAX_SHOWN))
    routes = [
        (name, counts["requests"], sum(counts[kind] for kind in counts if kind != "requests"))
        for name, counts in _routes(simulated)[:MAX_SHOWN]
    ]
    _table(out, "Routes, guessed from the paths", ("route", "requests", "refused, banned or blocked"), routes)
    first = [
        (time_of(it.time_us), it.client, f"{it.method} {it.path}", it.rule, it.limit) for it in simulated.first[:5]
    ]
    _table(out, "First refusals", ("time", "client", "request", "rule", "limit"), first)
    _table(out, "Clients refused most", _CLIENT_COLUMNS, list(_clients(simulated)))
    banned = [(client, time_of(at_us)) for client, at_us in _banned(simulated)]
    _table(out, "Clients banned", ("client", "first ban"), banned)


def _table(out: Output, title: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if rows:
        out.say("", title)
        out.rows(columns, [[clean(value, 80) if isinstance(value, str) else value for value in row] for row in rows])


def _clients(simulated: Simulated, most: int | None = None) -> Iterator[tuple[str, int, int, int, str, str]]:
    """Yield rows about clients: the touched ones with most refusals, or so many of all."""
    found: list[tuple[str, ClientTally]] = simulated.touched()[:MAX_SHOWN]
    if most is not None:
        found = sorted(simulated.clients.items(), key=lambda pair: (-pair[1].refused, -pair[1].requests, pair[0]))
    for name, client in found:
        kind, why = client.look()
        yield name, client.requests, client.refused, client.banned, kind, why


def _routes(simulated: Simulated) -> list[tuple[str, Counter[str]]]:
    return sorted(simulated.routes.items(), key=lambda pair: (-pair[1]["requests"], pair[0]))


def _banned(simulated: Simulated) -> list[tuple[str, int]]:
    return sorted(simulated.banned.items(), key=lambda pair: (pair[1], pair[0]))[:MAX_SHOWN]
