"""``slidegate limits``: lists, makes and ends temporary changes of limits."""

from __future__ import annotations

from typing import Final

import click

from ... import Limiter
from ...core.errors import closest
from ..rows import as_json, key_of, time_of
from .main import Answer, asking, note, program, table, with_author, with_duration, with_reason

_COLUMNS: Final = ("name", "limit", "until", "by", "reason")


@program.group()
def limits() -> None:
    """List, set and restore limits while the application runs, reset a key, or switch all of them off.

    \b
    Example: slidegate limits list --store redis://localhost:6379/0
    """


@limits.command("list")
@asking()
async def list_limits(limiter: Limiter) -> Answer:
    """List the temporarily changed limits.

    \b
    Example: slidegate limits list
    """
    rows = as_json(await limiter.overrides())
    if not rows:
        note("every limit is as configured in code")
    return rows, table(_COLUMNS, [{**row, "until": time_of(row["until_at"])} for row in rows])


@limits.command("set")
@asking(writes=True)
@click.argument("name")
@click.argument("limit")
@with_duration("90s, 2h, at most 30d")
@with_reason
@with_author
async def set_limit(limiter: Limiter, name: str, limit: str, duration: str, reason: str, by: str) -> Answer:
    """Temporarily change the amount of the limit NAME to that of LIMIT, such as 50/minute.

    NAME is the name in response headers. If several limits have it, as of rules in two middlewares, all change; to
    change one alone, give its rule a name of its own. Another window is refused, and so is a name that is nearly one
    that workers have; nothing is changed then. A later change of the same limit replaces an earlier one; at the end
    the limit in code applies again.

    \b
    Example: slidegate limits set api 50/minute --for 2h --reason "the database is slow"
    """
    change = await limiter.override(name, limit, duration, reason=reason, by=by)
    row = as_json(change)
    times = f"in force from {time_of(row['since_at'])} until {time_of(row['until_at'])}"
    if not change.is_published:
        times += "; no worker has met this limit yet"
    return [row], [f"changed: {change.name} to {change.limit}, {times}"]


@limits.command("off")
@asking(writes=True)
@with_duration("90s, 10m, at most 30d")
@with_reason
@with_author
async def switch_off(limiter: Limiter, duration: str, reason: str, by: str) -> Answer:
    """Switch all workers off for a while: every request passes, and nothing is counted.

    slidegate limits restore '*' ends it.

    \b
    Example: slidegate limits off --for 10m --reason "a wrong rule refuses customers"
    """
    row = as_json(await limiter.override("*", "off", duration, reason=reason, by=by))
    return [row], [f"off: every request passes until {time_of(row['until_at'])}"]


@limits.command("restore")
@asking(writes=True)
@click.argument("name")
@with_author
async def restore_limit(limiter: Limiter, name: str, by: str) -> Answer:
    """Restore the limit NAME as configured in code; '*' switches all workers on again.

    If it is not changed, the exit code is 1.

    \b
    Example: slidegate limits restore api
    """
    if not await limiter.restore(name, by=by):
        changed = [override.name for override in await limiter.overrides()]
        raise click.ClickException(f"the limit {name} is not changed{closest(name, changed)}")
    return [{"restored": name}], [f"restored: {name}"]


@limits.command("reset")
@asking(writes=True)
@click.argument("key")
@click.option("--rule", help="The name of one rule; by default all.")
async def reset_key(limiter: Limiter, key: str, rule: str | None) -> Answer:
    """Forget what KEY has spent, under one rule or under all, so that it may spend it again.

    KEY is an address, user:42 or another key as the dashboard shows it. Permits, strikes and bans stay. If it has spent
    nothing, the exit code is 1.

    \b
    Example: slidegate limits reset user:42 --rule login
    """
    if not await limiter.reset(key_of(key), rule=rule):
        raise click.ClickException(f"{key} has spent nothing")
    return [{"reset": key}], [f"reset: {key}"]
