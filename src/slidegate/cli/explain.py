"""``slidegate explain LIMITS``: the most that limits admit in a span, and when a client may retry.

The bound follows from the ring (see `core.ring`). Units of an exact limit expire W after they were spent, so a span T
contains at most N units for each window W that begins in it. With slices of length s, any k + 1 consecutive slices
contain at most N units. A span T touches the most slices, 1 + ceil((T - 1) / s), if it begins with the last microsecond
of a slice. The worst case is a burst in that microsecond, and another as soon as k slices have passed.

For one limit the bound is tight: a client that sends each request as soon as it is allowed reaches it. For several
limits, the lowest of their bounds is returned, which may not be reachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import click

from ..core.durations import format_duration
from ..core.limits import AnyLimit, Limit, parse_limits
from .config_file import middleware_of
from .output import show, with_format

_S: Final = 1_000_000
_SPANS: Final = {"1s": _S, "1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}


@click.command()
@click.argument("limits")
@with_format
def explain(limits: str, as_json: bool) -> None:
    """Show how many requests LIMITS admit, and when a client may retry.

    LIMITS are limits such as `"5/minute; 50/hour"`, or a configuration file such as slidegate.toml.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """
    for number, (title, those) in enumerate(_titled(limits)):
        if number and not as_json:
            click.echo()
        windows = [limit for limit in those if isinstance(limit, Limit)]
        others = [limit.said for limit in those if not isinstance(limit, Limit)]
        facts = {"title": title, "limits": [str(limit) for limit in windows], "others": others, **_bounds(windows)}
        show(as_json, [facts], _lines(title, windows, others))


def _titled(text: str) -> Iterator[tuple[str, Sequence[AnyLimit]]]:
    """Yield (title, limits): the limits in the text, or those of each rule in the file that it names."""
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
    except (OSError, ValueError):  # not a valid file name
        return False


def _bounds(windows: Sequence[Limit]) -> dict[str, Any]:
    """Return the bounds of sliding windows that apply together."""
    if not windows:
        return {}
    return {
        "exact": all(limit.exact for limit in windows),
        "most": {name: most_units(windows, span_us) for name, span_us in _SPANS.items()},
        "burst": min(limit.amount for limit in windows),
        "back_after_s": [wait_us / _S for wait_us in back_after_us(windows)],
        "steady_every_s": steady_us(windows) / _S,
    }


def _lines(title: str, windows: Sequence[Limit], others: Sequence[str]) -> Iterator[str]:
    yield title
    for limit in windows:
        slices = f"counted in {limit.slices} slices of {_seconds(limit.slice_us)} and the current one"
        yield f"  {limit.said}: {'exact; the time of each unit is stored' if limit.exact else slices}"
    for other in others:
        yield f"  {other}: not a sliding window, not included in the bounds below"
    if windows:
        soonest, latest = map(_seconds, back_after_us(windows))
        wait = latest if soonest == latest else f"{soonest} to {latest}"
        yield from ("", "Maximum for one client in any span of:")
        yield from (f"  {name:>4}: {most_units(windows, span_us):>14,}" for name, span_us in _SPANS.items())
        yield f"Largest burst: {min(limit.amount for limit in windows):,}, then retry after {wait}."
        yield f"Steady rate that is never refused: one request every {_seconds(steady_us(windows))}."


def _seconds(span_us: int) -> str:
    """Format a span in its largest whole unit, or in seconds with six significant digits if that is too long."""
    whole = format_duration(span_us)
    plain = len(list(takewhile(str.isdigit, whole))) <= 4 and not whole.endswith("us")
    return whole if plain else f"{span_us / _S:.6g}s"


def most_units(limits: Sequence[Limit], span_us: int) -> int:
    """Return an upper bound of the units of one client in any half-open span.

    Args:
        limits: The limits, which all apply; at least one.
        span_us: The length of the span in microseconds, at least 1.
    """
    return min(_alone(limit, span_us) for limit in limits)


def back_after_us(limits: Sequence[Limit]) -> tuple[int, int]:
    """Return the shortest and the longest wait after the largest possible burst.

    They differ for limits that count in slices: a burst late in its slice waits less than an early one.
    """
    burst = min(limit.amount for limit in limits)
    spent = [limit for limit in limits if limit.amount == burst]
    return max(map(_soonest_us, spent)), max(map(_round_us, spent))


def steady_us(limits: Sequence[Limit]) -> int:
    """Return the shortest interval between the requests of a client that is never refused."""
    return max(-(-_round_us(limit) // limit.amount) for limit in limits)


def _alone(limit: Limit, span_us: int) -> int:
    if limit.exact:
        return -(-span_us // limit.window_us) * limit.amount
    touched = 1 - (1 - span_us) // limit.slice_us
    return -(-touched // (limit.slices + 1)) * limit.amount


def _round_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us


def _soonest_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else limit.slices * limit.slice_us + 1
