"""``slidegate bans`` and ``slidegate limits``: list, make and end what operators change in a store."""

from __future__ import annotations

from math import ceil
from typing import Any

import click

from ... import Limiter
from ...core.errors import closest
from ..published_rules import ban_by_hand
from ..rows import as_json, key_of, time_of
from .main import Answer, asking, note, program, table, with_author, with_duration, with_reason, with_value


@program.group()
def bans() -> None:
    """List, add and remove bans.

    \b
    Example: slidegate bans list --store redis://localhost:6379/0
    """


@bans.command("list")
@asking()
async def list_bans(limiter: Limiter) -> Answer:
    """List the active bans.

    \b
    Example: slidegate bans list
    """
    columns = ("key", "until", "by", "level", "reason")
    return _listed([ban async for ban in limiter.bans()], columns, "there are no bans")


@bans.command("add")
@asking(writes=True)
@click.argument("key")
@with_value
@with_duration("90s, 1h, 7d, at most 400d, or permanent")
@with_reason
@with_author
async def add_ban(limiter: Limiter, key: str, value: str | None, duration: str, reason: str, by: str) -> Answer:
    """Ban KEY: an address, a network, or another key such as user:42.

    An existing ban of the key is replaced; the last of concurrent commands wins. A ban of another key than an address
    or a network holds where a rule or a policy reads it; the answer says where that is.

    \b
    Example: slidegate bans add 203.0.113.7 --for 1h --reason scanner
    """
    target = key_of(key, value)
    await compare_secrets(limiter, value)
    row = await ban_by_hand(limiter, key, target, duration, reason=reason, by=by)
    return [row], [f"banned: {row['key']} until {end_of(row)}; {row['holds']}"]


@bans.command("remove")
@asking(writes=True)
@click.argument("key")
@with_value
@with_author
async def remove_ban(limiter: Limiter, key: str, value: str | None, by: str) -> Answer:
    """Remove the ban of exactly KEY, and its strikes.

    If there was neither, the exit code is 1.

    \b
    Example: slidegate bans remove 203.0.113.7
    """
    target = key_of(key, value)
    await compare_secrets(limiter, value)
    name = limiter.key_for(target)
    if not await limiter.unban(target, by=by):
        text = f"{name} has no ban and no strikes"
        wider = await limiter.banned(target)
        if wider is not None:
            text += f"; the ban of {wider.key} covers it"
        raise click.ClickException(text)
    return [{"removed": name}], [f"removed: {name}"]


def _listed(listed: Any, columns: Any, if_none: str) -> Answer:
    """Return the rows of bans or changes, and the table of them; note if there are none."""
    rows = as_json(listed)
    if not rows:
        note(if_none)
    return rows, table(columns, [{**row, "until": end_of(row)} for row in rows])


def end_of(row: dict[str, Any]) -> str:
    """Return the end of a ban or a change from its row."""
    if row["until_at"] is None:
        return "unbanned"
    return time_of(ceil(row["until_at"]))


async def compare_secrets(limiter: Limiter, value: str | None) -> None:
    """Check that the digest of a value, if there is one, is the one that the workers of the application use.

    Raises:
        click.ClickException: A worker has another secret.
    """
    if value is None:
        return
    published = await limiter.published()
    workers = sum(publication.workers for publication in published)
    differing = sum(publication.workers for publication in published if not publication.same_secret)
    if differing:
        raise click.ClickException(
            f"{differing} of the {workers} workers on this store have another secret, so they know this value by "
            "another key; set SLIDEGATE_SECRET to that of the application, or pass the key as the dashboard shows it"
        )
    if not workers:
        note("no worker on this store had a request within a day, so its secret was not compared with this one")


# -- limits ------------------------------------------------------------------------------------------------------------


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
    return _listed(
        await limiter.overrides(), ("name", "limit", "until", "by", "reason"), "every limit is as configured"
    )


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
    times = f"in force from {time_of(row['since_at'])} until {end_of(row)}"
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
    return [row], [f"off: every request passes until {end_of(row)}"]


@limits.command("restore")
@asking(writes=True)
@click.argument("name")
@with_author
async def restore_limit(limiter: Limiter, name: str, by: str) -> Answer:
    """Restore the limit NAME as configured; '*' switches all workers on again.

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
