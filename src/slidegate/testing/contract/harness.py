"""A store in a harness: what the tests of the store contract are written with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import pytest

from ...core.addresses import canonical_key, parse_address
from ...core.bans.ban import Ban, BanSubject
from ...core.bans.policy import BanPolicy
from ...core.decision import Decision, LimitSet
from ...core.limits import parse_limits
from ...core.store import SharedStats, Store
from ...core.views import WindowView
from ..clock import FakeClock
from ..observers import RecordingObserver
from .player import as_peek_says, settle
from .programs import HOUR_US, YEAR_2100_US

T = TypeVar("T")

POLICY = BanPolicy("3/minute", "10m", factor=2, forgive="1h")
ABILITIES: Final[Mapping[str, Callable[[Store], bool]]] = {
    "permits_held": lambda store: store.permits_held() is not None,
    "shared_stats": lambda store: store.shared_stats is not None,
    "answers_threads": lambda store: store.answers_threads(),
}
"""What a store may lack, by the name in `Store` whose default says so."""


class StoreHarness:
    """A store, its clock and the events that it tells, with every method awaited.

    Attributes:
        raw: The store itself.
    """

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.raw = store
        self.clock = clock
        self.heard = RecordingObserver()
        store.observe(self.heard)

    @property
    def stats(self) -> SharedStats:
        """The statistics of several workers, of a store that keeps them."""
        assert self.raw.shared_stats is not None
        return self.raw.shared_stats

    async def hit(self, *checks: tuple[LimitSet, str, int]) -> Decision:
        """Charge all checks or none."""
        return await settle(self.raw.hit(checks))

    async def peek(self, *checks: tuple[LimitSet, str, int]) -> Decision:
        """Ask without charging."""
        return await settle(self.raw.peek(checks))

    async def charge(self, *checks: tuple[LimitSet, str, int]) -> Decision:
        """Charge whatever the limits."""
        return await settle(self.raw.charge(checks))

    async def refund(self, decision: Decision, index: int | None = None) -> bool:
        """Hand back what a decision has charged, or one check of it."""
        return await settle(self.raw.refund(decision.take_back(index)))

    async def reset(self, key: str) -> bool:
        """Forget a key."""
        return await settle(self.raw.reset(key))

    async def reset_all(self) -> bool:
        """Forget all keys."""
        return await settle(self.raw.reset_all())

    async def views(self, key: str, asked: LimitSet) -> list[WindowView]:
        """Return the windows of a key, which a peek shows as well."""
        return await as_peek_says(self.raw, key, asked)

    async def request(self, client: str, cost: int = 1, key: str = "") -> Decision:
        """Send a request of an address or key, which only bans refuse; it is counted by `key`, if that is given."""
        parsed = parse_address(client)
        subjects: tuple[BanSubject, ...] = () if parsed is None else (parsed,)
        return await settle(self.raw.hit(((bucket("100/400d"), key or canonical_key(client), cost),), subjects))

    async def strike(self, key: str, times: int = 1, policy: BanPolicy = POLICY) -> Ban | None:
        """Strike a key several times, and return the ban that the last strike made."""
        made = None
        for _ in range(times):
            made = await settle(self.raw.bans.strike(policy, key, 1, "refused"))
        return made

    async def ban(self, key: str, length_us: int | None = HOUR_US) -> Ban:
        """Ban by hand."""
        return await settle(self.raw.bans.ban(key, length_us, "by request", "ann"))

    async def unban(self, key: str) -> bool:
        """Take a ban back."""
        return await settle(self.raw.bans.unban(key, "bob"))

    async def banned(self) -> list[str]:
        """Return the keys of the bans in force."""
        return sorted(ban.key for ban in await settle(self.raw.bans.active()))

    async def dump(self) -> Sequence[Any]:
        """Return what the store knows of bans, after a way through JSON."""
        rows: Sequence[Any] = json.loads(json.dumps(list(await settle(self.raw.bans.dump()))))
        return rows


def bucket(limits: str, rule: str = "rule", *, count_denied: bool = False) -> LimitSet:
    """Return a bucket for limits as text."""
    return LimitSet(rule, parse_limits(limits), count_denied=count_denied)


async def in_threads(job: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
    """Run a job in eight threads at once, each with an event loop of its own, and return what they answered."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        return await asyncio.gather(*(loop.run_in_executor(pool, lambda: asyncio.run(job())) for _ in range(8)))


async def play_to(contract: Any, start_us: int, play: Callable[[StoreHarness], Awaitable[None]]) -> None:
    """Make a store of a contract, play with it, and close it."""
    clock = FakeClock(start_us)
    store = await settle(contract.make_store(clock))
    try:
        await play(StoreHarness(store, clock))
    finally:
        await settle(store.close())


def with_store(
    *, ability: str | None = None
) -> Callable[[Callable[[Any, StoreHarness], Awaitable[None]]], Callable[[Any], None]]:
    """Turn an asynchronous test of a store into one that pytest can call.

    Args:
        ability: What the test is about, one of `ABILITIES`; it is skipped where the store lacks that.
    """

    def of(test: Callable[[Any, StoreHarness], Awaitable[None]]) -> Callable[[Any], None]:
        def run(self: Any) -> None:
            async def if_able(store: StoreHarness) -> None:
                if ability is not None and not ABILITIES[ability](store.raw):
                    pytest.skip(f"the store lacks the ability: {ability}")
                await test(self, store)

            asyncio.run(play_to(self, YEAR_2100_US, if_able))

        run.__name__, run.__doc__ = test.__name__, test.__doc__  # not `wraps`: pytest would take `store` for a fixture
        return run

    return of
