"""``slidegate bans``: the bans of a store, from a terminal."""

from __future__ import annotations

import getpass
from typing import Any, Final, TextIO

import click

from ..admin import views
from ..core.addresses import parse_network
from ..core.bans.ban import Ban
from ..core.errors import ConfigurationError
from .bans_import import BAN_ROW, Import, ban_length_us
from .exits import NotFound
from .report import Report, Reporter, Result, Table, with_report
from .store import key_of, open_limiter, with_key, with_store

_COLUMNS: Final = tuple(views.Ban.model_fields)


@click.group()
def bans() -> None:
    """List, make, take back, export and import bans.

    \b
    Example: slidegate bans list --store redis://localhost:6379/0
    """


@bans.command("list")
@with_store
@click.option("--policy", metavar="NAME", help="Only bans that this policy or person made.")
@click.option("--match", metavar="TEXT", help="Only bans with this text in key, reason or maker, in any case.")
@with_report("json", "csv")
async def list_bans(out: Reporter, store: str | None, policy: str | None, match: str | None) -> Result:
    """List the bans in force.

    \b
    Example: slidegate bans list --match scanner
    """
    wanted = "" if match is None else match.casefold()

    def is_wanted(ban: Ban) -> bool:
        return policy in (None, ban.by) and any(wanted in text.casefold() for text in (ban.key, ban.reason, ban.by))

    async with open_limiter(store) as limiter:
        rows = [_shown(ban) async for ban in limiter.bans() if is_wanted(ban)]
    return Table(_COLUMNS, rows, empty="no bans")


@bans.command("add")
@with_key
@with_store
@click.option("--for", "duration", metavar="DURATION", required=True, help="How long: 90s, 1h, 7d or permanent.")
@click.option("--reason", default="", metavar="TEXT", help="For the operator; clients do not see it.")
@click.option("--by", metavar="NAME", help="Who bans; by default your name on this machine.")
@click.option("--create", is_flag=True, help="Make the store if it is not there.")
@with_report("json")
async def add_ban(
    out: Reporter,
    key: str,
    value: str | None,
    store: str | None,
    duration: str,
    reason: str,
    by: str | None,
    create: bool,
) -> Result:
    """Ban KEY: an address, a network, or another key such as user:42.

    A ban that the key has is replaced: of two commands at once, the later one wins.

    \b
    Example: slidegate bans add 203.0.113.7 --for 1h --reason scanner
    """
    target = key_of(key, value)
    ban_length_us(duration)  # before anything is opened or made
    async with open_limiter(store, writes=True, makes=create) as limiter:
        return _shown(await limiter.ban(target, duration, reason=reason, by=by or _user()))


@bans.command("remove")
@with_key
@with_store
@click.option("--by", metavar="NAME", help="Who takes the ban back; by default your name on this machine.")
@with_report("json")
async def remove_ban(out: Reporter, key: str, value: str | None, store: str | None, by: str | None) -> Result:
    """Take the ban of exactly KEY back, and forget its strikes.

    Where there was neither, the exit code is 1.

    \b
    Example: slidegate bans remove 203.0.113.7
    """
    target = key_of(key, value)
    async with open_limiter(store, writes=True) as limiter:
        if not await limiter.unban(target, by=by or _user()):
            network = await limiter.banned(target)
            wider = f"; {network.key} is banned, and it lies in that" if network is not None else ""
            raise NotFound(f"there is no ban of {limiter.key_for(target)}, and there are no strikes{wider}")
        return {"removed": limiter.key_for(target)}


@bans.command("export")
@with_store
@click.option(
    "--as", "form", type=click.Choice(["slidegate", "plain"]), default="slidegate", show_default=True, help="The form."
)
@with_report()
async def export_bans(out: Reporter, store: str | None, form: str) -> Result:
    """Write all bans to stdout, for `slidegate bans import` or another tool.

    The form slidegate keeps reasons, levels and strikes as well; plain is an address or network a line.

    \b
    Example: slidegate bans export > bans.jsonl
    """
    async with open_limiter(store) as limiter:
        if form == "slidegate":
            lines = [line.rstrip("\n") async for line in limiter.export_bans()]
            written = sum(line.startswith(BAN_ROW) for line in lines)
            out.note(f"bans: {written} were written")
        else:
            keys = [ban.key async for ban in limiter.bans()]
            lines = [key for key in keys if _is_network(key)]
            out.note(f"bans: {len(lines)} were written, {len(keys) - len(lines)} left out that are of no network")
    return Report({}, lines)


@bans.command("import")
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="replace"))
@with_store
@click.option("--for", "duration", metavar="DURATION", help="How long bans last that the file gives no end.")
@click.option("--reason", default="imported", show_default=True, metavar="TEXT", help="Where the file gives none.")
@click.option("--by", metavar="NAME", help="Who bans, where the file does not say; by default your name.")
@click.option("--create", is_flag=True, help="Make the store if it is not there.")
@with_report("json")
async def import_bans(
    out: Reporter,
    file: TextIO,
    store: str | None,
    duration: str | None,
    reason: str,
    by: str | None,
    create: bool,
) -> Result:
    """Read bans from FILE, or from stdin if it is -: those of `slidegate bans export`, or a list of networks.

    They are read 1,000 at a time, and a line that cannot be read ends the import before its batch. After an
    interruption, run the same command again: a ban that is there stays, and of two bans of a key the one that lasts
    longer.

    \b
    Example: slidegate bans import bans.jsonl
    """
    work = Import(file, duration, reason, by or _user())
    async with open_limiter(store, writes=True, makes=create) as limiter:
        try:
            async for done in work.batches(limiter):
                if done % 10_000 == 0:
                    out.note(f"{done} bans are imported")
        except BaseException:
            out.note(f"{work.done} bans are imported, and not all; the same command again goes on")
            raise
    return {"imported": work.done, "over": work.over}


def _shown(ban: Ban) -> dict[str, Any]:
    return views.Ban.model_validate(ban).model_dump()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return "cli"


def _is_network(key: str) -> bool:
    try:
        parse_network(key)
    except ConfigurationError:
        return False
    return True
