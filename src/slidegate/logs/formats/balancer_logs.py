"""Logs of AWS's load balancers: the Application Load Balancer's, and the older kind without a type in front."""

from __future__ import annotations

import re
from typing import Final

from ..access_record import AccessRecord, Skip
from ..log_times import text_time_us
from .parts import QUOTED, record, request_of, scaled, size_of, status_of

_LINE: Final = re.compile(
    r"(?:(?:https?|h2|grpcs|wss?) )?([0-9T:.-]{19,32}Z) \S++ (\S++) \S++"
    r" ([0-9.-]{1,16}) ([0-9.-]{1,16}) ([0-9.-]{1,16})"
    rf" ([0-9]{{3}}|-) \S++ [0-9-]++ ([0-9]++|-) {QUOTED} {QUOTED} \S++ \S++"
    rf"(?: \S++ {QUOTED} {QUOTED} {QUOTED} \S++ ([0-9T:.-]{{19,32}}Z))?",
    re.ASCII,
)


def parse_balancer(text: str) -> AccessRecord | Skip:
    """Read a line of a load balancer.

    The time is that of the request where the line has it, else that of the answer, less the time that it took.
    """
    match = _LINE.match(text)
    if match is None:
        return Skip.FORMAT
    answered, peer, *waits, status, sent_bytes, request, agent, _, domain, _, created = match.groups()
    # Where no target was asked, a part of the time is -1.
    parts_us = [scaled(wait, 1_000_000) for wait in waits]
    duration_us = sum(part or 0 for part in parts_us) if any(part is not None for part in parts_us) else None
    time_us = text_time_us(created) if created else None
    if time_us is None and (time_us := text_time_us(answered)) is not None:
        time_us = max(0, time_us - (duration_us or 0))
    method, target = request_of(request)
    host, path = _split(target) if method else (None, target)
    client = peer.rpartition(":")[0].strip("[]")
    return record(
        time_us, client, (method, path), 0 if status == "-" else status_of(status), agent, host or domain,
        None, size_of(sent_bytes), duration_us,
    )  # fmt: skip


def _split(target: str) -> tuple[str | None, str]:
    """Split the address that the balancer writes, with scheme and host, into host and path."""
    scheme, found, rest = target.partition("://")
    if not found or "/" in scheme:
        return None, target
    host, slash, path = rest.partition("/")
    return host, slash + path or "/"
