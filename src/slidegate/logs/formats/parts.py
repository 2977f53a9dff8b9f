"""The parts of a line that several formats have: the request, the status, sizes and durations.

Values come from strangers: text of any length, or any value of JSON. Each function returns None for a value that cannot
mean anything, and raises for none.
"""

from __future__ import annotations

import re
from typing import Final

from ..access_record import AccessRecord, Skip

# A text matches in one way alone, so that a hostile line cannot make the pattern walk back and forth. No group is
# possessive: CPython before 3.11.5 matches such groups wrongly.
QUOTED_TEXT: Final = r'[^"\\]*+(?:\\.[^"\\]*+)*'
QUOTED: Final = f'"({QUOTED_TEXT})"'
_REQUEST: Final = re.compile(r"([A-Za-z][\w-]*+) (\S++) HTTP/[0-9](?:\.[0-9])?", re.ASCII)
_METHOD: Final = re.compile(r"[A-Za-z][\w-]*+", re.ASCII)
_AMOUNT: Final = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,12})?", re.ASCII)
_MOST: Final = 10**15


def record(
    time_us: int | None,
    client: str,
    request: tuple[str, str],
    status: int | None,
    agent: str | None,
    host: str | None = None,
    referer: str | None = None,
    sent_bytes: int | None = None,
    duration_us: int | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> AccessRecord | Skip:
    """Return a record, or the first reason for which there is none."""
    if client in ("", "-"):
        return Skip.CLIENT
    if time_us is None:
        return Skip.TIME
    if status is None:
        return Skip.STATUS
    method, path = request
    return AccessRecord(
        time_us, client, method, path, status, given(agent), without_port(given(host)), given(referer),
        sent_bytes, duration_us, headers,
    )  # fmt: skip


def given(value: object) -> str | None:
    """Return a text that the client sent; None for the hyphen that stands for nothing."""
    return value if isinstance(value, str) and value not in ("", "-") else None


def without_port(host: str | None) -> str | None:
    """Return a host without its port."""
    if host is None:
        return None
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


def request_of(field: str) -> tuple[str, str]:
    """Split a request line into method and target; one that is no HTTP request has the method ``""``."""
    match = _REQUEST.fullmatch(field)
    return (match[1], match[2]) if match else ("", field)


def request_of_parts(method: str, path: str) -> tuple[str, str]:
    """Put a method and a target together, which were logged apart."""
    return ("", path) if path in ("", "-") or _METHOD.fullmatch(method) is None else (method, path)


def status_of(value: object) -> int | None:
    """Read a status, 0 to 999."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 999 else None


def size_of(value: object) -> int | None:
    """Read a number of bytes."""
    return scaled(value, 1)


def scaled(value: object, factor: float) -> int | None:
    """Read a number that is not negative, times a factor, as a whole number."""
    if isinstance(value, str):
        if _AMOUNT.fullmatch(value) is None:
            return None
        value = float(value) if "." in value else int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        return None
    return round(value * factor)
