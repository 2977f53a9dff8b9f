"""Requests per second behind a real server: uvicorn and granian, one worker and four, 32 connections over loopback.

The servers of all candidates run at the same time, and wrk sends requests to one after the other, for some seconds
each. Every round starts new servers, because speed varies by a few percent with the memory layout of a process. The
result is the rate relative to that of the peer in the same round, the median over the rounds. Four workers of slidegate
share a `LmdbStore`; four workers of the peer share nothing, and admit four times the limit.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.request import urlopen

from . import versions
from .apps import STORE
from .serve import APP, HOST, SERVERS
from .table import Cell, Table

PACKAGES = ("uvicorn", "granian", "uvloop", "httptools", "starlette", "asgi-ratelimit", "lmdb")
WORKERS: Final = (1, 4)
CONNECTIONS: Final = 32
START_S: Final = 120
ANSWER_S: Final = 30
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
PEERS: Final = {"bare Starlette": PEER, PEER: "", "asgi-ratelimit, once more": PEER, FIVE: PEER}
OURS: Final = {"default": PEER, "everything": FIVE}
"""Candidates, each with the peer that it is compared with."""
ASKED: Final = {
    "default, source": "≥0.9",
    "default, wheel": "≥1.0",
    "everything, source": "≥0.8",
    "everything, wheel": "≥0.95",
}
"""The targets with one worker."""


class Candidate(NamedTuple):
    """A row of the table: the application, the version of slidegate, its directory, and the peer."""

    app: str
    version: str
    folder: Path
    peer: str

    @property
    def name(self) -> str:
        return f"{self.app}, {self.version}" if self.app in OURS else self.app


def free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def wait_for(url: str, name: str) -> None:
    """Wait until a server answers.

    Raises:
        SystemExit: It does not answer within two minutes.
    """
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        with suppress(OSError), urlopen(url, timeout=ANSWER_S):
            return
        time.sleep(0.05)
    sys.exit(f"the server of {name!r} does not answer")


@contextmanager
def served(candidate: Candidate, server: str, workers: int) -> Iterator[str]:
    """Start the server of a candidate, and yield the address of a page."""
    port = free_port()
    with TemporaryDirectory() as store, ExitStack() as stack:
        variables = {APP: candidate.app, **({STORE: f"lmdb://{store}"} if workers > 1 else {})}
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.serve", server, str(workers), str(port)],
                cwd=versions.ROOT,
                env={**versions.environment(candidate.folder), **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)  # ends the server and its workers
        versions.check(process.stdout.readline().strip(), candidate.folder)
        url = f"http://{HOST}:{port}/items/7"
        wait_for(url, candidate.name)
        yield url


def load(url: str, seconds: int) -> float:
    """Send requests for the given number of seconds; return the responses per second.

    Raises:
        RuntimeError: A request failed, or got a status other than 200.
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
    parser.add_argument("--only", action="append", choices=[*PEERS, *OURS], help="repeatable; includes its peer")
    parser.add_argument("--server", action="append", choices=[*SERVERS], help="repeatable; by default all")
    parser.add_argument("--workers", action="append", type=int, choices=WORKERS, help="repeatable, as --server")
    versions.arguments(parser)


Rates = dict[str, list[float]]
"""Candidate -> requests per second in each round."""


def measure(candidates: Sequence[Candidate], server: str, workers: int, options: Namespace) -> Rates:
    """Measure the candidates after a warm-up of one second each; every other round runs in reverse order."""
    taken: Rates = {candidate.name: [] for candidate in candidates}
    for number in range(options.rounds):
        print(f"{server}, {workers}: round {number + 1} of {options.rounds} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            urls = {one.name: stack.enter_context(served(one, server, workers)) for one in candidates}
            for url in urls.values():
                load(url, 1)
            for name in reversed(urls) if number % 2 else urls:
                taken[name].append(load(urls[name], options.seconds))
    return taken


def cells_of(candidate: Candidate, taken: Rates) -> list[Cell]:
    """Return the cells of a candidate behind one server: its rate, and the ratio to the rate of its peer."""
    own = taken[candidate.name]
    if not candidate.peer:
        return [median(own), None]
    return [median(own), median(mine / theirs for mine, theirs in zip(own, taken[candidate.peer], strict=True))]


def chosen(only: Sequence[str], folders: Mapping[str, Path]) -> list[Candidate]:
    """Return the named candidates, or all, with their peers; those of slidegate in all versions."""
    peers = {**PEERS, **OURS}
    needed = {*only, *(peers[app] for app in only)} or {*peers}
    first = next(iter(folders.items()))
    found = [Candidate(app, *first, peer) for app, peer in PEERS.items()]
    found += [Candidate(app, *version, peer) for app, peer in OURS.items() for version in folders.items()]
    return [candidate for candidate in found if candidate.app in needed]


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all candidates behind one server after the other."""
    if not shutil.which("wrk"):
        sys.exit("this needs wrk: sudo apt install wrk")
    columns = {"what": ""}
    with versions.chosen(options) as folders:
        candidates = chosen(options.only or (), folders)
        rows: list[list[Cell]] = [[one.name] for one in candidates]
        for workers, server in product(options.workers or WORKERS, options.server or SERVERS):
            name = f"{server}, {workers}"
            columns |= {name: ",.0f", f"{name} reached": ".2f"}
            taken = measure(candidates, server, workers, options)
            for candidate, row in zip(candidates, rows, strict=True):
                row += cells_of(candidate, taken)
    yield Table("", {**columns, "asked of 1": ""}, [[*row, ASKED.get(str(row[0]))] for row in rows])
