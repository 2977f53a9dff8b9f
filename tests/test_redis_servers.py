"""The servers that tests start are found, say why they do not start, die with a test run, and agree in a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .redis_servers import RedisServer, needs_redis, until


@needs_redis
def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no-such-option"), RedisServer("--no-such-option", "1"):
        pass


@needs_redis
def test_a_server_dies_with_a_test_run_that_is_killed() -> None:
    script = "import sys; from tests.redis_servers import *; s = RedisServer(); s.start(); print(s.pid, s.directory); "
    command = [sys.executable, "-c", script + "sys.stdout.flush(); sys.stdin.read()"]
    root = Path(__file__).resolve().parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, directory = run.stdout.readline().split()
        assert Path(f"{directory}/s").exists()
        run.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(int(pid)), "the server dies")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody collects orphans, what is dead still has a number.
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.startswith("Z")
