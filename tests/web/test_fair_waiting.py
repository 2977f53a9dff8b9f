"""Permits that are shared fairly go to the tenant that holds the fewest, and a full queue makes room for others."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from slidegate import Limiter, MemoryStore, RateLimitMiddleware, Rule, everyone, header
from slidegate.core import Bucket, Concurrency
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore

from ..asgi import Answer, call
from ..questions import hit_all
from ..redis_servers import RedisServer
from ..remote_stores import RemoteStore

TENANT = header("X-Tenant")


class Model:
    """An application whose requests stay under way until they are told to end."""

    def __init__(
        self,
        permits: int,
        *,
        limiter: Limiter | None = None,
        **options: Any,
    ) -> None:
        options = {"key": everyone, "wait": "30s", "fair": TENANT} | options
        self.limiter = limiter or Limiter()
        self.inside: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[Answer]] = []
        rules = [Rule("/", concurrency=permits, **options)]
        app: Any = Starlette(routes=[Route("/", self.page)])
        self.app = RateLimitMiddleware(app, rules=rules, limiter=self.limiter)

    async def page(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(await self.answer(request))

    async def answer(self, request: Request) -> str:
        own = request.headers.get("x-tenant", ""), asyncio.Event()
        self.inside.append(own)
        try:
            await own[1].wait()
        except asyncio.CancelledError:
            self.inside.remove(own)
            raise
        return "done"

    @property
    def held(self) -> Counter[str]:
        return Counter(tenant for tenant, _ in self.inside)

    async def ask(self, *tenants: str) -> list[asyncio.Task[Answer]]:
        """Begin a request for each tenant; return when each of them is under way, waits or is refused."""
        begun = [asyncio.create_task(call(self.app, headers={"X-Tenant": one} if one else {})) for one in tenants]
        self.tasks += begun
        await settled()
        return begun

    async def end(self, index: int) -> str:
        """End a request that is under way; return its tenant when the permit has found its next holder."""
        tenant, end = self.inside.pop(index)
        end.set()
        await settled()
        return tenant

    async def until(self, held: dict[str, int]) -> None:
        """Wait until so many requests of each tenant are under way."""
        async with asyncio.timeout(20):
            while self.held != held:  # noqa: ASYNC110 - a store that is not in memory answers when it does
                await asyncio.sleep(0.01)

    async def end_all(self) -> list[int]:
        """End all requests, those that wait in their turn; return their statuses as they were begun."""
        async with asyncio.timeout(20):
            while not all(task.done() for task in self.tasks):
                if self.inside:
                    await self.end(0)
                else:
                    await asyncio.sleep(0.01)
        return [(await task).status for task in self.tasks]


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@given(rng=st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_of_tenants_that_always_wait_none_holds_more_than_its_share_and_one(rng: random.Random) -> None:
    asyncio.run(_keep_waiting(rng))


async def _keep_waiting(rng: random.Random) -> None:
    permits, tenants = rng.randint(1, 9), [f"tenant{number}" for number in range(rng.randint(2, 4))]
    model = Model(permits, wait_max=200)
    await model.ask(*rng.choices(tenants, k=permits))  # the first round goes to whoever comes
    for tenant in tenants:
        await model.ask(*[tenant] * (permits + rng.randint(1, 6)))  # some wait even when it has all permits
    first_round = [end for _, end in model.inside]
    for _ in range(80):
        # The tenant that is served asks again, so everybody always waits.
        before = len(model.tasks)
        await model.ask(await model.end(rng.randrange(len(model.inside))))
        assert len(model.tasks) == before + 1
        assert sum(model.held.values()) == permits
        if not any(end in first_round for _, end in model.inside):
            assert max(model.held.values()) <= math.ceil(permits / len(tenants)) + 1
    assert set(await model.end_all()) == {200}


async def test_a_permit_for_a_waiter_that_is_cancelled_in_that_instant_goes_to_the_next() -> None:
    for turns in range(6):
        model = Model(1)
        first, chosen, following = await model.ask("a", "b", "c")
        model.inside.pop()[1].set()
        for _ in range(turns):
            await asyncio.sleep(0)
        chosen.cancel()
        await settled()
        assert model.held == {"c": 1}, turns
        assert (await first).status == 200
        assert not following.done()
        model.tasks.remove(chosen)
        assert await model.end_all() == [200, 200]
        queues = model.limiter.engine.queues
        assert (queues._permits, queues.waiting) == ({}, 0)


async def test_a_tenant_that_is_named_while_the_limit_changes_keeps_no_share_of_the_old_one() -> None:
    asked, named = asyncio.Event(), asyncio.Event()

    async def tenant(request: Request) -> str:
        asked.set()
        await named.wait()
        return "all"

    model = Model(8, fair=tenant, name="model", wait_max=20)
    await model.ask("")
    assert asked.is_set()
    await model.limiter.override("model", "2", duration="1h")
    named.set()
    await model.ask(*[""] * 9)
    assert len(model.inside) == 2
    assert set(await model.end_all()) == {200}


async def test_who_becomes_first_by_a_permit_of_another_asks_although_nobody_here_hands_one_back() -> None:
    store, late = RemoteStore(), asyncio.Event()

    async def later(question: Callable[..., Any], *arguments: Any) -> Any:
        answer, is_late = question(*arguments), not late.is_set() and not model.tasks
        await (late.wait() if is_late else asyncio.sleep(0))
        return answer

    store.answer = later  # type: ignore[method-assign]
    model = Model(2, limiter=Limiter(store, deadline="60s"), name="model")
    elsewhere = await hit_all(Limiter(store.inner), [(Bucket("model", (Concurrency(2),)), "everyone", 1)])
    first = asyncio.create_task(call(model.app, headers={"X-Tenant": "big"}))
    await settled()
    await model.ask("big", "small")
    late.set()
    await settled()
    assert model.held == {"big": 1}
    await Limiter(store.inner).refund(elsewhere)
    await model.until({"big": 1, "small": 1})
    assert set(await model.end_all()) == {200}
    assert (await first).status == 200


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_every_store_hands_permits_out_fairly(kind: str, tmp_path: Path, server: RedisServer) -> None:
    stores: dict[str, Callable[[], Any]] = {
        "memory": MemoryStore,
        "lmdb": lambda: LmdbStore(tmp_path / "limits"),
        "redis": lambda: RedisStore(server.url, prefix="fair"),
    }
    model = Model(2, limiter=Limiter(stores[kind](), deadline="5s"))

    await model.ask("big", "big", "big", "big")
    await model.until({"big": 2})
    await model.ask("small")
    await model.end(0)
    await model.until({"big": 1, "small": 1})
    assert set(await model.end_all()) == {200}
    await model.limiter.close()
