"""Hits without HTTP, in memory, 64 keys: the speed relative to the moving window of `limits`, admitted and refused.

`hits.py` calls the limiters, and `rounds.py` computes the rows from the rounds.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Final

from . import rounds
from .hits import LIMITERS, OURS, PEER
from .rounds import Row
from .table import Table

PACKAGES = ("limits", "throttled-py", "pyrate-limiter", "rust-py-rate-limit")


def times_as_fast(own: float, peer: float) -> float:
    return peer / own


def rows(suffix: str, asked: str) -> list[Row]:
    """Return the rows of all limiters, with the target for slidegate."""
    peer = PEER + suffix
    return [
        Row(name + suffix, "", times_as_fast, (peer,), asked if name == OURS else "")
        for name in LIMITERS
        if name != PEER
    ] + [Row(peer)]


TABLES: Final = {"Admitted": rows("", "≥1.7; ≥3"), "Refused": rows(", refused", "≥1.5; ≥3")}
ROWS: Final = [row for rows in TABLES.values() for row in rows]


def arguments(parser: ArgumentParser) -> None:
    rounds.arguments(parser, TABLES)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all rows, or those of ``--only``."""
    yield from rounds.tables(TABLES, options)
