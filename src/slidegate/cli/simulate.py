"""``slidegate simulate``: replays access logs against limits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import click

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..simulation.clients import Clients, ClientTally
from ..simulation.replay import Replay
from ..simulation.report import MAX_SHOWN, FirstRefusal, Refusals, Simulated
from ..web.checks import ENABLED_VARIABLE
from ..web.keys import header
from .log_options import Logs, check_header, header_of, with_logs
from .output import failed, note, show, table, time_of, with_format

_CLIENT_COLUMNS: Final = ("client", "requests", "refused", "banned", "kind", "why")


@click.command()
@click.option("--limit", metavar="LIMITS", help='The limits of each client: "60/minute; 1000/hour".')
@click.option("--rules", metavar="FILE", help="A configuration file with rules and bans, instead of --limit.")
@click.option("--key", default="ip", show_default=True, metavar="KEY", help="What to count by: ip or header:NAME.")
@click.option("--ban-after", metavar="LIMIT", help='With --limit: ban a client after this many refusals, "20/10m".')
@with_format
@with_logs
@click.pass_context
def simulate(
    ctx: click.Context,
    logs: Logs,
    limit: str | None,
    rules: str | None,
    key: str,
    ban_after: str | None,
    as_json: bool,
) -> None:
    """Replay access logs, and show which clients limits would have refused.

    Each logged request is sent to the real middleware, at its logged time.

    \b
    Example: slidegate simulate access.log --limit "60/minute" --ban-after 20/10m
    """
    named = header_of(key)
    simulated = Simulated(_replay(limit, rules, named, ban_after), Clients(named))
    interrupted = False
    try:
        logs.read("Replaying", simulated.add)
    except KeyboardInterrupt:
        interrupted = True
        note("interrupted; the result covers the requests so far")
    logs.note_skipped()
    check_header(simulated.clients)
    show(as_json, [_value(simulated)], _text(simulated))
    if interrupted:
        ctx.exit(1)


def _replay(limit: str | None, rules: str | None, header_name: str | None, ban_after: str | None) -> Replay:
    if (limit is None) == (rules is None):
        raise click.UsageError('expected either --limit, such as "60/minute", or --rules, such as slidegate.toml')
    os.environ.pop(ENABLED_VARIABLE, None)  # it switches off the limits of applications, not those of a replay
    if rules is None:
        key = None if header_name is None else header(header_name)
        return Replay(limits=limit, key=key, bans=None if ban_after is None else BanPolicy(ban_after, key=key))
    if ban_after is not None or header_name is not None:
        raise click.UsageError("--key and --ban-after require --limit; with --rules, write keys and bans into the file")
    try:
        replay = Replay.from_file(rules)
    except ConfigurationError as error:
        raise failed(error) from error
    if replay.unwaited:
        note(f"waits and permits cannot be replayed and are ignored: {', '.join(replay.unwaited)}")
    return replay


def _value(simulated: Simulated) -> dict[str, Any]:
    """Return the complete result of a simulation."""
    return {
        **simulated.summary(),
        "rules": _refusals(simulated.rules),
        "shadow_rules": _refusals(simulated.shadows),
        "policies": dict(simulated.bans.most_common()),
        "shadow_policies": dict(simulated.shadow_bans.most_common()),
        "routes": [{"route": name, **counts} for name, counts in simulated.busiest_routes()],
        "first": [first._asdict() for first in simulated.first],
        "touched": _clients(simulated.touched()),
        "banned": _banned(simulated),
    }


def _text(simulated: Simulated) -> Iterator[str]:
    for name, value in simulated.summary().items():
        shown = f"{value:.4%}" if isinstance(value, float) else f"{value:,}"
        yield f"{name.replace('_', ' ') + ':':<20} {shown:>12}"
    if simulated.clients.requests:
        first, last = (time_of(at_us / 1_000_000) for at_us in (simulated.clients.first_us, simulated.clients.last_us))
        yield f"{'from, until:':<20} {first}, {last}"
    routes = [
        {"route": name, "requests": counts["requests"], "refused": counts.total() - counts["requests"]}
        for name, counts in simulated.busiest_routes()
    ]
    refused = ("rule", "requests", "clients")
    for title, columns, rows in (
        ("Refused, by rule", refused, _refusals(simulated.rules)),
        ("Shadow rules would have refused", refused, _refusals(simulated.shadows)),
        ("Routes, guessed from the paths", ("route", "requests", "refused"), routes),
        (
            "First refusals",
            FirstRefusal._fields,
            [{**first._asdict(), "at": time_of(first.at)} for first in simulated.first],
        ),
        ("Clients refused most", _CLIENT_COLUMNS, _clients(simulated.touched())),
        ("Clients banned", ("client", "at"), [{**row, "at": time_of(row["at"])} for row in _banned(simulated)]),
    ):
        if rows:
            yield from ("", title, *table(columns, rows[:MAX_SHOWN]))


def _refusals(rules: Mapping[str, Refusals]) -> list[dict[str, Any]]:
    return [
        {"rule": name, "requests": refusals.requests, "clients": len(refusals.keys)}
        for name, refusals in sorted(rules.items(), key=lambda pair: -pair[1].requests)
    ]


def _clients(clients: Iterable[tuple[str, ClientTally]]) -> list[dict[str, Any]]:
    rows = ((name, one.requests, one.refused, one.banned, *one.classify()) for name, one in clients)
    return [dict(zip(_CLIENT_COLUMNS, row, strict=True)) for row in rows]


def _banned(simulated: Simulated) -> list[dict[str, Any]]:
    first = sorted(simulated.banned.items(), key=lambda pair: (pair[1], pair[0]))
    return [{"client": client, "at": at_us / 1_000_000} for client, at_us in first]
