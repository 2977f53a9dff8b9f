"""Processes that fork, as pools of Celery and gunicorn do: each child gets answers, and the bound holds over all."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from slidegate import Limiter

from ...redis_servers import RedisServer, needs_redis
from .prefork_worker import AMOUNT, hit_often, limiters

# CPython warns of every fork of a process with threads. That there are some is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

WORKERS = {"fork": 4, "spawn": 2}
PATIENCE_S = 60.0


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


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize(("method", "options"), [("fork", ""), ("spawn", ""), ("fork", "?durability=safe")])
def test_the_bound_holds_over_children_of_one_host(method: str, options: str, tmp_path: Path) -> None:
    assert admitted(f"lmdb://{tmp_path / 'limits'}{options}", method) == AMOUNT


@needs_redis
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_bound_holds_over_children_on_a_server(method: str, server: RedisServer) -> None:
    server.command("FLUSHALL")
    assert admitted(server.url, method) == AMOUNT


def answer(limiter: Limiter) -> None:
    assert limiter.sync.hit("user:2", "1000/hour"), "the store of a child does not answer"


def forked_answer(limiter: Limiter) -> bool:
    """Return whether a child that is forked now gets an answer."""
    process = multiprocessing.get_context("fork").Process(target=answer, args=(limiter,))
    process.start()
    process.join(PATIENCE_S)
    alive = process.is_alive()
    if alive:
        process.kill()
        process.join()
    return not alive and process.exitcode == 0


@pytest.fixture(params=["memory", "lmdb", pytest.param("redis", marks=needs_redis)])
def url(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> str:
    return {"memory": "memory://", "lmdb": f"lmdb://{tmp_path / 'limits'}", "redis": server.url}[request.param]


def test_a_child_that_is_forked_while_other_threads_count_gets_an_answer(url: str) -> None:
    # Few children cannot open LMDB, as docs/without_asgi.md says. They get the answer of `on_error`, and none hangs.
    limiter = Limiter.from_url(url, deadline="60s", on_error="allow")
    ended = threading.Event()

    def count() -> None:
        while not ended.is_set():
            limiter.sync.hit("user:1", "1000000/hour", 3)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert all(forked_answer(limiter) for _ in range(10))
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        limiter.sync.close()
