"""Rows of tables, measured in rounds: each round runs every candidate once.

A result is a ratio or a difference within one round. It is the median over the rounds of a process, and then the median
over several processes, because speed varies with the memory layout of a process. A second version is measured in
separate processes, alternately with those of the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

from . import versions
from .table import Cell, Table

Times = dict[str, float]
"""Candidate -> microseconds per operation, in one round."""
Measured = list[list[Times]]
"""The rounds of each process."""
Reached = Callable[..., float]
"""Returns the result of one round from the time of the row's candidate and those of other candidates."""


def share(own: float, bare: float, peer: float, peer_bare: float) -> float:
    """Return the overhead of a candidate over its bare application, relative to that of a peer."""
    return (own - bare) / (peer - peer_bare)


def ratio(own: float, other: float) -> float:
    return own / other


def more(own: float, other: float) -> float:
    return own - other


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: The candidate.
        bare: The candidate without a limiter, whose time is subtracted; empty if there is none.
        reached: Computes the result; None if the row has none.
        others: The other candidates that `reached` needs.
        asked: The targets of the source and of the compiled wheel.
    """

    name: str
    bare: str = ""
    reached: Reached | None = None
    others: tuple[str, ...] = ()
    asked: str = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        """All candidates that the row needs."""
        return self.name, *filter(None, (self.bare,)), *self.others


Tables = Mapping[str, Sequence[Row]]
"""The rows of tables by title."""


def arguments(parser: ArgumentParser, known: Tables) -> None:
    names = ", ".join(dict.fromkeys(row.name for rows in known.values() for row in rows))
    parser.add_argument("--rounds", type=int, default=15, help="in each process")
    parser.add_argument("--processes", type=int, default=3, help="of each version, one after the other")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help=f"repeatable: {names}")
    versions.arguments(parser)


class Worker:
    """A process that measures one version.

    Args:
        folder: The directory from which it imports slidegate.
        names: The candidates.
        sizes: The numbers of requests and of paths; not used for hits.
    """

    def __init__(self, folder: Path, names: Sequence[str], sizes: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps([names, *sizes])],
            cwd=versions.ROOT,
            env=versions.environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._folder = folder

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def begin(self) -> None:
        """Wait until all candidates are created, checked and warmed up, and check the version."""
        versions.check(self._answer()["where"], self._folder)

    def round(self, turn: int) -> Times:
        """Run every candidate once."""
        assert self._process.stdin
        self._process.stdin.write(f"{turn}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a measuring process failed; see the lines above")
        found: dict[str, Any] = json.loads(line)
        return found


def measure(
    options: Namespace, names: Sequence[str], sizes: Sequence[int], folders: Mapping[str, Path]
) -> dict[str, Measured]:
    """Return the times of each version. Two versions run rounds alternately, never at the same time."""
    found: dict[str, Measured] = {version: [] for version in folders}
    # Turn numbers continue over processes, so that all orders of candidates occur. Turn 0 is the warm-up.
    turns = count(2)
    for number in range(options.processes):
        print(f"process {number + 1} of {options.processes} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            workers = [
                (version, stack.enter_context(Worker(folder, names, sizes))) for version, folder in folders.items()
            ]
            for version, worker in workers:
                worker.begin()
                found[version].append([])
            for turn in islice(turns, options.rounds):
                for version, worker in reversed(workers) if turn % 2 else workers:
                    found[version][-1].append(worker.round(turn))
    return found


def over_processes(measured: Measured, reached: Reached, names: Sequence[str]) -> float:
    """Return the median over processes of their medians over rounds."""
    return median(median(reached(*(times[name] for name in names)) for times in rounds) for rounds in measured)


def row_of(row: Row, measured: Mapping[str, Measured]) -> list[Cell]:
    """Return the cells of a row: the time or overhead and the result of each version, and the targets."""
    cells: list[Cell] = [row.name]
    for taken in measured.values():
        if row.bare:
            cells.append(over_processes(taken, more, [row.name, row.bare]))
        else:
            cells.append(over_processes(taken, lambda own: own, [row.name]))
        cells.append(over_processes(taken, row.reached, [row.name, *row.others]) if row.reached else None)
    return [*cells, row.asked]


def columns(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of a table for the given versions."""
    found = {"what": ""}
    for name in names:
        found |= {f"{name} us": ".1f", f"{name} reached": ".2f"}
    return {**found, "asked": ""}


def tables(known: Tables, options: Namespace, sizes: Sequence[int] = (0, 0)) -> Iterator[Table]:
    """Measure all rows, or those of ``--only``.

    Args:
        known: All rows.
        options: The flags of `arguments`.
        sizes: The numbers of requests and of paths in a round of each candidate.
    """
    names = {row.name for rows in known.values() for row in rows}
    for name in options.only:
        if name not in names:
            raise SystemExit(f"bench: {name!r} is not a row; expected one of: {', '.join(sorted(names))}")
    chosen = {
        title: [row for row in rows if not options.only or row.name in options.only] for title, rows in known.items()
    }
    candidates = list(dict.fromkeys(name for rows in chosen.values() for row in rows for name in row.candidates))
    with versions.chosen(options) as folders:
        measured = measure(options, candidates, sizes, folders)
    for title, rows in chosen.items():
        if rows:
            yield Table(title, columns(list(measured)), [row_of(row, measured) for row in rows])
