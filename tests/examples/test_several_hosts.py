"""The example prints what its README shows; containers trust only the front."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.several_hosts import __main__ as command
from examples.several_hosts import app as site
from examples.several_hosts import deployment
from tests.redis_servers import HOST, free_port, needs_redis

pytestmark = pytest.mark.all

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240
"""The timeout of the example, for a busy machine."""
SETTINGS = {
    "HOST_NAME": "host_a",
    "REDIS_URL": "redis://redis.invalid",
    "SITE_SECRET": "0123456789abcdef",
    "ADMIN_TOKEN": "0123456789abcdef",
    "TRUSTED_PROXIES": "172.30.0.10",
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long deadline, because a busy machine may answer late."""
    monkeypatch.setenv("REDIS_DEADLINE", "30s")


@contextmanager
def started() -> Iterator[subprocess.Popen[str]]:
    """Run the example; kill it if it takes too long."""
    # Without coverage: an interrupted process may hang in it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-u", "-m", "examples.several_hosts", "--port", "0"]
    environment["PYTHONPATH"] = str(ROOT / "src")
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def printed(process: subprocess.Popen[str], until: str) -> str:
    """Return the output of the example up to the line with the given prefix."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith(until):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return "".join(lines)


def shown() -> str:
    """Return the output of the scenario as shown in the README of the example."""
    text = (ROOT / "examples" / "several_hosts" / "README.md").read_text("utf-8")
    (visit,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(visit).strip()


@needs_redis
def test_the_command_plays_the_visit_of_the_readme_and_serves_the_site(patient: None) -> None:
    with started() as example, httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        assert printed(example, command.END).strip() == f"{shown()}\n\n{command.END}"
        hints = printed(example, "  Operators")
        (url,) = re.findall(r"Serving at (\S+) until", hints)
        assert {client.get(url).json()["host"] for _ in range(2)} == {*deployment.HOSTS}
        found = re.search(r"Redis is process (\d+).*with the token (\S+)", hints, re.DOTALL)
        assert found
        ban = {"target": "198.51.100.9", "duration": "1h", "reason": "noise"}
        assert client.post(f"{url}/admin/bans", json=ban, headers={"Authorization": f"Bearer {found[2]}"}).is_success
        # A process that the example has started.
        os.kill(int(found[1]), signal.SIGKILL)
        assert [client.get(url).status_code for _ in range(4)] == [200] * 4
        example.send_signal(signal.SIGINT)
        rest = printed(example, "Stopped.").splitlines()
        assert example.wait() == 0
    assert [line for line in rest if re.fullmatch(r"  host_[ab]: banned: .*198\.51\.100\.9.*", line)]


async def test_a_host_starts_and_serves_while_redis_is_away() -> None:
    app = site.make_app({**SETTINGS, "REDIS_URL": f"redis://{HOST}:{free_port()}"})
    async with app.router.lifespan_context(app):
        statuses = [(await asked(app, "172.30.0.10", "203.0.113.7")).status_code for _ in range(site.AMOUNT + 1)]
        async with asyncio.timeout(PATIENCE_S):
            health: dict[str, str] = {}
            while health != {"host": "host_a", "counts": "in this process"}:  # observers are called in another thread
                health = (await asked(app, "172.30.0.10", "203.0.113.7", "/health")).json()
    assert statuses == [200] * site.AMOUNT + [429]


async def asked(app: Any, peer: str, forwarded: str, path: str = "/") -> httpx.Response:
    transport = httpx.ASGITransport(app=app, client=(peer, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://site.test") as client:
        return await client.get(path, headers={"X-Forwarded-For": forwarded})


@pytest.mark.parametrize(
    ("peer", "forwarded"),
    [
        ("172.30.0.10", "198.51.100.{}, 203.0.113.7"),
        ("172.30.0.10", "172.30.0.10, 198.51.100.{}, 203.0.113.7"),
        ("203.0.113.7", "198.51.100.{}"),
        ("172.30.0.11", "198.51.100.{}"),
    ],
    ids=["through the front", "with the front's address", "past the front", "from another container"],
)
async def test_whoever_says_that_they_are_somebody_else_is_not_believed(peer: str, forwarded: str) -> None:
    app = site.make_app({**SETTINGS, "REDIS_URL": "memory://"})
    statuses = [(await asked(app, peer, forwarded.format(number))).status_code for number in range(site.AMOUNT + 1)]
    assert statuses[-1] == 429
