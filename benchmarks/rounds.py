"""Rows of tables, measured in rounds: each round runs every candidate once, in an order of its own.

A result is a ratio or a difference within one round. It is the median over the rounds of a process, and then the median
over several processes, because speed varies with the memory layout of a process. A second version of slidegate is
measured in processes of its own, alternately with those of the first.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Final, NamedTuple, TypeVar

ROOT: Final = Path(__file__).resolve().parents[1]

Candidate = TypeVar("Candidate")
Times = dict[str, float]
"""Candidate -> microseconds per operation, in one round."""
Round = Callable[[int], Awaitable[float]]
"""Runs the round with the given number; returns the microseconds per operation."""


class Row(NamedTuple):
    """One row of a table, and the candidate that it measures.

    Attributes:
        name: The name of the candidate.
        candidate: Returns its rounds.
        minus: The candidate whose time is subtracted, such as the bare application; empty for none.
        per: The candidate to which the row is compared; empty for none.
        per_minus: The candidate whose time is subtracted from that of `per`.
        target: The targets for the source and for the compiled wheel.
    """

    name: str
    candidate: Callable[[], Awaitable[Round]]
    minus: str = ""
    per: str = ""
    per_minus: str = ""
    target: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The candidates to run for this row; empty texts for none."""
        return (self.name, self.minus, self.per, self.per_minus)

    def us(self, times: Times) -> float:
        """Return the time of one operation, or what it adds to `minus`."""
        return times[self.name] - times.get(self.minus, 0.0)

    def ratio(self, times: Times) -> float:
        """Return the time relative to that of `per`."""
        return self.us(times) / (times[self.per] - times.get(self.per_minus, 0.0))


def show(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, below its title if it has one."""
    print(f"\n### {title}\n" if title else "")
    for cells in (head, ["---"] * len(head), *rows):
        print(f"| {' | '.join(cells)} |", flush=True)


def order_of(candidates: Iterable[Candidate], turn: int) -> list[Candidate]:
    """Return the order of the candidates in a round: a Williams design, in which each follows every other as often."""
    known = list(candidates)
    order = []
    for place in range(len(known)):
        step = -(place // 2)  # 0, 1, -1, 2, -2, ...
        if place % 2:
            step = (place + 1) // 2
        order.append(known[(step + turn // 2) % len(known)])
    if turn % 2:
        order.reverse()
    return order


def versions(options: Namespace) -> dict[str, Path]:
    """Return the directories from which the versions to measure are imported."""
    folders = {"source": ROOT / "src"}
    if options.other == "compiled":
        subprocess.run([sys.executable, "-m", "scripts.compile_wheel"], cwd=ROOT, check=True)
        folders["compiled"] = ROOT / "build" / "compiled" / "lib"
    elif options.other:
        folders["other"] = Path(options.other).resolve() / "src"
    return folders


class Worker:
    """A process that measures one version of slidegate, `benchmarks.worker`, and the rounds that it has run."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", json.dumps(names)]
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        self.rounds: list[Times] = []
        self.process = subprocess.Popen(command, env=environment, stdin=PIPE, stdout=PIPE, text=True)
        if (found := self.answer()) != str(folder / "slidegate"):
            raise SystemExit(f"expected slidegate from {folder}, found {found!r}; see the lines above")

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def run(self, turn: int) -> None:
        """Have it run every candidate once."""
        print(turn, file=self.process.stdin, flush=True)
        self.rounds.append(json.loads(self.answer()))


def measure(options: Namespace, names: Sequence[str]) -> dict[str, list[list[Times]]]:
    """Return the rounds of each process of each version."""
    folders = versions(options)
    measured: dict[str, list[list[Times]]] = {version: [] for version in folders}
    for number in range(options.processes):
        print(f"process {number + 1} of {options.processes} ...", file=sys.stderr, flush=True)
        workers = {version: Worker(folder, names) for version, folder in folders.items()}
        # Numbers of rounds continue over processes, so that all orders of candidates occur.
        for turn in range(number * options.rounds, (number + 1) * options.rounds):
            for version in order_of(workers, turn):
                workers[version].run(turn + 1)
        for version, worker in workers.items():
            worker.process.communicate()
            measured[version].append(worker.rounds)
    return measured


def main(parser: ArgumentParser, tables: Mapping[str, Sequence[Row]]) -> None:
    """Measure all rows, or those of ``--only``, and print their tables."""
    names = [row.name for rows in tables.values() for row in rows]
    parser.add_argument("--rounds", type=int, default=15, help="in each process")
    parser.add_argument("--processes", type=int, default=3, help="of each version, one after the other")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="a row; repeatable")
    parser.add_argument("--other", metavar="PATH", help="a checkout, or `compiled`: the wheel of this one")
    options = parser.parse_args()
    only = options.only or names
    chosen = {title: [row for row in rows if row.name in only] for title, rows in tables.items()}
    needed = (name for rows in chosen.values() for row in rows for name in row.needs)
    measured = measure(options, list(dict.fromkeys(filter(None, needed))))
    columns = [f"{version} {what}" for version in measured for what in ("us", "ratio")]
    for title, rows in chosen.items():
        if rows:
            show(title, ["what", *columns, "target"], [cells_of(row, measured.values()) for row in rows])


def cells_of(row: Row, versions: Iterable[list[list[Times]]]) -> list[str]:
    """Return the cells of a row: time and ratio of each version, and the target."""
    cells = [row.name]
    for processes in versions:
        cells.append(f"{over_processes(row.us, processes):.1f}")
        cells.append(f"{over_processes(row.ratio, processes):.2f}" if row.per else "")
    return [*cells, row.target]


def over_processes(value: Callable[[Times], float], processes: list[list[Times]]) -> float:
    """Return the median over processes of their medians over rounds."""
    return median(median(map(value, rounds)) for rounds in processes)
