"""``slidegate bans``: lists, adds and removes the bans of a store."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import click

from ... import Limiter
from ..published_rules import ban_by_hand
from ..rows import as_json, key_of, time_of
from .main import Answer, asking, note, program, table, with_author, with_duration, with_reason, with_value

_COLUMNS: Final = ("key", "until", "by", "level", "reason")


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
    rows = as_json([ban async for ban in limiter.bans()])
    if not rows:
        note("there are no bans")
    return rows, table(_COLUMNS, [{**row, "until": end_of(row)} for row in rows])


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


def end_of(row: dict[str, Any]) -> str:
    """Return the end of a ban from its row."""
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
