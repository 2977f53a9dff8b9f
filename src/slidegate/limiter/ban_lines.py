"""Bans as lines of JSON: what `Limiter.export_bans` yields, and `Limiter.import_bans` reads."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Final, TypeAlias

from ..core.bans.ban import Ban
from ..core.bans.rows import HEADER, from_rows
from ..core.errors import ConfigurationError, quoted
from .aio import yielding_to_others

AT_ONCE: Final = 50
"""How many lines are read in one iteration of the event loop: at 20 us each, a millisecond."""
Fields: TypeAlias = tuple[str | int | None, ...]
"""The fields of a `Ban`. The garbage collector walks 100,000 named tuples in 15 ms, and plain ones of texts never."""


async def lines_of(bans: AsyncIterator[Ban]) -> AsyncIterator[str]:
    """Yield the lines of an export."""
    yield _line(HEADER)
    async for ban in bans:
        yield _line(ban._asdict())


async def read_export(lines: Iterable[str] | AsyncIterable[str]) -> deque[Fields]:
    """Return the bans of an export; those of networks are first, the last one foremost: there may be too many of them.

    Other tasks run in between.

    Raises:
        ConfigurationError: A line is invalid.
    """
    if isinstance(lines, AsyncIterable):
        lines = [line async for line in lines]
    bans: deque[Fields] = deque()
    async for ban in yielding_to_others(from_rows(_rows(lines)), AT_ONCE):
        if ban.network() is None:
            bans.append(tuple(ban))
        else:
            bans.appendleft(tuple(ban))
    return bans


def taken_from(bans: deque[Fields]) -> Iterator[Ban]:
    """Yield the bans, and drop each: dropping 100,000 at once takes an event loop 10 ms."""
    while bans:
        yield Ban._make(bans.popleft())


def _line(row: object) -> str:
    return json.dumps(row, ensure_ascii=True) + "\n"


def _rows(lines: Iterable[object]) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        try:
            if not isinstance(line, str):
                raise ValueError("not text")
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"bans, line {number}: expected JSON, not {quoted(line)}: {error}") from None
        yield row
