"""The part of the store contract for processes that share a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Final

import pytest

from slidegate.core import Store

from .harness import bucket
from .player import settle

LIMITS: Final = {"50/hour": 50, "500/hour": 500}
"""One exact limit, and one that counts in slices."""
_START_S: Final = 60
_barriers: list[Barrier] = []


class ProcessesContract:
    """The tests; see `StoreContract`. They are skipped for a store that processes cannot share."""

    def opener(self) -> Callable[[], Store] | None:
        """Return a function that opens one initially empty store from several processes, with the real clock.

        Must be picklable, for example ``functools.partial(MyStore, path)``. None if processes cannot share the store.
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
    """Initialize a process with the barrier at which all processes wait."""
    _barriers.append(start)


def _admitted(opens: Callable[[], Store]) -> list[int]:
    """Return the hits that pass under each limit in this process, while another process hits too."""
    _barriers[0].wait(_START_S)
    return asyncio.run(_count(opens))


async def _count(opens: Callable[[], Store]) -> list[int]:
    store = opens()
    try:
        admitted = []
        for limits, amount in LIMITS.items():
            asked = store.prepare(((bucket(limits, f"rule-{amount}"), "ann", 1),))
            admitted.append(sum([bool(await settle(store.ask(asked))) for _ in range(amount)]))
        return admitted
    finally:
        await settle(store.close())
