"""Loads a running server with requests, and takes what it did: requests a second, and its processor time for one."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from ..report.tables import Cell

CONNECTIONS: Final = 32
ANSWER_S: Final = 30
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """A running server: the port it listens on, its process, and the status that it answers with."""

    port: int
    pid: int
    status: int


class Round(NamedTuple):
    """What one candidate did in one round; the processor time is None where the system does not tell."""

    per_second: float
    cpu_us: float | None


def ask(port: int) -> int:
    """Send one request and return the status of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def load(server: Server, seconds: int) -> Round:
    """Send requests for so many seconds.

    Raises:
        RuntimeError: There were other answers than those of the candidate.
    """
    url = f"http://127.0.0.1:{server.port}/"
    program = shutil.which("wrk")
    stand_in = [sys.executable, "-m", "benchmarks.serving.client", f"-c{CONNECTIONS}", f"-d{seconds}", url]
    command = [program, "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url] if program else stand_in
    before_s = cpu_s(server.pid)
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_S + seconds).stdout
    after_s = cpu_s(server.pid)
    requests = int(re.search(r"(\d+) requests in ", said)[1])  # type: ignore[index]
    others = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    if (int(others[1]) if others else 0) != (0 if server.status == 200 else requests) or "Socket errors" in said:
        raise RuntimeError(f"expected {server.status} only, got:\n{said}")
    own_us = None if before_s is None or after_s is None else (after_s - before_s) / requests * 1_000_000
    return Round(float(re.search(r"Requests/sec: +([\d.]+)", said)[1]), own_us)  # type: ignore[index]


def cpu_s(pid: int) -> float | None:
    """Return the processor time that a process has used; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def relative(own: list[Round], base: list[Round]) -> list[Cell]:
    """Return requests a second relative to a baseline, and the same by processor time: medians over rounds."""
    pairs = list(zip(own, base, strict=True))
    by_cpu = [theirs.cpu_us / mine.cpu_us for mine, theirs in pairs if mine.cpu_us and theirs.cpu_us]
    rate = median(mine.per_second / theirs.per_second for mine, theirs in pairs)
    return [rate, median(by_cpu) if by_cpu else None]
