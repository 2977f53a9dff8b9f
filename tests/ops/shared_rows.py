"""The rows of several workers in one process, by a clock that tests set."""

from typing import Any

from slidegate import Limiter, MemoryStore, core
from slidegate.core.errors import StoreUnavailable
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

START_US = 1_700_000_000_000_000


class SharedRows(core.SharedRows):
    """Keeps the rows of all workers of a test.

    Attributes:
        clock: The store's clock.
        is_failing: Whether nothing is answered.
        failing_writes: How many of the next writes fail.
        writes: How many rows were written.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = FakeClock(START_US) if clock is None else clock
        self.rows: dict[tuple[str, int, bytes], tuple[bytes, int]] = {}
        self.is_failing = False
        self.failing_writes = self.writes = 0

    async def time(self) -> int:
        self._answer()
        return self.clock()

    async def write(self, worker: bytes, row: core.SharedRow, deadline_s: float = 0) -> None:
        self._answer()
        if self.failing_writes:
            self.failing_writes -= 1
            raise StoreUnavailable("away")
        self.writes += 1
        self.rows[row.kind, row.number, worker] = row.value, self.clock() + row.kept_us

    async def read(self, kind: str, first: int, last: int, deadline_s: float = 0) -> list[tuple[int, bytes, bytes]]:
        self._answer()
        return [
            (number, worker, value)
            for (own, number, worker), (value, until_us) in self.rows.items()
            if own == kind and first <= number <= last and until_us > self.clock()
        ]

    def _answer(self) -> None:
        if self.is_failing:
            raise StoreUnavailable("away")


def limiter_on(rows: SharedRows, **options: Any) -> Limiter:
    """Return the limiter of another worker."""
    store = MemoryStore(clock=rows.clock)
    store.shared_rows = rows
    return Limiter(store, **options)


def worker_of(rows: SharedRows) -> tuple[Limiter, Statistics]:
    """Return the limiter and the statistics of another worker."""
    limiter = limiter_on(rows)
    return limiter, Statistics.of(limiter)
