"""The scripts in Redis answer what the memory store answers, in any order, several requests in one turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate.core.decision import Bucket
from slidegate.core.limits import parse_limits
from slidegate.core.quotas import Quota
from slidegate.stores.memory.store import MemoryStore
from slidegate.testing import FakeClock
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import YEAR_2100_US, Program, programs

from ...redis_servers import RedisServer, needs_redis
from .stores import store_at
from .twin import MAX_BANS, BanTwin, Twin

pytestmark = needs_redis


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()  # thousands of bans; pytest keeps every line
    yield
    logging.disable(logging.NOTSET)


def test_every_operation_is_answered_as_by_the_memory_store(server: RedisServer) -> None:
    async def play(made: Program) -> None:
        clock = FakeClock(made.start_us)
        async with store_at(server, clock=clock) as store:
            await Twin(store, clock, made).play()

    with asyncio.Runner() as runner:

        @settings(deadline=None)
        @given(programs())
        def check(made: Program) -> None:
            runner.run(play(made))

        check()


def test_bans_in_little_room_are_those_of_the_memory_store(server: RedisServer) -> None:
    async def play(rolled: bytes) -> None:
        clock = FakeClock(YEAR_2100_US)
        async with store_at(server, clock=clock, max_bans=MAX_BANS) as store:
            await BanTwin(store, clock).play(rolled)

    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=60)
        @given(st.one_of(st.binary(max_size=60), st.binary(min_size=100, max_size=400)))
        def check(rolled: bytes) -> None:
            runner.run(play(rolled))

        check()


async def test_a_quota_beside_a_window_keeps_nothing_for_those_who_wait(server: RedisServer) -> None:
    clock = FakeClock(YEAR_2100_US)
    asked = ((Bucket("rule", parse_limits(["2/second", Quota("3/day")])), "ann", 1),)
    async with store_at(server, clock=clock) as store:
        for both in (store, MemoryStore(clock=clock)):
            clock.set(YEAR_2100_US)
            answers = []
            for step_us, first_in_line in ((0, False), (0, True), (0, True), (10**6, True), (0, True), (0, False)):
                clock.advance(us=step_us)
                answers.append((await settle(both.hit(asked, first_in_line=first_in_line))).retry_after_us)
            assert answers == [0, 0, 1_000_000, 0, 86_399_000_000, 86_399_000_000]
