"""How long a ban lasts, as it is written behind ``--for``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from ...core.durations import format_duration
from ...core.errors import ConfigurationError, quoted
from ...core.limits import MAX_WINDOW_US, parse_duration_us
from ...limiter.limiter import PERMANENT

MOST: Final = format_duration(MAX_WINDOW_US)

if TYPE_CHECKING:
    Words: TypeAlias = click.ParamType[str]
else:
    Words = click.ParamType  # older releases of click know no type there

FORMS: Final = f'a number and a unit, for example 90s, 30m, 12h or 7d, up to {MOST}, or "permanent"'
_SPAN: Final = re.compile("[0-9]{1,18}[A-Za-z]+", re.ASCII)


class BanSpan(Words):
    """A span of time up to 400 days, or ``permanent``: text that `Limiter.ban` takes."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text.

        Raises:
            click.BadParameter: It is none of the forms, or too long.
        """
        text = str(value)
        if text == PERMANENT:
            return text
        try:
            # A blank is more often a lost quote than a wish.
            span_us = parse_duration_us(text) if _SPAN.fullmatch(text) else 0
        except ConfigurationError:
            span_us = 0
        if not 0 < span_us <= MAX_WINDOW_US:
            self.fail(f"expected {FORMS}, not {quoted(text)}", param, ctx)
        return text


SPAN: Final = BanSpan()


def span_us(text: str) -> int | None:
    """Return the microseconds of a text that `BanSpan` let through; None for one that does not end."""
    return None if text == PERMANENT else parse_duration_us(text)
