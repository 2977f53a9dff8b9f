"""Logs in the W3C extended format, such as CloudFront's: a header line names the fields of the lines behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from ..access_record import AccessRecord, Skip
from ..log_times import number_time_us, text_time_us
from .parts import record, request_of_parts, scaled, size_of, status_of

FIELDS: Final = "#Fields:"
DIRECTIVES: Final = ("#Version:", FIELDS, "#Software:", "#Date:", "#Start-Date:", "#End-Date:", "#Remark:")


def w3c_names(header: str) -> tuple[str, ...]:
    """Return the names of the fields, in lower case, that a header line gives."""
    return tuple(header.removeprefix(FIELDS).lower().split())


def parse_w3c(text: str, names: tuple[str, ...]) -> AccessRecord | Skip:
    """Read one line.

    Args:
        text: The line, its fields apart by tabs or by blanks.
        names: The names of its fields, in lower case.
    """
    values = text.split("\t") if "\t" in text else text.split(" ")
    if len(values) != len(names):
        return Skip.FORMAT
    found = {name: value for name, value in zip(names, values, strict=True) if value not in ("", "-")}
    if "cs-method" not in names or not {"cs-uri-stem", "cs-uri"} & set(names):
        return Skip.FORMAT
    client, method = found.get("c-ip", ""), found.get("cs-method", "-")
    path = found.get("cs-uri-stem", found.get("cs-uri", "-"))
    query = found.get("cs-uri-query")
    headers = tuple((name[3:-1], _text(value)) for name, value in found.items() if name.startswith("cs("))
    sent = dict(headers)
    agent, referer, host = (sent.pop(name, None) for name in ("user-agent", "referer", "host"))
    return record(
        _time_us(found), client, request_of_parts(method, f"{path}?{query}" if query else path),
        # CloudFront writes 000 for a client that was gone before the answer.
        status_of(found.get("sc-status", "000")), agent, found.get("x-host-header", host), referer,
        size_of(found.get("sc-bytes")), scaled(found.get("time-taken"), 1_000_000), tuple(sent.items()),
    )  # fmt: skip


def _time_us(found: Mapping[str, str]) -> int | None:
    """Read date and time, which are in UTC, or one of the numbers that real-time logs have."""
    if "timestamp" in found:
        return text_time_us(found["timestamp"])
    if "timestamp(ms)" in found:
        return number_time_us(scaled(found["timestamp(ms)"], 1))
    if "date" not in found or "time" not in found or len(found["date"]) + len(found["time"]) > 40:
        return None
    return text_time_us(f"{found['date']}T{found['time']}Z")


def _text(value: str) -> str:
    """Undo the encoding of blanks and the like; CloudFront encodes a percent sign of the client's once more."""
    return unquote(unquote(value)) if "%25" in value else unquote(value)
