"""The workers of a soak: processes that share one listening socket, are killed at random, and are started again."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from .record import Sample

STOP_S = 20.0


class Crowd:
    """Workers on one socket of the loopback interface.

    Args:
        store: The address of the store that they share.
        count: How many work at a time; the first is never killed, so that a slow leak has the whole time to show.
        directory: For what they write.

    Attributes:
        port: Where they listen.
        kills: How many were killed.
    """

    def __init__(self, store: str, count: int, directory: Path) -> None:
        self.kills = 0
        self._store = store
        self._directory = directory
        self._count = count
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._running: list[subprocess.Popen[bytes]] = []
        self._started: list[tuple[str, int]] = []
        self._log = (directory / "log").open("wb")

    def __enter__(self) -> Self:
        self._running = [self._start(place) for place in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.kill()
            process.wait()
        self._listener.close()
        self._log.close()

    def kill_one(self, chance: random.Random) -> None:
        place = chance.randrange(1, self._count)
        self._running[place].send_signal(signal.SIGKILL)
        self._running[place].wait()
        self.kills += 1
        self._running[place] = self._start(place)

    def stop(self) -> list[str]:
        """Ask all workers to end; return a sentence for each that ended otherwise."""
        found = []
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for place, process in enumerate(self._running):
            try:
                code = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                found.append(f"end: worker {place} did not end within {STOP_S:g} s")
                continue
            if code not in (0, -signal.SIGTERM):
                found.append(f"end: worker {place} ended with code {code}")
        return found

    def died(self) -> list[str]:
        """Return a sentence for each worker that ended by itself."""
        return [
            f"end: worker {place} ended by itself with code {process.returncode}"
            for place, process in enumerate(self._running)
            if process.poll() is not None
        ]

    def lives(self) -> list[tuple[str, list[Sample]]]:
        """Return what each worker, killed ones included, said about itself."""
        return [(name, self._samples(pid)) for name, pid in self._started]

    def running(self) -> list[tuple[str, list[Sample]]]:
        """Return what each worker that runs said about itself."""
        pids = {process.pid for process in self._running}
        return [(name, self._samples(pid)) for name, pid in self._started if pid in pids]

    def errors(self) -> list[str]:
        """Return the ends of the tracebacks that workers wrote."""
        lines = (self._directory / "log").read_text("utf-8", "replace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
        ends = [next((line for line in lines[start + 1 :] if line and line[0] != " "), "?") for start in starts]
        return [f"error in a worker: {end}" for end in ends]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        number = self._listener.fileno()
        path = self._directory / f"{len(self._started)}.samples"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.worker", str(number), self._store, str(path)],
            pass_fds=[number],
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
        )
        self._started.append((f"worker {place}, life {len(self._started)}", process.pid))
        return process

    def _samples(self, pid: int) -> list[Sample]:
        life = next(number for number, (_, started) in enumerate(self._started) if started == pid)
        path = self._directory / f"{life}.samples"
        lines = path.read_text("ascii").split("\n")[:-1] if path.exists() else []
        return [Sample(*json.loads(line)) for line in lines]
