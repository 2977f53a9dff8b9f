"""The demo, the store and the application in containers."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from examples.demo import __main__ as demo
from examples.demo import replay
from examples.demo.app import make_app
from slidegate import Limiter, MemoryStore
from slidegate.ops.statistics import Statistics
from tests.redis_servers import RedisServer, free_port, needs_redis, until
from tests.workers import TESTED, ask

ROOT = Path(__file__).resolve().parents[2]


async def test_the_sample_has_clients_with_each_outcome_and_every_wait_is_exact() -> None:
    clock = replay.LogClock()
    limiter = Limiter(MemoryStore(clock=clock))
    result = await replay.replay(make_app(limiter), limiter, clock, replay.read(demo.SAMPLE))
    scanners = {"203.0.113.200", "198.51.100.150"}
    assert {client for client, outcomes in result.clients.items() if outcomes["banned"]} == scanners
    assert {rule for rule, _ in result.limited} == {"api", "export", "login_network"}
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
    environment = {**os.environ, "PYTHONPATH": str(TESTED), "NO_COLOR": "1", "COLUMNS": "200"}
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
            seen = client.get(f"{api}/statistics?window=6h").json()["total"]
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


# -- the containers: their files fit together, and their application counts for both of its workers --------------------


HERE = Path(__file__).resolve().parents[2] / "examples" / "compose"
SERVICES = yaml.safe_load((HERE / "compose.yaml").read_text("utf-8"))["services"]


def test_the_files_of_the_containers_fit_together() -> None:
    build = SERVICES["app"]["build"]
    assert (HERE / build["context"] / build["dockerfile"]).is_file()
    mounted = [volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    assert [path for path in mounted if not (HERE / path).is_file()] == []
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    (job,) = yaml.safe_load((HERE / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["app:8000"]}]


@pytest.mark.all
@needs_redis
def test_two_workers_share_counts_and_metrics(tmp_path: Path) -> None:
    (command,) = re.findall(r"^CMD (\[.+\])$", (HERE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    url = f"http://127.0.0.1:{(port := free_port())}"
    words = [{"8000": str(port), "0.0.0.0": "127.0.0.1"}.get(word, word) for word in json.loads(command)]
    with RedisServer() as redis:
        # A long deadline, because a busy machine may answer late.
        settings = {"REDIS_URL": redis.url, "REDIS_DEADLINE": "30s", "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        with subprocess.Popen([sys.executable, "-m", *words], cwd=HERE, env={**os.environ, **settings}) as process:
            try:
                until(lambda: ask(f"{url}/metrics"), "the application starts")
                with ThreadPoolExecutor(8) as pool:
                    answers = [*pool.map(ask, [url] * 150)]
                scraped = ask(f"{url}/metrics")
            finally:
                process.send_signal(signal.SIGTERM)
    statuses = Counter(answer.status_code for answer in answers if answer is not None)
    assert scraped is not None
    assert statuses == {200: 100, 429: 50}
    assert len({path.stem.rpartition("_")[2] for path in tmp_path.glob("counter_*.db")}) == 2
    counted = re.findall(r'^slidegate_rule_requests_total\{.*rule="visitors".*\} (\S+)$', scraped.text, re.MULTILINE)
    assert sorted(map(float, counted)) == [50, 100]
