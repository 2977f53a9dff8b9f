"""Never more requests are under way than there are places, whatever becomes of them, and all places come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import Concurrency, LimitSet, StoreUnavailable
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello
from ..redis_servers import VALKEY, RedisCluster, RedisServer, needs_redis, needs_valkey
from ..remote_stores import RemoteStore
from ..virtual_time import VirtualTime
from .permits_traffic import AMOUNTS, play

BOUND_S = 60


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(100, 250))])
async def test_the_bound_holds_over_all_ends_of_requests(seed: int) -> None:
    store = MemoryStore()
    app = await play(Limiter(store), seed, visits=250)
    assert store.permits_held() == 0, f"seed {seed}: everything has ended"
    assert {rule for (rule, _), most in app.most.items() if most == AMOUNTS[rule]} == set(AMOUNTS), "all were full once"
    assert {"200", "websocket.accept", "CancelledError", "Broken"} <= set(app.outcomes)


@pytest.fixture(
    params=[
        "lmdb",
        pytest.param("redis", marks=needs_redis),
        pytest.param("cluster", marks=needs_redis),
        pytest.param("valkey", marks=[needs_valkey, pytest.mark.deep]),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "lmdb":
        yield f"lmdb://{tmp_path / 'lmdb'}"
    elif request.param == "cluster":
        with RedisCluster() as cluster:
            yield cluster.url
    else:
        with RedisServer(program=VALKEY if request.param == "valkey" else None) as server:
            yield server.url


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(2, 12))])
async def test_the_bound_holds_over_all_ends_of_requests_on_a_shared_store(url: str, seed: int) -> None:
    async with Limiter.from_url(url, deadline=30, on_error="deny") as limiter:
        app = await play(limiter, seed, visits=150)
        async with asyncio.timeout(BOUND_S):
            while limiter.store.permits_held():  # noqa: ASYNC110 - hand-backs that are under way end by themselves
                await asyncio.sleep(0.01)
    assert {rule for (rule, _), most in app.most.items() if most == AMOUNTS[rule]}, f"seed {seed}: nothing was full"


class Failing(RemoteStore):
    """A shared store that does not answer while `away`."""

    away = False

    async def answer(self, question: Any, *arguments: Any) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        return question(*arguments)


async def test_during_a_failure_the_bound_is_per_process_and_afterwards_both_counts_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, clock = Failing(FakeClock()), FakeClock()
    monkeypatch.setattr("slidegate.limiter.failover.monotonic_ns", lambda: clock() * 1_000)
    limiter = Limiter(store, deadline="20s")
    inside, ends = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
    come = iter(zip(inside, ends, strict=True))

    async def work(scope: Any, receive: Any, send: Any) -> None:
        begun, end = next(come)
        begun.set()
        await end.wait()
        await hello(scope, receive, send)

    middleware = RateLimitMiddleware(work, limiter=limiter, rules=[Rule("*", concurrency=1)])
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        before = tasks.create_task(call(middleware))
        await inside[0].wait()
        assert (await call(middleware)).status == 429
        store.away = True
        during = tasks.create_task(call(middleware))
        await inside[1].wait()
        assert (await call(middleware)).status == 429, "the process itself keeps the bound"
        store.away = False
        clock.advance("1h")
        ends[0].set()
        assert (await before).status == 200
        assert store.permits_held() == 0
        assert (await call(middleware)).status == 429, "the one that began during the failure is still under way"
        assert store.permits_held() == 0, "what the shared store gave for it went back"
        ends[1].set()
        assert (await during).status == 200
    come = iter([(asyncio.Event(), ends[1])])
    assert (await call(middleware)).status == 200
    assert store.permits_held() == 0


@pytest.mark.parametrize("on_error", ["allow", "deny"])
async def test_without_a_store_nothing_is_held(on_error: Any) -> None:
    store = Failing(FakeClock())
    middleware = RateLimitMiddleware(
        hello,
        limiter=Limiter(store, deadline="20s", on_error=on_error),
        rules=[Rule("*", concurrency=1, wait="1s")],
    )
    store.away = True
    assert [(await call(middleware)).status for _ in range(2)] == [200 if on_error == "allow" else 503] * 2
    store.away = False
    assert store.permits_held() == 0


def test_permits_come_back_under_trio_too() -> None:
    trio = pytest.importorskip("trio")
    store = MemoryStore()
    middleware = RateLimitMiddleware(
        hello_after_a_turn, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="20s")]
    )
    seen: list[int] = []

    async def come() -> None:
        seen.append((await call(middleware)).status)

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(come)
            with trio.move_on_after(0):
                await call(middleware)

    trio.run(main)
    assert (seen, store.permits_held()) == ([200] * 5, 0)


async def hello_after_a_turn(scope: Any, receive: Any, send: Any) -> None:
    """Answer after others had their turn."""
    await anyio.lowlevel.checkpoint()
    await hello(scope, receive, send)


async def test_a_place_that_comes_back_elsewhere_is_found_by_asking_again() -> None:
    virtual, store = VirtualTime(), MemoryStore(clock=FakeClock())
    middleware = RateLimitMiddleware(
        hello, limiter=Limiter(store), rules=[Rule("*", concurrency=1, wait="20s", name="one")]
    )
    held = store.hit([(LimitSet("one", (Concurrency(1),)), PEER, 1)])
    waiting = asyncio.create_task(call(middleware))
    await asyncio.sleep(5.05)
    assert not waiting.done()
    store.refund(held.take_back())  # by another process, which calls nobody here
    assert (await waiting).status == 200
    assert virtual.passed_s == pytest.approx(5.2, abs=0.01)
    assert store.permits_held() == 0
