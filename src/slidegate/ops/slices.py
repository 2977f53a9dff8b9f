"""What is counted in slices of time: by rules and route, by client and by key; as rows of the store, and before."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, Self, TypeAlias

from anyio.lowlevel import checkpoint

from .. import Limiter
from ..core.stored import json_of
from ..windows import ResponseTimes
from .traffic import COUNTS, ClientTraffic, Ranking, Traffic

MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
# The kinds of rows. Their names change with their format, so that two versions do not read each other's.
CLIENTS, KEYS = "stats8-clients", "stats8-keys"
STEPS: Final = {
    "stats8-5s": (5_000_000, 60),
    "stats8-5m": (300_000_000, 288),
    CLIENTS: (60_000_000, 5),
    KEYS: (60_000_000, 5),
}
"""The length of the slices of each kind in microseconds, and how many are kept.

The shortest come first, because a window takes the first in which it fits. So it never takes those of clients."""
SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""
Name: TypeAlias = tuple[str, int]
"""The kind of a slice and its number: the time when it began, by its length."""
_FIELDS: Final = tuple(one.name for one in fields(ClientTraffic) if one.name != "latest")


async def pause() -> None:
    """Let other tasks run, and be cancelled, if an event loop runs in this thread."""
    with suppress(RuntimeError):
        await checkpoint()


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON, compressed in the least time."""
    return zlib.compress(json_of(value), zlib.Z_BEST_SPEED)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))


def _line_of(one: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    return {name: value for name in names if (value := getattr(one, name))}


def _known(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that this version knows, of those that were written."""
    return {name: line[name] for name in names if name in line}


class Series(dict[SeriesName, Traffic]):
    """The traffic of each combination of rules and route."""

    def of(self, name: SeriesName) -> Traffic:
        """Return the traffic of a combination, which is added if it is missing."""
        return self.get(name) or self.setdefault(name, Traffic())

    def added_to(self, before: Self | None) -> Self:
        """Return the sum of this and what was counted before, if anything was: another object."""
        together = type(self)(before or {})
        for name, traffic in self.items():
            together.of(name).add(traffic)
        return together

    def packed(self) -> bytes:
        """Return the row of a slice."""
        lines: list[Any] = []
        for (rules, route), traffic in self.items():
            times = traffic.times
            line = {"rules": rules, "route": route, "sum_us": times.sum_us, "min_us": times.min_us}
            line["buckets"] = list(times.buckets.items())
            lines.append(line | _line_of(traffic, COUNTS))
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Return what is in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**_known(line, COUNTS))
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], dict(line["buckets"]))
            yield (tuple(line["rules"]), line["route"]), traffic


class Clients(dict[str, ClientTraffic]):
    """The traffic of each client; or of each key of another kind."""

    def of(self, key: str) -> ClientTraffic:
        """Return the traffic of a client, which is added if it is missing."""
        return self.get(key) or self.setdefault(key, ClientTraffic(key))

    def added_to(self, before: Self | None) -> Self:
        """See `Series.added_to`."""
        together = type(self)()
        counted = [*self.items()]
        if before is not None:
            counted = [*before.items(), *counted]
        for key, client in counted:
            together.of(key).add(client)
        together.forget_rare()
        return together

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if len(self) > MAX_CLIENTS:
            kept = self.ranking(MAX_CLIENTS // 4).each()
            self.clear()
            self.update({one.key: one for one in kept})

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most."""
        # Sorting is faster than `nlargest` for so many.
        busiest = sorted(self.values(), key=attrgetter("requests"), reverse=True)
        refused = [one for one in self.values() if one.refused]
        refused.sort(key=attrgetter("refused"), reverse=True)
        return Ranking(busiest[:most], refused[:most])

    def packed(self) -> bytes:
        """Return the row of a slice."""
        first = self.ranking(TOP_CLIENTS).each()
        for one in first:
            one.name_latest()
        return encoded([_line_of(one, _FIELDS) for one in first])

    def add_row(self, row: bytes) -> None:
        """Add what is in the row of a slice."""
        for line in decoded(row):
            one = ClientTraffic(**_known(line, _FIELDS))
            self.of(one.key).add(one)


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

    def add(self, series: Series, clients: Clients, keys: Clients, now_us: int) -> None:
        """Add what was counted since the last call to the slices that are current now. One thread at a time adds."""
        current: dict[Name, Series | Clients] = {}
        of_clients = {CLIENTS: clients, KEYS: keys}
        for kind, (step_us, _) in STEPS.items():
            name = kind, now_us // step_us
            slice_ = self.current.get(name)
            counted: Any = of_clients.get(kind, series)
            if counted:
                # A new object: a call that is writing the slice sees that there is more to write.
                slice_ = counted.added_to(slice_)
                self._unwritten[name] = slice_
            if slice_ is not None:
                current[name] = slice_
        self.current = current

    async def write(self) -> None:
        """Write the rows that have changed.

        Raises:
            StoreError: The store does not answer; the next call writes them.
        """
        for name in [*self._unwritten]:
            # As it is now: another call may add more, or write all there is, while this one waits for the store.
            slice_ = self._unwritten.get(name)
            if slice_ is None:
                continue
            kind, number = name
            step_us, kept = STEPS[kind]
            await self._limiter.keep_row(kind, number, slice_.packed(), (kept + 1) * step_us)
            # Else more was added during the write.
            if self._unwritten.get(name) is slice_:
                del self._unwritten[name]
            await pause()
