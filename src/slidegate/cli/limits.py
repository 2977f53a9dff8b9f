"""``slidegate limits``: limits that are changed for a while, from a terminal."""

from __future__ import annotations

from typing import Any, Final

import click

from ..admin import views
from ..limiter import Limiter
from ..limiter.limiter import override_length_us
from .output import note, show, table, time_of, with_format
from .store import ask, user, with_store

_COLUMNS: Final = ("name", "limit", "until", "by", "reason")


@click.group()
def limits() -> None:
    """List, make and take back changes of limits while the application runs.

    \b
    Example: slidegate limits list --store redis://localhost:6379/0
    """


@limits.command("list")
@with_store
@with_format
def list_limits(store: str, as_json: bool) -> None:
    """List the limits that are changed.

    \b
    Example: slidegate limits list
    """

    async def changed(limiter: Limiter) -> list[dict[str, Any]]:
        return [views.Limit.model_validate(one).model_dump() for one in await limiter.overrides()]

    found = ask(store, changed)
    show(as_json, found, table(_COLUMNS, [{**one, "until": time_of(one["until_at"])} for one in found]))
    if not found:
        note("every limit is as in the code")


@limits.command("set")
@click.argument("name")
@click.argument("limit")
@with_store
@click.option("--for", "duration", metavar="DURATION", required=True, help="How long: 90s, 2h, at most 30d.")
@click.option("--reason", default="", metavar="TEXT", help="For operators; clients do not see it.")
@click.option("--by", metavar="NAME", help="Who changes it; by default your name on this machine.")
@with_format
def set_limit(name: str, limit: str, store: str, duration: str, reason: str, by: str | None, as_json: bool) -> None:
    """Change the amount of the limit NAME to that of LIMIT, such as 50/minute, for a while.

    NAME is what response headers call the limit. The workers know their rules, and the store does not: an unknown
    name, another window, or more than ten times the amount in the code does nothing, and the log of each worker says
    so. Of two changes of a limit the later one holds.

    \b
    Example: slidegate limits set api 50/minute --for 2h --reason "the database is slow"
    """
    override_length_us(duration, "--for")  # before anything is opened

    async def change(limiter: Limiter) -> dict[str, Any]:
        made = await limiter.override(name, limit, duration=duration, reason=reason, by=by or user())
        return views.Limit.model_validate(made).model_dump()

    made = ask(store, change, writes=True)
    show(as_json, [made], [f"changed: {made['name']} is {made['limit']} until {time_of(made['until_at'])}"])


@limits.command("unset")
@click.argument("name")
@with_store
@with_format
def unset_limit(name: str, store: str, as_json: bool) -> None:
    """Have the limit NAME be as in the code again.

    Where it is, the exit code is 1.

    \b
    Example: slidegate limits unset api
    """

    async def restore(limiter: Limiter) -> None:
        if not await limiter.restore(name):
            raise click.ClickException(f"the limit {name} is not changed")

    ask(store, restore, writes=True)
    show(as_json, [{"restored": name}], [f"restored: {name}"])
