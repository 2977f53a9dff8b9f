"""Processes that fork, as pools of Celery and gunicorn do: each child gets answers, and the bound holds over all."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from slidegate import Limiter

from ..redis_servers import AT_REDIS, RedisServer, needs_redis
from . import prefork_worker
from .prefork_worker import AMOUNT, PATIENCE_S, hit_often, limiters

# CPython warns of every fork of a process with threads. That there are some is what these tests are about.
pytestmark = [pytest.mark.all, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

ROOT = Path(__file__).resolve().parents[2]
WORKERS = {"fork": 4, "spawn": 2}
CHILDREN = 10


def admitted(url: str, method: str) -> int:
    """Return how many hits are admitted to a parent and its children together."""
    limiter = limiters[url] = Limiter.from_url(url, deadline="60s")
    parent = sum(bool(limiter.sync.hit("everybody", f"{AMOUNT}/hour")) for _ in range(3))
    context = multiprocessing.get_context(method)
    workers = WORKERS[method]
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        children = list(pool.map(hit_often, [url] * workers, timeout=PATIENCE_S))
    assert not limiter.sync.hit("everybody", f"{AMOUNT}/hour"), "the parent goes on"
    limiters.pop(url).sync.close()
    return parent + sum(children)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_bound_holds_over_children_of_one_host(method: str, tmp_path: Path) -> None:
    assert admitted(f"lmdb://{tmp_path / 'limits'}", method) == AMOUNT


@needs_redis
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_bound_holds_over_children_on_a_server(method: str, server: RedisServer) -> None:
    server.command("FLUSHALL")
    assert admitted(server.url, method) == AMOUNT


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
def test_a_child_that_is_forked_while_other_threads_count_gets_an_answer(url: str) -> None:
    # A child may fail to open LMDB (docs/guides/without_asgi.md); it gets the answer of `on_error`, never a hang.
    command = [sys.executable, "-W", "ignore", "-m", prefork_worker.__name__, url, str(CHILDREN)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (0, str(CHILDREN)), ended.stderr
