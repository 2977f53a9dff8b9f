"""The Redis example does what it says: two processes, one limit, and nothing fails when Redis is killed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import httpx
import pytest

from examples.redis import __main__ as command
from examples.redis import app as site
from examples.redis import walk
from tests.redis_servers import HOST, REDIS, free_port, needs_redis


@needs_redis
def test_two_processes_share_a_limit_through_a_kill_and_a_recovery(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--program", str(REDIS)]) == 0
    rows = re.findall(r"│\s+(\d+) │\s+(\d+) │\s+(\d+) │\s+\d+ ms", capsys.readouterr().out)
    assert [tuple(map(int, row)) for row in rows] == [(10, 10, 0), (20, 10, 0), (0, 10, 0), (10, 10, 0)]


async def test_a_process_starts_and_serves_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://{HOST}:{free_port()}")
    importlib.reload(site)
    transport = httpx.ASGITransport(app=site.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app.test") as client, site.limiter:
        statuses = [(await client.get("/", headers={"X-API-Key": "ann"})).status_code for _ in range(site.AMOUNT + 1)]
        assert statuses == [200] * site.AMOUNT + [429]
        assert (await client.get("/health")).json() == {"counts": "in this process"}


def test_a_missing_redis_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert walk.find_redis() is None
    assert command.main([]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "redis: there is no redis-server; install one, or name a program with --program"
    ]
