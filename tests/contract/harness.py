"""The harness in which the tests of the store contract call a store."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from slidegate import BanPolicy
from slidegate.core import (
    Ban,
    BanSubject,
    Bucket,
    Check,
    Decision,
    Quota,
    StatsRow,
    Store,
    parse_address,
    parse_limits,
)
from slidegate.core.addresses import canonical_key
from slidegate.core.bans.rows import to_rows
from slidegate.core.reservation import reserved
from slidegate.testing import FakeClock, RecordingObserver

from .player import settle
from .programs import HOUR_US, YEAR_2100_US

T = TypeVar("T")

POLICY = BanPolicy("3/minute", "10m", factor=2, forgive="1h")
CHECKS: Final = ((Bucket("asked", parse_limits("5/hour")), "user:ann", 1),)
QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{name: partial(lambda ask, store: getattr(store, ask)(CHECKS), name) for name in ("hit", "peek", "charge")},
    "refund": lambda store: store.refund(reserved(CHECKS, [1], [1])),
    "reset": lambda store: store.reset("user:ann"),
    "reset_all": lambda store: store.reset_all(),
    "inspect": lambda store: store.inspect("user:ann", [CHECKS[0][0]]),
    "find": lambda store: store.bans.find(("user:ann", (4, 7))),
    "strike": lambda store: store.bans.strike(POLICY, "user:ann", 1, "why"),
    "ban": lambda store: store.bans.ban("user:bob", HOUR_US, "why", "ann"),
    "active": lambda store: store.bans.active(),
    "unban": lambda store: store.bans.unban("user:bob", "ann"),
    "load": lambda store: store.bans.load([*to_rows([Ban("user:zoe", "", "ann", 0, 0, None)])]),
}
"""A question for each method that every store has."""
SHARED_QUESTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "renew_permits": lambda store: store.renew_permits(),
    "write": lambda store: store.shared_stats.write(b"worker00", StatsRow("5s", 0, b"", 60_000_000)),
    "read": lambda store: store.shared_stats.read("5s", 0, 1),
}
"""Those for methods that stores of several processes have besides."""


class StoreHarness:
    """A store, its clock and its recorded events; every method is awaited.

    Attributes:
        raw: The store itself.
    """

    def __init__(self, store: Store, clock: FakeClock) -> None:
        self.raw = store
        self.clock = clock
        self.observer = RecordingObserver()
        store.observe(self.observer)

    def needs(self, ability: str) -> None:
        """Skip the test if the store lacks an ability: the attribute says no more than the default in `Store`."""
        said: Any = getattr(self.raw, ability)
        said = said() if callable(said) else said
        if said is None or said is False:
            pytest.skip(f"the store lacks the ability: {ability}")

    async def hit(self, *checks: Check) -> Decision:
        """Charge all checks or none."""
        return await settle(self.raw.hit(checks))

    async def peek(self, *checks: Check) -> Decision:
        """Decide without charging."""
        return await settle(self.raw.peek(checks))

    async def refund(self, decision: Decision, index: int | None = None) -> bool:
        """Refund what a decision has charged, or one check of it."""
        return await settle(self.raw.refund(decision.begin_refund(index)))

    async def request(self, client: str, cost: int = 1) -> Decision:
        """Send a request of an address or key that only a ban refuses."""
        parsed = parse_address(client)
        subjects: tuple[BanSubject, ...] = () if parsed is None else (parsed,)
        return await settle(self.raw.hit(((bucket("100/400d"), canonical_key(client), cost),), subjects))

    async def strike(self, key: str, times: int = 1, policy: BanPolicy = POLICY) -> Ban | None:
        """Strike a key several times; return the ban that the last strike made, or None."""
        made = None
        for _ in range(times):
            made = await settle(self.raw.bans.strike(policy, key, 1, "refused"))
        return made

    async def ban(self, key: str, length_us: int | None = HOUR_US) -> Ban:
        """Ban a key as an operator."""
        return await settle(self.raw.bans.ban(key, length_us, "by request", "ann"))

    async def unban(self, key: str) -> bool:
        """Remove a ban."""
        return await settle(self.raw.bans.unban(key, "bob"))

    async def banned(self) -> list[str]:
        """Return the keys of the active bans."""
        return sorted(ban.key for ban in await settle(self.raw.bans.active()))

    async def export(self) -> Sequence[Any]:
        """Return the exported bans after a round trip through JSON."""
        rows: Sequence[Any] = json.loads(json.dumps([*to_rows(await settle(self.raw.bans.active()))]))
        return rows


def bucket(limits: str | Quota, rule: str = "rule", *, count_denied: bool = False) -> Bucket:
    """Return the limit set of a rule."""
    return Bucket(rule, parse_limits(limits), count_denied=count_denied)


def with_examples(drawn: SearchStrategy[T], play: Callable[[T], Coroutine[Any, Any, None]], fewer: int = 1) -> None:
    """Play as many examples of a strategy as Hypothesis is told to, or so many times fewer, on one event loop."""
    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=settings().max_examples // fewer)
        @given(drawn)
        def check(example: T) -> None:
            runner.run(play(example))

        check()


async def in_threads(job: Callable[[], Coroutine[Any, Any, T]]) -> list[T]:
    """Run a job in eight threads at the same time, each with its own event loop; return their results."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        return await asyncio.gather(*(loop.run_in_executor(pool, lambda: asyncio.run(job())) for _ in range(8)))


async def play_to(contract: Any, start_us: int, play: Callable[[StoreHarness], Awaitable[None]]) -> None:
    """Create a store of a contract, run a test with it, and close it."""
    clock = FakeClock(start_us)
    store = await settle(contract.make_store(clock))
    try:
        await play(StoreHarness(store, clock))
    finally:
        await settle(store.close())


def with_store(test: Callable[[Any, StoreHarness], Awaitable[None]]) -> Callable[[Any], None]:
    """Pass a new store to an asynchronous test, and make it callable by pytest, without a plugin."""

    def run(self: Any) -> None:
        asyncio.run(play_to(self, YEAR_2100_US, partial(test, self)))

    run.__name__, run.__doc__ = test.__name__, test.__doc__  # with `wraps`, pytest would see `store` as a fixture
    return run
