"""``slidegate explain``: whether a client is refused, by what and until when, as far as workers have published it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any, Final

import click

from ... import Limiter
from ...core import Ban, LimitState
from ...limiter import Override
from ..explained import Explained, explained
from ..rows import key_of, listed, named, row_of_ban, row_of_change, row_of_window, span_of
from ..standing import EVERY, Reason, Standing, Verdict, Window, sentences_of
from .bans import compare_secrets, end_of
from .main import Answer, asking, program, table, time_of, with_value

REFUSED: Final = 3
UNKNOWN: Final = 4
"""The exit codes; 0 if the client is not refused, 1 and 2 for failures as for other commands."""
CODES: Final = {Verdict.NOT_REFUSED: 0, Verdict.REFUSED: REFUSED, Verdict.UNKNOWN: UNKNOWN}
_S: Final = 1_000_000
_MOST_WINDOWS: Final = 20
_WINDOW_COLUMNS: Final = ("name", "limit", "used", "remaining", "retry in", "reset in", "key", "requests")
_REFUSAL_COLUMNS: Final = ("time", "reason", "by", "route", "client")


@program.command()
@asking(code_of=lambda rows: CODES[rows[0]["verdict"]])
@click.argument("key")
@with_value
async def explain(limiter: Limiter, key: str, value: str | None) -> Answer:
    """Show whether KEY is refused, by what and until when, and what is counted for it.

    KEY is an address, user:42 or another key. The rules are those that the workers of the application have published
    within a minute, with the amounts that operators have changed; each group of workers with other rules is shown. What
    cannot be known is named, such as limits that a function returns. The exit code is 0 if KEY is not refused, 3 if
    requests of it are refused, and 4 if that is unknown, as when no worker has published its rules.

    \b
    Example: slidegate explain 203.0.113.7 --store redis://localhost:6379/0
    """
    client = key_of(key, value)
    if value is not None:
        await compare_secrets(limiter)
    found = await explained(limiter, client)
    return [_row(found)], _lines(found)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _row(found: Explained) -> dict[str, Any]:
    off_until_at = None
    if found.off is not None:
        off_until_at = found.off.until.timestamp()
    traffic = None
    if found.traffic is not None:
        traffic = named(found.traffic, "key", "passed", "refused", "rule", "limits", "route")
    return {
        "key": found.subject.key,
        "verdict": found.verdict.value,
        "at": found.at_us / _S,
        "off_until_at": off_until_at,
        "groups": [_row_of_group(one) for one in found.groups],
        "unreadable_workers": found.unreadable,
        "bans": [{**row_of_ban(ban), **_ladder(ban, found)} for ban in found.bans],
        "changes": [row_of_change(one) for one in found.changes],
        "statistics": {
            "is_attached": found.refusals is not None,
            "last_5_minutes": traffic,
            "refusals": _refusals(found),
        },
    }


def _refusals(found: Explained) -> list[dict[str, Any]] | None:
    if found.refusals is None:
        return None
    return [{"at": one.time_us / _S, **one.details} for one in found.refusals]


def _row_of_group(group: Standing) -> dict[str, Any]:
    return {
        "workers": group.workers,
        "verdict": group.verdict.value,
        "reasons": [_row_of_reason(one) for one in group.reasons],
        "not_looked_at": [*_not_looked_at(group)],
        "windows": [_row_of_window(one) for one in group.windows],
    }


def _row_of_reason(reason: Reason) -> dict[str, Any]:
    row = {**named(reason, "kind", "by", "requests"), "apart_from": [*reason.apart_from], "until_at": None}
    if reason.ban is not None and reason.ban.until is not None:
        row["until_at"] = reason.ban.until.timestamp()
    if reason.window is not None and reason.window.retry_after_us is not None:
        row["retry_after_s"] = reason.window.retry_after_us / _S
    return row


def _row_of_window(window: Window) -> dict[str, Any]:
    row = row_of_window(window.state)
    row |= {"name": window.rule.name, "rule": window.rule.rule, "shadow": window.rule.shadow}
    return {**row, "configured": window.rule.limit, "requests": window.rule.requests or EVERY}


def _ladder(ban: Ban, found: Explained) -> dict[str, Any]:
    """Return how long bans of a policy last, and what the next one would last."""
    durations = found.ladders.get(ban.by, "").split()
    if not ban.level or not durations:
        return {"durations": [], "next": None}
    return {"durations": durations, "next": durations[min(ban.level, len(durations) - 1)]}


# -- text --------------------------------------------------------------------------------------------------------------


def _lines(found: Explained) -> Iterator[str]:
    key = found.subject.key
    if found.off is not None:
        yield f"{key} is not refused: all workers are off until {time_of(found.off.until.timestamp())}; after that:"
    else:
        yield _headline(found)
    for group in found.groups:
        yield from group_lines(group, found)
    if found.unreadable:
        yield f"  not looked at: the rules of {found.unreadable} workers, which are not there, or of a later version"
    yield from _ban_lines(found)
    for change in found.changes:
        yield f"  changed: {_change_text(change)}"
    yield from _statistics_lines(found)
    yield from _window_lines(found)


def _change_text(change: Override) -> str:
    words = f"{change.name} to {change.limit}"
    words += f", since {time_of(change.since.timestamp())} until {time_of(change.until.timestamp())} by {change.by}"
    if change.reason:
        words += f": {change.reason}"
    return words


def _headline(found: Explained) -> str:
    key, verdict = found.subject.key, found.verdict
    if not found.groups and not found.unreadable:
        return f"{key}: unknown, because no worker has published its rules within a minute"
    if verdict is Verdict.UNKNOWN:
        return f"{key}: unknown; nothing that was looked at refuses it"
    if verdict is Verdict.NOT_REFUSED:
        return f"{key} is not refused"
    for group in found.groups:
        for reason in group.reasons:
            if reason.is_of_each:
                return f"{key} is refused"
    return f"{key} is refused, though not each request"


def group_lines(group: Standing, found: Explained) -> Iterator[str]:
    """Yield what equal workers do; with a line in front if there are others."""
    if len(found.groups) > 1:
        yield f"  {_workers(group.workers)}: {group.verdict}"
    for reason in group.reasons:
        yield f"  {_requests_of(reason)}, {_because(reason, found)}"
    for unseen in _not_looked_at(group):
        yield f"  not looked at: {unseen}"


def _workers(number: int) -> str:
    if number == 1:
        return "1 worker"
    return f"{number} workers"


def _requests_of(reason: Reason) -> str:
    if not reason.apart_from:
        return reason.requests
    return f"{reason.requests} apart from {listed(reason.apart_from)}"


def _because(reason: Reason, found: Explained) -> str:
    """Return by what requests are refused, and until when."""
    if reason.kind == "blocklist":
        if reason.by == "blocklist":
            return "by the blocklist"
        return f"by the blocklist {reason.by}"
    if reason.kind == "block":
        return f"by {reason.by}, which blocks"
    if reason.ban is not None:
        return f"by the ban of {reason.ban.key}"
    state = reason.window
    assert state is not None, "a limit has a window"
    return f"by {reason.by} {_until(state, found.at_us)}: {state.used} of {state.limit} are used"


def _until(state: LimitState, at_us: int) -> str:
    if state.retry_after_us is None:
        return "until one of its requests ends"
    if not state.retry_after_us:  # there is room, but not for the cost of a request
        return "for the cost of a request"
    wait_s = state.retry_after_us / _S
    return f"for {span_of(wait_s)}, until {time_of(ceil(at_us / _S + wait_s))}"


def _ban_lines(found: Explained) -> Iterator[str]:
    for ban in found.bans:
        row, ladder = row_of_ban(ban), _ladder(ban, found)
        source = ": ".join(filter(None, (ban.by, ban.reason)))
        left_us = ban.left_us(found.at_us)
        length = "without an end"
        if left_us is not None:
            length = f"for {span_of(left_us / _S)}"
        level = ""
        if ladder["next"] is not None:
            level = f"; level {ban.level}, the next one lasts {ladder['next']}"
        yield f"  ban of {ban.key} {length}, until {end_of(row)}; by {source}{level}"


def _not_looked_at(group: Standing) -> Iterator[str]:
    """Yield what was not looked at, with the first of many rules."""
    yield from group.unseen
    yield from sentences_of(group.other_keys)


def _statistics_lines(found: Explained) -> Iterator[str]:
    if found.refusals is None:
        yield "  no statistics are attached, or no worker has written any in five minutes"
        return
    traffic = found.traffic
    if traffic is not None:
        words = f"{traffic.passed:,} passed, {traffic.refused:,} were refused"
        if traffic.limits:
            words += f", the last one under {traffic.rule} with {traffic.limits}"
        if traffic.route:
            words += f" at {traffic.route}"
        yield f"  in five minutes: {words}"
    if not found.refusals:
        yield "  no refusal of it is among the latest ones"
        return
    rows = []
    for event in found.refusals:
        details = event.details
        by = details.get("rule") or details.get("by", "")
        rows.append({**dict.fromkeys(_REFUSAL_COLUMNS, ""), **details, "time": time_of(event.time_us / _S), "by": by})
    yield ""
    yield from table(_REFUSAL_COLUMNS, rows)


def _window_lines(found: Explained) -> Iterator[str]:
    """Yield the windows of which something is spent, or all if these are few; once for groups that have the same."""
    distinct: dict[object, dict[str, Any]] = {}
    for group in found.groups:
        for window in group.windows:
            place = window.rule.bucket, window.rule.name, str(window.state.limit)
            distinct[place] = _window_row(window)
    rows = [*distinct.values()]
    shown = rows
    if len(rows) > _MOST_WINDOWS:
        shown = [row for row in rows if row["used"]][:_MOST_WINDOWS]
    if shown:
        yield ""
    yield from table(_WINDOW_COLUMNS, shown)
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more limits"


def _window_row(window: Window) -> dict[str, Any]:
    state = window.state
    name = window.rule.name or window.rule.rule
    if window.rule.shadow:
        name = f"{name} (shadow)"
    back = ""
    if state.reset_after_us:
        back = span_of(state.reset_after_us / _S)
    retry = "now"
    if state.retry_after_us is None:
        retry = "unknown"
    elif state.retry_after_us:
        retry = span_of(state.retry_after_us / _S)
    return {
        "name": name,
        "limit": str(state.limit),
        "used": state.used,
        "remaining": state.remaining,
        "retry in": retry,
        "reset in": back,
        "key": window.key,
        "requests": window.rule.requests or EVERY,
    }
