"""Interleaved rounds: every candidate runs once a round, so that a slow machine slows all of them.

Absolute times of one machine say little. The report is the median over rounds of each candidate's difference to the
baseline of the same round, and of its ratio to that baseline.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from statistics import median

from starlette.types import ASGIApp, Message, Scope

Candidate = Callable[[], Awaitable[float]]
"""Runs one round and returns the microseconds of one operation."""


async def rounds(candidates: Mapping[str, Candidate], count: int) -> dict[str, list[float]]:
    """Run every candidate `count` times in turn, after one round that is thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(count + 1):
        for name, candidate in candidates.items():
            operation_us = await candidate()
            if number:
                taken[name].append(operation_us)
    return taken


def table(taken: Mapping[str, list[float]], baselines: Mapping[str, str]) -> str:
    """Return a Markdown table: median time, difference to the baseline, and ratio."""
    lines = ["| what | median us | added us | ratio | to |", "| --- | ---: | ---: | ---: | --- |"]
    for name, own in taken.items():
        base = baselines.get(name)
        if base is None:
            lines.append(f"| {name} | {median(own):.2f} | | | |")
        else:
            pairs = list(zip(own, taken[base], strict=True))
            added = median(mine - theirs for mine, theirs in pairs)
            ratio = median(mine / theirs for mine, theirs in pairs)
            lines.append(f"| {name} | {median(own):.2f} | {added:+.2f} | {ratio:.2f} | {base} |")
    return "\n".join(lines)


def versions(*packages: str) -> str:
    """Say what was measured."""
    python = f"CPython {platform.python_version()}"
    return ", ".join([python, *(f"{package} {version(package)}" for package in packages)])


def asgi(app: ASGIApp, requests: int, expected: int) -> Candidate:
    """Return a candidate that sends requests straight into an application and checks every status."""
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

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] != expected:
            wrong.append(message["status"])

    async def run() -> float:
        started_s = time.perf_counter()
        for _ in range(requests):
            await app(dict(scope), receive, send)
        taken_s = time.perf_counter() - started_s
        if wrong:
            raise RuntimeError(f"expected {expected}, got {wrong[0]}")
        return taken_s / requests * 1_000_000

    return run
