"""Reads the header fields in which proxies name the client, from the right.

The client's own text stands left of the entries that proxies append, so every function starts at the right end and
stops when the caller has seen enough: a quote that the client left open cannot swallow an entry of a proxy behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from starlette.types import Scope

from ...core.addresses import Address, is_unspecified, parse_address

MAX_FIELD: Final = 8_192
"""Characters of a header that are read, from the right, where the entries of trusted proxies stand."""

# Values are read a little wider than RFC 7239: many proxies leave out the quotes around IPv6 addresses and ports.
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([^\s;,"\\]+|"(?:[^"\\]|\\.)*")[ \t]*""", re.DOTALL)
_NODE = re.compile(r"\[(?P<v6>[^\]]*)\](?::[0-9]*)?|(?P<v4>[^:]*)(?::[0-9]*)?|(?P<bare>.*)", re.DOTALL)


def split_list(value: str) -> Iterator[str]:
    """Yield the entries of a list like X-Forwarded-For from the right, without empty ones (RFC 9110, 5.6.1)."""
    rest = value
    more = True
    while more:
        head, comma, entry = rest.rpartition(",")
        more, rest = bool(comma), head
        if entry := entry.strip(" \t"):
            yield entry


def split_forwarded(value: str) -> Iterator[str]:
    """Yield the `for` node of each element of a Forwarded field (RFC 7239, section 4), from the right.

    An element that breaks the grammar or has no single `for` yields an empty text.
    """
    end = len(value)
    quoted = False
    for place in range(len(value) - 1, -2, -1):
        character = value[place] if place >= 0 else ","
        if character == '"' and not _escaped(value, place):
            quoted = not quoted
        elif character == "," and (not quoted or place < 0):
            element = value[place + 1 : end]
            end = place
            if element.strip(" \t"):
                yield _for_node(element)


def _escaped(value: str, place: int) -> bool:
    """Return whether a quote is part of the text: an unescaped backslash stands before it."""
    start = place
    while start and value[start - 1] == "\\":
        start -= 1
    return (place - start) % 2 == 1


def _for_node(element: str) -> str:
    place = 0
    nodes: list[str] = []
    while True:
        pair = _PAIR.match(element, place)
        if pair is None:
            return ""
        if pair[1].lower() == "for":
            nodes.append(re.sub(r"\\(.)", r"\1", pair[2][1:-1], flags=re.DOTALL) if pair[2][0] == '"' else pair[2])
        place = pair.end()
        if place == len(element):
            return nodes[0] if len(nodes) == 1 else ""
        if element[place] != ";":
            return ""
        place += 1


def read_node(text: str) -> Address | None:
    """Read an address as proxies write it: with a port, in brackets, in quotes; None for anything else.

    ``0.0.0.0`` and ``::`` are nobody's address (RFC 6890), so the answer for them is None too.
    """
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    found = _NODE.fullmatch(text)
    if found is None:
        return None
    bare = found["v6"] or found["v4"] or found["bare"] or ""
    address = parse_address(bare) if found["v6"] is None or ":" in bare else None
    return None if address is None or is_unspecified(address) else address


def field_value(scope: Scope, name: bytes) -> str:
    """Return the lines of a header as one value, in their order (RFC 9110, section 5.3), at most `MAX_FIELD` long."""
    lines: list[str] = []
    length = 0
    for key, value in reversed(scope["headers"]):
        if key == name:
            lines.append(value.decode("latin-1"))
            length += len(value) + 1
            if length > MAX_FIELD:
                break
    return ",".join(reversed(lines))[-MAX_FIELD:]
