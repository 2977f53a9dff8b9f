"""Threads that call everything at once, switched wherever the interpreter can: nothing is raised, nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from slidegate import BanPolicy, Decision, Limiter
from slidegate.core import Bucket, Concurrency

from ..hurry import at_once, hurried
from ..questions import hit_all
from ..redis_servers import AT_REDIS

THREADS = 4
CALLS = 300
POLICY = BanPolicy("40/10m", "1h")


@pytest.fixture
def limiter(url: str) -> Iterator[Limiter]:
    limiter = Limiter.from_url(url, deadline="60s")
    with limiter.sync:
        yield limiter


async def any_call(limiter: Limiter, rng: random.Random, held: list[Decision]) -> None:
    """Make one call, drawn at random; decisions that hold a place or units are kept for a later refund."""
    key = f"user:{rng.randrange(40)}"
    name = rng.choice(["hit", "hit", "hit", "place", "place", "back", "back", "peek", "reset", "ban", "look"])
    if name == "hit":
        held.append(await limiter.hit(key, f"{rng.randrange(1, 90)}/minute", rule=f"rule {rng.randrange(900)}"))
    elif name == "place":
        bucket = Bucket(f"places {rng.randrange(9)}", (Concurrency(3),))
        held.append(await hit_all(limiter, [(bucket, key, 1)]))
    elif name == "back" and held:
        await limiter.refund(held.pop(rng.randrange(len(held))))
    elif name == "peek":
        await limiter.peek(key, "5/minute", rule=rng.choice("abc"))
    elif name == "reset":
        await limiter.reset(key)
    elif name == "ban":
        await limiter.strike(key, POLICY)
        await limiter.ban(key, "1h")
        await limiter.unban(key)
    else:
        limiter.store.permits_held()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["memory", "lmdb", AT_REDIS])
@pytest.mark.parametrize("collecting", [False, True])
def test_event_loops_in_threads_that_call_everything_at_once(
    limiter: Limiter, collecting: bool, rng: random.Random
) -> None:
    seeds = [rng.getrandbits(32) for _ in range(THREADS)]

    async def calls(seed: int) -> None:
        drawn, held = random.Random(seed), list[Decision]()
        for _ in range(CALLS):
            await any_call(limiter, drawn, held)
        for decision in held:
            await limiter.refund(decision)

    with hurried(collecting):
        at_once(lambda thread: asyncio.run(calls(seeds[thread])), THREADS)
    assert limiter.store.permits_held() == 0  # type: ignore[attr-defined]
