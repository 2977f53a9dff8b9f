"""One request as a worker meets it: ours in many arrangements, beside what the peers add.

Ten routes, 10,000 paths, 256 clients, counted in memory, straight into the ASGI application, with other code between
two requests. Each row is a ratio or a difference of one round, in which every candidate takes its turn, forwards and
backwards by turns; medians over the rounds of a process, and of them over several processes. One process is always a
little faster than the next, by how its memory happens to lie.

`--other PATH` measures a second version of slidegate as well, in processes of its own that take turns with ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from .report.tables import Cell, Table

PACKAGES = ("starlette", "fastapi", "asgi-ratelimit", "slowapi", "fastapi-limiter", "limits")
ROOT: Final = Path(__file__).resolve().parents[1]

Times = dict[str, float]
"""Candidate -> microseconds of one operation, in one round."""
Reached = Callable[..., float]
"""Returns what is reached in one round from the time of the row itself and from those of other candidates."""


def share(own: float, bare: float, peer: float) -> float:
    """Return what a candidate adds, in units of what the peer adds."""
    return (own - bare) / (peer - bare)


def ratio(own: float, other: float) -> float:
    return own / other


def more(own: float, other: float) -> float:
    return own - other


def times_as_fast(own: float, peer: float) -> float:
    return peer / own


def share_between(own: float, bare: float, fewer: float, fewer_bare: float) -> float:
    """Return what a candidate adds to its bare application, in units of what another adds to another."""
    return (own - bare) / (fewer - fewer_bare)


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: The candidate.
        bare: The candidate without a gate; empty where there is none.
        reached: What is asked of it; None where nothing is.
        others: The further candidates from which that follows.
        unit: What the reached number counts.
        source: What is asked of the source.
        wheel: What is asked of the compiled wheel.
    """

    name: str
    bare: str = ""
    reached: Reached | None = None
    others: tuple[str, ...] = ()
    unit: str = ""
    source: str = ""
    wheel: str = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        """All candidates that the row needs."""
        return self.name, *filter(None, (self.bare,)), *self.others


BARE: Final = "bare Starlette"
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
FASTAPI: Final = "bare FastAPI"
NEW: Final = "bare Starlette, new paths"
MANY: Final = "bare Starlette, new paths, 1,000 routes"


def to_peer(name: str, source: str = "", wheel: str = "", *, peer: str = PEER) -> Row:
    """Return the row of a candidate that is compared with what a peer adds to Starlette."""
    return Row(name, BARE, share, (BARE, peer), f"of what {peer} adds", source, wheel)


def to_default(name: str, source: str, wheel: str = "") -> Row:
    return Row(name, BARE, more, ("default",), "us more than default", source, wheel)


def to_bare(name: str, bare: str, source: str = "", wheel: str = "") -> Row:
    return Row(name, bare, ratio, (bare,), f"of the answer of {bare}", source, wheel)


def at_endpoint(name: str, source: str = "", wheel: str = "") -> Row:
    peer = "fastapi-limiter"
    return Row(name, FASTAPI, share, (FASTAPI, peer), f"of what {peer} adds", source, wheel)


def to_limits(name: str, peer: str, source: str, wheel: str) -> Row:
    return Row(name, "", times_as_fast, (peer,), "times as fast as limits, moving window", source, wheel)


def to_before(name: str) -> Row:
    return Row(name, "", ratio, ("hit before",), "of a hit before", "<= 1.1")


TABLES: Final[dict[str, list[Row]]] = {
    "One request": [
        Row(BARE),
        to_peer("default", "<= 1.5", "<= 1.0"),
        to_default("two windows", "<= 2.5", "<= 1.0"),
        to_peer("five rules", peer=FIVE),
        to_peer("trusted proxies", "<= 1.6", "<= 1.2"),
        to_peer("ban policy", "<= 1.6", "<= 1.2"),
        to_peer("blocklist", "<= 1.6", "<= 1.2"),
        to_peer("everything", "<= 2.0", "<= 1.3", peer=FIVE),
        to_default("an address banned", "<= 0.5"),
        to_default("a network banned", "<= 0.8"),
        to_bare("refused by a limit", BARE, "< 1", "< 1"),
        to_bare("refused by a ban", BARE, "< 1", "< 1"),
        Row(PEER, BARE),
        to_peer("asgi-ratelimit, once more"),
        to_peer(FIVE),
        to_bare("asgi-ratelimit, refused", BARE),
        to_peer("slowapi"),
        to_bare("slowapi, refused", BARE),
    ],
    "A path never seen before": [
        Row("new paths, 10 routes", NEW),
        Row(
            "new paths, 1,000 routes",
            MANY,
            share_between,
            (MANY, "new paths, 10 routes", NEW),
            "of what it adds with 10 routes",
            "<= 1.5",
        ),
        Row("new paths, 10 routes, refused", NEW),
        Row(
            "new paths, 1,000 routes, refused",
            MANY,
            ratio,
            ("new paths, 10 routes, refused",),
            "of the answer with 10 routes",
            "<= 1.5",
        ),
    ],
    "A limit at an endpoint of FastAPI": [
        Row(FASTAPI),
        at_endpoint("dependency", "<= 0.9", "clearly < 1"),
        at_endpoint("decorator", "<= 0.6", "clearly < 1"),
        Row("fastapi-limiter", FASTAPI),
        to_bare("dependency, refused", FASTAPI),
        to_bare("decorator, refused", FASTAPI),
        to_bare("fastapi-limiter, refused", FASTAPI),
    ],
    "One hit": [
        to_limits("hit", "hit of limits", ">= 2.0", ">= 3"),
        to_limits("hit, refused", "hit of limits, refused", ">= 1.5", ">= 2.4"),
    ],
    "Hits of other buckets": [
        Row("hit before"),
        to_before("hit after `wait`"),
        to_before("hit after `count_denied`"),
        to_before("hit after a quota"),
        to_before("hit after `concurrency`"),
        to_before("hit after a full store"),
        to_before("hit after a ban that ended"),
    ],
}
ROWS: Final = [row for rows in TABLES.values() for row in rows]


def version_at(text: str) -> Path:
    """Return a checkout, a folder with slidegate in it, or a wheel."""
    path = Path(text).resolve()
    if path.suffix == ".whl" and path.is_file():
        return path
    for folder in (path / "src", path):
        if (folder / "slidegate" / "__init__.py").is_file():
            return folder
    raise ArgumentTypeError(f"{text!r} is no checkout, no folder with slidegate in it, and no wheel")


def arguments(parser: ArgumentParser) -> None:
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--rounds", type=int, default=50, help="in each process")
    parser.add_argument("--processes", type=int, default=3, help="of each version, one after the other")
    parser.add_argument("--requests", type=int, default=250, help="in each round of each candidate")
    parser.add_argument("--paths", type=int, default=10_000, help="that are asked for again and again")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help=f"repeatable: {names}")
    version = {"type": version_at, "metavar": "PATH"}
    parser.add_argument("--own", default=ROOT / "src", help="the version that is measured, by default this", **version)
    parser.add_argument("--other", help="another one: a checkout, a folder that has slidegate, or a wheel", **version)


class Worker:
    """A process that measures one version.

    Args:
        folder: Where it finds slidegate.
        names: The candidates.
        requests: The requests in a round of each.
        paths: How many paths they ask for.
    """

    def __init__(self, folder: Path, names: Sequence[str], requests: int, paths: int) -> None:
        command = [sys.executable, "-m", "benchmarks.in_process.worker", json.dumps([names, requests, paths])]
        path = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._folder = folder

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def begin(self) -> None:
        """Wait until everything is made, checked and warm, and check which version it is."""
        said = self._answer()
        if Path(said["where"]) != self._folder / "slidegate":
            raise SystemExit(f"expected slidegate from {self._folder}, and {said['where']} was measured")

    def round(self, backwards: bool) -> Times:
        """Run every candidate once."""
        assert self._process.stdin
        self._process.stdin.write("backwards\n" if backwards else "forwards\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a measuring process failed; the lines above say why")
        found: dict[str, Any] = json.loads(line)
        return found


Measured = list[list[Times]]
"""Processes -> their rounds."""


def measure(options: Namespace, names: Sequence[str], folders: Sequence[Path]) -> list[Measured]:
    """Return what each version took. Two versions run at a time, and one waits while the other has a round."""
    found: list[Measured] = [[] for _ in folders]
    for number in range(options.processes):
        print(f"process {number + 1} of {options.processes} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            workers = [
                stack.enter_context(Worker(folder, names, options.requests, options.paths)) for folder in folders
            ]
            for worker, measured in zip(workers, found, strict=True):
                worker.begin()
                measured.append([])
            for turn in range(options.rounds):
                order = list(zip(workers, found, strict=True))
                for worker, measured in reversed(order) if turn % 4 > 1 else order:
                    measured[-1].append(worker.round(turn % 2 == 1))
    return found


def over_processes(measured: Measured, reached: Reached, names: Sequence[str]) -> list[float]:
    """Return the median of each process."""
    return [median(reached(*(times[name] for name in names)) for times in rounds) for rounds in measured]


def row_of(row: Row, measured: Measured) -> list[Cell]:
    """Return the cells of a row: what is asked, and what is reached, over all processes and in each of them."""
    took_us = median(over_processes(measured, lambda own: own, [row.name]))
    added_us = median(over_processes(measured, more, [row.name, row.bare])) if row.bare else None
    if row.reached is None:
        return [row.name, took_us, added_us, None, None, None, None, None]
    reached = over_processes(measured, row.reached, [row.name, *row.others])
    span = f"{min(reached):.2f} to {max(reached):.2f}"
    return [row.name, took_us, added_us, median(reached), span, row.unit, row.source, row.wheel]


COLUMNS: Final = {
    "what": "",
    "median us": ".2f",
    "added us": "+.2f",
    "reached": ".2f",
    "processes": "",
    "unit": "",
    "asked (source)": "",
    "asked (wheel)": "",
}
BOTH: Final = {
    "what": "",
    "median us": ".2f",
    "other": ".2f",
    "to other": ".2f",
    "reached": ".2f",
    "other's": ".2f",
    "unit": "",
}


def beside(row: Row, own: Measured, other: Measured) -> list[Cell]:
    """Return the cells of a row of two versions; the ratio of their times is one of neighbouring rounds."""
    first, second = row_of(row, own), row_of(row, other)
    pairs = [
        median(mine[row.name] / theirs[row.name] for mine, theirs in zip(*rounds, strict=True))
        for rounds in zip(own, other, strict=True)
    ]
    return [row.name, first[1], second[1], median(pairs), first[3], second[3], row.unit]


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all rows, or the chosen ones."""
    known = {row.name for row in ROWS}
    for name in options.only:
        if name not in known:
            raise SystemExit(f"bench real: {name!r} is no row; expected one of: {', '.join(sorted(known))}")
    rows = {
        title: [row for row in rows if not options.only or row.name in options.only] for title, rows in TABLES.items()
    }
    names = list(dict.fromkeys(name for chosen in rows.values() for row in chosen for name in row.candidates))
    with TemporaryDirectory() as unpacked:
        folders = []
        for number, path in enumerate(filter(None, (options.own, options.other))):
            if path.suffix == ".whl":
                zipfile.ZipFile(path).extractall(folder := Path(unpacked, str(number)))
                folders.append(folder)
            else:
                folders.append(path)
        own, *others = measure(options, names, folders)
    for title, chosen in rows.items():
        if chosen:
            yield Table(title, COLUMNS, [row_of(row, own) for row in chosen])
        if chosen and others:
            yield Table(f"{title}, beside the other version", BOTH, [beside(row, own, others[0]) for row in chosen])
