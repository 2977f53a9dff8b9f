"""How the figures of a slice are packed into a row that a worker publishes, and read again.

A row is a byte for the version, and compressed: for each series a head of JSON (rules, route, costs) and a tally, each
with its length before it. A row of another version, or one that cannot be read, is passed by: workers of two versions
share a store while they are replaced.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from ...core.statistics.tally import Tally

VERSION: Final = 1
MOST_BYTES: Final = 8 * 2**20
"""A row of 200 series takes 300 KB before it is compressed, unless the names of rules and routes are very long."""

_LENGTHS: Final = Struct("<II")


class Entry(NamedTuple):
    """The figures of one series in one slice."""

    rules: tuple[str, ...]
    route: str
    costs: tuple[int, ...]
    tally: Tally


def pack_row(entries: Iterable[Entry]) -> bytes:
    """Return a row."""
    parts = [b""]
    for entry in entries:
        head = json.dumps([entry.rules, entry.route, entry.costs], separators=(",", ":")).encode()
        tally = entry.tally.pack()
        parts += [_LENGTHS.pack(len(head), len(tally)), head, tally]
    return bytes((VERSION,)) + zlib.compress(b"".join(parts), 1)


def unpack_row(row: bytes) -> list[Entry]:
    """Return the figures in a row; none of a row that cannot be read."""
    if row[:1] != bytes((VERSION,)):
        return []
    try:
        unpacker = zlib.decompressobj()
        flat = unpacker.decompress(row[1:], MOST_BYTES)
        return list(_entries(flat)) if unpacker.eof else []
    except (ValueError, TypeError, zlib.error):
        return []


def _entries(flat: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(flat):
        if at + _LENGTHS.size > len(flat):
            raise ValueError("row: it ends early")
        head_bytes, tally_bytes = _LENGTHS.unpack_from(flat, at)
        at += _LENGTHS.size
        rules, route, costs = json.loads(flat[at : at + head_bytes])
        tally = Tally.unpack(flat[at + head_bytes : at + head_bytes + tally_bytes])
        if len(rules) != len(costs) or not all(type(cost) is int for cost in costs):
            raise ValueError("row: costs")
        yield Entry(tuple(map(str, rules)), str(route), tuple(costs), tally)
        at += head_bytes + tally_bytes
