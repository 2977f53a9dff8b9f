"""What works where names and modules of POSIX are missing, as on Windows; here they are hidden from a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .redis_servers import AT_REDIS, REDIS
from .workers import TESTED

ROOT = Path(__file__).resolve().parents[1]

# Other libraries are imported first: each has its own ways on Windows, which are not tried here.
PROGRAM = """
import asyncio, multiprocessing, os, signal, sys, time
import click._termui_impl, fastapi, httpx, pydantic, redis.asyncio, starlette.testclient, uvicorn

for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None
for owner, names in {
    asyncio: "open_unix_connection start_unix_server",
    os: "fork forkpty register_at_fork getuid geteuid getgid getegid sched_getaffinity uname posix_fallocate fchmod "
    "chown fchown mkfifo O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_NOCTTY",
    signal: "pthread_sigmask SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGKILL setitimer alarm",
    time: "clock_gettime clock_gettime_ns CLOCK_BOOTTIME CLOCK_MONOTONIC",
}.items():
    for name in names.split():
        delattr(owner, name)

from slidegate import BanPolicy, Limiter, RateLimit, RateLimitMiddleware, Rule
from slidegate.dashboard import Dashboard
from slidegate.ops.cli import run as command

limiter = Limiter.from_url(sys.argv[1], deadline="30s")
app = fastapi.FastAPI()
app.add_middleware(
    RateLimitMiddleware, limiter=limiter, rules=[Rule("/a", "2/hour")], bans=BanPolicy(signals={"/.env": "ban"})
)
app.mount("/middleware", Dashboard(limiter, token="a-token-of-this-test-alone"))
app.get("/a")(lambda: None)
app.get("/b", dependencies=[fastapi.Depends(RateLimit("1/hour"))])(lambda: None)
with starlette.testclient.TestClient(app, "http://localhost", client=("203.0.113.9", 1)) as client:
    paths = ("/a", "/a", "/a", "/b", "/b", "/middleware/", "/.env", "/b")
    print(*(client.get(path, auth=("me", "a-token-of-this-test-alone")).status_code for path in paths))
print(*(limiter.sync.hit("user:1", "1/hour").allowed for _ in range(2)))
limiter.sync.close()
print(*(command(words.split()) for words in sys.argv[2:]), file=sys.stderr)
"""
LOG = "examples/demo/sample.log"


@pytest.mark.parametrize("kind", [AT_REDIS if REDIS else "memory"])
def test_middleware_dashboard_and_command_line_work_and_lmdb_says_what_it_needs(url: str) -> None:
    commands = (
        f"bans list --store {url}",
        "check examples/slidegate.toml",
        f"simulate {LOG} --limit 60/minute",
        f"suggest {LOG}",
        "bans list --store lmdb:///var/lib/app",
    )
    ours = {**os.environ, "PYTHONPATH": str(TESTED)}
    command = [sys.executable, "-c", PROGRAM, url, *commands]
    ended = subprocess.run(command, cwd=ROOT, env=ours, capture_output=True, text=True, timeout=120)
    out, errors = ended.stdout.splitlines(), ended.stderr.splitlines()
    assert out[:2] == ["200 200 429 200 429 200 403 403", "True False"], ended.stderr
    assert errors[-1] == f"{'2' if url == 'memory://' else '0'} 0 0 0 2", errors
    assert errors[-2].startswith("Error: store address: LmdbStore needs POSIX")
    assert url == "memory://" or any("203.0.113.9" in line for line in out)
    assert len(out) > 4
