"""A store of figures in memory, for several workers of one test, each with a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence

from slidegate.core.errors import StoreUnavailable
from slidegate.core.store import Event, SharedStats, StatsRow
from slidegate.limiter.shared_stats import AllWorkers, Publisher
from slidegate.limiter.stats import Chart, Statistics, Stats
from slidegate.testing import FakeClock

START_US = 1_700_000_000_000_000


class Board(SharedStats):
    """Keeps the rows of a test."""

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
            self.rows[row.shelf, row.number, worker] = row.value, self.clock() + row.kept_us

    async def read(self, shelf: str, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
        if self.failing:
            raise StoreUnavailable("away")
        return [
            (number, worker, value)
            for (name, number, worker), (value, until_us) in self.rows.items()
            if name == shelf and first <= number <= last and until_us > self.clock()
        ]


class Staff:
    """A worker: its figures, and what it sees of all of them."""

    def __init__(self, board: Board, ahead_us: int = 0) -> None:
        self.board = board
        self.ahead_us = ahead_us
        self.told: list[Event] = []
        self.statistics = Statistics(self.clock, self.told.append)
        self.publisher = Publisher(board, self.statistics)
        self.all = AllWorkers(board, self.statistics, self.publisher)

    def clock(self) -> int:
        """The time of this worker, which may be set differently."""
        return self.board.clock() + self.ahead_us

    async def stats(self, window: str) -> Stats:
        """Return the stats of all workers, as `Limiter.stats_all` does."""
        return (await self.all.recent(window)).stats(await self.all.workers())

    async def chart(self, window: str) -> Chart:
        """Return the chart of all workers, as `Limiter.chart_all` does."""
        return (await self.all.recent(window)).chart()
