"""Reading bans from a file into a store, a thousand at a time.

The file is an export of slidegate's own, which is read line by line however long it is, or a list of networks as
`Networks.from_file` takes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final, TextIO

from ..core.addresses import parse_network
from ..core.bans.ban import clean_reason
from ..core.bans.policy import hand_ban_key
from ..core.errors import ConfigurationError, quoted
from ..core.limits import MAX_WINDOW_US, parse_duration_us
from ..limiter import Limiter
from ..limiter.limiter import PERMANENT
from ..web.lists import read_entries

BATCH: Final = 1_000
MAX_LINE: Final = 65_536
"""Characters of a line: 65 strikes of a key, and room to spare."""
BAN_ROW: Final = '{"ban"'
"""How a row of an export begins that is a ban, and not the strikes of a key."""
_EXPORT: Final = '{"slidegate"'


def ban_length_us(duration: str) -> int | None:
    """Return how long a ban lasts; None for one that does not end.

    Raises:
        ConfigurationError: It is no span of time up to 400 days, and not ``permanent``.
    """
    if duration == PERMANENT:
        return None
    try:
        length_us = parse_duration_us(duration)
    except ConfigurationError:
        length_us = 0
    if not 0 < length_us <= MAX_WINDOW_US:
        raise ConfigurationError(
            f"--for: expected a number and a unit, for example 90s, 30m, 12h or 7d, up to 400d, or permanent, not "
            f"{quoted(duration)}"
        )
    return length_us


class Import:
    """One import.

    Args:
        file: The file.
        duration: How long bans last that have no end; by default none may be without.
        reason: The reason, where the file gives none.
        by: The person who bans, where the file names nobody.

    Attributes:
        done: How many bans are written for certain.
        over: How many were left out because they have ended.
    """

    def __init__(self, file: TextIO, duration: str | None, reason: str, by: str) -> None:
        self.done = self.over = 0
        self._name = "stdin" if file.name == "<stdin>" else str(file.name)
        self._lines = iter(partial(file.readline, MAX_LINE + 1), "")
        self._now_us = time.time_ns() // 1_000
        self._has_end = duration is not None
        length_us = None if duration is None else ban_length_us(duration)
        self._made = {
            **{"reason": clean_reason(reason), "by": clean_reason(by), "level": 0},
            **{"made_us": self._now_us, "since_us": self._now_us},
            "ends_us": None if length_us is None else self._now_us + length_us,
        }

    async def batches(self, limiter: Limiter) -> AsyncIterator[int]:
        """Write the bans, and yield after each batch how many are written.

        Raises:
            ConfigurationError: The file or a line cannot be read; the batches before it are written.
            StoreError: The store does not answer.
        """
        head = next(self._lines, "")
        if head.startswith(_EXPORT):
            rows = self._exported()
        else:
            rows = self._listed(chain([head], self._lines))
            head = json.dumps({"slidegate": "bans", "version": 3, "written_us": self._now_us})
        first = 2
        while (batch := list(islice(rows, BATCH))) or first == 2:
            try:
                done = await limiter.import_bans([head, *batch])
            except ConfigurationError as error:
                raise ConfigurationError(f"{self._name}, from line {first - 1} on: {error}") from None
            first += BATCH
            self.done += done
            self.over += max(sum(row.startswith(BAN_ROW) for row in batch) - done, 0)
            yield self.done

    def _exported(self) -> Iterator[str]:
        for number, line in enumerate(self._lines, start=2):
            if len(line) > MAX_LINE:
                raise ConfigurationError(f"{self._name}, line {number}: expected at most {MAX_LINE} characters")
            yield line

    def _listed(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the entries of a list of networks as rows of an export."""
        try:
            for number, text in read_entries(lines):
                if not self._has_end:
                    raise ConfigurationError(
                        f"line {number}: {quoted(text)} has no end; say with --for how long such bans last"
                    )
                yield json.dumps({"ban": _network(number, text), **self._made})
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._name}, {error}") from None


def _network(number: int, text: str) -> str:
    try:
        parse_network(text)
        return hand_ban_key(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"line {number}: {error}") from None
