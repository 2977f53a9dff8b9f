"""What is counted in slices of time: by rules and route, by client and by key; as rows of the store, and before."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from threading import Lock
from typing import Any, Final, TypeAlias

from .. import Limiter
from ..core.stored import json_of
from ..windows import ResponseTimes
from .tasks import together
from .traffic import COUNTS, ClientTraffic, Ranking, SeriesName, Traffic

MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
# The kinds of rows. Their names change with their format, so that two versions do not read each other's.
CLIENTS: Final = "stats9-clients"
KEYS: Final = "stats9-keys"
STEPS: Final = {
    "stats8-5s": (5_000_000, 72),
    "stats8-5m": (300_000_000, 288),
    CLIENTS: (60_000_000, 6),
    KEYS: (60_000_000, 6),
}
"""The length of the slices of each kind in microseconds, and how many are kept.

The shortest come first, because a window takes the first in which it fits. So it never takes those of clients."""
Name: TypeAlias = tuple[str, int]
"""The kind of a slice and its number: the time when it began, by its length."""
_FIELDS: Final = tuple(field.name for field in fields(ClientTraffic) if field.name not in ("latest", "series"))


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON, compressed in the least time."""
    return zlib.compress(json_of(value), zlib.Z_BEST_SPEED)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))


def _line_of(counts: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    return {name: value for name in names if (value := getattr(counts, name))}


def _readable(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that this version knows, of those that were written."""
    return {name: line[name] for name in names if name in line}


class Series(dict[SeriesName, Traffic]):
    """The traffic of each combination of rules and route.

    Attributes:
        latest: The row that was made last.
    """

    latest = b""

    def __missing__(self, name: SeriesName) -> Traffic:
        traffic = self[name] = Traffic()
        return traffic

    def add(self, other: Series) -> None:
        """Add what was counted since."""
        for name, traffic in other.items():
            self[name].add(traffic)

    def packed(self) -> bytes:
        """Return the row of a slice."""
        lines: list[Any] = []
        for (rules, route), traffic in self.items():
            times = traffic.times
            line = {"rules": rules, "route": route, "sum_us": times.sum_us, "min_us": times.min_us}
            line["buckets"] = list(times.buckets.items())
            lines.append(line | _line_of(traffic, (*COUNTS, "statuses")))
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Yield what is in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**_readable(line, COUNTS), statuses=Counter(line.get("statuses", {})))
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], dict(line["buckets"]))
            yield (tuple(line["rules"]), line["route"]), traffic


class Clients(dict[str, ClientTraffic]):
    """The traffic of each client; or of each key of another kind.

    Attributes:
        latest: The row that was made last.
    """

    latest = b""

    def __missing__(self, key: str) -> ClientTraffic:
        client = self[key] = ClientTraffic(key=key)
        return client

    def add(self, other: Clients) -> None:
        """Add what was counted since."""
        for key, client in other.items():
            self[key].add(client)
        self.forget_rare()

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if len(self) > MAX_CLIENTS:
            ranked = self.ranking(MAX_CLIENTS // 4).each()
            self.clear()
            self.update({client.key: client for client in ranked})

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most."""
        # Sorting is faster than `nlargest` for so many.
        busiest = sorted(self.values(), key=attrgetter("requests"), reverse=True)
        refused = [client for client in self.values() if client.refused]
        refused.sort(key=attrgetter("refused"), reverse=True)
        return Ranking(busiest[:most], refused[:most])

    def packed(self) -> bytes:
        """Return the row of a slice."""
        first = self.ranking(TOP_CLIENTS).each()
        for client in first:
            client.name_latest()
        return encoded([_line_of(client, _FIELDS) for client in first])

    def add_row(self, row: bytes) -> None:
        """Add what is in the row of a slice."""
        for line in decoded(row):
            client = ClientTraffic(**_readable(line, _FIELDS))
            self[client.key].add(client)


class Slices:
    """The slices of a worker. A row has all that it has counted in its slice, so that a write may be repeated.

    Args:
        limiter: The limiter that keeps the rows.

    Attributes:
        current: What was counted in the slices that were not over when something was added.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.current: dict[Name, Series | Clients] = {}
        self._unwritten: dict[Name, Series | Clients] = {}
        self._limiter = limiter
        # Held while a slice changes, or its row is made: event loops in several threads may write.
        self._lock = Lock()

    def add(self, series: Series, clients: Clients, keys: Clients, now_us: int) -> None:
        """Add what was counted since the last call to the slices that are current now."""
        current: dict[Name, Series | Clients] = {}
        of_clients = {CLIENTS: clients, KEYS: keys}
        for kind, (step_us, _) in STEPS.items():
            name = kind, now_us // step_us
            counts: Any = of_clients.get(kind, series)
            current[name] = self.current.get(name, type(counts)())
            if counts:
                with self._lock:
                    current[name].add(counts)
                self._unwritten[name] = current[name]
        self.current = current

    async def write(self) -> None:
        """Write the rows that have changed.

        Raises:
            StoreError: The store does not answer; the next call writes them.
        """
        await together(*map(self._write, self._unwritten.copy()))  # other threads may write and add some

    async def _write(self, name: Name) -> None:
        slice_ = self._unwritten.pop(name, None)
        if slice_ is None:  # another call has written it meanwhile
            return
        kind, number = name
        step_us, slice_count = STEPS[kind]
        row = None
        while row != slice_.latest:  # again, if another thread has made a later row, which this one may have replaced
            with self._lock:
                row = slice_.latest = slice_.packed()
            try:
                await self._limiter.keep_row(kind, number, row, (slice_count + 1) * step_us)
            except BaseException:  # a cancellation, too
                self._unwritten.setdefault(name, slice_)
                raise
