"""Combined, Common and Traefik's CLF, with or without a virtual host in front: text, fields found by patterns."""

from __future__ import annotations

import re
from sys import intern
from typing import Final

from ...core.addresses import parse_address
from ..access_record import AccessRecord, Skip
from ..log_times import MAX_TIME_CHARACTERS, text_time_us
from .parts import QUOTED, record, request_of, size_of, status_of

_BEHIND_TIME: Final = re.compile(rf"\] {QUOTED} (\S++) ([0-9]++|-)(?:$| (?:{QUOTED} {QUOTED}(.*+))?)", re.ASCII)
_TRAEFIK: Final = re.compile(rf" [0-9]++ {QUOTED} {QUOTED} ([0-9]{{1,15}})ms", re.ASCII)

# Nearly every line of nearly every log: an address in front, a plain request, and nothing behind the agent. Any other
# line is read the long way, which is right for these lines as well.
_ORDINARY: Final = re.compile(
    r'([0-9a-fA-F.:]++) [^\s"]++ [^\s"]++ \[([^][" ]{1,32} [^][" ]{1,8})\]'
    r' "([A-Za-z][A-Za-z0-9_-]*+) ([^\s"\\]++) HTTP/[0-9](?:\.[0-9])?" ([0-9]{3}) ([0-9]{1,15})'
    rf"(?: {QUOTED} {QUOTED})?"
)
_new = tuple.__new__


def parse_ordinary(text: str) -> AccessRecord | None:
    """Read an ordinary line of the Combined or the Common format; None for any other, which `parse_clf` may read."""
    match = _ORDINARY.fullmatch(text)
    if match is None:
        return None
    client, time, method, path, status, sent_bytes, referer, agent = match.groups()
    time_us = text_time_us(time)
    if time_us is None:
        return None
    # All requests of a client share one text, because counts by client keep it.
    return _new(
        AccessRecord,
        (
            time_us, intern(client), intern(method), path, int(status),
            None if agent is None or agent == "-" or not agent else intern(agent), None,
            None if referer == "-" or not referer else referer, int(sent_bytes), None, (),
        ),
    )  # fmt: skip


def parse_clf(text: str) -> AccessRecord | Skip:
    """Read a line whose time stands in brackets in front of the request."""
    # A user name may hold anything but a bare quotation mark, so the time stands in front of the first field in
    # quotation marks.
    end = text.find('] "')
    match = _BEHIND_TIME.match(text, end) if end >= 0 else None
    head, bracket, time = text[:end].rpartition("[")
    if match is None or not bracket or not 0 < len(time) <= MAX_TIME_CHARACTERS:
        return Skip.FORMAT
    request, status, sent_bytes, referer, agent, rest = match.groups()
    words = head.split()
    if len(words) < 3:
        return Skip.FORMAT
    host = words[0] if len(words) > 3 and _is_virtual_host(words[0], words[1]) else None
    client = words[0] if host is None else words[1]
    traefik = _TRAEFIK.match(rest) if rest else None
    return record(
        text_time_us(time), client, request_of(request), status_of(status), agent, host, referer,
        size_of(sent_bytes), int(traefik[3]) * 1_000 if traefik else None,
    )  # fmt: skip


def _is_virtual_host(first: str, second: str) -> bool:
    """Tell a virtual host from a client: a fourth word may also come from a user name with a space in it.

    An address in front is the client: the second word may be what the client's own identd says.
    """
    if parse_address(first) is not None:
        return False
    _, colon, port = first.rpartition(":")
    return parse_address(second) is not None or (colon != "" and port.isdigit())
