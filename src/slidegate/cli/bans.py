"""``slidegate bans``: the bans of a store, from a terminal."""

from __future__ import annotations

import getpass
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import click

from ..core.addresses import parse_network
from ..core.bans.ban import Ban
from ..core.errors import ConfigurationError
from .bans_import import FORMS_IN, OWN, SPAN, Import
from .exits import NotFound
from .output import Output, time_of, with_output
from .store import StoreSession, key_of, open_session, with_key, with_store

FORMS_OUT: Final = (OWN, "plain")
COLUMNS: Final = ("key", "until", "reason", "by", "since", "level")
CHANGES: Final = ("at", "change", "key", "by", "reason", "until")
FOR_EVER: Final = "permanent"


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
@with_output()
def list_bans(out: Output, store: str | None, policy: str | None, match: str | None) -> None:
    """List the bans in force, as they come: a million of them take no more memory than a page.

    \b
    Example: slidegate bans list --match scanner
    """
    listed = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal listed
        wanted = None if match is None else match.casefold()
        for part in session.each(session.bans.active_parts()):
            for ban in part:
                if _is_wanted(ban, policy, wanted):
                    listed += 1
                    yield ban_row(ban, out.form)

    with open_session(store) as session:
        try:
            out.rows(COLUMNS, rows())
        except KeyboardInterrupt:
            out.note(f"interrupted: {listed} bans were listed")
            raise
    if not listed:
        out.note("no bans")


@bans.command("add")
@with_key
@with_store
@click.option("--for", "span", metavar="DURATION", type=SPAN, required=True, help="How long: 90s, 1h, 7d or permanent.")
@click.option("--reason", default="", metavar="TEXT", help="For the operator; clients do not see it.")
@click.option("--by", metavar="NAME", help="Who bans; by default your name on this machine.")
@click.option("--create", is_flag=True, help="Make the store if it is not there.")
@with_output()
def add_ban(
    out: Output,
    key: str,
    value: str | None,
    store: str | None,
    span: str,
    reason: str,
    by: str | None,
    create: bool,
) -> None:
    """Ban KEY: an address, a network, or another key such as user:42.

    A ban that the key has is replaced: of two commands at once, the later one wins.

    \b
    Example: slidegate bans add 203.0.113.7 --for 1h --reason scanner
    """
    asked = key_of(key, value)
    with open_session(store, writes=True, makes=create) as session:
        ban = session.wait(session.limiter.ban(asked, span, reason=reason, by=by or _user()))
    out.value(dict(zip(COLUMNS, ban_row(ban, out.form), strict=True)))


@bans.command("remove")
@with_key
@with_store
@click.option("--by", metavar="NAME", help="Who takes the ban back; by default your name on this machine.")
@with_output()
def remove_ban(out: Output, key: str, value: str | None, store: str | None, by: str | None) -> None:
    """Take the ban of exactly KEY back, and forget its strikes.

    Where there was neither, the exit code is 1.

    \b
    Example: slidegate bans remove 203.0.113.7
    """
    asked = key_of(key, value)
    with open_session(store, writes=True) as session:
        if not session.wait(session.limiter.unban(asked, by=by or _user())):
            found = session.wait(session.limiter.banned(asked))
            wider = f"; {found.key} is banned, and it lies in that" if found is not None else ""
            raise NotFound(f"there is no ban of {session.limiter.key_for(asked)}, and there are no strikes{wider}")
        out.value({"removed": session.limiter.key_for(asked)})


@bans.command("history")
@click.argument("key", required=False)
@click.option("--value", metavar="TEXT", help="The value that the client sends, where KEY is header:NAME or the like.")
@with_store
@with_output()
def history(out: Output, key: str | None, value: str | None, store: str | None) -> None:
    """Show the latest bans and unbans, oldest first; those of KEY alone where it is given.

    \b
    Example: slidegate bans history 203.0.113.7
    """
    if key is None and value is not None:
        raise ConfigurationError("--value: expected a key such as header:X-API-Key before it")
    asked = None if key is None else key_of(key, value)
    with open_session(store) as session:
        changes = session.each(session.limiter.history(asked))
        rows = (
            (time_of(change.at), change.kind, change.ban.key, change.by, change.ban.reason, until(change.ban, out.form))
            for change in changes
        )
        if not out.rows(CHANGES, rows):
            out.note("no bans or unbans are remembered")


@bans.command("export")
@with_store
@click.option("--as", "form", type=click.Choice(FORMS_OUT), default=FORMS_OUT[0], show_default=True, help="The format.")
@click.option("--quiet", "-q", is_flag=True, help="Leave out notes.")
def export_bans(store: str | None, form: str, quiet: bool) -> None:
    """Write all bans to stdout, for `slidegate bans import` or another tool.

    The format slidegate keeps reasons, levels and strikes as well; plain is an address or network a line.

    \b
    Example: slidegate bans export > bans.jsonl
    """
    out = Output("text", quiet)
    written = 0

    def lines() -> Iterator[str]:
        nonlocal written
        for bans, line in _exported(session, form, left_out):
            written += bans
            yield line

    left_out: Counter[str] = Counter()
    with open_session(store) as session:
        try:
            out.write(lines())
        except KeyboardInterrupt:
            out.note(f"interrupted: {written} bans were written, and some are missing")
            raise
    for cause, times in left_out.items():
        out.note(f"left out {times}: {cause}")
    out.note(f"{written} bans were written")


@bans.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@with_store
@click.option("--as", "form", type=click.Choice(FORMS_IN), default=FORMS_IN[0], show_default=True, help="The format.")
@click.option("--for", "span", metavar="DURATION", type=SPAN, help="How long bans last that the file gives no end.")
@click.option("--reason", default="imported", show_default=True, metavar="TEXT", help="Where the file gives none.")
@click.option("--by", metavar="NAME", help="Who bans, where the file does not say; by default your name.")
@click.option("--create", is_flag=True, help="Make the store if it is not there.")
@with_output()
def import_bans(
    out: Output,
    file: str,
    store: str | None,
    form: str,
    span: str | None,
    reason: str,
    by: str | None,
    create: bool,
) -> None:
    """Read bans from FILE, or from stdin if it is -.

    They are read 1,000 at a time, and a line that cannot be read ends the import before its batch. After an
    interruption, run the same command again: a ban that is there stays, and of two bans of a key the one that lasts
    longer.

    \b
    Example: slidegate bans import bans.jsonl
    """
    work = Import(file, form, span, reason, by or _user())
    with open_session(store, writes=True, makes=create) as session:
        try:
            for done in work.batches(session):
                if done % 10_000 == 0:
                    out.note(f"{done} bans are imported")
        except BaseException:
            out.note(f"{work.done} bans are imported, and not all; the same command again goes on")
            raise
    if work.digests:
        out.note(
            f"{work.digests} more are of digests such as header:X-API-Key#1f3a..., which hold under the same secret= "
            "alone. Made without secret=, they mean nobody any more: ban these keys anew by their values"
        )
    out.value({"imported": work.done, "over": work.over, "digests": work.digests})


def ban_row(ban: Ban, form: str) -> tuple[Any, ...]:
    """Return the values of a ban in the order of `COLUMNS`."""
    return ban.key, until(ban, form), ban.reason, ban.by, time_of(ban.since), ban.level


def until(ban: Ban, form: str) -> str | None:
    """Return when a ban ends; of one that does not, null in JSON and a word for people."""
    end = ban.until
    if end is not None:
        return time_of(end)
    return None if form == "json" else FOR_EVER


def _is_wanted(ban: Ban, policy: str | None, match: str | None) -> bool:
    if policy is not None and ban.by != policy:
        return False
    return match is None or any(match in text.casefold() for text in (ban.key, ban.reason, ban.by))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return "cli"


def _exported(session: StoreSession, form: str, left_out: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yield (how many bans it holds, line) for each line of an export.

    Args:
        session: The store.
        form: One of `FORMS_OUT`.
        left_out: Counts the bans that the format cannot hold, by cause.
    """
    if form == OWN:
        for part in session.each(session.bans.dump_parts()):
            yield from (("ban" in row, json.dumps(row, ensure_ascii=True)) for row in part)
        return
    for bans in session.each(session.bans.active_parts()):
        for ban in bans:
            if _is_network(ban.key):
                yield 1, ban.key
            else:
                left_out["no address or network"] += 1


def _is_network(key: str) -> bool:
    try:
        parse_network(key)
    except ConfigurationError:
        return False
    return True
