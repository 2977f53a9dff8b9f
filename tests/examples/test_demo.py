"""The demo: the sample log and its replay, and the site on a real server."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.demo import __main__ as demo
from examples.demo import replay
from examples.demo.app import make_app
from slidegate import Limiter, MemoryStore
from slidegate.ops.statistics import Statistics

ROOT = Path(__file__).resolve().parents[2]
SCANNERS = {"203.0.113.200", "198.51.100.150"}
"""The scanners in the sample."""


async def test_the_sample_has_clients_with_each_outcome_and_every_wait_is_exact() -> None:
    clock = replay.LogClock()
    limiter = Limiter(MemoryStore(clock=clock))
    result = await replay.replay(make_app(limiter), limiter, clock, replay.read(demo.SAMPLE))
    assert {client for client, outcomes in result.clients.items() if outcomes["banned"]} == SCANNERS
    assert {rule for rule, _ in result.limited} == {"api", "export", "login-network"}
    assert sum(outcomes["blocked"] for outcomes in result.clients.values()) == 30
    limited = sum(outcomes["limited"] for outcomes in result.clients.values())
    assert (result.exact, result.wrong) == (limited, [])
    stats = await Statistics.of(limiter).read("3h")
    assert stats.total.passed == sum(outcomes["admitted"] for outcomes in result.clients.values())
    assert sum(step.passed > 0 for step in stats.steps) >= 24, "the two hours of the log in steps of five minutes"


DASHBOARD = re.compile(r"The dashboard is at (\S+), and shows the replay\.$")
TOKEN = re.compile(r"and this password: (\S+)$")
CURL = re.compile(
    r'curl -i(?: -X (POST)|H "X-Forwarded-For: (\S+)") "?(http://127\.0\.0\.1:\d+/[^"\[\s]*)(?:\[1-(\d)\])?'
)


def sent(client: httpx.Client, found: re.Match[str]) -> list[httpx.Response]:
    """Send the request of a printed curl command."""
    method, forwarded, url, times = found.groups()
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    return [
        client.request(method or "GET", f"{url}{number if times else ''}", headers=headers)
        for number in range(1, int(times or 1) + 1)
    ]


@pytest.mark.all
def test_the_printed_curl_lines_are_refused_as_printed(tmp_path: Path) -> None:
    line = '{} - - [03/Mar/2026:10:00:00 +0000] "GET {} HTTP/1.1" 200 1\n'
    log = tmp_path / "short.log"
    log.write_text("".join([line.format("192.0.2.7", "/"), *[line.format("203.0.113.77", "/.env")] * 4]))
    command = [sys.executable, "-m", "examples.demo", "--port", "0", "--log", str(log)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "COLUMNS": "200"}
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **options) as server, ExitStack() as stack:
        stack.callback(server.kill)
        lines = (CURL.search(line) for line in server.stdout)
        address, token = (
            next(found[1] for line in server.stdout if (found := wanted.search(line))) for wanted in (DASHBOARD, TOKEN)
        )
        curls = list(itertools.islice((line for line in lines if line), 3))
        with httpx.Client(trust_env=False) as client:
            client.auth = ("anybody", token)
            assert client.get(address).status_code == 200
            api = f"{address.partition('?')[0]}api"
            seen = client.get(f"{api}/statistics?window=3h").json()["total"]
            assert (seen["passed"], seen["banned"]) == (4, 1)
            (ban,) = client.get(f"{api}/bans").json()["bans"]
            assert ban["key"] == "203.0.113.77"
            assert time.time() - 120 < ban["since_at"] <= time.time()
            client.auth = None
            limited, blocked, banned = (sent(client, curl) for curl in curls)
        server.send_signal(signal.SIGINT)
        rest = server.stdout.read()
        assert server.wait() == 0
    assert rest.endswith("Stopped.\n")
    assert [answer.status_code for answer in limited] == [401] * 5 + [429]
    assert 1 <= int(limited[-1].headers["Retry-After"]) <= 60
    assert limited[-1].json()["violated-policies"] == ["login_60"]
    assert [answer.status_code for answer in blocked] == [403]
    assert "Retry-After" not in blocked[0].headers
    assert [answer.status_code for answer in banned] == [404] * 3 + [403]
    assert 3_590 <= int(banned[-1].headers["Retry-After"]) <= 3_960
