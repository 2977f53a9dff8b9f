"""How the page writes numbers, times, texts of clients and addresses of views."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from ...core.logs import escaped
from ..rows import span_of
from .charts import NOTHING

_UTC: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number in three digits."""
    if value is None:
        return NOTHING
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Return a share in percent."""
    if not whole:
        return NOTHING
    return f"{100 * part / whole:.3g} %"


def percent(value: float) -> str:
    """Return a percentage in two digits."""
    if value < 10:
        return f"{value:.2g} %"
    return f"{value:.0f} %"


def ms(value: float | None) -> str:
    """Return milliseconds with their unit."""
    if value is None:
        return NOTHING
    if value >= 10_000:
        return f"{value / 1_000:.1f} s"
    return f"{rate(value)} ms"


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return NOTHING
    return span_of(max(seconds, 0))


def moment(at: float) -> Markup:
    """Return a time in UTC; the page's script shows it in the reader's time zone."""
    when = datetime.fromtimestamp(at, UTC)
    return Markup(f'<time datetime="{when:%Y-%m-%dT%H:%M:%SZ}">{when:%Y-%m-%d %H:%M:%S}</time>')


def clock(at: float) -> Markup:
    """Return the hour and the minute of a time of today, in the same way."""
    when = datetime.fromtimestamp(at, UTC)
    return Markup(f'<time datetime="{when:%Y-%m-%dT%H:%M:%SZ}" data-clock>{when:%H:%M}</time>')


def plain(text: object, most: int = 80) -> str:
    """Return a text without control characters and changes of direction, which browsers would obey."""
    return escaped(str(text), most)


def timed(text: object) -> Markup:
    """Return the message of an event, whose times, in UTC, are elements: the page's script shows them as all others."""
    return Markup(_UTC.sub(_moment_of, str(escape(plain(text, 256)))))


def _moment_of(found: re.Match[str]) -> str:
    try:
        return str(moment(datetime.fromisoformat(found[0]).timestamp()))
    except ValueError:  # a client may choose what looks like a time
        return found[0]


def grouped(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events, each with how many `times` it follows itself: several workers report a changed limit."""
    found = []
    for _, same in groupby(events, key=itemgetter("kind", "message")):
        alike = list(same)
        found.append({**alike[0], "times": len(alike)})
    return found


def key_name(key: object) -> str:
    """Return by what a rule counts, in words."""
    if key is None:
        return "address"
    return plain(getattr(key, "identity", None) or getattr(key, "__qualname__", type(key).__qualname__))


def address(view: str, query: Mapping[str, str], **changed: str) -> str:
    """Return the relative address of a view with a query, in which some fields are changed.

    Empty fields are left out, and `done`, which is about the change before.
    """
    fields = {**query, **changed}
    fields.pop("done", None)
    kept = {name: value for name, value in fields.items() if value}
    if not kept:
        return f"./{view}"
    return f"./{view}?{urlencode(kept)}"
