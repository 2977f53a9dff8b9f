"""The part of the store contract about processes that share a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Final

import pytest

from ...core.store import Store
from .harness import bucket
from .player import settle

LIMITS: Final = {"50/hour": 50, "500/hour": 500}
"""One whose windows are exact, and one that counts by slices."""
_START_S: Final = 60
_barriers: list[Barrier] = []


class ProcessesContract:
    """The tests; see `StoreContract`. A store of one process skips them."""

    def opener(self) -> Callable[[], Store] | None:
        """Return a function that opens one store, empty at first, in this process and in others, by the real clock.

        `pickle` has to know how to send it, for example ``functools.partial(MyStore, path)``. None if the store
        belongs to one process.
        """
        return None

    def test_processes_that_hit_at_once_admit_exactly_the_amount(self) -> None:
        opens = self.opener()
        if opens is None:
            pytest.skip("the store lacks the ability: opener (processes that share it)")
        context = get_context("spawn")
        start = context.Barrier(2)
        with ProcessPoolExecutor(2, mp_context=context, initializer=_meet_at, initargs=(start,)) as pool:
            counts = list(pool.map(_admitted, (opens, opens)))
        assert [sum(admitted) for admitted in zip(*counts, strict=True)] == [*LIMITS.values()], counts


def _meet_at(start: Barrier) -> None:
    """Learn, as a process begins, where all of them wait for each other."""
    _barriers.append(start)


def _admitted(opens: Callable[[], Store]) -> list[int]:
    """Return how many hits of this process pass under each of the limits, while another process hits as well."""
    _barriers[0].wait(_START_S)
    return asyncio.run(_count(opens))


async def _count(opens: Callable[[], Store]) -> list[int]:
    store = opens()
    try:
        admitted = []
        for limits, amount in LIMITS.items():
            asked = store.prepare(((bucket(limits, f"rule-{amount}"), "ann", 1),))
            admitted.append(sum([bool(await settle(store.hit(asked))) for _ in range(amount)]))
        return admitted
    finally:
        await settle(store.close())
