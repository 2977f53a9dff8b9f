"""The demo: the sample log, the replay and its checks, the command line, and the site on a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.demo import __main__ as demo
from examples.demo.app import make_app
from examples.demo.replay import Answer, Report, replay
from slidegate import Limiter, MemoryStore
from slidegate.logs import AccessLogs
from slidegate.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "examples" / "demo" / "sample.log"
SCANNERS = {"203.0.113.200", "198.51.100.150"}
"""The scanners in the sample."""


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """The replay of the sample, in memory."""

    async def run() -> list[Answer]:
        clock = FakeClock()
        limiter = Limiter(MemoryStore(clock=clock))
        records = [record for record in AccessLogs([SAMPLE]) if record.method]
        return [answer async for answer in replay(make_app(limiter), limiter, clock, records)]

    return asyncio.run(run())


def test_a_port_in_use_gives_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    with demo.socket.create_server((demo.HOST, 0)) as taken:
        assert demo.main(["--port", str(taken.getsockname()[1])]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"demo: cannot listen on {demo.HOST}:")
    assert printed.out == "", "the port is looked at before the replay"


def test_a_log_that_cannot_be_read_gives_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--no-serve", "--log", str(tmp_path / "none.log")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("demo: ")
    assert said.count("\n") == 1
    assert "none.log" in said


def test_the_replay_ends_with_three_sentences_of_what_it_has_shown(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--no-serve"]) == 0
    banned, held, true = capsys.readouterr().out.splitlines()[-3:]
    assert banned.startswith("Banned: ")
    assert "203.0.113.200 for path " in banned
    assert "198.51.100.77 to 100/10s of api" in held
    report = Report()
    for answer in answers:
        report.add(answer)
    assert {client for client, outcomes in report.clients.items() if outcomes["banned"]} == SCANNERS
    checked = f"{report.retries_checked:,}"
    assert true == f"All {checked} Retry-After values were exact to the microsecond."


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run the demo on a log of one line, and end it within a minute."""
    line = '{} - - [03/Mar/2026:10:00:00 +0000] "GET {} HTTP/1.1" 200 1\n'
    lines = [line.format("192.0.2.7", "/"), *[line.format("203.0.113.77", "/.env")] * 4]
    (folder / "short.log").write_text("".join(lines))
    command = [sys.executable, "-m", "examples.demo", "--port", "0", "--log", str(folder / "short.log")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "COLUMNS": "200"}
    server = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **options)
    watchdog = threading.Timer(120, server.kill)
    watchdog.start()
    try:
        yield server
    finally:
        watchdog.cancel()
        server.kill()
        server.wait()


DASHBOARD = re.compile(r"The dashboard is at (\S+)#now\?window=1h, and shows the replay\.$")
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
def test_the_command_serves_the_site_and_its_curl_lines_are_refused_as_it_says(tmp_path: Path) -> None:
    with serving(tmp_path, stdout=subprocess.PIPE) as server:
        lines = (CURL.search(line) for line in server.stdout)
        address, token = (
            next(found[1] for line in server.stdout if (found := wanted.search(line))) for wanted in (DASHBOARD, TOKEN)
        )
        curls = list(itertools.islice((line for line in lines if line), 3))
        with httpx.Client(trust_env=False) as client:
            client.auth = ("anybody", token)
            assert client.get(address).status_code == 200
            seen = client.get(f"{address}api/now?window=5m").json()
            assert (seen["stats"]["total"]["passed"], seen["stats"]["total"]["banned"]) == (4, 1)
            assert {one["key"] for one in seen["clients"]} >= {"192.0.2.7", "203.0.113.77"}
            (ban,) = client.get(f"{address}api/bans").json()["bans"]
            assert ban["target"] == "203.0.113.77"
            assert time.time() - 120 < ban["since_at"] <= time.time()
            client.auth = None
            limited, blocked, banned = (sent(client, curl) for curl in curls)
        server.send_signal(signal.SIGINT)
        rest = server.stdout.read()
        assert server.wait() == 0
        server.stdout.close()
    assert rest.endswith("12 admitted, 1 refused, 1 blocked, 2 banned\nStopped.\n")
    assert [answer.status_code for answer in limited] == [401] * 5 + [429]
    assert 1 <= int(limited[-1].headers["Retry-After"]) <= 60
    assert limited[-1].json()["violated-policies"] == ["login-60"]
    assert [answer.status_code for answer in blocked] == [403]
    assert "Retry-After" not in blocked[0].headers
    assert [answer.status_code for answer in banned] == [404] * 3 + [403]
    assert 3_590 <= int(banned[-1].headers["Retry-After"]) <= 3_960
