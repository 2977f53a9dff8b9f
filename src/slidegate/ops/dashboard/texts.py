"""How pages write numbers, times and texts of clients, which are escaped."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from math import inf
from operator import attrgetter
from typing import Final

from markupsafe import Markup, escape

from ...core.logs import escaped
from ..rows import NO_VALUE, time_of
from ..statistics import LoggedEvent

_UTC: Final = re.compile("([0-9]{4}-[01][0-9]-[0-3][0-9])T([0-2][0-9]:[0-5][0-9]:[0-5][0-9])Z")


def count(value: float) -> str:
    """Return a whole number with separators."""
    return f"{value:,.0f}"


def answers(statuses: Mapping[str, int]) -> str:
    """Return how many answers each status has: ``2xx 3,120, 401 900``."""
    return ", ".join(f"{name} {statuses[name]:,}" for name in sorted(statuses))


def rate(number: float, seconds: float) -> str:
    """Return how often something happens, in the first unit in which that is 1 or more: ``7 a minute``."""
    for unit, unit_s in (("a second", 1), ("a minute", 60), ("an hour", 3_600), ("a day", 86_400)):
        times = number * unit_s / seconds
        if times >= 1:
            return f"{digits(times)} {unit}"
    return NO_VALUE


def digits(value: float) -> str:
    """Return a number in three digits, or a whole one from 100 on."""
    if value >= 100:
        return count(value)
    return f"{value:.3g}"


def ms(value_us: float | None) -> str:
    """Return microseconds as milliseconds or seconds."""
    if value_us is None:
        return NO_VALUE
    if value_us >= 10_000_000:
        return f"{value_us / 1_000_000:.1f} s"
    return f"{digits(value_us / 1_000)} ms"


def moment(unix_us: int) -> Markup:
    """Return a time in UTC; the page's script shows it in the reader's time zone."""
    return timed(time_of(unix_us / 1_000_000))


def timed(text: object) -> Markup:
    """Return the line on top or the message of an event; the page's script shows its times as all others."""
    return Markup(_UTC.sub(r'<time datetime="\g<0>">\1 \2</time>', str(escape(plain(text, 300)))))


def plain(text: object, most: int = 80) -> str:
    """Return a text without control characters and changes of direction, which browsers would obey."""
    return escaped(str(text), most)


def grouped(events: Iterable[LoggedEvent], many: float = inf) -> list[list[LoggedEvent]]:
    """Return events in groups of the same kind and message, the newest first, and of many of a kind in one group.

    Several workers report one change, and many clients are refused for one reason.
    """
    ordered = sorted(events, key=attrgetter("time_us"), reverse=True)
    kinds = Counter(kind for kind, _ in {(event.kind, event.message) for event in ordered})
    groups = defaultdict[tuple[str, str], list[LoggedEvent]](list)
    for event in ordered:
        message = event.message
        if kinds[event.kind] >= many:
            message = ""
        groups[event.kind, message].append(event)
    return [*groups.values()]
