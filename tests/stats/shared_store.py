"""A stats store in memory for several workers of one test, each with its own clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slidegate import Limiter, MemoryStore
from slidegate.core.errors import StoreUnavailable
from slidegate.core.store import SharedStats, StatsRow
from slidegate.stats import Statistics
from slidegate.stats.statistics import recording_of
from slidegate.testing import FakeClock

START_US = 1_700_000_000_000_000


class Board(SharedStats):
    """Stores the rows of a test."""

    def __init__(self) -> None:
        self.clock = FakeClock(START_US)
        self.rows: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}
        self.failing = False
        self.writings = 0

    async def time(self) -> int:
        if self.failing:
            raise StoreUnavailable("away")
        return self.clock()

    async def write(self, worker: bytes, rows: Sequence[StatsRow]) -> None:
        if self.failing:
            raise StoreUnavailable("away")
        self.writings += 1
        for row in rows:
            assert row.number >= 0
            self.rows[row.rollup, row.number, worker] = row.value, self.clock() + row.kept_us

    async def read(self, rollup: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        if self.failing:
            raise StoreUnavailable("away")
        return [
            (number, worker, value)
            for (name, number, worker), (value, until_us) in self.rows.items()
            if name == rollup and first <= number <= last and until_us > self.clock()
        ]


class Staff(Limiter):
    """The limiter of a worker with statistics, whose clock may differ from that of the board."""

    def __init__(self, board: Board, ahead_us: int = 0) -> None:
        self.ahead_us = ahead_us
        self.clock = lambda: board.clock() + self.ahead_us
        store = MemoryStore(clock=self.clock)
        store.shared_stats = board
        super().__init__(store)
        self.recording = recording_of(self)
        self.statistics, self.publisher = Statistics(self), self.recording.publisher
        self.sections = self.recording.all_workers.sections

    def publish_section(self, name: str, value: Any) -> None:
        """Publish a value as a section; a class of exceptions is raised instead."""

        async def read() -> Any:
            if isinstance(value, type):
                raise value
            return value

        self.publisher.add_section(name, read, list)
