"""The two sides of a soak: workers that a supervisor of uvicorn starts and replaces, and their clients."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from .checks import Answer, Sample

PATIENCE_S: Final = 90.0
"""A supervisor asks a worker whether it is well, and waits a minute for one that is killed just then: it starts none
meanwhile, nor does it end."""
ROOT: Final = Path(__file__).parents[2]
FAILURE: Final = re.compile(r"^Traceback.*?\n(\S.*?)$|^Fatal Python error.*?$", re.MULTILINE | re.DOTALL)


class Fleet:
    """Workers on one socket of the loopback interface.

    Args:
        store: The address of the store that they share.
        count: How many work at a time; the first is never killed, so that a slow leak has the whole time to show.
        directory: For what they write.
    """

    def __init__(self, store: str, count: int, directory: Path) -> None:
        self.count, self._killed = count, set[int]()
        self._log, self._samples = directory / "log", directory / "samples"
        self._samples.touch()
        command = [sys.executable, "-m", "tests.soak.worker", store, str(count)]
        environment = {**os.environ, "SAMPLES": str(self._samples), "PYTHONFAULTHANDLER": "1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:
            self._process.kill()  # workers see that they are orphans

    @property
    def lives(self) -> dict[int, list[Sample]]:
        """What each worker has said about itself, by its process, in the order in which they began."""
        lives = defaultdict[int, list[Sample]](list)
        for line in self._samples.read_text("ascii").splitlines():
            pid, *about = json.loads(line)
            lives[pid].append(Sample(*about))
        return lives

    @property
    def running(self) -> dict[int, list[Sample]]:
        return {pid: samples for pid, samples in self.lives.items() if pid not in self._killed}

    def kill_one(self, chance: random.Random) -> None:
        if others := [*self.running][1:]:  # else another is just beginning
            self._killed.add(pid := chance.choice(others))
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> list[str]:
        """Ask all workers to end; return a sentence for each that ended otherwise or before, and for each error."""
        ended = len(self.running) - self.count
        found = [f"end: {ended} workers ended by themselves"] if ended > 0 else []
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            found.append(f"end: workers did not end within {PATIENCE_S:g} s")
        errors = FAILURE.finditer(self._log.read_text("utf-8", "replace"))
        return [*found, *(f"error in a worker: {error[1] or error[0]}" for error in errors)]


# -- clients: raw HTTP over kept connections, some of them greedy, some of them gone before the end --------------------


HANGS_S = 15.0
"""Nobody waits that long: the deadline is 250 ms, a wait for room a second, and a paused server two."""
MOST_ANSWERS = 1_000_000
PATHS = ("/counts", "/counts", "/exact", "/stream", "/maybe?status=200", "/maybe?status=404", "/wait")


class Visitors:
    """Sends requests to a port from many clients until it is told to stop."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.answers: list[Answer] = []
        self.cut = 0
        self.hung = 0
        self._port = port
        self._chance = chance
        self.stopped = False

    async def send(self, clients: int, greedy: int) -> None:
        """Send requests until `stopped`, when every client ends after its request; the greedy ones hardly pause."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                pause_s = 0.004 if number < greedy else 0.06
                group.create_task(self._visit(number, pause_s))

    async def _visit(self, number: int, pause_s: float) -> None:
        # Two tasks for each client, so that its requests also come side by side.
        client = f"198.51.100.{number // 2 + 1}" if number % 4 < 2 else f"2001:db8:0:{number // 2 + 1:x}::1"
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self.stopped and len(self.answers) < MOST_ANSWERS:
            leaves = self._chance.random() < 0.05
            path = "/counts" if pause_s < 0.01 and self._chance.random() < 0.8 else self._chance.choice(PATHS)
            try:
                async with asyncio.timeout(HANGS_S):
                    connection = connection or await asyncio.open_connection("127.0.0.1", self._port)
                    keeps = await self._ask(*connection, client, path, leaves)
            except TimeoutError:
                self.hung += 1
                keeps = False
            except (OSError, EOFError):
                self.cut += 1
                keeps = False
            if connection is not None and not keeps:
                connection[1].close()
                connection = None
            await asyncio.sleep(self._chance.expovariate(1 / pause_s))
        if connection is not None:
            connection[1].close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str, path: str, leaves: bool
    ) -> bool:
        """Send one request and record its answer; return whether the connection can be used again."""
        sent_s = time.monotonic()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: soak\r\nX-Forwarded-For: {client}\r\n\r\n".encode())
        if leaves and path != "/stream":
            self.cut += 1
            return False  # before the answer
        head = await reader.readuntil(b"\r\n\r\n")
        received_s = time.monotonic()
        status = int(head[9:12])
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        body = b""
        if not leaves:  # else it leaves in the middle of a stream
            length = fields.get(b"content-length")
            body = await (reader.readexactly(int(length)) if length else reader.readuntil(b"0\r\n\r\n"))
        banned = b"abnormal-usage-detected" in body
        retry_after_s = int(fields.get(b"retry-after", 0))
        path = path.partition("?")[0]
        self.answers.append(Answer(client, path, status, sent_s, received_s, banned, retry_after_s))
        return not leaves and fields.get(b"connection") != b"close"
