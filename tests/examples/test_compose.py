"""The containers of the example: their files fit together, and their application counts for both of its workers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml

from tests.redis_servers import BOUND_S, RedisServer, free_port, needs_redis, until

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


@contextmanager
def served(redis: str, metrics: Path) -> Iterator[str]:
    """Run the command of the image on a free port, and stop it like Docker; yield the address."""
    (command,) = re.findall(r"^CMD (\[.+\])$", (HERE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    port = str(free_port())
    words = [{"8000": port, "0.0.0.0": "127.0.0.1"}.get(word, word) for word in json.loads(command)]
    # A long deadline, because a busy machine may answer late.
    settings = {"REDIS_URL": redis, "REDIS_DEADLINE": "30s", "PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    environment = {**os.environ, **settings}
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=HERE, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(url), "the application starts")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=BOUND_S)


def answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/metrics/", timeout=BOUND_S, trust_env=False).status_code == 200
    return False


@pytest.mark.all
@needs_redis
def test_two_workers_share_counts_and_metrics(tmp_path: Path) -> None:
    with RedisServer() as redis, served(redis.url, tmp_path) as url:

        def status(number: int) -> int:  # each over a connection of its own, so that both workers get some
            return httpx.get(url, timeout=BOUND_S, trust_env=False).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = Counter(pool.map(status, range(150)))
        scraped = httpx.get(f"{url}/metrics/", timeout=BOUND_S, trust_env=False).text
    assert statuses == {200: 100, 429: 50}
    assert len({path.stem.rpartition("_")[2] for path in tmp_path.glob("counter_*.db")}) == 2
    counted = re.findall(r'^slidegate_rule_requests_total\{.*rule="visitors".*\} (\S+)$', scraped, re.MULTILINE)
    assert sorted(map(float, counted)) == [50, 100]
