"""Links and gauges, all texts escaped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from markupsafe import Markup

from .charts import NOTHING, meter
from .texts import address, count, plain

Value: TypeAlias = Markup | str
_LINK: Final = Markup('<a class="key" href="{}">{}</a>')
_BDI: Final = Markup("<bdi>{}</bdi>")
_GAUGE: Final = Markup('<span class="gauge">{} <span class="n">{} / {}</span></span>')


def client(key: str) -> Markup:
    """Return a link to a client."""
    return _LINK.format(address("clients", {"key": key}), _BDI.format(plain(key, 64)))


def part(field: str, name: str, query: Mapping[str, str]) -> Markup:
    """Return a link to a rule or a route."""
    return _LINK.format(address("", {"window": query.get("window", ""), field: name}), plain(name))


def gauge(used: float, amount: float) -> Markup:
    """Return how much of an amount is spent."""
    return _GAUGE.format(meter(used, amount), count(used), count(amount))


def limits_of(rule: Any) -> str:
    """Return the limits of a rule as configured."""
    if rule.charging.limits_function:
        return "by a function"
    return plain("; ".join(map(str, rule.charging.all_limits)) or NOTHING, 160)
