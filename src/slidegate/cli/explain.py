"""``slidegate explain LIMITS``: the most that limits let through, and when a client may come back.

The bound depends on the ring (see `core.ring`). Units of an exact limit expire W after they were spent, so a span T
holds at most N for each W that begins in it. Of a limit that counts in slices of s, any k + 1 consecutive slices hold
at most N, and a span T that begins with the last microsecond of a slice touches
1 + ceil((T - 1) / s) slices: a burst there and another k slices later are closest.

One limit alone is reached by a client that sends each request as soon as it is allowed. Several limits together are
bounded by the lowest of their numbers, which is never too low.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click

from ..core.durations import format_duration
from ..core.limits import AnyLimit, Limit, parse_limits
from .output import show, with_format
from .store import middleware_of

_S: Final = 1_000_000
_SPANS: Final = {"1s": _S, "1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}


@click.command()
@click.argument("limits")
@with_format
def explain(limits: str, as_json: bool) -> None:
    """Show what LIMITS let through, and when a client may come back.

    LIMITS are limits as in `"5/minute; 50/hour"`, or a configuration file such as slidegate.toml.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """
    for number, (title, those) in enumerate(_titled(limits)):
        facts = _facts(title, those)
        if number and not as_json:
            click.echo()
        show(as_json, [facts], _lines(facts, those))


def _titled(text: str) -> Iterator[tuple[str, Sequence[AnyLimit]]]:
    """Yield the limits that a text has, or those of each rule of the file that it names."""
    if not _names_a_file(text):
        yield text, parse_limits(text)
        return
    middleware = middleware_of(text)
    for rule in middleware.rules:
        if rule.all_limits:
            yield f"rule {rule.label}", rule.all_limits
    if middleware.default_limits:
        yield "each route (default_limits)", middleware.default_limits


def _names_a_file(text: str) -> bool:
    try:
        return bool(text) and (text.endswith(".toml") or Path(text).exists())
    except (OSError, ValueError):  # text that cannot be a name is at least no file
        return False


def _windows(limits: Sequence[AnyLimit]) -> list[Limit]:
    """Return the limits that are windows; only these have bounds."""
    return [limit for limit in limits if isinstance(limit, Limit)]


def _facts(title: str, limits: Sequence[AnyLimit]) -> dict[str, Any]:
    """Return the bounds of limits that apply together."""
    windows = _windows(limits)
    others = [limit.said for limit in limits if limit not in windows]
    facts: dict[str, Any] = {"title": title, "limits": [str(limit) for limit in windows], "others": others}
    if windows:
        facts["exact"] = all(limit.exact for limit in windows)
        facts["most"] = {name: most_units(windows, span_us) for name, span_us in _SPANS.items()}
        facts["burst"] = min(limit.amount for limit in windows)
        facts["back_after_s"] = [wait_us / _S for wait_us in back_after_us(windows)]
        facts["steady_every_s"] = steady_us(windows) / _S
    return facts


def _lines(facts: dict[str, Any], limits: Sequence[AnyLimit]) -> Iterator[str]:
    windows = _windows(limits)
    yield facts["title"]
    for limit in windows:
        slices = f"counted in {limit.slices} slices of {_seconds(limit.slice_us)}, and one that is running"
        yield f"  {limit.said}: {'the time of each unit is kept, so the window is exact' if limit.exact else slices}"
    for other in facts["others"]:
        yield f"  {other}: this is no window, and the bounds below leave it out"
    if windows:
        soonest, latest = map(_seconds, back_after_us(windows))
        wait = latest if soonest == latest else f"{soonest} to {latest}"
        yield from ("", "A client gets at most, whenever the span begins:")
        yield from (f"  {most:>14,} in {name}" for name, most in facts["most"].items())
        yield f"It may spend {facts['burst']:,} at once, and come back after {wait}."
        yield f"It is never refused at one request every {_seconds(steady_us(windows))}."


def _seconds(span_us: int) -> str:
    """Write a span in its largest whole unit, or else in seconds with the digits that matter."""
    whole = format_duration(span_us)
    plain = len(list(takewhile(str.isdigit, whole))) <= 4 and not whole.endswith("us")
    return whole if plain else f"{span_us / _S:.6g}s"


def most_units(limits: Sequence[Limit], span_us: int) -> int:
    """Return a number of units that no client exceeds in any half-open span of that length.

    Args:
        limits: The limits, which all apply; at least one.
        span_us: The length, 0 or more.
    """
    return 0 if span_us <= 0 else min(_alone(limit, span_us) for limit in limits)


def back_after_us(limits: Sequence[Limit]) -> tuple[int, int]:
    """Return the shortest and the longest wait of a client that has spent as much as it could at one moment.

    They differ where slices are counted: a burst late in its slice waits less than an early one.
    """
    burst = min(limit.amount for limit in limits)
    spent = [limit for limit in limits if limit.amount == burst]
    return max(map(_soonest_us, spent)), max(map(_round_us, spent))


def steady_us(limits: Sequence[Limit], units: int = 1) -> int:
    """Return the shortest time between two requests of a client that is never refused.

    Args:
        limits: The limits.
        units: The units of each request, at most the smallest amount.
    """
    return max(-(-_round_us(limit) // (limit.amount // units)) for limit in limits)


def _alone(limit: Limit, span_us: int) -> int:
    if limit.exact:
        return -(-span_us // limit.window_us) * limit.amount
    touched = 1 - (1 - span_us) // limit.slice_us
    return -(-touched // (limit.slices + 1)) * limit.amount


def _round_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us


def _soonest_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else limit.slices * limit.slice_us + 1
