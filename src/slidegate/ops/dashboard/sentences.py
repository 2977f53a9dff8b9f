"""How the page writes the sentence about an incident, with links to what it names."""

from __future__ import annotations

from typing import Any, Final

from markupsafe import Markup

from ..incident import Statement
from . import cells
from .texts import clock, count, percent, plain

_BOLD: Final = Markup("<b>{}</b>")


def sentence(statement: Statement) -> Markup:
    """Return a sentence with links to what it names."""
    drawn = {name: _drawn(name, value) for name, value in statement.values.items()}
    return Markup(statement.text).format(**drawn)


def _drawn(name: str, value: Any) -> cells.Value:
    """Return a value of a sentence."""
    if name == "rule":
        return cells.part("rule", value, {})
    if name == "offender":
        return cells.client(value)
    if name in ("since", "until"):
        return clock(value)
    if name == "share":
        return _BOLD.format(percent(value))
    if isinstance(value, int):
        return _BOLD.format(count(value))
    return plain(value, 160)
