"""The scripts in Redis against the memory store: every operation, every byte; and mutations that this has to catch."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterator
from copy import copy
from hashlib import sha1
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import StoreError
from slidegate.core.decision import Decision
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis import packing as script
from slidegate.testing import FakeClock
from slidegate.testing.contract.desk import bucket
from slidegate.testing.contract.player import settle
from slidegate.testing.contract.programs import YEAR_2100_US, Program, program, programs

from ...patching import replace_everywhere
from ...redis_servers import RedisServer, needs_redis
from .twin import MOST_BANS, BanTwin, Twin

NUMBER = itertools.count()
ROUNDS = 400


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()  # thousands of bans; pytest keeps every line
    yield
    logging.disable(logging.NOTSET)


async def play(server: RedisServer, made: Program, *, changes_rings: bool = False) -> None:
    clock = FakeClock(made.start_us)
    store = RedisStore(server.unix_url, prefix=f"s{os.getpid()}-{next(NUMBER)}", clock=clock, readable=True)
    try:
        await Twin(store, clock, made, changes_rings=changes_rings).play(server)
    finally:
        await store.close()


async def play_bans(server: RedisServer, rolled: bytes) -> None:
    clock = FakeClock(YEAR_2100_US)
    store = RedisStore(server.unix_url, prefix=f"s{os.getpid()}-{next(NUMBER)}", clock=clock, max_bans=MOST_BANS)
    try:
        await BanTwin(store, clock).play(rolled)
    finally:
        await store.close()


@needs_redis
def test_every_operation_leaves_the_windows_of_the_core_byte_for_byte(server: RedisServer) -> None:
    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=100)
        @given(programs(), st.booleans())
        def check(made: Program, changes_rings: bool) -> None:
            runner.run(play(server, made, changes_rings=changes_rings))

        check()


async def play_surplus(server: RedisServer) -> None:
    """Lower an amount so far that a ring of times has to keep more units than it has room for."""
    clock = FakeClock(YEAR_2100_US)
    store = RedisStore(server.unix_url, prefix=f"s{os.getpid()}-{next(NUMBER)}", clock=clock, readable=True)
    try:
        twin = Twin(store, clock, Program(clock.now_us, (), (), []))
        for limits, cost in (("40/9s @5", 7), ("40/9s @5", 9), ("3/9s @5", 0)):
            demand = ((bucket(limits), "ann", cost),)
            assert (await settle(store.hit(demand))).states == twin.memory.hit(demand).states
            clock.advance(us=1_000_000)
        twin.compare_bytes(server)
    finally:
        await store.close()


@needs_redis
async def test_a_window_with_a_surplus_is_kept_byte_for_byte(server: RedisServer) -> None:
    await play_surplus(server)


@needs_redis
async def test_swapped_fields_of_a_row_with_a_surplus_are_caught(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = (
        ("2, w.surplus, w.surplus_at, w.spent", "2, w.surplus_at, w.surplus, w.spent"),
        ("_, w.surplus, w.surplus_at, w.spent", "_, w.surplus_at, w.surplus, w.spent"),
    )
    made = broken(script.windows_script, Mutation("fields of a row with a surplus are swapped", edits))
    replace_everywhere(monkeypatch, "slidegate.stores.redis", "windows_script", made)
    with pytest.raises(AssertionError):
        await play_surplus(server)


async def play_refunds(server: RedisServer) -> None:
    """Hand charges back that are there no more: one a second time, and one whose window was reset meanwhile."""
    store = RedisStore(server.unix_url, prefix=f"s{os.getpid()}-{next(NUMBER)}", clock=FakeClock(YEAR_2100_US))

    async def hit(key: str, cost: int) -> Decision:
        return await settle(store.hit(((bucket("40/9s @5"), key, cost),)))

    try:
        charged, others, forgotten = await hit("ann", 3), await hit("ann", 1), await hit("bob", 2)
        again = copy(charged)
        again.charge = [*charged.charge]
        assert [await settle(store.refund(decision)) for decision in (charged, again)] == [True, False]
        assert (await hit("ann", 0)).remaining == others.remaining + 3
        assert await store.reset("bob")
        await hit("bob", 2)
        assert await settle(store.refund(forgotten)) is False
    finally:
        await store.close()


@needs_redis
async def test_a_refund_takes_nothing_from_others(server: RedisServer) -> None:
    await play_refunds(server)


@needs_redis
@pytest.mark.parametrize("check", ["units", "serial"])
async def test_a_refund_without_its_checks_is_caught(
    server: RedisServer, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = {
        "units": ("if units > there then", "if false then"),
        "serial": ("if w and w.serial == serial then", "if w then"),
    }
    made = broken(script.windows_script, Mutation("a refund is not checked", (edits[check],)))
    replace_everywhere(monkeypatch, "slidegate.stores.redis", "windows_script", made)
    with pytest.raises(AssertionError):
        await play_refunds(server)


@needs_redis
def test_bans_in_little_room_are_those_of_the_memory_store(server: RedisServer) -> None:
    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=60)
        @given(st.one_of(st.binary(max_size=60), st.binary(min_size=100, max_size=400)))
        def check(rolled: bytes) -> None:
            runner.run(play_bans(server, rolled))

        check()


# -- mutations ---------------------------------------------------------------------------------------------------------


class Mutation(NamedTuple):
    """A fault, and the texts of the script that make it: (there now, instead)."""

    what: str
    edits: tuple[tuple[str, str], ...]


WINDOWS = [
    Mutation(
        "fields of a row with bookings are swapped",
        (
            ('"<Bi8I4I4", 4, w.seen, #w.booked, #w.waiting', '"<Bi8I4I4", 4, w.seen, #w.waiting, #w.booked'),
            ("local _, seen, many, waiters, at", "local _, seen, waiters, many, at"),
        ),
    ),
    Mutation(
        "moment and units of a booking are swapped",
        (
            ('pack("<i8I8", entry[1], entry[2])', 'pack("<I8i8", entry[2], entry[1])'),
            (
                'w.booked[place] = { unpack_from("<i8I8", packed, at) }',
                'local units, moment = unpack_from("<I8i8", packed, at); w.booked[place] = { moment, units }',
            ),
        ),
    ),
    Mutation("one window that is asked twice is asked once", (("ahead = units[w] or 0", "ahead = 0"),)),
    Mutation("a peek charges", (("what == PEEK or what == GLANCE or", "what == GLANCE or"),)),
    Mutation("a reset forgets nothing", (('redis.call("DEL", KEYS[place]) > 0', "false"),)),
    Mutation("one may wait too many", (("queued >= ask.limit.may_queue", "queued > ask.limit.may_queue"),)),
    Mutation("a refusal that counts is not charged", (("if ask.limit.modes == COUNT_DENIED then", "if false then"),)),
    Mutation("times at the edge stay", (("time_at(w, middle) <= moment", "time_at(w, middle) < moment"),)),
    Mutation("k slices instead of k + 1", (("limit.slices * limit.slice\n", "(limit.slices - 1) * limit.slice\n"),)),
    Mutation("one unit too many", (("local excess = w.spent - room\n", "local excess = w.spent - room - 1\n"),)),
]  # fmt: skip
BANS = [
    Mutation("prefixes may take all room", (("floor(most / 10)", "most"),)),
    Mutation("a policy may make any number of bans", (("policy.most - 1) ~= 0", "policy.most - 1) == NEVER"),)),
    Mutation(
        "an unban leaves the strikes",
        (('redis.call("HDEL", KEYS[STANDINGS], key)\n  redis.call("ZREM"', 'redis.call("ZREM"'),),
    ),
    Mutation("one address strikes its prefix twice", (('(source == "" or strike.source ~= source)', "true"),)),
    Mutation("rungs are never forgiven", (("max(s.rung - floor(clean / s.forgive), 0)", "s.rung"),)),
    Mutation("bans are not jittered", (("if policy.jitter > 0 then", "if false then"),)),
    Mutation(
        "networks are looked up under one length",
        (("in pairs(b.known_lengths) do", 'in pairs({ [next(b.known_lengths) or "4/32"] = 1 }) do'),),
    ),
    Mutation("addresses are cut a bit too short", (("max(length - 8 * (place", "max(length - 1 - 8 * (place"),)),
]  # fmt: skip


def broken(real: Callable[[], script.Script], mutation: Mutation) -> Callable[[], script.Script]:
    """Return a function that returns a broken script."""
    source = real().source
    for there, instead in mutation.edits:
        assert there.encode() in source, f"{mutation.what!r} breaks nothing: {there!r} is not in the script"
        source = source.replace(there.encode(), instead.encode())
    made = script.Script(source, sha1(source).hexdigest().encode())
    return lambda: made


def assert_caught(attempt: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Fail unless one of the rounds fails."""
    rng = random.Random(20)
    with asyncio.Runner() as runner:
        for _ in range(ROUNDS):
            try:
                runner.run(attempt(rng.randbytes(rng.choice((40, 150, 400)))))
            except AssertionError:
                return
            except StoreError:  # a script that crashes shows itself
                continue
    pytest.fail(f"not caught in {ROUNDS} rounds", pytrace=False)


@needs_redis
@pytest.mark.parametrize("mutation", WINDOWS, ids=lambda mutation: mutation.what)
def test_the_twin_in_memory_catches(server: RedisServer, mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(script.windows_script, mutation)
    replace_everywhere(monkeypatch, "slidegate.stores.redis", "windows_script", made)
    assert_caught(lambda rolled: play(server, program(rolled)))


@needs_redis
@pytest.mark.parametrize("mutation", BANS, ids=lambda mutation: mutation.what)
def test_the_twin_in_memory_catches_broken_bans(
    server: RedisServer, mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broken(script.bans_script, mutation)
    replace_everywhere(monkeypatch, "slidegate.stores.redis", "bans_script", made)
    assert_caught(lambda rolled: play_bans(server, rolled))


def test_a_mutation_of_what_is_not_there_is_an_error() -> None:
    with pytest.raises(AssertionError, match="breaks nothing"):
        broken(script.windows_script, Mutation("nothing", (("this is not in the source", ""),)))
