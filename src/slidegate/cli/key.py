"""``slidegate key``: everything that a store knows about one key, and a way to forget its windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from ..core.bans.ban import Ban, BanChange
from ..core.errors import ConfigurationError
from ..core.views import WindowView
from ..limiter.inspect import KeyStrikes, KeyView
from ..limiter.keys import AnyKey
from .bans import until
from .configured import middleware_of
from .exits import NotFound
from .output import Output, time_of, with_output
from .store import StoreSession, key_of, open_session, with_key, with_store

MAX_CHANGES: Final = 20
BARS: Final = " ▁▂▃▄▅▆▇█"
ASCII_BARS: Final = " .:-=+*#@"
_S: Final = 1_000_000


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
@with_output(forms=("text", "json"))
def show_key(
    out: Output, key: str, value: str | None, store: str | None, rules: str | None, named: tuple[str, ...]
) -> None:
    """Show the windows of KEY slice by slice, its strikes, its ban and its latest bans and unbans.

    A store does not know the rules, so the windows are shown of those that --rules or --rule name.

    \b
    Example: slidegate key show 203.0.113.7 --rule "api=100/10s"
    """
    asked, limits = key_of(key, value), _named(named)
    with open_session(store) as session:
        known = session.limiter.key_for(asked)
        windows = _windows(session, asked, rules, limits)
        shown = {
            "key": known,
            "ban": _ban(session.wait(session.limiter.banned(asked))),
            "strikes": _strikes(session.wait(session.limiter.strikes(asked))),
            "windows": [_window(view, window) for view in windows for window in view.windows],
            "history": [
                _change(change) for change in list(session.each(session.limiter.history(asked)))[-MAX_CHANGES:]
            ],
        }
    if out.form == "json":
        out.value(shown)
    else:
        out.say(*_lines(shown, out, asked_rules=bool(windows)))


@key.command("reset")
@with_key
@with_store
@with_output()
def reset_key(out: Output, key: str, value: str | None, store: str | None) -> None:
    """Forget the windows of KEY under every rule. Bans and strikes stay.

    Where nothing was counted, the exit code is 1.

    \b
    Example: slidegate key reset 203.0.113.7
    """
    asked = key_of(key, value)
    with open_session(store, writes=True) as session:
        known = session.limiter.key_for(asked)
        if not session.wait(session.limiter.reset(asked)):
            raise NotFound(f"nothing is counted of {known}")
    out.value({"reset": known})


def _named(named: Sequence[str]) -> dict[str, str]:
    rules = {}
    for text in named:
        name, found, limits = text.partition("=")
        if not found:
            raise ConfigurationError(f'--rule: expected a name and limits, for example "api=100/10s", not {text!r}')
        rules[name] = limits
    return rules


def _windows(session: StoreSession, asked: AnyKey, rules: str | None, limits: dict[str, str]) -> list[KeyView]:
    views = []
    if rules is not None:
        # The middleware tells the limiter of its rules as it is made, and is forgotten with this name.
        middleware = middleware_of(rules, limiter=session.limiter)
        views.append(session.wait(session.limiter.inspect(asked)))
        del middleware
    if limits:
        views.append(session.wait(session.limiter.inspect(asked, rules=limits)))
    return views


def _window(view: KeyView, window: WindowView) -> dict[str, Any]:
    def at(moment_us: int) -> str:
        return time_of(moment_us - view.now_us + view.unix_us)

    return {
        "rule": window.label,
        "limit": str(window.limit),
        "used": window.used,
        "remaining": window.remaining,
        "retry_after_s": None if window.retry_after_us is None else window.retry_after_us / _S,
        "reset_after_s": window.reset_after_us / _S,
        "slices": [
            {"start": at(part.start_us), "end": at(part.end_us), "leaves": at(part.leaves_us), "units": part.units}
            for part in window.slices
        ],
    }


def _ban(ban: Ban | None) -> dict[str, Any] | None:
    if ban is None:
        return None
    return {"key": ban.key, "until": until(ban, "json"), "reason": ban.reason, "by": ban.by, "level": ban.level}


def _strikes(strikes: KeyStrikes) -> list[dict[str, Any]]:
    return [
        {"policy": one.policy, "key": one.key, "strikes": one.strikes, "level": one.level} for one in strikes.policies
    ]


def _change(change: BanChange) -> dict[str, Any]:
    return {"at": time_of(change.at), "change": change.kind, "by": change.by, "reason": change.ban.reason}


def _lines(shown: dict[str, Any], out: Output, *, asked_rules: bool) -> list[str]:
    """Return what `shown` holds, for people."""
    ban = shown["ban"]
    lines = [f"key: {shown['key']}"]
    if ban is None:
        lines.append("ban: none")
    else:
        lines.append(
            f"ban: of {ban['key']} until {ban['until'] or 'it is taken back'}, by {ban['by']}: {ban['reason']}"
        )
    lines += [
        f"strikes: {one['strikes']} of {one['key']} under {one['policy']}, level {one['level']}"
        for one in shown["strikes"]
    ]
    for window in shown["windows"]:
        lines.append(
            f"window: {window['rule']} ({window['limit']}): {window['used']} used, {window['remaining']} left, "
            f"all of it in {window['reset_after_s']:.3f} s"
        )
        if window["slices"]:
            lines.append("  " + _bars([part["units"] for part in window["slices"]], out))
    if not asked_rules:
        lines.append("windows: name the rules with --rules FILE or --rule NAME=LIMITS to see them")
    lines += [f"history: {one['at']} {one['change']} by {one['by']}: {one['reason']}" for one in shown["history"]]
    return lines


def _bars(units: Sequence[int], out: Output) -> str:
    """Draw one character for each slice, the oldest first; of many slices, several share one."""
    together = -(-len(units) // max(out.width - 2, 1))
    sums = [sum(units[place : place + together]) for place in range(0, len(units), together)]
    bars, most = (BARS if out.unicode else ASCII_BARS), max(sums)
    return "".join(bars[-(-count * (len(bars) - 1) // most)] for count in sums)
