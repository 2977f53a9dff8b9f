"""The walk-through: a Redis of its own, two processes of the site, and clients while Redis comes and goes."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from .app import AMOUNT

HOST = "127.0.0.1"
BOUND_S = 20


@dataclass(frozen=True)
class Step:
    """The fate of some requests.

    Attributes:
        what: The event before them.
        passed: How many requests passed.
        refused: How many were answered with 429.
        failed: How many were answered with anything else, or not at all.
        slowest_s: How long the slowest answer took.
    """

    what: str
    passed: int
    refused: int
    failed: int
    slowest_s: float


def find_redis() -> str | None:
    """Return a redis-server of PATH or of this Python's environment."""
    return shutil.which("redis-server") or shutil.which("redis-server", path=str(Path(sys.executable).parent))


def walk(program: str) -> Iterator[Step]:
    """Walk through it with a Redis that `program` starts; yield what became of the requests of each step."""
    with ExitStack() as stack:
        place = stack.enter_context(TemporaryDirectory())
        port = free_port()
        redis = stack.enter_context(running_redis(program, port, place))
        environment = {**os.environ, "REDIS_URL": f"redis://{HOST}:{port}/0"}
        ports = [free_port(), free_port()]
        for site in ports:
            stack.enter_context(running_site(site, environment))
        for site in ports:
            wait_until(partial(counts_in_redis, site))
        yield send("two processes, one limit", ports, "ann", 2 * AMOUNT)
        redis.kill()
        redis.wait()
        yield send("Redis is killed: each process counts for itself", ports, "ben", 3 * AMOUNT)
        stack.enter_context(running_redis(program, port, place))
        for site in ports:
            wait_until(partial(counts_in_redis, site))
        yield send("Redis is back: who had his share does not get another", ports, "ben", AMOUNT)
        yield send("two processes, one limit again", ports, "cat", 2 * AMOUNT)


def send(what: str, ports: list[int], client: str, count: int) -> Step:
    """Send requests of one client to the processes in turn."""
    answers, slowest_s = [], 0.0
    for port in islice(cycle(ports), count):
        began_s = time.perf_counter()
        answers.append(get(port, "/", client)[0])
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
    passed, refused = answers.count(200), answers.count(429)
    return Step(what, passed, refused, count - passed - refused, slowest_s)


def get(port: int, path: str, client: str = "") -> tuple[int, bytes]:
    """Return the status and the body of an answer; 0 and nothing where there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=BOUND_S)
    try:
        connection.request("GET", path, headers={"X-API-Key": client})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def counts_in_redis(port: int) -> bool:
    """Send a request, by which a process finds out whether Redis is there; tell whether it is."""
    if get(port, "/", "probe")[0] == 0:
        return False
    return bool(json.loads(get(port, "/health")[1])["counts"] == "in Redis")


@contextmanager
def running_redis(program: str, port: int, place: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Redis that keeps nothing on disk."""
    options = ["--bind", HOST, "--port", str(port), "--dir", place, "--save", "", "--appendonly", "no"]
    with stopped_at_the_end([program, *options], dict(os.environ)) as process:
        wait_until(partial(answers, port))
        yield process


@contextmanager
def running_site(port: int, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one process of the site."""
    command = [sys.executable, "-m", "uvicorn", "examples.redis.app:app", "--port", str(port), "--log-level", "error"]
    with stopped_at_the_end(command, environment) as process:
        yield process


@contextmanager
def stopped_at_the_end(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command without showing what it says."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    """Tell whether a Redis answers."""
    with suppress(OSError), socket.create_connection((HOST, port), timeout=BOUND_S) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(7) == b"+PONG\r\n"
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for another process.

    Raises:
        TimeoutError: It took too long.
    """
    end_s = time.monotonic() + BOUND_S
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError(f"nothing after {BOUND_S} s")
        time.sleep(0.05)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
