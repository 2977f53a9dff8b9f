"""``slidegate bans``: lists, adds and removes the bans of a store."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import click

from ... import Limiter
from ...core import Ban
from ..rows import check_key, key_of, row_of_ban
from .main import (
    ask,
    note,
    program,
    show,
    table,
    time_of,
    with_author,
    with_json,
    with_reason,
    with_span,
    with_store,
    with_value,
)

_COLUMNS: Final = ("key", "until", "by", "level", "reason")


@program.group()
def bans() -> None:
    """List, add and remove bans.

    \b
    Example: slidegate bans list --store redis://localhost:6379/0
    """


@bans.command("list")
@with_store
@click.option("--by", metavar="NAME", help="Only bans by this policy or person.")
@click.option("--match", metavar="TEXT", default="", help="Only bans with this text in key, reason or author.")
@with_json
def list_bans(store: str, by: str | None, match: str, as_json: bool) -> None:
    """List the active bans.

    \b
    Example: slidegate bans list --match scanner
    """

    def is_wanted(ban: Ban) -> bool:
        texts = (ban.key, ban.reason, ban.by)
        return by in (None, ban.by) and any(match.casefold() in text.casefold() for text in texts)

    async def wanted(limiter: Limiter) -> list[dict[str, Any]]:
        return [row_of_ban(ban) async for ban in limiter.bans() if is_wanted(ban)]

    rows = ask(store, wanted)
    show(as_json, rows, table(_COLUMNS, [{**row, "until": end_of(row)} for row in rows]))
    if not rows:
        note("no ban matches" if match or by else "there are no bans")


@bans.command("add")
@click.argument("key")
@with_value
@with_store
@with_span("How long: 90s, 1h, 7d, at most 400d, or permanent.")
@with_reason
@with_author
@with_json
def add_ban(key: str, value: str | None, store: str, duration: str, reason: str, by: str, as_json: bool) -> None:
    """Ban KEY: an address, a network, or another key such as user:42.

    An existing ban of the key is replaced; the last of concurrent commands wins.

    \b
    Example: slidegate bans add 203.0.113.7 --for 1h --reason scanner
    """
    target = key_of(key, value)
    check_key(key)

    async def add(limiter: Limiter) -> dict[str, Any]:
        if value is not None:
            await _compare_secrets(limiter)
        return row_of_ban(await limiter.ban(target, duration, reason=reason, by=by))

    row = ask(store, add, writes=True)
    show(as_json, [row], [f"banned: {row['key']} until {end_of(row)}"])


@bans.command("remove")
@click.argument("key")
@with_value
@with_store
@with_author
@with_json
def remove_ban(key: str, value: str | None, store: str, by: str, as_json: bool) -> None:
    """Remove the ban of exactly KEY, and its strikes.

    If there was neither, the exit code is 1.

    \b
    Example: slidegate bans remove 203.0.113.7
    """
    target = key_of(key, value)

    async def remove(limiter: Limiter) -> str:
        if value is not None:
            await _compare_secrets(limiter)
        name = limiter.key_for(target)
        if not await limiter.unban(target, by=by):
            wider = await limiter.banned(target)
            why = "" if wider is None else f"; the ban of {wider.key} covers it"
            raise click.ClickException(f"{name} has no ban and no strikes{why}")
        return name

    name = ask(store, remove, writes=True)
    show(as_json, [{"removed": name}], [f"removed: {name}"])


def end_of(row: dict[str, Any]) -> str:
    """Return the end of a ban from its row."""
    return "it is removed" if row["until_at"] is None else time_of(ceil(row["until_at"]))


async def _compare_secrets(limiter: Limiter) -> None:
    """Check that the digest of a value is the one that the workers of the application use.

    Raises:
        click.ClickException: A worker has another secret.
    """
    workers = await limiter.workers()
    differing = sum(not worker.same_secret for worker in workers)
    if differing:
        raise click.ClickException(
            f"{differing} of the {len(workers)} workers on this store have another secret, so they know this value by "
            "another key; set SLIDEGATE_SECRET to that of the application, or pass the key as the dashboard shows it"
        )
    if not workers:
        note("no worker runs on this store, so it was not checked that the application has the same secret")
