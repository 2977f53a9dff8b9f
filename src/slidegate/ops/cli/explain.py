"""``slidegate explain``: why a client is refused, until when, and what is counted for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Final

import click

from ... import ConfigurationError, Limiter, RateLimitMiddleware, Rule, everyone
from ...core import Networks
from ..replay import nothing
from ..rows import key_of, keys_of, row_of_ban, row_of_window, span_of, windows_of
from .bans import end_of
from .main import Answer, asking, middleware_of, note, program, table, time_of, with_value

_S: Final = 1_000_000
_WINDOW_COLUMNS: Final = ("name", "limit", "used", "remaining", "room in", "all back in")


@program.command()
@asking()
@click.argument("key")
@with_value
@click.option("--rules", metavar="FILE", help="The configuration file whose rules count it.")
@click.option(
    "--rule", "named", metavar="NAME=LIMITS", multiple=True, help='A rule in code, "api=100/10s". Repeatable.'
)
async def explain(limiter: Limiter, key: str, value: str | None, rules: str | None, named: tuple[str, ...]) -> Answer:
    """Show why KEY is refused, until when, and what is counted for it.

    KEY is an address, user:42 or another key. The store does not contain the rules: name them with --rules or --rule to
    see their windows, with the amounts that operators have changed.

    \b
    Example: slidegate explain 203.0.113.7 --rules slidegate.toml
    """
    client = key_of(key, value)
    of_file = None if rules is None else middleware_of(rules)
    if of_file is None and not named:
        note("name the rules with --rules FILE or --rule NAME=LIMITS to see windows")
    elif of_file is not None and of_file.default_rule is not None:
        note("default_limits count each route by itself and are not shown")
    lists = {} if of_file is None else of_file.lists
    middlewares = _counting(limiter, of_file, named)  # limiters have weak references to them
    ban = await limiter.banned(client)
    changes = await limiter.overrides()  # reads them, and the middleware applies them
    off = next((one.until.timestamp() for one in changes if one.name == "*"), None)
    keys = [client]
    if of_file is not None and value is None:
        keys = keys_of(of_file.client.truncated(client), [of_file])
    if of_file is not None and any(rule.key is everyone for rule in of_file.rules):
        keys.append("everyone")
    view = await limiter.inspect(keys[0])
    windows = [row_of_window(window) for window in await windows_of(limiter, keys)]
    del middlewares
    listed = {kind: networks is not None and _is_in(networks, key) for kind, networks in lists.items()}
    if of_file is not None and listed["blocklist"]:
        listed["blocklist"] = not any(of_file.clients.spares(*one) for one in Networks([key]).ranges())
    left_us = None if ban is None else ban.left_us(view.unix_us)
    state = {
        "key": view.key,
        "refused": off is None
        and not listed.get("allowlist")
        and bool(ban or listed.get("blocklist") or any(map(_refuses, windows))),
        "off_until_at": off,
        "at": view.unix_us / _S,
        **listed,
        "ban": None if ban is None else {**row_of_ban(ban), "left_s": None if left_us is None else left_us / _S},
        "windows": windows,
    }
    return [state], _state_lines(state)


def _is_in(networks: Networks, key: str) -> bool:
    """Return whether a list contains a key that is an address or a network, as most clients of IPv6 are."""
    try:
        own = Networks([key])
    except ConfigurationError:
        return False
    return Networks.of_ranges([*networks.ranges(), *own.ranges()]) == networks


def _counting(limiter: Limiter, of_file: RateLimitMiddleware | None, named: Sequence[str]) -> list[RateLimitMiddleware]:
    """Return middlewares that count by the rules of a file and those of the command, each under its own name."""
    rules = defaultdict[str, list[Rule]](list)
    if of_file is not None:
        rules[of_file.prefix.removesuffix(":")] += of_file.rules
    for name, rule in map(_named_rule, named):
        rules[name].append(rule)
    return [RateLimitMiddleware(nothing, limiter=limiter, rules=own, name=name or None) for name, own in rules.items()]


def _named_rule(text: str) -> tuple[str, Rule]:
    """Return the name of a middleware, empty for one without, and a rule of it."""
    name, equals, limits = text.partition("=")
    if not equals:
        raise ConfigurationError(f'expected a name and limits, for example "api=100/10s", not {text!r}', "--rule")
    outer, _, own = name.rpartition(":")
    return outer, Rule("*", limits, name=own)


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
            span = "for ever" if ban["left_s"] is None else f"for {span_of(ban['left_s'])}"
            source = ": ".join(filter(None, (ban["by"], ban["reason"])))
            yield f"  by the ban of {ban['key']} {span}, until {end_of(ban)}; by {source}"
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
            "all back in": span_of(window["reset_after_s"]) if window["reset_after_s"] else "",
        }
        for window in windows
    ]
    return table(_WINDOW_COLUMNS, rows)


def _until(window: dict[str, Any], now_s: float) -> str:
    wait_s = window["retry_after_s"]
    if wait_s is None:
        return "until one of its requests ends"
    return f"for {span_of(wait_s)}, until {time_of(ceil(now_s + wait_s))}"


def _room(window: dict[str, Any]) -> str:
    wait_s = window["retry_after_s"]
    return "unknown" if wait_s is None else span_of(wait_s) if wait_s else "now"
