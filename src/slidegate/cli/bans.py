"""``slidegate bans``: lists and changes the bans of a store."""

from __future__ import annotations

from typing import Any, Final

import click

from ..core.bans.ban import Ban, check_has_kind
from ..core.errors import ConfigurationError
from ..limiter import Limiter
from ..limiter.keys import AnyKey
from ..limiter.limiter import ban_length_us
from .output import note, one_line, show, table, with_format
from .store import ask, end_of, view_of, with_author, with_key, with_reason, with_store

_COLUMNS: Final = ("target", "until", "policy", "level", "reason")
_BAN_ROW: Final = '{"ban"'
"""The prefix of exported rows that are bans; the others are strike records."""

may_create = click.option("--create", is_flag=True, help="Create the store if it does not exist.")


@click.group()
def bans() -> None:
    """List, add, remove, export and import bans.

    \b
    Example: slidegate bans list --store redis://localhost:6379/0
    """


@bans.command("list")
@with_store
@click.option("--policy", metavar="NAME", help="Only bans by this policy or user.")
@click.option("--match", metavar="TEXT", default="", help="Only bans with this text in key, reason or policy.")
@with_format
def list_bans(store: str, policy: str | None, match: str, as_json: bool) -> None:
    """List the active bans.

    \b
    Example: slidegate bans list --match scanner
    """

    def is_wanted(ban: Ban) -> bool:
        texts = (ban.key, ban.reason, ban.by)
        return policy in (None, ban.by) and any(match.casefold() in text.casefold() for text in texts)

    async def wanted(limiter: Limiter) -> list[dict[str, Any]]:
        return [view_of(ban) async for ban in limiter.bans() if is_wanted(ban)]

    found = ask(store, wanted)
    show(as_json, found, table(_COLUMNS, [{**ban, "until": end_of(ban)} for ban in found]))
    if not found:
        note("no ban matches" if match or policy else "there are no bans")


@bans.command("add")
@with_key
@with_store
@click.option("--for", "duration", metavar="DURATION", required=True, help="How long: 90s, 1h, 7d or permanent.")
@with_reason
@with_author
@may_create
@with_format
def add_ban(key: AnyKey, store: str, duration: str, reason: str, by: str, create: bool, as_json: bool) -> None:
    """Ban KEY: an address, a network, or another key such as user:42.

    An existing ban of the key is replaced; the last of concurrent commands wins.

    \b
    Example: slidegate bans add 203.0.113.7 --for 1h --reason scanner
    """
    ban_length_us(duration, "--for")  # validate before the store is opened or created
    if isinstance(key, str):
        check_has_kind(key)

    async def add(limiter: Limiter) -> dict[str, Any]:
        return view_of(await limiter.ban(key, duration, reason=reason, by=by))

    ban = ask(store, add, writes=True, makes=create)
    show(as_json, [ban], [f"banned: {ban['target']} until {end_of(ban)}"])


@bans.command("remove")
@with_key
@with_store
@with_author
@with_format
def remove_ban(key: AnyKey, store: str, by: str, as_json: bool) -> None:
    """Remove the ban of exactly KEY, and its strikes.

    If there was neither, the exit code is 1.

    \b
    Example: slidegate bans remove 203.0.113.7
    """

    async def remove(limiter: Limiter) -> str:
        name = limiter.key_for(key)
        if not await limiter.unban(key, by=by):
            network = await limiter.banned(key)
            wider = f"; the ban of {network.key} covers it" if network is not None else ""
            raise click.ClickException(f"{name} has no ban and no strikes{wider}")
        return name

    name = ask(store, remove, writes=True)
    show(as_json, [{"removed": name}], [f"removed: {name}"])


@bans.command("export")
@with_store
def export_bans(store: str) -> None:
    """Write all bans and strikes to stdout as JSON lines, for `slidegate bans import`.

    \b
    Example: slidegate bans export > bans.jsonl
    """

    async def export(limiter: Limiter) -> list[str]:
        return [line async for line in limiter.export_bans()]

    lines = ask(store, export)
    click.echo("".join(lines), nl=False)
    note(f"exported: {sum(line.startswith(_BAN_ROW) for line in lines):,} bans")


@bans.command("import")
@click.argument("file")
@with_store
@may_create
@with_format
def import_bans(file: str, store: str, create: bool, as_json: bool) -> None:
    """Import the output of `slidegate bans export` from FILE, or from stdin if it is -.

    If a line is invalid, nothing is imported. If a key already has a ban, the one that ends later is kept.

    \b
    Example: slidegate bans import bans.jsonl
    """
    with click.open_file(file, encoding="utf-8-sig", errors="replace") as opened:
        lines = opened.readlines()

    async def import_all(limiter: Limiter) -> int:
        return await limiter.import_bans(lines)

    try:
        imported = ask(store, import_all, writes=True, makes=create)
    except ConfigurationError as error:
        told = one_line(error).removeprefix("bans").lstrip(", :")
        if told.startswith("row "):  # each row is a line of the file
            told = f"line {told.removeprefix('row ')}"
        raise click.ClickException(f"{file}, {told}; nothing was imported") from error
    over = sum(line.startswith(_BAN_ROW) for line in lines) - imported
    show(as_json, [{"imported": imported, "over": over}], [f"imported: {imported:,} bans; {over:,} already ended"])
