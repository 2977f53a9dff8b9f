"""``slidegate explain LIMITS``: the most that limits let through, when a client may come back, and what it costs.

Each ring binds in its own way (see `core.ring`). Units of a limit that keeps times leave W after they came,
so a span T holds at most N for each W that begins in it. Of a limit that counts in slices of s, any k + 1 slices that
follow each other hold at most N, and a span T that begins with the last microsecond of a slice touches
1 + ceil((T - 1) / s) slices: a burst there and another k slices later are closest.

One limit alone is used up to this number by a client that takes each unit as soon as it can. Several limits together
are bounded by cutting the span: whole rounds of one limit, and the rest under the others. That is never too low.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from sys import getsizeof
from typing import Any, Final, NamedTuple

import click

from ..core.durations import format_duration
from ..core.limits import AnyLimit, Limit, parse_limits
from .configured import middleware_of
from .output import Output, with_output

_S: Final = 1_000_000
_SPANS: Final = {"1s": _S, "1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}
ROW_BYTES: Final = 47
"""The bytes that a table takes for a row, beside the row and the text of the key."""
_LEFT_OUT: Final = "its figures are not windows, and the bounds below leave it out"
_MAX_CUT: Final = 6


class _Subject(NamedTuple):
    """Limits that apply together, and where they stand."""

    title: str
    limits: tuple[AnyLimit, ...]


@click.command()
@click.argument("limits")
@with_output(forms=("text", "json"))
def explain(out: Output, limits: str) -> None:
    """Show what LIMITS let through, when a client may come back, and what a client costs.

    LIMITS are limits as in `"5/minute; 50/hour"`, or a configuration file such as slidegate.toml.

    \b
    Example: slidegate explain "5/minute; 50/hour"
    """
    subjects = _of_file(Path(limits)) if _names_a_file(limits) else iter([_Subject(limits, parse_limits(limits))])
    for number, subject in enumerate(subjects):
        if out.form == "json":
            out.value(_facts(subject))
        else:
            out.write([""] * (number > 0))
            out.write(_lines(subject))


def _names_a_file(text: str) -> bool:
    try:
        return bool(text) and (text.endswith(".toml") or Path(text).exists())
    except (OSError, ValueError):  # text that cannot be a name is at least no file
        return False


def _of_file(path: Path) -> Iterator[_Subject]:
    """Yield the limits of each rule of a configuration file, and those of each route."""
    middleware = middleware_of(path)
    for rule in middleware.rules:
        if rule.all_limits:
            yield _Subject(f"rule {rule.label}", tuple(rule.all_limits))
    if middleware.default_limits:
        yield _Subject("each route (default_limits)", tuple(middleware.default_limits))


def _windows(limits: Sequence[AnyLimit]) -> list[Limit]:
    return [limit for limit in limits if isinstance(limit, Limit)]


def memory_bytes(limits: Sequence[Limit]) -> int:
    """Return the most that a client takes in a memory store beside the text of its key, in bytes."""
    total = 0
    for limit in limits:
        # Full: the times of all units, or a count in every slice.
        window = b""
        for step in range(limit.amount if limit.exact else limit.slices + 1):
            window, _ = limit.spend(window, limit.span_us + step * limit.step_us, 1)
        total += ROW_BYTES + getsizeof(window)
    return total


def _facts(subject: _Subject) -> Mapping[str, Any]:
    windows = _windows(subject.limits)
    others = [limit.said for limit in subject.limits if limit not in windows]
    facts: dict[str, Any] = {"title": subject.title, "limits": [str(limit) for limit in windows], "others": others}
    if windows:
        soonest_us, latest_us = back_after_us(windows)
        facts["exact"] = all(limit.exact for limit in windows)
        facts["most"] = {name: most_units(windows, span_us) for name, span_us in _SPANS.items()}
        facts["burst"] = min(limit.amount for limit in windows)
        facts["back_after_s"] = [soonest_us / _S, latest_us / _S]
        facts["steady_every_s"] = steady_us(windows) / _S
        facts["memory_bytes"] = memory_bytes(windows)
    return facts


def _lines(subject: _Subject) -> Iterator[str]:
    yield subject.title
    windows = _windows(subject.limits)
    for limit in subject.limits:
        if limit in windows:
            assert isinstance(limit, Limit)
            yield f"  {limit.said}: {_kept(limit)}"
        else:
            yield f"  {limit.said}: {_LEFT_OUT}"
    if not windows:
        return
    facts = _facts(subject)
    yield ""
    yield "A client gets at most, whenever the span begins:"
    for name, most in facts["most"].items():
        yield f"  {most:>14,} in {name}"
    yield f"It may spend {facts['burst']:,} at once, and come back after {_wait(*back_after_us(windows))}."
    yield f"It is never refused at one request every {_seconds(steady_us(windows))}."
    yield f"It takes at most {facts['memory_bytes']:,} bytes of memory beside its key."


def _kept(limit: Limit) -> str:
    if limit.exact:
        return "the time of each unit is kept, so the window is exact"
    return f"counted in {limit.slices} slices of {_seconds(limit.slice_us)}, and one that runs"


def _wait(soonest_us: int, latest_us: int) -> str:
    if soonest_us == latest_us:
        return _seconds(latest_us)
    return f"{_seconds(soonest_us)} to {_seconds(latest_us)}"


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
    if span_us <= 0:
        return 0
    best = min(_alone(limit, span_us) for limit in limits)
    # Each further limit doubles the ways to cut, and a limit that is left out makes no number too low.
    for limit in sorted(limits, key=lambda limit: _alone(limit, span_us))[:_MAX_CUT]:
        rounds, rest_us = _rounds(limit, span_us)
        shorter = [other for other in limits if _round_us(other) < _round_us(limit)]
        if rounds and shorter:
            best = min(best, rounds * limit.amount + most_units(shorter[:_MAX_CUT], rest_us))
    return best


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


def _rounds(limit: Limit, span_us: int) -> tuple[int, int]:
    """Return how many times a limit can be spent whole within a span, and the length of the rest behind that."""
    round_us = _round_us(limit)
    # The first slice may be met with its last microsecond, so the rounds of slices take that much less of the span.
    saved_us = 0 if limit.exact else limit.slice_us - 1
    rounds = (span_us + saved_us) // round_us
    return rounds, span_us + saved_us - rounds * round_us


def _round_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else (limit.slices + 1) * limit.slice_us


def _soonest_us(limit: Limit) -> int:
    return limit.window_us if limit.exact else limit.slices * limit.slice_us + 1
