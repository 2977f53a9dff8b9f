"""Resets while threads count, of shared cells, of one prefix alone; what they forgot is not handed back after them."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slidegate import Decision, Limiter, MemoryStore
from slidegate.core import Bucket, Store, parse_limits
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock

from ..contract.harness import bucket
from ..contract.player import as_peek_says, settle
from ..fault_proxy import FaultProxy
from ..hurry import at_once
from ..redis_servers import BOUND_S, RedisServer, needs_redis
from .conftest import Opened
from .redis.stores import fresh_prefix, store_at


def test_threads_get_no_more_than_the_amount_between_two_resets() -> None:
    """Whatever a reset meets half done, the windows after it hold what was spent after it."""
    store, rules = MemoryStore(), [bucket("50/hour", "timed"), bucket("500/hour", "counted")]
    amounts, keys, at_work = [50, 500], ["ann", "bob"], set(range(4))

    def hammer(number: int) -> list[int]:
        admitted = [0, 0]
        try:
            for turn in range(4_000):
                rule = turn % 2
                admitted[rule] += bool(store.hit(((rules[rule], keys[turn // 2 % 2], 1),)))
                if not turn % 50:
                    store.inspect("ann", rules)
        finally:
            at_work.discard(number)
        return admitted

    def reset_until_they_are_done(resets: int = 0) -> list[int]:
        while at_work:
            store.reset_all()
            resets += 1
            time.sleep(0.0001)  # else a reset comes after every hit
        return [resets]

    *admitted, (resets,) = at_once(lambda number: hammer(number) if number < 4 else reset_until_they_are_done(), 5)
    for rule, amount in enumerate(amounts):
        assert sum(by[rule] for by in admitted) <= amount * len(keys) * (resets + 1)
    store.reset_all()
    assert store.stats().keys == 0
    for asked, amount in zip(rules, amounts, strict=True):
        assert sum(bool(store.hit(((asked, "ann", 1),))) for _ in range(amount + 10)) == amount


@pytest.mark.parametrize("what", ["everything", "a key"])
def test_a_reset_of_nothing_leaves_no_note_that_a_clock_that_steps_back_comes_to(what: str) -> None:
    clock = FakeClock(10**12)
    store, asked = MemoryStore(clock=clock), ((bucket("5/minute"), "ann", 1),)
    if what == "everything":
        assert store.reset_all() is False
    else:
        store.hit(asked)
        clock.advance("1h")  # the window is over
        assert store.reset("ann") is False
    clock.advance(us=-1_800_000_000)
    assert store.refund(store.hit(asked).take_back()) is True


async def spend(store: Store, rule: Bucket) -> None:
    while await settle(store.hit(((rule, "ann", 1),))):
        pass


@needs_redis
@pytest.mark.parametrize("where", ["server", "cluster"])
async def test_windows_of_another_prefix_stay(where: str, request: pytest.FixtureRequest) -> None:
    running = request.getfixturevalue(where)
    async with store_at(running) as here, store_at(running) as there:
        rule = bucket("3/hour")
        await spend(here, rule)
        await spend(there, rule)
        assert await here.reset_all() is True
        assert await settle(here.hit(((rule, "ann", 1),)))
        assert not await settle(there.hit(((rule, "ann", 1),)))


def test_what_a_reset_forgot_is_not_handed_back_though_it_was_charged_while_the_reset_ran() -> None:
    """Its units would be those of somebody who came later, in the same slice."""
    store, rules = MemoryStore(), [bucket("1000000/hour", f"rule-{number}") for number in range(2_000)]
    last, before = rules[-1], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            for rule in rules:
                store.hit(((rule, "ann", 1),))
            reset = threading.Thread(target=store.reset_all)
            made = []
            reset.start()
            while reset.is_alive():
                made.append(store.hit(((last, "ann", 1),)))
            reset.join(BOUND_S)
            forgotten = made[: len(made) - store.peek(((last, "ann", 0),)).readings[0][0]]
            for _ in made:
                store.hit(((last, "ann", 1),))
            assert not any(store.refund(decision.take_back()) for decision in forgotten)
    finally:
        sys.setswitchinterval(before)


@needs_redis
@pytest.mark.parametrize("where", ["server", "cluster"])
async def test_another_worker_hands_nothing_back_that_was_charged_before_and_another_prefix_stays(
    where: str, request: pytest.FixtureRequest
) -> None:
    """Though others have spent as much in the same slice since."""
    running, rule, clock = request.getfixturevalue(where), bucket("500/hour"), FakeClock()
    async with store_at(running, clock=clock) as here, store_at(running, prefix=here._prefix, clock=clock) as there:
        early = await settle(there.hit(((rule, "ann", 3),)))
        clock.advance(us=1)
        async with store_at(running) as stranger:
            await settle(stranger.hit(((rule, "ann", 3),)))
            assert await here.reset_all() is True
            assert (await settle(stranger.peek(((rule, "ann", 0),)))).remaining == 497
        assert await here.reset_all() is False
        clock.advance(us=1)
        late = await settle(here.hit(((rule, "ann", 3),)))
        assert await settle(there.refund(early.take_back())) is False
        assert (await settle(here.peek(((rule, "ann", 0),)))).remaining == 497
        assert await settle(here.refund(late.take_back())) is True


@needs_redis
async def test_thousands_of_keys_far_away_are_forgotten_long_before_the_deadline(server: RedisServer) -> None:
    """One round trip for each would take a minute here, and a command may take half of one."""
    rule = bucket("3/hour")
    async with FaultProxy(server.port) as proxy:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=fresh_prefix(), timeout=BOUND_S)
        async with Limiter(store) as limiter:
            asked = [((rule, f"key-{number}", 1),) for number in range(3_000)]
            await asyncio.gather(*(settle(store.hit(checks)) for checks in asked))
            proxy.delay_s = 0.02
            server.command("CONFIG", "RESETSTAT")
            assert await limiter.reset_all() is True
            calls = server.calls()
            assert calls["scan"] < 300
            assert calls["evalsha"] < 300, "one for many keys, not one for each"
            proxy.delay_s = 0.0
            left = await asyncio.gather(*(settle(store.peek(checks)) for checks in asked))
            assert {decision.remaining for decision in left} == {2}


def test_keys_that_share_a_cell_are_shown_as_they_are_counted_and_forgotten_with_it() -> None:
    clock = FakeClock()
    store, asked = MemoryStore(clock=clock, max_keys=2), bucket("100/minute")
    for number in range(20):
        store.hit(((asked, f"key-{number}", 2),))

    async def used(key: str) -> int:
        (view,) = await as_peek_says(store, key, asked)
        return view.used

    assert [asyncio.run(used(f"key-{number}")) >= 2 for number in range(20)] == [True] * 20
    early = store.hit(((asked, "key-19", 1),))
    assert store.reset_all() is True
    assert [asyncio.run(used(f"key-{number}")) for number in range(20)] == [0] * 20
    assert store.refund(early.take_back()) is False
    assert store.stats().keys == 0
    assert store.hit(((asked, "new", 100),)).allowed


START_US = 1_900_000_000_000_000
RULES = [Bucket("rule", parse_limits("500/hour")), Bucket("long", parse_limits("500/400d"))]
KEYS = ("ann", "bob")

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


@pytest.mark.parametrize("kind", ["memory", "lmdb", pytest.param("redis", marks=needs_redis)])
def test_a_refund_of_before_a_reset_is_refused(opened: Opened) -> None:
    numbers = itertools.count()

    async def run(moves: Moves) -> None:
        clock = FakeClock(START_US)
        store = opened(str(next(numbers)), clock=clock)
        await Play(store, clock).play(moves)
        await settle(store.close())

    with asyncio.Runner() as runner:

        @settings(deadline=None)
        @given(st.lists(moves, max_size=30))
        @example([("hit", "ann", 1), ("step", "", -10), ("reset", "ann", 0), ("hit", "ann", 1), ("refund", "", 0)])
        @example([("hit", "ann", 1), ("step", "", -10), ("reset", "", 0), ("hit", "ann", 1), ("refund", "", 0)])
        @example([("hit", "ann", 1), ("step", "", -1), ("reset", "ann", 0), ("hit", "ann", 3), ("refund", "", 0)])
        def played(moves: Moves) -> None:
            runner.run(run(moves))

        played()
