"""``slidegate explain``: why a client is refused, until when, and what is counted for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Any, Final

import click

from ... import ConfigurationError, Limiter, RateLimitMiddleware, Rule, everyone
from ...core import Networks
from ..replay import nothing
from ..rows import EVERYWHERE, key_of, keys_of, place_of, row_of_ban, row_of_window, span_of, windows_of
from .bans import end_of
from .main import Answer, asking, middleware_of, program, table, time_of, with_value

_S: Final = 1_000_000
_NAMED: Final = 10
"""How many limits of workers are named."""
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
    see their windows, with the amounts that operators have changed. What was not looked at is named; it may refuse KEY.

    \b
    Example: slidegate explain 203.0.113.7 --rules slidegate.toml
    """
    client = key_of(key, value)
    of_file = None if rules is None else middleware_of(rules)
    middlewares = _counting(limiter, of_file, named)  # limiters have weak references to them
    ban = await limiter.banned(client)
    changes = await limiter.overrides()  # reads them, and the middleware applies them
    off = next((one.until.timestamp() for one in changes if one.name == "*"), None)
    keys = [client]
    if of_file is not None and value is None:
        keys = keys_of(of_file.client.truncated(client), [of_file])
    if of_file is not None and any(rule.charging.key is everyone for rule in of_file.rules):
        keys.append("everyone")
    view = await limiter.inspect(keys[0])
    windows = [row_of_window(window) for window in (await windows_of(limiter, keys))[0]]
    del middlewares
    lists = {} if of_file is None else of_file.lists
    listed = {kind: networks is not None and _is_in(networks, key) for kind, networks in lists.items()}
    blocklist = None if of_file is None else of_file.policy.blocklist
    if blocklist is not None and listed["blocklist"]:
        listed["blocklist"] = not any(blocklist.spares(*one) for one in Networks([key]).ranges())
    left_us = None if ban is None else ban.left_us(view.unix_us)
    state: dict[str, Any] = {
        "key": view.key,
        "refused": None,
        "off_until_at": off,
        "at": view.unix_us / _S,
        **listed,
        "blocked_by": _blocking_all(of_file),
        "ban": None if ban is None else {**row_of_ban(ban), "left_s": None if left_us is None else left_us / _S},
        "windows": windows,
        "not_looked_at": [],
    }
    state["refused"] = _is_refused(state)
    if off is None:
        names = {name for one in await limiter.published() for name in one.text.limits}
        state["not_looked_at"] = [*_unseen(of_file, view.key, windows, names)]
    return [state], _state_lines(state)


def _is_refused(state: dict[str, Any]) -> bool | None:
    """Return whether a client is refused; None if nothing that was looked at refuses it, as something else may."""
    if state["off_until_at"] is not None:
        return False
    if state.get("allowlist"):
        return None
    reasons = state["ban"], state.get("blocklist"), state["blocked_by"], *filter(_refuses, state["windows"])
    return True if any(reasons) else None


def _blocking_all(of_file: RateLimitMiddleware | None) -> str | None:
    """Return the label of a rule that blocks every request before any other ends the list; None if there is none."""
    rules = () if of_file is None else of_file.rules
    first = next((rule for rule in rules if rule.action.is_final), None)
    if first is not None and first.action.blocks and first.matching.is_everything:
        return first.label
    return None


def _unseen(
    of_file: RateLimitMiddleware | None, key: str, windows: Sequence[dict[str, Any]], names: Iterable[str]
) -> Iterator[str]:
    """Yield what may refuse a client, and was not looked at.

    Args:
        of_file: The middleware of a file.
        key: The key of the client.
        windows: Its windows that were looked at.
        names: The names of limits that workers have.
    """
    rules = () if of_file is None else of_file.rules
    if of_file is not None and of_file.default_rule is not None:
        yield "default_limits, which count each route by itself"
    blocking = [rule.label for rule in rules if rule.action.blocks]
    if blocking and _blocking_all(of_file) is None:
        yield f"which requests the blocking rules meet: {', '.join(blocking)}"
    is_address, kind = place_of(key) == EVERYWHERE, key.partition(":")[0]
    own = {"address" if is_address else kind, key.partition("#")[0], f"network:{kind}"}
    others = {_kind_of(rule) for rule in rules if rule.counts and rule.charging.key is not everyone} - own
    if others:
        yield f"windows under the other keys of its requests: {', '.join(sorted(others))}"
    if is_address and kind != "asn":
        yield "bans of its operator"
    known = sorted({*names} - {window["name"] for window in windows})
    more = f"; workers have {', '.join(known[:_NAMED])}{', ...' if len(known) > _NAMED else ''}" if known else ""
    if windows or of_file is not None:
        yield f"limits and lists in code, at endpoints and of other files{more}"
    else:
        yield f"limits and lists: name the rules with --rules FILE or --rule NAME=LIMITS{more}"


def _kind_of(rule: Rule) -> str:
    """Return the kind of the keys by which a rule of a file counts."""
    key = rule.charging.key
    if key is None or hasattr(key, "truncated"):
        return "address"
    return str(getattr(key, "identity", ""))


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
    key, windows = state["key"], state["windows"]
    if state["refused"]:
        yield f"{key} is refused"
        yield from _refusal_lines(state)
    elif state["off_until_at"] is not None:
        yield f"{key} is not refused: all workers are off until {time_of(state['off_until_at'])}"
    elif state.get("allowlist"):
        yield f"{key} is on the allowlist, and never refused by this file"
    else:
        yield f"{key} has no ban" + (", and every limit below has room" if windows else "")
    for unseen in state["not_looked_at"]:
        yield f"  not looked at: {unseen}"
    for number, line in enumerate(_window_table(windows)):
        yield from (line,) if number else ("", line)


def _refusal_lines(state: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each reason for which a client is refused."""
    ban = state["ban"]
    if state.get("blocklist"):
        yield "  by the blocklist"
    if state["blocked_by"] is not None:
        yield f"  by {state['blocked_by']}, which blocks every request"
    if ban is not None:
        span = "for ever" if ban["left_s"] is None else f"for {span_of(ban['left_s'])}"
        source = ": ".join(filter(None, (ban["by"], ban["reason"])))
        place = "" if ban["holds"] == EVERYWHERE.holds else f"; it holds {ban['holds']}"
        yield f"  by the ban of {ban['key']} {span}, until {end_of(ban)}; by {source}{place}"
    for window in filter(_refuses, state["windows"]):
        yield f"  by {window['name']} {_until(window, state['at'])}: {window['used']} of {window['limit']} are used"


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
