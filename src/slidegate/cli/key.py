"""``slidegate key``: everything that a store knows about one key, and a way to forget its windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from ..admin import views
from ..core.errors import ConfigurationError
from ..limiter import Limiter
from ..limiter.inspect import KeyView
from ..limiter.keys import AnyKey
from .exits import NotFound
from .report import Report, Reporter, Result, Table, time_of, with_report
from .store import key_of, middleware_of, open_limiter, with_key, with_store

_WINDOW_COLUMNS: Final = ("rule", "limit", "used", "remaining", "reset_after_s")
_SLICE_COLUMNS: Final = ("rule", "start_at", "end_at", "count")


@click.group()
def key() -> None:
    """Look at one key, or forget its windows.

    \b
    Example: slidegate key show 203.0.113.7 --rules slidegate.toml
    """


@key.command("show")
@with_key
@with_store
@click.option("--rules", metavar="FILE", help="The configuration file whose rules count the key.")
@click.option(
    "--rule", "named", metavar="NAME=LIMITS", multiple=True, help='A rule in code: "api=100/10s". Repeatable.'
)
@with_report("json")
async def show_key(
    out: Reporter, key: str, value: str | None, store: str | None, rules: str | None, named: tuple[str, ...]
) -> Result:
    """Show the windows of KEY slice by slice, and its ban.

    A store does not know the rules, so the windows are shown of those that --rules or --rule name.

    \b
    Example: slidegate key show 203.0.113.7 --rule "api=100/10s"
    """
    target, limits = key_of(key, value), _named(named)
    async with open_limiter(store) as limiter:
        ban = await limiter.banned(target)
        windows = await _windows(limiter, target, rules, limits)
        view = {
            "key": limiter.key_for(target),
            "ban": None if ban is None else views.Ban.model_validate(ban).model_dump(),
            "windows": [window.model_dump() for view in windows for window in views.Window.of_key(view)],
        }
    if not windows:
        out.note("name the rules with --rules FILE or --rule NAME=LIMITS to see windows")
    return Report(view, _text(view))


@key.command("reset")
@with_key
@with_store
@with_report("json")
async def reset_key(out: Reporter, key: str, value: str | None, store: str | None) -> Result:
    """Forget the windows of KEY under every rule. Bans and strikes stay.

    Where nothing was counted, the exit code is 1.

    \b
    Example: slidegate key reset 203.0.113.7
    """
    target = key_of(key, value)
    async with open_limiter(store, writes=True) as limiter:
        if not await limiter.reset(target):
            raise NotFound(f"nothing is counted of {limiter.key_for(target)}")
        return {"reset": limiter.key_for(target)}


def _named(named: Sequence[str]) -> dict[str, str]:
    rules = {}
    for text in named:
        name, equals, limits = text.partition("=")
        if not equals:
            raise ConfigurationError(f'--rule: expected a name and limits, for example "api=100/10s", not {text!r}')
        rules[name] = limits
    return rules


async def _windows(limiter: Limiter, target: AnyKey, rules: str | None, limits: dict[str, str]) -> list[KeyView]:
    windows = []
    if rules is not None:
        middleware = middleware_of(rules)
        limiter.engine.callers.add(middleware)  # it is forgotten with this name
        windows.append(await limiter.inspect(target))
        del middleware
    if limits:
        windows.append(await limiter.inspect(target, rules=limits))
    return windows


def _text(view: dict[str, Any]) -> Iterator[str | Table]:
    ban = view["ban"]
    yield f"key: {view['key']}"
    if ban is None:
        yield "ban: none"
    else:
        until = "it is taken back" if ban["until_at"] is None else time_of(ban["until_at"])
        yield f"ban: of {ban['target']} until {until}, by {ban['policy']}: {ban['reason']}"
    if view["windows"]:
        yield from ("", "windows:", Table(_WINDOW_COLUMNS, view["windows"]))
    slices = [{**window, **part} for window in view["windows"] for part in window["slices"] if part["count"]]
    if slices:
        yield from ("", "slices:", Table(_SLICE_COLUMNS, slices))
