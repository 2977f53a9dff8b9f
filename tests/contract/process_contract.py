"""The part of the store contract for processes that share a store."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import Barrier
from typing import Final

import pytest

from slidegate import BanPolicy
from slidegate.core import Store

from .harness import bucket
from .player import settle

LIMITS: Final = {"50/hour": 50, "500/hour": 500}
"""One exact limit, and one that counts in slices."""
POLICIES: Final = tuple(BanPolicy(f"{amount}/hour", "1h", name=f"after {amount}") for amount in (60, 400))
"""One policy that counts exactly, and one that counts in slices."""
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
        counts = self._in_two_processes(_admitted)
        assert [sum(admitted) for admitted in zip(*counts, strict=True)] == [*LIMITS.values()], counts

    def test_processes_that_strike_at_once_make_one_ban_and_only_when_both_have_struck(self) -> None:
        made = self._in_two_processes(_struck)
        assert [sum(bans) for bans in zip(*made, strict=True)] == [1] * len(POLICIES), made

    def _in_two_processes(self, work: Callable[[Store], Awaitable[list[int]]]) -> list[list[int]]:
        """Return what some work counts in each of two processes that start it at once."""
        opens = self.opener()
        if opens is None:
            pytest.skip("the store lacks the ability: opener (processes that share it)")
        context = get_context("spawn")
        start = context.Barrier(2)
        with ProcessPoolExecutor(2, mp_context=context, initializer=_meet_at, initargs=(start,)) as pool:
            return list(pool.map(_work_at_once, (opens, opens), (work, work)))


def _meet_at(start: Barrier) -> None:
    """Initialize a process with the barrier at which all processes wait."""
    _barriers.append(start)


def _work_at_once(opens: Callable[[], Store], work: Callable[[Store], Awaitable[list[int]]]) -> list[int]:
    async def with_own_store() -> list[int]:
        store = opens()
        try:
            return await work(store)
        finally:
            await settle(store.close())

    _barriers[0].wait(_START_S)
    return asyncio.run(with_own_store())


async def _admitted(store: Store) -> list[int]:
    """Return the hits that pass under each limit in this process, while another process hits too."""
    admitted = []
    for limits, amount in LIMITS.items():
        question = store.prepare(((bucket(limits, f"rule-{amount}"), "ann", 1),))
        admitted.append(sum([bool(await settle(store.ask(question))) for _ in range(amount)]))
    return admitted


async def _struck(store: Store) -> list[int]:
    """Return the bans that this process makes under each policy by three quarters of the strikes of one."""
    bans = []
    for policy in POLICIES:
        times = policy.after.amount * 3 // 4
        made = [await settle(store.bans.strike(policy, f"user:{policy.name}", 1, "")) for _ in range(times)]
        bans.append(sum(ban is not None for ban in made))
    return bans
