"""What other tools that ban print about their bans: fail2ban and CrowdSec.

Both say when a ban ends. fail2ban writes local time, so its output is read in the time zone in which it was made;
CrowdSec writes what is left, which is counted from when the file was written, or the moment itself.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, TypeAlias

from ..core.bans.in_force import shown
from ..core.errors import MOST_QUOTED, ConfigurationError, quoted
from .ranges import check_neighbours

Entry: TypeAlias = tuple[int, str, int | None]
"""(line, text of an address or network, when it ends in microseconds of Unix time if it does)."""

TIMED: Final = re.compile(r"(\S+)\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \+ (-?\d{1,10}) = \S+ \S+")
"""A line of ``fail2ban-client get JAIL banip --with-time``: address, begin, seconds."""
COLUMNS: Final = "id,source,ip,reason,action"
"""How ``cscli decisions list -o raw`` begins."""

_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s|us|µs|μs|ns)")
_UNITS_US: Final = {"h": 3_600e6, "m": 60e6, "s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}


def read_json(text: str, line: int) -> Any:
    """Parse JSON that begins at a line of its file.

    Raises:
        ConfigurationError: It is not JSON; the message begins with the line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"line {line + error.lineno - 1}: not JSON: {error.msg}") from None
    except ValueError:
        raise ConfigurationError(f"line {line}: not JSON that can be read: a number has too many digits") from None
    except RecursionError:
        raise ConfigurationError(f"line {line}: JSON is nested too deeply") from None


def fail2ban(lines: Iterable[str], skipped: Counter[str]) -> Iterator[Entry]:
    """Yield the entries of what ``fail2ban-client`` prints; nothing is ever skipped.

    Raises:
        ConfigurationError: A line cannot be read.
    """
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        timed = TIMED.fullmatch(text)
        if timed:
            yield number, timed[1], _end_of_ban_us(timed[2], int(timed[3]), number)
            continue
        if text.startswith("["):
            yield from ((number, address, None) for address in _jails(text, number))
            continue
        addresses = text.replace(",", " ").split()
        try:
            check_neighbours(addresses)
        except ConfigurationError as error:
            raise ConfigurationError(f"line {number}: {error}") from None
        for address in addresses:
            yield number, address, None


def _end_of_ban_us(began: str, ban_s: int, number: int) -> int | None:
    """Return when a ban ends that began at a local time; None for one that does not, which has -1 seconds."""
    if ban_s < 0:
        return None
    try:
        return (int(datetime.fromisoformat(began).timestamp()) + ban_s) * 1_000_000
    except (ValueError, OverflowError):
        raise ConfigurationError(f"line {number}: expected a time such as 2026-01-31 12:00:00, not {began!r}") from None


def _jails(text: str, number: int) -> Iterator[str]:
    """Yield the addresses of ``fail2ban-client banned``: a Python list of one dictionary for each jail."""
    try:
        for jail in ast.literal_eval(text):
            for addresses in jail.values():
                yield from map(str, addresses)
    except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError):
        raise ConfigurationError(f"line {number}: expected jails, such as [{{'sshd': ['192.0.2.7']}}]") from None


def crowdsec(lines: Iterable[str], written_us: int, skipped: Counter[str]) -> Iterator[Entry]:
    """Yield the bans in the output of ``cscli decisions list`` with ``-o json`` or ``-o raw``.

    Args:
        lines: Its output.
        written_us: When that was, in microseconds of Unix time.
        skipped: Counts what is no ban of an address or range, or only simulated, by cause.

    Raises:
        ConfigurationError: A decision cannot be read.
    """
    lines = iter(lines)
    first = next(lines, "")
    decisions = _rows if first.startswith(COLUMNS) else _objects
    for number, decision in decisions(chain([first], lines)):
        cause = _why_not(decision)
        if cause:
            skipped[cause] += 1
        else:
            yield number, str(decision["value"]), _end_of_decision_us(decision, written_us, number)


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the decisions of ``-o raw``: CSV, with the scope before the value."""
    rows = csv.DictReader(lines, strict=True)
    try:
        for row in rows:
            if None in row.values():
                raise ConfigurationError(f"line {rows.line_num}: expected {len(row)} columns, but it ends before")
            scope, _, value = row["ip"].partition(":")
            yield (
                rows.line_num,
                {
                    "scope": scope,
                    "value": value,
                    "type": row["action"],
                    "duration": row.get("expiration"),
                    "simulated": row.get("simulated") == "true",
                },
            )
    except csv.Error as error:
        raise ConfigurationError(f"line {rows.reader.line_num}: not CSV: {error}") from None


def _objects(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the decisions of ``-o json``: each in the alert that it belongs to, or by itself."""
    text = "".join(lines)
    found = read_json(text if text.strip() else "null", 1)
    text = text.replace("\\/", "/")  # as some write it
    number, place = 1, 0
    for item in found if isinstance(found, list) else [found] if found else ():
        decisions = (item.get("decisions", [item]) or []) if isinstance(item, dict) else [item]
        for decision in decisions if isinstance(decisions, list) else [decisions]:
            if not isinstance(decision, dict) or not {"type", "scope", "value"} <= decision.keys():
                raise ConfigurationError(f"after line {number}: expected a decision with type, scope and value")
            # The parser tells no lines. Decisions come in the order of the text, so the value is found further on; if
            # it is not, it is written in some odd way, and to look for the others as well might take for ever.
            at = text.find(json.dumps(decision["value"]), place)
            number, place = number + text.count("\n", place, max(at, place)), at if at >= 0 else len(text)
            yield number, decision


def _why_not(decision: Mapping[str, Any]) -> str:
    """Return why a decision is left out; empty if it is not."""
    if decision.get("simulated"):
        return "simulated"
    if decision["type"] != "ban":
        return f"type {shown(str(decision['type'])[:MOST_QUOTED])}"
    scope = str(decision["scope"])
    return "" if scope.lower() in ("ip", "range") else f"scope {shown(scope[:MOST_QUOTED])}"


def _end_of_decision_us(decision: Mapping[str, Any], written_us: int, number: int) -> int:
    until, left = decision.get("until"), decision.get("duration")
    try:
        if until:
            end = datetime.fromisoformat(until)
            return int((end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()) * 1_000_000
        return written_us + _span_us(left)
    except (TypeError, AttributeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"line {number}: expected a duration such as 3h59m50.5s, not {quoted(until or left)}"
        ) from None


def _span_us(text: Any) -> int:
    """Read a duration as Go writes it; below zero for a ban that is over.

    Raises:
        AttributeError: It is no text.
        ValueError: It is no duration.
    """
    span = text.removeprefix("-")
    parts = _SPAN.findall(span)
    if not parts or "".join(map("".join, parts)) != span:
        raise ValueError(text)
    length_us = int(sum(float(number) * _UNITS_US[unit] for number, unit in parts))
    return -length_us if text != span else length_us
