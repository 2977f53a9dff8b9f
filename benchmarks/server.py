"""Requests a second behind a real server: uvicorn with uvloop and httptools, one worker, 32 connections over loopback.

All servers stand at once, and wrk asks one after the other, some seconds each. Every round has new servers: one process
of a program is some hundredths faster than the next, as its memory happens to lie. What is reached are requests a
second to those of the peer in the same round, medians over the rounds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from . import versions
from .table import Cell, Table

PACKAGES = ("uvicorn", "uvloop", "httptools", "starlette", "asgi-ratelimit")
CONNECTIONS: Final = 32
ANSWER_S: Final = 30
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
PEERS: Final = {"bare Starlette": PEER, PEER: "", "asgi-ratelimit, once more": PEER, FIVE: PEER}
OURS: Final = {"default": PEER, "everything": FIVE}
"""Candidates, each with what its requests a second are compared with."""
ASKED: Final = {
    "default, source": "≥0.9",
    "default, wheel": "≥1.0",
    "everything, source": "≥0.8",
    "everything, wheel": "≥0.95",
}


class Candidate(NamedTuple):
    """A row of the table: the application that is served, the version of slidegate, its folder, and the peer."""

    app: str
    version: str
    folder: Path
    peer: str

    @property
    def name(self) -> str:
        return f"{self.app}, {self.version}" if self.app in OURS else self.app


@contextmanager
def served(candidate: Candidate) -> Iterator[str]:
    """Yield the address of a page of the server of one candidate."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serve", candidate.app],
        cwd=versions.ROOT,
        env=versions.environment(candidate.folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            where, _, port = process.stdout.readline().strip().rpartition(" ")
            if not port:
                sys.exit(f"the server of {candidate.name!r} did not start")
            versions.check(where, candidate.folder)
            yield f"http://127.0.0.1:{port}/items/7"
        finally:
            process.kill()


def load(url: str, seconds: int) -> float:
    """Send requests for so many seconds; return how many are answered in one.

    Raises:
        RuntimeError: There was another answer than 200, or none.
    """
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-H", "X-Forwarded-For: 203.0.113.9", url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_S + seconds).stdout
    rate = re.search(r"Requests/sec: +([\d.]+)", said)
    if rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"expected 200 only, got:\n{said}")
    return float(rate[1])


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=int, default=1, help="of each candidate in each round")
    versions.arguments(parser)


def measure(candidates: list[Candidate], rounds: int, seconds: int) -> dict[str, list[float]]:
    """Let candidates serve in turn, each after a second that is thrown away, forwards and backwards by turns."""
    taken: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            urls = {candidate.name: stack.enter_context(served(candidate)) for candidate in candidates}
            for url in urls.values():
                load(url, 1)
            for name in reversed(urls) if number % 2 else urls:
                taken[name].append(load(urls[name], seconds))
    return taken


def row_of(candidate: Candidate, taken: Mapping[str, list[float]]) -> list[Cell]:
    """Return the cells of a candidate."""
    own = taken[candidate.name]
    cells: list[Cell] = [candidate.name, median(own)]
    if not candidate.peer:
        return [*cells, None, None]
    reached = median(mine / theirs for mine, theirs in zip(own, taken[candidate.peer], strict=True))
    return [*cells, reached, ASKED.get(candidate.name)]


def tables(options: Namespace) -> Iterator[Table]:
    """Let all candidates serve."""
    if not shutil.which("wrk"):
        sys.exit("this needs wrk: sudo apt install wrk")
    with versions.chosen(options) as folders:
        first = next(iter(folders.items()))
        candidates = [Candidate(app, *first, peer) for app, peer in PEERS.items()]
        candidates += [Candidate(app, *version, peer) for app, peer in OURS.items() for version in folders.items()]
        taken = measure(candidates, options.rounds, options.seconds)
    columns = {"what": "", "requests/s": ",.0f", "to its peer": ".2f", "asked": ""}
    yield Table("", columns, [row_of(candidate, taken) for candidate in candidates])
