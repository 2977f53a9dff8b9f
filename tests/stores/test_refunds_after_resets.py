"""What was charged before a reset is not handed back after it, whatever the clock did: others have spent since."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slidegate import MemoryStore, Quota
from slidegate.core import LimitSet, parse_limits
from slidegate.core.decision import Decision
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle

from ..redis_servers import RedisServer, needs_redis
from .redis.stores import store_of

START_US = 1_900_000_000_000_000
RULES = [LimitSet("rule", parse_limits("500/hour")), LimitSet("plan", parse_limits(Quota("500/year")))]
KEYS = ("ann", "bob")
NewStore: TypeAlias = Callable[[FakeClock], Any]

moves = st.one_of(
    st.tuples(st.just("hit"), st.sampled_from(KEYS), st.integers(1, 3)),
    st.tuples(st.just("step"), st.just(""), st.sampled_from((-7_300, -100, -10, -1, 1, 10, 100))),
    st.tuples(st.just("reset"), st.sampled_from((*KEYS, "")), st.just(0)),
    st.tuples(st.just("refund"), st.just(""), st.integers(0, 5)),
)
Moves: TypeAlias = list[tuple[str, str, int]]


class Play:
    """A program, played to a store; `before` are the decisions of each key that a reset has made void."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.made: list[tuple[str, Decision]] = []
        self.void: set[int] = set()

    async def play(self, moves: Moves) -> None:
        for move, key, number in moves:
            if move == "hit":
                self.made.append((key, await settle(self.store.hit([(rule, key, number) for rule in RULES]))))
            elif move == "step":
                self.clock.advance(us=number * 1_000_000)
            elif move == "reset":
                await settle(self.store.reset(key) if key else self.store.reset_all())
                self.void |= {at for at, (struck, _) in enumerate(self.made) if key in ("", struck)}
                self.clock.advance(us=1)
            elif self.made:
                await self.refund(number % len(self.made))

    async def refund(self, at: int) -> None:
        key, decision = self.made[at]
        before = await self.left(key)
        handed_back = await settle(self.store.refund(decision.take_back()))
        if at in self.void:
            assert handed_back is False
            assert await self.left(key) == before

    async def left(self, key: str) -> list[int]:
        peeked = await settle(self.store.peek([(rule, key, 0) for rule in RULES]))
        return [state.remaining for state in peeked.states]


def check(new_store: NewStore) -> None:
    async def run(moves: Moves) -> None:
        clock = FakeClock(START_US)
        store = new_store(clock)
        try:
            await Play(store, clock).play(moves)
        finally:
            closing = store.close()
            if closing is not None:
                await closing

    with asyncio.Runner() as runner:

        @settings(deadline=None)
        @given(st.lists(moves, max_size=30))
        @example([("hit", "ann", 1), ("step", "", -10), ("reset", "ann", 0), ("hit", "ann", 1), ("refund", "", 0)])
        @example([("hit", "ann", 1), ("step", "", -10), ("reset", "", 0), ("hit", "ann", 1), ("refund", "", 0)])
        @example([("hit", "ann", 1), ("step", "", -1), ("reset", "ann", 0), ("hit", "ann", 3), ("refund", "", 0)])
        def played(moves: Moves) -> None:
            runner.run(run(moves))

        played()


def test_a_refund_of_before_a_reset_is_refused_in_memory() -> None:
    check(lambda clock: MemoryStore(clock=clock))


def test_a_refund_of_before_a_reset_is_refused_on_lmdb() -> None:
    with ExitStack() as stack:
        check(lambda clock: LmdbStore(stack.enter_context(tempfile.TemporaryDirectory()), clock=clock))


@needs_redis
def test_a_refund_of_before_a_reset_is_refused_on_redis(server: RedisServer) -> None:
    check(lambda clock: store_of(server, clock=clock))
