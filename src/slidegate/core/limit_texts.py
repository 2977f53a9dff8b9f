"""The text form of limits: ``"5/minute; 100 per 2 hours; 10/30s"``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, overload

from .durations import SPACES, read_span_us
from .errors import ConfigurationError, quoted
from .limits import DEFAULT_RESOLUTION, AnyLimit, Identity, Limit

MAX_TEXT: Final = 4_096
"""The longest text of limits, in characters; about forty named limits fit."""
EXAMPLE: Final = '"5/minute; 100 per 2 hours"'

# Possessive quantifiers (`++`), and no two adjacent runs of spaces: hostile text is scanned only once.
# They are texts, which `re` compiles at their first use: a compiled one takes a share of the import.
_LIMIT: Final = r"""(?ax)(?P<amount>[0-9]{1,18}+)\s*+
    (?:/|per\b)\s*+
    (?P<window>[0-9]*+\s*+[A-Za-z]++)\s*+
    (?:@\s*+(?P<resolution>[0-9]{1,9}+))?"""


@overload
def parse_limits(limits: str | Limit | Iterable[str | Limit]) -> tuple[Limit, ...]: ...


@overload
def parse_limits(limits: str | AnyLimit | Iterable[str | AnyLimit]) -> tuple[AnyLimit, ...]: ...


def parse_limits(limits: str | AnyLimit | Iterable[str | AnyLimit]) -> tuple[AnyLimit, ...]:
    """Parse a set of limits that all apply; objects in it, such as quotas, are returned unchanged.

    Each is ``AMOUNT/WINDOW`` or ``AMOUNT per WINDOW``, separated by ``;``, with an optional
    ``NAME:`` prefix and ``@RESOLUTION`` suffix: ``"burst: 10/s; 600/minute @10"``.

    Raises:
        ConfigurationError: A part is invalid, the set is empty, or two limits have the same window and resolution.
    """
    parts: Iterable[object] = (limits,)
    # Bytes are iterable, too: their numbers would be the parts in the message.
    if isinstance(limits, Iterable) and not isinstance(limits, (str, bytes)):
        parts = limits
    by_window: dict[Identity, AnyLimit] = {}
    for part in parts:
        for limit in _read_part(part):
            twin = by_window.setdefault(limit.same_window, limit)
            if twin is not limit:
                problem = f"'{twin}' and '{limit}' have the same window; keep the smaller one"
                raise ConfigurationError(problem, "limits")
    if not by_window:
        raise ConfigurationError(f"expected at least one, for example {EXAMPLE}", "limits")
    return tuple(by_window.values())


def _read_part(part: object) -> Sequence[AnyLimit]:
    """Return the limits of one part of a set: the text of one or several, or an object."""
    if isinstance(part, str):
        return _parse_text(part)
    if not isinstance(part, AnyLimit):
        raise ConfigurationError(f"expected text such as {EXAMPLE} or Limit objects, not {quoted(part)}", "limits")
    if not part.is_listed:
        raise ConfigurationError(
            f"a concurrency limit is an option of its own; write concurrency={part.amount}, as in "
            f'Rule("/render", "60/minute", concurrency={part.amount}), not {quoted(part)} among the limits',
            "limits",
        )
    return [part]


def _parse_text(text: str) -> list[Limit]:
    if len(text) > MAX_TEXT:
        raise ConfigurationError(
            f"expected at most {MAX_TEXT} characters, for example {EXAMPLE}, not {len(text)}: {quoted(text)}", "limits"
        )
    limits: list[Limit] = []
    for part in text.split(";"):
        # A trailing ";" is no limit.
        if not part.strip() and limits:
            continue
        try:
            limits.append(_parse_limit(part.strip(SPACES)))
        except ConfigurationError as error:
            problem = f"{quoted(part.strip())}: {error}"
            if "example" not in problem:
                # A message that asks "did you mean ...?" has its mark.
                if not problem.endswith("?"):
                    problem += "."
                problem += f" Example: {EXAMPLE}"
            raise ConfigurationError(problem, "limits") from None
    return limits


def _parse_limit(text: str) -> Limit:
    """Parse one limit.

    Raises:
        ConfigurationError: The text is not a limit. The caller completes the message.
    """
    name: str | None = None
    limit = text
    if ":" in text:
        before, _, limit = text.partition(":")
        name = before.strip(SPACES)
    match = re.fullmatch(_LIMIT, limit.strip(SPACES))
    if match is None or name == "":
        raise ConfigurationError("expected AMOUNT/WINDOW")
    resolution = DEFAULT_RESOLUTION
    if match["resolution"]:
        resolution = int(match["resolution"])
    # Its error about a unit has no example, because the caller adds one.
    unit = match["window"].lstrip("0123456789" + SPACES)
    read_span_us(match["window"], "", f"no unit {quoted(unit.lower())}")
    return Limit(int(match["amount"]), match["window"], resolution=resolution, name=name)
