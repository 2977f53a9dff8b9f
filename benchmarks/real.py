"""One request as a worker meets it: ours in many arrangements, beside what the peers add.

Ten routes, 10,000 paths, 256 clients, straight into the ASGI application, with other code between two requests. In each
round every candidate takes its turn, in an order drawn anew for every two rounds, and the second time backwards. What
is reached is a ratio or a difference of one round; medians over the rounds of a process, and of them over several
processes: one process is always a little faster than the next, by how its memory happens to lie.

A second version is measured in processes of its own that take turns with those of the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from . import versions
from .table import Cell, Table

PACKAGES = ("starlette", "fastapi", "asgi-ratelimit", "fastapi-limiter", "limits")

Times = dict[str, float]
"""Candidate -> microseconds of one operation, in one round."""
Measured = list[list[Times]]
"""Processes -> their rounds."""
Reached = Callable[..., float]
"""Returns what is reached in one round from the time of the row itself and from those of other candidates."""


def share(own: float, bare: float, peer: float, peer_bare: float) -> float:
    """Return what a candidate adds to its bare application, in units of what a peer adds to its own."""
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
        bare: The candidate without a limiter, whose time is taken off; empty where there is none.
        reached: What is asked of it; None where nothing is.
        others: The further candidates from which that follows.
        asked: What is asked: of the source, and of the compiled wheel.
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


BARE: Final = "bare Starlette"
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
FASTAPI: Final = "bare FastAPI"
AT_ENDPOINT: Final = "fastapi-limiter"
AT_ENDPOINT_REFUSED: Final = "fastapi-limiter, refused"


def to_peer(name: str, asked: str = "", *, peer: str = PEER) -> Row:
    return Row(name, BARE, share, (BARE, peer, BARE), asked)


def to_default(name: str, asked: str) -> Row:
    return Row(name, BARE, more, ("default",), asked)


def refused(name: str) -> Row:
    return Row(name, BARE, asked="≤2; <0 us")


def at_endpoint(name: str, asked: str = "", *, peer: str = AT_ENDPOINT) -> Row:
    return Row(name, FASTAPI, share, (FASTAPI, peer, FASTAPI), asked)


def to_limits(name: str, peer: str, asked: str) -> Row:
    return Row(name, "", lambda own, peer: peer / own, (peer,), asked)


TABLES: Final[dict[str, list[Row]]] = {
    "Admitted: to what asgi-ratelimit adds": [
        Row(BARE),
        to_peer("default", "≤1.2; ≤0.65"),
        to_peer("ban policy", "≤1.3; ≤0.75"),
        to_peer("blocklist", "≤1.3; ≤0.75"),
        to_peer("trusted proxies", "≤1.3; ≤0.75"),
        to_peer("everything", "≤1.6; ≤0.85", peer=FIVE),
        to_peer("everything, statistics listening", "≤2.0; ≤1.0", peer=FIVE),
        Row(PEER, BARE),
        to_peer("asgi-ratelimit, once more"),
        to_peer(FIVE),
    ],
    "Admitted: microseconds more than default": [
        to_default("two windows", "≤3; ≤1.0"),
        to_default("an address banned", "≤1; ≤0.5"),
        to_default("a network banned", "≤2; ≤1.0"),
    ],
    "Refused: microseconds more than the answer of the bare application": [
        refused("refused by a limit"),
        refused("refused by a ban"),
    ],
    "A path never seen before, refused: 1,000 routes to 10": [
        Row("1,000 routes, refused", "", ratio, ("10 routes, refused",), "≤1.5"),
    ],
    "A limit at an endpoint of FastAPI: to what fastapi-limiter adds": [
        Row(FASTAPI),
        at_endpoint("dependency", "≤1.0; ≤0.8"),
        at_endpoint("decorator", "≤0.7; ≤0.5"),
        Row(AT_ENDPOINT, FASTAPI),
        at_endpoint("dependency, refused", "≤1.3; ≤1.0", peer=AT_ENDPOINT_REFUSED),
    ],
    "A hit without HTTP: times as fast as the moving window of limits": [
        to_limits("hit", "hit of limits", "≥1.7; ≥3"),
        to_limits("hit, refused", "hit of limits, refused", "≥1.5; ≥3"),
    ],
}
ROWS: Final = [row for rows in TABLES.values() for row in rows]


def arguments(parser: ArgumentParser) -> None:
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--rounds", type=int, default=15, help="in each process")
    parser.add_argument("--processes", type=int, default=3, help="of each version, one after the other")
    parser.add_argument("--requests", type=int, default=200, help="in each round of each candidate")
    parser.add_argument("--paths", type=int, default=10_000, help="that are asked for again and again")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help=f"repeatable: {names}")
    versions.arguments(parser)


class Worker:
    """A process that measures one version.

    Args:
        folder: Where it finds slidegate.
        names: The candidates.
        options: The flags of the command.
    """

    def __init__(self, folder: Path, names: Sequence[str], options: Namespace) -> None:
        what = json.dumps([names, options.requests, options.paths])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", what],
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
        """Wait until everything is made, checked and warm, and check which version it is."""
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
            raise SystemExit("a measuring process failed; the lines above say why")
        found: dict[str, Any] = json.loads(line)
        return found


def measure(options: Namespace, names: Sequence[str], folders: Mapping[str, Path]) -> dict[str, Measured]:
    """Return what each version took. Two versions run at a time, and one waits while the other has a round."""
    found: dict[str, Measured] = {version: [] for version in folders}
    for number in range(options.processes):
        print(f"process {number + 1} of {options.processes} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            workers = {
                version: stack.enter_context(Worker(folder, names, options)) for version, folder in folders.items()
            }
            for version, worker in workers.items():
                worker.begin()
                found[version].append([])
            for turn in range(2, options.rounds + 2):
                order = list(workers.items())
                for version, worker in reversed(order) if turn % 4 > 1 else order:
                    found[version][-1].append(worker.round(turn))
    return found


def over_processes(measured: Measured, reached: Reached, names: Sequence[str]) -> float:
    """Return the median over processes of their medians over rounds."""
    return median(median(reached(*(times[name] for name in names)) for times in rounds) for rounds in measured)


def row_of(row: Row, measured: Mapping[str, Measured]) -> list[Cell]:
    """Return the cells of a row: what each version takes or adds and reaches, and what is asked."""
    cells: list[Cell] = [row.name]
    for taken in measured.values():
        if row.bare:
            cells.append(over_processes(taken, more, [row.name, row.bare]))
        else:
            cells.append(over_processes(taken, lambda own: own, [row.name]))
        cells.append(over_processes(taken, row.reached, [row.name, *row.others]) if row.reached else None)
    return [*cells, row.asked]


def columns(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of a table of some versions."""
    found = {"what": ""}
    for name in names:
        found |= {f"{name} us": ".1f", f"{name} reached": ".2f"}
    return {**found, "asked": ""}


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all rows, or the chosen ones."""
    known = {row.name for row in ROWS}
    for name in options.only:
        if name not in known:
            raise SystemExit(f"bench real: {name!r} is no row; expected one of: {', '.join(sorted(known))}")
    chosen = {
        title: [row for row in rows if not options.only or row.name in options.only] for title, rows in TABLES.items()
    }
    names = list(dict.fromkeys(name for rows in chosen.values() for row in rows for name in row.candidates))
    with versions.chosen(options) as folders:
        measured = measure(options, names, folders)
    for title, rows in chosen.items():
        if rows:
            yield Table(title, columns(list(measured)), [row_of(row, measured) for row in rows])
