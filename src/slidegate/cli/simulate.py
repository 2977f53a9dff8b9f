"""``slidegate simulate``: replays access logs against limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import click

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..simulation.replay import REFUSALS, Replay
from ..simulation.report import Simulated
from ..web.checks import ENABLED_VARIABLE
from ..web.keys import Key
from .log_options import Logs, with_logs
from .output import failed, note, show, table, time_of, with_format

MAX_SHOWN: Final = 20
"""The maximum number of rows of a table as text."""
_TITLES: Final = {
    "rules": "Refused, by rule",
    "shadow_rules": "Shadow rules would have refused",
    "routes": "Routes, guessed from the paths",
    "first": "First refusals",
    "touched": "Clients refused most",
    "banned": "Clients banned",
}


@click.command()
@click.option("--limit", metavar="LIMITS", help='The limits of each client: "60/minute; 1000/hour".')
@click.option("--rules", metavar="FILE", help="A configuration file with rules and bans, instead of --limit.")
@click.option("--ban-after", metavar="LIMIT", help='With --limit: ban a client after this many refusals, "20/10m".')
@with_format
@with_logs
def simulate(logs: Logs, limit: str | None, rules: str | None, ban_after: str | None, as_json: bool) -> None:
    """Replay access logs, and show which clients limits would have refused.

    Each logged request is sent to the real middleware, at its logged time.

    \b
    Example: slidegate simulate access.log --limit "60/minute" --ban-after 20/10m
    """
    simulated = Simulated(_replay(limit, rules, logs.clients.key, ban_after), logs.clients)
    logs.read("Replaying", simulated.add)
    logs.note_omissions()
    show(as_json, [_value(simulated)], _text(simulated))


def _replay(limit: str | None, rules: str | None, key: Key | None, ban_after: str | None) -> Replay:
    if (limit is None) == (rules is None):
        raise click.UsageError('expected either --limit, such as "60/minute", or --rules, such as slidegate.toml')
    os.environ.pop(ENABLED_VARIABLE, None)  # it switches off the limits of applications, not those of a replay
    if rules is None:
        return Replay(limits=limit, key=key, bans=None if ban_after is None else BanPolicy(ban_after, key=key))
    if ban_after is not None or key is not None:
        raise click.UsageError("--key and --ban-after require --limit; with --rules, write keys and bans into the file")
    try:
        replay = Replay.from_file(rules)
    except ConfigurationError as error:
        raise failed(error) from error
    if replay.unwaited:
        note(f"waits and permits cannot be replayed and are ignored: {', '.join(replay.unwaited)}")
    if replay.middleware.default_limits:
        note("a log does not contain routes, so default_limits count all requests of a client together")
    return replay


def _value(simulated: Simulated) -> dict[str, Any]:
    """Return the complete result of a simulation."""
    return {
        **simulated.totals(),
        "policies": dict(simulated.bans.most_common()),
        "shadow_policies": dict(simulated.shadow_bans.most_common()),
        **simulated.tables(),
    }


def _text(simulated: Simulated) -> Iterator[str]:
    for name, value in simulated.totals().items():
        shown = f"{value:.4%}" if isinstance(value, float) else f"{value:,}"
        yield f"{name.replace('_', ' ') + ':':<20} {shown:>12}"
    if simulated.clients.requests:
        first, last = (time_of(at_us / 1_000_000) for at_us in (simulated.clients.first_us, simulated.clients.last_us))
        yield f"{'from, until:':<20} {first}, {last}"
    for name, listed in simulated.tables().items():
        rows = [_shown(row) for row in listed[:MAX_SHOWN]]
        if rows:
            yield from ("", _TITLES[name], *table([*rows[0]], rows))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as text shows it: times in UTC, and all refusals of a route together."""
    if "route" in row:
        return {"route": row["route"], "requests": row["requests"], "refused": sum(row.get(one, 0) for one in REFUSALS)}
    return {**row, "at": time_of(row["at"])} if "at" in row else row
