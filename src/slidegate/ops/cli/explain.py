"""``slidegate explain``: why a client is refused, until when, and what is counted for it; or what limits admit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Final, TypeAlias

import click

from ... import ConfigurationError, Limit, Limiter, RateLimitMiddleware, Rule, parse_limits
from ...core import AnyLimit
from ..rows import row_of_ban, row_of_window
from .bans import end_of
from .bounds import most_units, steady_us, wait_after_burst_us
from .main import (
    ask,
    key_of,
    middleware_of,
    no_app,
    note,
    show,
    span_of,
    table,
    time_of,
    with_json,
    with_optional_store,
    with_value,
)

Titled: TypeAlias = list[tuple[str, Sequence[AnyLimit]]]

_S: Final = 1_000_000
_SPANS: Final = {"1s": _S, "1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}
_LIKE_LIMITS: Final = re.compile(r"\s*[0-9]+\s*(/\s*[0-9]*\s*[A-Za-z]|/\s*[0-9]+\s*$|per\b)|\s*$", re.ASCII)
_WINDOW_COLUMNS: Final = ("name", "limit", "used", "remaining", "room in", "all back in")


@click.command()
@click.argument("subject", metavar="KEY|LIMITS|FILE")
@with_value
@with_optional_store
@click.option("--rules", metavar="FILE", help="With KEY: the configuration file whose rules count it.")
@click.option(
    "--rule", "named", metavar="NAME=LIMITS", multiple=True, help='With KEY: a rule in code, "api=100/10s". Repeatable.'
)
@with_json
def explain(
    subject: str, value: str | None, store: str | None, rules: str | None, named: tuple[str, ...], as_json: bool
) -> None:
    """Show why KEY is refused, until when, and what is counted for it; or what LIMITS admit.

    KEY is an address, user:42 or another key. The store does not contain the rules: name them with --rules or --rule to
    see their windows, with the amounts that operators have changed. LIMITS are limits such as "5/minute; 50/hour", or
    those of a configuration FILE.

    \b
    Example: slidegate explain 203.0.113.7 --rules slidegate.toml
    Example: slidegate explain "5/minute; 50/hour"
    """
    titled = None if value is not None or rules or named else _limits_in(subject)
    if titled is not None:
        for number, (title, limits) in enumerate(titled):
            if number and not as_json:
                click.echo()
            _explain_limits(title, limits, as_json)
        return
    key = key_of(subject, value)
    if not store:
        raise click.UsageError(
            f"{subject!r} is no limit and no file; to explain a key, write --store or SLIDEGATE_STORE"
        )
    of_file = None if rules is None else middleware_of(rules)
    in_code = [_named_rule(text) for text in named]

    async def view(limiter: Limiter) -> dict[str, Any]:
        return await _state_of(limiter, key, subject, of_file, in_code)

    state = ask(store, view)
    if of_file is None and not in_code:
        note("name the rules with --rules FILE or --rule NAME=LIMITS to see windows")
    elif of_file is not None and of_file.default_limits:
        note("default_limits count each route by itself and are not shown")
    show(as_json, [state], _state_lines(state))


# -- a client ----------------------------------------------------------------------------------------------------------


def _named_rule(text: str) -> Rule:
    name, equals, limits = text.partition("=")
    if not equals:
        raise ConfigurationError(f'expected a name and limits, for example "api=100/10s", not {text!r}', "--rule")
    return Rule("*", limits, name=name)


async def _state_of(
    limiter: Limiter, key: Any, written: str, of_file: RateLimitMiddleware | None, in_code: Sequence[Rule]
) -> dict[str, Any]:
    """Return what a store has about a key, and whether that refuses it."""
    rules, lists = ([], {}) if of_file is None else (of_file.rules, of_file.lists)
    # Limiters have weak references to their middlewares.
    middleware = RateLimitMiddleware(no_app, limiter=limiter, rules=[*rules, *in_code])
    ban = await limiter.banned(key)
    changes = await limiter.overrides()  # reads them, and the middleware applies them
    off = next((one.until.timestamp() for one in changes if one.name == "*"), None)
    view = await limiter.inspect(key)
    shadow = {limit.name for limit in limiter.limits() if limit.shadow}
    del middleware
    unix_s = view.unix_us / _S
    listed = {kind: networks is not None and written in networks for kind, networks in lists.items()}
    windows = [row_of_window(window, shadow=window.name in shadow) for window in view.windows]
    left_us = None if ban is None else ban.left_us(view.unix_us)
    return {
        "key": view.key,
        "refused": off is None
        and not listed.get("allowlist")
        and bool(ban or listed.get("blocklist") or any(map(_refuses, windows))),
        "off_until_at": off,
        "at": unix_s,
        **listed,
        "ban": None if ban is None else {**row_of_ban(ban), "left_s": None if left_us is None else left_us / _S},
        "windows": windows,
    }


def _refuses(window: dict[str, Any]) -> bool:
    return not window["shadow"] and window["retry_after_s"] != 0


def _state_lines(state: dict[str, Any]) -> Iterator[str]:
    key, ban, windows = state["key"], state["ban"], state["windows"]
    if state["off_until_at"] is not None:
        yield f"{key} is not refused: all workers are off until {time_of(state['off_until_at'])}"
    elif state.get("allowlist"):
        yield f"{key} is on the allowlist and never refused"
    elif not state["refused"]:
        yield f"{key} is not refused: it has no ban" + (", and every limit below has room" if windows else "")
    else:
        yield f"{key} is refused"
        if state.get("blocklist"):
            yield "  by the blocklist"
        if ban is not None:
            span = "for ever" if ban["left_s"] is None else f"for {_span(ban['left_s'])}"
            yield f"  by the ban of {ban['key']} {span}, until {end_of(ban)}; by {ban['by']}: {ban['reason']}"
        for window in filter(_refuses, windows):
            yield f"  by {window['name']} {_until(window, state['at'])}: {window['used']} of {window['limit']} are used"
    for number, line in enumerate(_window_table(windows)):
        yield from (line,) if number else ("", line)


def _window_table(windows: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [
        {
            **window,
            "name": f"{window['name']} (shadow)" if window["shadow"] else window["name"],
            "room in": _room(window),
            "all back in": _span(window["reset_after_s"]) if window["reset_after_s"] else "",
        }
        for window in windows
    ]
    return table(_WINDOW_COLUMNS, rows)


def _until(window: dict[str, Any], now_s: float) -> str:
    wait_s = window["retry_after_s"]
    if wait_s is None:
        return "until one of its requests ends"
    return f"for {_span(wait_s)}, until {time_of(ceil(now_s + wait_s))}"


def _room(window: dict[str, Any]) -> str:
    wait_s = window["retry_after_s"]
    return "unknown" if wait_s is None else _span(wait_s) if wait_s else "now"


def _span(span_s: float) -> str:
    return span_of(round(span_s * _S))


# -- limits ------------------------------------------------------------------------------------------------------------


def _limits_in(subject: str) -> Titled | None:
    """Return (title, limits): the limits in a text, or those of each rule in the file that it names; None for a key.

    Raises:
        ConfigurationError: The text can only be limits, and is wrong.
    """
    if subject.endswith(".toml") or os.path.exists(subject):
        middleware = middleware_of(subject)
        titled: Titled = [(f"rule {rule.label}", rule.all_limits) for rule in middleware.rules if rule.all_limits]
        if middleware.default_limits:
            titled.append(("each route (default_limits)", middleware.default_limits))
        return titled
    try:
        return [(subject, parse_limits(subject))]
    except ConfigurationError:
        if _LIKE_LIMITS.match(subject):
            raise
        return None


def _explain_limits(title: str, limits: Sequence[AnyLimit], as_json: bool) -> None:
    windows = [limit for limit in limits if isinstance(limit, Limit)]
    facts: dict[str, Any] = {
        "title": title,
        "limits": [str(limit) for limit in windows],
        "others": [limit.said for limit in limits if not isinstance(limit, Limit)],
    }
    if windows:
        facts |= {
            "exact": all(limit.exact for limit in windows),
            "most": {name: most_units(windows, span_us) for name, span_us in _SPANS.items()},
            "burst": min(limit.amount for limit in windows),
            "retry_after_burst_s": [wait_us / _S for wait_us in wait_after_burst_us(windows)],
            "steady_every_s": steady_us(windows) / _S,
        }
    show(as_json, [facts], _limit_lines(facts, windows))


def _limit_lines(facts: dict[str, Any], windows: Sequence[Limit]) -> Iterator[str]:
    yield facts["title"]
    for limit in windows:
        slices = f"counted in {limit.slices} slices of {span_of(limit.slice_us)} and the current one"
        yield f"  {limit.said}: {'exact; the time of each unit is stored' if limit.exact else slices}"
    for other in facts["others"]:
        yield f"  {other}: not a sliding window, not included in the bounds below"
    if windows:
        yield from ("", "Maximum for one client in any span of:")
        yield from (f"  {name:>4}: {most:>14,}" for name, most in facts["most"].items())
        waits = dict.fromkeys(map(_span, facts["retry_after_burst_s"]))
        yield f"Largest burst: {facts['burst']:,}, then retry after {' to '.join(waits)}."
        yield f"Steady rate that is never refused: one request every {_span(facts['steady_every_s'])}."
