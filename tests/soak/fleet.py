"""The workers of a soak: a supervisor of uvicorn starts them, and starts another where one is killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from .checks import Sample

STOP_S: Final = 20.0
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
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            found.append(f"end: workers did not end within {STOP_S:g} s")
        errors = FAILURE.finditer(self._log.read_text("utf-8", "replace"))
        return [*found, *(f"error in a worker: {error[1] or error[0]}" for error in errors)]
