"""``slidegate explain LIMITS``: the bounds, the way back, the memory, and two drawn clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from sys import getsizeof
from typing import Any, Final, NamedTuple

import click
from starlette.types import Receive, Scope, Send

from ...core.durations import format_duration
from ...core.limits import AnyLimit, Limit, parse_limits
from ...limiter import Limiter
from ...web.middleware import RateLimitMiddleware
from ..output import Output, with_output
from .bursts import back_after_us, most_units, steady_us
from .courses import greedy, most_steps, steady
from .drawing import axis, drawn

_S: Final = 1_000_000
_SPANS: Final = {"1s": _S, "1m": 60 * _S, "1h": 3_600 * _S, "1d": 86_400 * _S}
ROW_BYTES: Final = 47
"""The bytes that a table takes for a row, beside the row and the text of the key."""
_CLIENTS: Final = {
    "greedy: takes each unit as soon as it is there": greedy,
    "steady: keeps the pace that is never refused": steady,
}
_LEFT_OUT: Final = "its figures are not windows, and the bounds below leave it out"


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
    """
    subjects = _of_file(Path(limits)) if _names_a_file(limits) else iter([_Subject(limits, parse_limits(limits))])
    for number, subject in enumerate(subjects):
        if out.form == "json":
            out.value(_facts(subject))
        else:
            out.write([""] * (number > 0))
            out.write(_lines(subject, out.width, out.unicode))


def _names_a_file(text: str) -> bool:
    try:
        return bool(text) and (text.endswith(".toml") or Path(text).exists())
    except (OSError, ValueError):  # text that cannot be a name is at least no file
        return False


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand where an application would."""


def _of_file(path: Path) -> Iterator[_Subject]:
    """Yield the limits of each rule of a configuration file, and those of each route."""
    # A limiter of its own: the store that the file names is not touched.
    gate = RateLimitMiddleware.from_file(_nothing, path, limiter=Limiter(), replace_store=True).app
    for rule in gate.rules:
        if rule.all_limits:
            yield _Subject(f"rule {rule.label}", tuple(rule.all_limits))
    if gate.default_limits:
        yield _Subject("each route (default_limits)", tuple(gate.default_limits))


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


def _lines(subject: _Subject, width: int, unicode: bool) -> Iterator[str]:
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
    yield ""
    yield from _timeline(windows, width, unicode)


def _timeline(windows: Sequence[Limit], width: int, unicode: bool) -> Iterator[str]:
    span_us = 2 * max(limit.span_us for limit in windows)
    # The course begins with a slice of every limit, as far behind the origin as no window reaches.
    start_us = 1_000 * 86_400 * _S
    for title, client in _CLIENTS.items():
        course = list(client(windows, start_us, span_us))
        cut = f", drawn for its first {len(course):,} moments" if len(course) == most_steps(windows) else ""
        yield f"{title}{cut}"
        yield drawn(course, start_us, span_us, width, unicode=unicode)
    yield axis(_seconds(span_us), width)


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
