"""The workers of a soak: processes that share one listening socket, are killed at random, and are started again."""

import json
import random
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .record import Sample

STOP_S = 20.0


@dataclass
class Worker:
    """One life of a worker, and the file to which it writes about itself."""

    name: str
    process: subprocess.Popen[bytes]
    path: Path

    @property
    def samples(self) -> list[Sample]:
        lines = self.path.read_text("ascii").split("\n")[:-1] if self.path.exists() else []
        return [Sample(*json.loads(line)) for line in lines]


class Crowd:
    """Workers on one socket of the loopback interface.

    Args:
        store: The address of the store that they share.
        count: How many work at a time; the first is never killed, so that a slow leak has the whole time to show.
        directory: For what they write.
    """

    def __init__(self, store: str, count: int, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._log = (directory / "log").open("wb")
        self.port: int = self._listener.getsockname()[1]
        self.lives: list[Worker] = []
        self.running = [self._start(place) for place in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.running:
            worker.process.kill()
            worker.process.wait()
        self._listener.close()
        self._log.close()

    def kill_one(self, chance: random.Random) -> None:
        place = chance.randrange(1, len(self.running))
        self.running[place].process.kill()
        self.running[place].process.wait()
        self.running[place] = self._start(place)

    def stop(self) -> list[str]:
        """Ask all workers to end; return a sentence for each that ended otherwise or before."""
        dead = [worker for worker in self.running if worker.process.poll() is not None]
        found = [f"end: {one.name} ended by itself with code {one.process.returncode}" for one in dead]
        for worker in self.running:
            worker.process.terminate()
        for worker in self.running:
            try:
                code = worker.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                found.append(f"end: {worker.name} did not end within {STOP_S:g} s")
                continue
            if worker not in dead and code not in (0, -15):
                found.append(f"end: {worker.name} ended with code {code}")
        return found

    def errors(self) -> list[str]:
        """Return the ends of the tracebacks that workers wrote."""
        lines = (self._directory / "log").read_text("utf-8", "replace").splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
        ends = [next((line for line in lines[start + 1 :] if line and line[0] != " "), "?") for start in starts]
        return [f"error in a worker: {end}" for end in ends]

    def _start(self, place: int) -> Worker:
        number, life = self._listener.fileno(), len(self.lives)
        path = self._directory / f"{life}.samples"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.worker", str(number), self._store, str(path)],
            pass_fds=[number],
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
        )
        self.lives.append(Worker(f"worker {place}, life {life + 1}", process, path))
        return self.lives[-1]
