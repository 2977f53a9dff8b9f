"""``slidegate limits``: lists and makes temporary changes of limits."""

from __future__ import annotations

from typing import Any, Final

import click

from ..admin import views
from ..limiter import Limiter
from ..limiter.limiter import override_length_us
from .output import note, show, table, time_of, with_format
from .store import ask, with_author, with_reason, with_store

_COLUMNS: Final = ("name", "limit", "until", "by", "reason")


@click.group()
def limits() -> None:
    """List, set and unset temporary changes of limits while the application runs.

    \b
    Example: slidegate limits list --store redis://localhost:6379/0
    """


@limits.command("list")
@with_store
@with_format
def list_limits(store: str, as_json: bool) -> None:
    """List the temporarily changed limits.

    \b
    Example: slidegate limits list
    """

    async def changed(limiter: Limiter) -> list[dict[str, Any]]:
        return [views.Limit.model_validate(one).model_dump() for one in await limiter.overrides()]

    found = ask(store, changed)
    show(as_json, found, table(_COLUMNS, [{**one, "until": time_of(one["until_at"])} for one in found]))
    if not found:
        note("every limit is as configured in code")


@limits.command("set")
@click.argument("name")
@click.argument("limit")
@with_store
@click.option("--for", "duration", metavar="DURATION", required=True, help="How long: 90s, 2h, at most 30d.")
@with_reason
@with_author
@with_format
def set_limit(name: str, limit: str, store: str, duration: str, reason: str, by: str, as_json: bool) -> None:
    """Temporarily change the amount of the limit NAME to that of LIMIT, such as 50/minute.

    NAME is the name in response headers. Only the workers know the rules: they ignore a change of an unknown name, to
    another window, or to more than ten times the configured amount, and log that. A later change of the same limit
    replaces an earlier one.

    \b
    Example: slidegate limits set api 50/minute --for 2h --reason "the database is slow"
    """
    override_length_us(duration, "--for")  # validate before the store is opened

    async def change(limiter: Limiter) -> dict[str, Any]:
        made = await limiter.override(name, limit, duration=duration, reason=reason, by=by)
        return views.Limit.model_validate(made).model_dump()

    made = ask(store, change, writes=True)
    show(as_json, [made], [f"changed: {made['name']} is {made['limit']} until {time_of(made['until_at'])}"])


@limits.command("unset")
@click.argument("name")
@with_store
@with_format
def unset_limit(name: str, store: str, as_json: bool) -> None:
    """Restore the limit NAME as configured in code.

    If it is not changed, the exit code is 1.

    \b
    Example: slidegate limits unset api
    """

    async def restore(limiter: Limiter) -> None:
        if not await limiter.restore(name):
            raise click.ClickException(f"the limit {name} is not changed")

    ask(store, restore, writes=True)
    show(as_json, [{"restored": name}], [f"restored: {name}"])
