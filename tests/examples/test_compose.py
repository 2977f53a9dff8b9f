"""The containers of the example: their files fit together, and their application counts for both of its workers."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from tests.redis_servers import RedisServer, free_port, needs_redis, until
from tests.workers import ask

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
                until(lambda: ask(f"{url}/metrics/"), "the application starts")
                with ThreadPoolExecutor(8) as pool:
                    answers = [*pool.map(ask, [url] * 150)]
                scraped = ask(f"{url}/metrics/")
            finally:
                process.send_signal(signal.SIGTERM)
    statuses = Counter(answer.status_code for answer in answers if answer is not None)
    assert scraped is not None
    assert statuses == {200: 100, 429: 50}
    assert len({path.stem.rpartition("_")[2] for path in tmp_path.glob("counter_*.db")}) == 2
    counted = re.findall(r'^slidegate_rule_requests_total\{.*rule="visitors".*\} (\S+)$', scraped.text, re.MULTILINE)
    assert sorted(map(float, counted)) == [50, 100]
