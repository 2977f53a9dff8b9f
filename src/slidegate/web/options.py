"""Options of the middleware, of rules and of limits at endpoints: their checks, and which exclude each other."""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Final, NamedTuple, TypeVar

from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, quoted

_T = TypeVar("_T")

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Exclusion(NamedTuple):
    """Options of a rule that make no sense beside another one."""

    option: str
    others: tuple[str, ...]
    why: str


_COUNTING: Final = ("limits", "concurrency", "key", "cost", "count_if", "count_denied", "wait", "shadow", "on_exceeded")
EXCLUSIONS: Final = (
    Exclusion("exempt", (*_COUNTING, "block"), "an exempt request is not counted"),
    Exclusion("block", (*_COUNTING, "final"), "a blocked request is not counted, and no later rule applies to it"),
    Exclusion("shadow", ("concurrency", "count_if", "wait", "final", "on_exceeded"), "a shadow only looks on"),
    Exclusion("on_exceeded", ("concurrency", "count_if", "wait", "final"), "a rule that tracks only looks on"),
)
"""Which options of a rule exclude each other; the JSON Schema of `slidegate.toml` is made of this table too."""
NEEDS: Final = {
    "status": ("block", "block=True"),
    "cost": ("limits", 'limits such as "60/minute"'),
    "count_if": ("limits", 'limits such as "60/minute"'),
    "count_denied": ("limits", 'limits such as "60/minute"'),
    "shadow": ("limits", 'limits such as "60/minute"'),
    "on_exceeded": ("limits", 'limits such as "60/minute"'),
}
"""Options of a rule that are about another one, and how that is written."""


def conflict(given: Container[str]) -> str:
    """Return what is wrong about the options that are given together, empty if nothing is."""
    for option, others, why in EXCLUSIONS:
        other = next((other for other in others if option in given and other in given), None)
        if other is not None:
            return f"{option}: it does not go with {other}: {why}; leave one of them out"
    for option, (needed, written) in NEEDS.items():
        if option in given and needed not in given:
            return f"{option}: it goes with {needed}; add {written}, or leave it out"
    return ""


def expect(what: str, value: _T | None, kind: type[_T], example: str) -> _T | None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{what}: expected {kind.__name__}, for example {example}, not {quoted(value)}")
    return value


def switched_off(enabled: object) -> str:
    """Return the setting that switches everything off; empty if none does."""
    text = os.environ.get("SLIDEGATE_ENABLED", "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"SLIDEGATE_ENABLED: expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}")
    if not check_flag("enabled", enabled):
        return "enabled=False"
    return f"SLIDEGATE_ENABLED={text}" if text in _FALSE else ""
