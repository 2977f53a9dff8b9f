"""Interleaved rounds: every candidate runs once a round, so that a slow machine slows all of them.

Absolute times of one machine say little. The report is the median over rounds of each candidate's difference to the
baseline of the same round, and of its ratio to that baseline.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from statistics import median

from starlette.types import ASGIApp, Message, Scope

from .report.tables import Cell, Table

COLUMNS = {"what": "", "median us": ".2f", "added us": "+.2f", "ratio": ".2f", "to": ""}
Candidate = Callable[[], Awaitable[float]]
"""Runs one round and returns the microseconds of one operation."""


async def rounds(candidates: Mapping[str, Candidate], count: int) -> dict[str, list[float]]:
    """Run every candidate `count` times in turn, after one round that is thrown away.

    The garbage collector runs as always, but does not walk what the candidates hold before the rounds: it would charge
    that of all of them to the one in whose round it happens to run.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    try:
        for number in range(count + 1):
            for name, candidate in candidates.items():
                operation_us = await candidate()
                if number:
                    taken[name].append(operation_us)
            if not number:
                gc.collect()
                gc.freeze()
    finally:
        gc.unfreeze()
    return taken


def compared(title: str, taken: Mapping[str, list[float]], baselines: Mapping[str, str]) -> Table:
    """Return a table: median time, and where there is a baseline the difference to it and the ratio."""
    rows: list[list[Cell]] = []
    for name, own in taken.items():
        base = baselines.get(name)
        if base is None:
            rows.append([name, median(own), None, None, None])
        else:
            rows.append(row_of(name, list(zip(own, taken[base], strict=True)), base))
    return Table(title, COLUMNS, rows)


def row_of(name: str, pairs: Sequence[tuple[float, float]], base: str) -> list[Cell]:
    """Return the row of a candidate from its times, each with that of the baseline in the same round."""
    added = median(mine - theirs for mine, theirs in pairs)
    return [name, median(mine for mine, _ in pairs), added, median(mine / theirs for mine, theirs in pairs), base]


def asgi(app: ASGIApp, requests: int, expected: int, paths: Iterable[str] = ("/",)) -> Candidate:
    """Return a candidate that sends requests straight into an application and checks every status.

    Args:
        app: The application.
        requests: The number of requests in a round.
        expected: The status of every answer.
        paths: The paths to ask for in turn, over and over.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"app.test"), (b"user-agent", b"benchmark"), (b"accept", b"*/*")],
        "client": ("203.0.113.9", 4711),
        "server": ("127.0.0.1", 80),
    }
    wrong: list[int] = []
    coming = cycle(paths)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] != expected:
            wrong.append(message["status"])

    async def run() -> float:
        scopes = [{**scope, "path": path, "raw_path": path.encode()} for path in islice(coming, requests)][::-1]
        started_s = time.perf_counter()
        while scopes:  # as in a server, nobody holds a scope when its request is over
            await app(scopes.pop(), receive, send)
        taken_s = time.perf_counter() - started_s
        if wrong:
            raise RuntimeError(f"expected {expected}, got {wrong[0]}")
        return taken_s / requests * 1_000_000

    return run
