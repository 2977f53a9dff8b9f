"""``slidegate key``: shows the state of one key in a store, and resets its windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from ..admin import views
from ..admin.activity import SECTION, WINDOW_S, ClusterActivity, published_in
from ..core.decision import wire_names
from ..core.errors import ConfigurationError
from ..core.limits import AnyLimit, parse_limits
from ..limiter import Limiter
from ..limiter.inspect import KeyView
from ..limiter.keys import AnyKey
from ..limiter.overrides import NamedLimit, Override
from ..stats.statistics import onlooker
from .config_file import middleware_of
from .output import note, show, table, time_of, with_format
from .store import ask, end_of, said_of, view_of, with_key, with_store

_WINDOW_COLUMNS: Final = ("rule", "limit", "used", "remaining", "reset_after_s")
_SLICE_COLUMNS: Final = ("rule", "from", "to", "count")


@click.group()
def key() -> None:
    """Show one key, or reset its windows.

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
@with_format
def show_key(key: AnyKey, store: str, rules: str | None, named: tuple[str, ...], as_json: bool) -> None:
    """Show the windows of KEY slice by slice, and its ban.

    The store does not contain the rules: name them with --rules or --rule to see their windows.

    \b
    Example: slidegate key show 203.0.113.7 --rule "api=100/10s"
    """
    limits = _named(named)

    async def view(limiter: Limiter) -> dict[str, Any]:
        ban = await limiter.banned(key)
        windows = await _windows(limiter, key, rules, limits)
        return {
            "key": limiter.key_for(key),
            "ban": None if ban is None else view_of(ban),
            "windows": [window.model_dump() for view in windows for window in views.Window.of_key(view)],
            **await _activity(limiter, limiter.key_for(key)),
        }

    shown = ask(store, view)
    if not rules and not named:
        note("name the rules with --rules FILE or --rule NAME=LIMITS to see windows")
    show(as_json, [shown], _text(shown))


@key.command("reset")
@with_key
@with_store
@with_format
def reset_key(key: AnyKey, store: str, as_json: bool) -> None:
    """Reset the windows of KEY under every rule. Bans and strikes are kept.

    If nothing was counted, the exit code is 1.

    \b
    Example: slidegate key reset 203.0.113.7
    """

    async def reset(limiter: Limiter) -> str:
        if not await limiter.reset(key):
            raise click.ClickException(f"nothing is counted for {limiter.key_for(key)}")
        return limiter.key_for(key)

    name = ask(store, reset, writes=True)
    show(as_json, [{"reset": name}], [f"reset: {name}"])


def _named(named: Sequence[str]) -> dict[str, str]:
    rules = {}
    for text in named:
        name, equals, limits = text.partition("=")
        if not equals:
            raise ConfigurationError(f'--rule: expected a name and limits, for example "api=100/10s", not {text!r}')
        rules[name] = limits
    return rules


async def _windows(limiter: Limiter, target: AnyKey, rules: str | None, limits: dict[str, str]) -> list[KeyView]:
    """Return the windows of a key under the given rules, with the amounts that operators have changed."""
    windows = []
    overrides = {override.name: override for override in await limiter.overrides()}
    if rules is not None:
        middleware = middleware_of(rules)
        limiter.engine.callers.add(middleware)  # a weak reference, so `del` removes it again
        limiter.engine.overrides.apply(middleware)
        windows.append(await limiter.inspect(target))
        del middleware
    if limits:
        in_force = {rule: _in_force(rule, parse_limits(text), overrides) for rule, text in limits.items()}
        windows.append(await limiter.inspect(target, rules=in_force))
    return windows


def _in_force(rule: str, limits: Sequence[AnyLimit], overrides: Mapping[str, Override]) -> list[AnyLimit]:
    named = zip(wire_names(rule, limits), limits, strict=True)
    return [limit.with_amount(NamedLimit(name, limit).amount_under(overrides)) for name, limit in named]


async def _activity(limiter: Limiter, key: str) -> dict[str, Any]:
    """Return the requests and refusals of a key, as published by the workers that record clients."""
    sections = await onlooker(limiter).sections(SECTION)
    seen = [one for one in ClusterActivity(published_in(sections)).clients if one.key == key]
    return {
        "requests": sum(one.requests for one in seen),
        "refused": sum(one.refused for one in seen),
        "workers": [views.Worker.model_validate(worker).model_dump() for worker, _ in sections],
    }


def _text(view: dict[str, Any]) -> Iterator[str]:
    ban = view["ban"]
    yield f"key: {view['key']}"
    if ban is None:
        yield "ban: none"
    else:
        yield f"ban: of {ban['target']} until {end_of(ban)}, by {ban['policy']}: {ban['reason']}"
    if view["workers"]:
        seen = f"{view['requests']:,} requests, {view['refused']:,} refused"
        yield f"last {WINDOW_S} s: {seen}; {said_of(view['workers'])}"
    else:
        yield (
            "no worker publishes its clients: add a dashboard or an admin API to the application; the first are "
            "published after five seconds"
        )
    if view["windows"]:
        yield from ("", "windows:", *table(_WINDOW_COLUMNS, view["windows"]))
    slices = [
        {**window, **part, "from": time_of(part["start_at"]), "to": time_of(part["end_at"])}
        for window in view["windows"]
        for part in window["slices"]
        if part["count"]
    ]
    if slices:
        yield from ("", "slices:", *table(_SLICE_COLUMNS, slices))
