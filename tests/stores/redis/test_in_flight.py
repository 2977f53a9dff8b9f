"""Several calls at the same time: what is decided and known while the first is answered and the next is not."""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import Any

import pytest

from slidegate import Decision, MemoryStore, parse_limits
from slidegate.core import Bucket, Reason, StoreUnavailable
from slidegate.stores.redis import RedisStore
from slidegate.stores.redis.batch import MAX_IN_CALL, MAX_SENDERS, Batcher
from slidegate.stores.redis.clock import StoreTime, monotonic_us
from slidegate.stores.redis.refusals import Refusals
from slidegate.testing import FakeClock

from ...contract.harness import bucket
from ...contract.player import settle
from ...contract.programs import YEAR_2100_US
from ...hurry import at_once, hurried
from ...redis_servers import RedisServer, needs_redis
from ...virtual_time import turns
from .stores import PLENTY, PLENTY_S, all_connected, store_at

pytestmark = needs_redis

MANY = 2 * MAX_IN_CALL
WIDE = bucket("100/hour")
FIVE = bucket("5/hour")
DEMANDS = ((FIVE,), (bucket("3/10s; 20/hour", "two"), FIVE), (bucket("4/minute", "counting", count_denied=True),))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(YEAR_2100_US)


@pytest.fixture
async def store(server: RedisServer, clock: FakeClock) -> AsyncIterator[RedisStore]:
    """A store with all its connections, whose next requests wait for the end of their turn, and which does not poll."""
    async with store_at(server, clock=clock) as store:
        await all_connected(store)
        yield store


class Held:
    """Answers to requests and resets, given to nobody until they are released, in the order in which they came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._come: deque[asyncio.Future[None]] = deque()
        real = Batcher._eval

        async def held(*call: Any) -> Any:
            answer, released = await real(*call), asyncio.get_running_loop().create_future()
            if call[5 + call[2] :][:1] in ((), (b"reset",)):  # the name of a command, after keys, time and requests
                self._come.append(released)
                await released
            return answer

        monkeypatch.setattr(Batcher, "_eval", held)

    def __len__(self) -> int:
        return len(self._come)

    async def come(self, count: int) -> None:
        """Wait until so many calls have been answered and not released."""
        async with asyncio.timeout(PLENTY_S):
            while len(self._come) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    def release(self, count: int) -> None:
        for _ in range(count):
            self._come.popleft().set_result(None)

    async def answer(self, answer: asyncio.Future[Any]) -> Any:
        await self.come(1)
        self.release(1)
        return await answer


@pytest.fixture
def held(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def ask(store: RedisStore, key: str, limited: Bucket = WIDE, cost: int = 1) -> asyncio.Future[Decision]:
    return asyncio.ensure_future(settle(store.hit(((limited, key, cost),))))


async def all_of(futures: list[asyncio.Future[Decision]]) -> list[Any]:
    async with asyncio.timeout(PLENTY_S):
        return await asyncio.gather(*futures, return_exceptions=True)


async def test_the_requests_of_one_turn_go_together_up_to_a_bound(store: RedisStore, server: RedisServer) -> None:
    for count, calls in ((2, 1), (MAX_IN_CALL, 1), (MAX_IN_CALL + 1, 2), (4 * MAX_IN_CALL, 4), (1, 1)):
        server.command("CONFIG", "RESETSTAT")
        answers = await all_of([ask(store, f"user:{count}:{number}") for number in range(count)])
        assert all(answer.allowed for answer in answers)
        assert server.calls()["evalsha"] == calls


def check(ours: Decision, theirs: Decision) -> None:
    assert ours.reason is theirs.reason
    if ours.reason is Reason.LIMITED:
        # A known refusal is repeated with the numbers of its own moment, beside hits that take what was left.
        assert {state.name for state in ours.violated} <= {state.name for state in theirs.violated}
    else:
        assert ours.states == theirs.states


async def test_answers_are_those_of_requests_in_order(store: RedisStore, clock: FakeClock, rng: random.Random) -> None:
    memory, charged, reset_us = MemoryStore(clock=clock), list[tuple[Decision, Decision]](), dict[str, int]()
    for _ in range(400):
        expected, ours = list[tuple[str, str, Any]](), list[asyncio.Future[Any]]()
        whats = rng.choices(("hit", "peek", "charge", "refund", "reset"), (12, 1, 1, 1, 1), k=rng.choice((1, 2, 4, 40)))
        for what in whats:
            key = rng.choice(("ann", "bob"))
            given: Any = key, key
            if what == "reset":
                # Whether a charge from before, or of the same microsecond, is found is the affair of each store.
                charged = [pair for pair in charged if pair[1].checks[0][1] != key]
                reset_us[key] = clock()
            elif what != "refund":
                given = [tuple((one, key, rng.choice((1, 1, 1, 2, 0))) for one in rng.choice(DEMANDS))] * 2
            elif charged:
                given = [each.begin_refund() for each in charged.pop(rng.randrange(len(charged)))]
            else:
                continue
            expected.append((what, key, await settle(getattr(memory, what)(given[1]))))
            ours.append(asyncio.ensure_future(settle(getattr(store, what)(given[0]))))
        async with asyncio.timeout(PLENTY_S):
            answers = await asyncio.gather(*ours)
        for mine, (what, key, theirs) in zip(answers, expected, strict=True):
            if isinstance(mine, Decision):
                check(mine, theirs)
            elif what == "refund":
                assert mine is theirs
            if what in ("hit", "charge") and theirs.reservations and theirs.now_us > reset_us.get(key, 0):
                charged.append((mine, theirs))
        clock.advance(us=rng.choice((0, 1, 1_000_000, 20_000_000)))


async def test_a_request_that_cannot_be_sent_takes_none_of_its_call_with_it(store: RedisStore) -> None:
    """A key that no store is ever given, in a turn with requests of others."""
    futures = [ask(store, f"user:{number}") for number in range(MANY)]
    futures.insert(MANY // 2, ask(store, "\ud800"))
    answers = await all_of(futures)
    failed = answers.pop(MANY // 2)
    assert isinstance(failed, StoreUnavailable)
    assert failed.concerns == "key", "it says nothing about the server"
    assert all(isinstance(answer, Decision) and answer.allowed for answer in answers)


async def test_the_answers_to_one_call_do_not_wait_for_the_next(store: RedisStore, held: Held) -> None:
    futures = [ask(store, f"user:{number}") for number in range(MANY)]
    await held.come(2)
    held.release(1)
    await turns(3)
    halves = [{future.done() for future in half} for half in (futures[:MAX_IN_CALL], futures[MAX_IN_CALL:])]
    assert sorted(halves, key=str) == [{False}, {True}], "either may be answered first"
    again = ask(store, "user:0")  # goes while the second call is unanswered
    await held.come(2)
    held.release(2)
    assert {(await future).readings[0][0] for future in futures} == {1}
    assert (await again).readings[0][0] == 2


@pytest.mark.parametrize("forgets", ["refund", "reset"])
async def test_a_refusal_is_not_remembered_past_what_follows(store: RedisStore, held: Held, forgets: str) -> None:
    charged = await held.answer(ask(store, "ann", FIVE, 5))
    refused = ask(store, "ann", FIVE)
    await held.come(1)
    ways = {"refund": lambda: store.refund(charged.begin_refund()), "reset": lambda: store.reset("ann")}
    back = asyncio.ensure_future(settle(ways[forgets]()))
    await held.come(2)
    assert (await held.answer(refused)).reason is Reason.LIMITED
    after = ask(store, "ann", FIVE)  # must not be answered by the refusal from before
    await held.come(2)
    assert await held.answer(back)
    assert (await held.answer(after)).allowed


async def test_a_refusal_is_remembered_while_units_of_others_are_handed_back(store: RedisStore, held: Held) -> None:
    futures = [ask(store, "ann", FIVE, 5), ask(store, "bob")]
    await held.answer(futures[0])
    refused = ask(store, "ann", FIVE)
    await held.come(1)
    back = asyncio.ensure_future(settle(store.refund((await futures[1]).begin_refund())))
    await held.come(2)
    assert (await held.answer(refused)).reason is Reason.LIMITED
    assert await held.answer(back)
    again = ask(store, "ann", FIVE)
    await turns(3)
    assert again.done(), "nobody was asked"
    assert again.result().reason is Reason.LIMITED


@pytest.mark.parametrize("how", ["hit", "charge"])
async def test_a_refusal_is_not_remembered_past_what_is_spent_after_it(store: RedisStore, how: str) -> None:
    assert await ask(store, "ann", FIVE, 3)
    for spent in (3, 5):
        refused = await ask(store, "ann", FIVE, 4)
        assert (refused.allowed, refused.readings[0][0]) == (False, spent)
        await settle(getattr(store, how)(((FIVE, "ann", 2),)))


async def test_a_refusal_by_a_ban_is_not_remembered_past_its_unban(store: RedisStore, held: Held) -> None:
    await held.answer(asyncio.ensure_future(store.bans.ban("eve", None, "", "ann")))
    refused = ask(store, "eve")
    await held.come(1)
    assert await store.bans.unban("eve", "ann")
    assert (await held.answer(refused)).reason is Reason.BANNED
    assert (await held.answer(ask(store, "eve"))).allowed


async def test_where_the_first_call_is_given_up_the_second_gets_its_own_answers(store: RedisStore, held: Held) -> None:
    keys = [f"user:{number}" for number in range(MANY)]
    futures = [ask(store, key) for key in keys]
    await held.come(2)
    for future in futures[: MANY // 2]:
        future.cancel()
    await turns(3)
    held.release(2)
    answers = await all_of(futures[MANY // 2 :])
    assert [answer.checks[0][1] for answer in answers] == keys[MANY // 2 :]
    await held.come(1)
    held.release(1)  # the refund of what was given up
    spent = [(await held.answer(ask(store, key, cost=0))).readings[0][0] for key in keys]
    assert spent == [0] * (MANY // 2) + [1] * (MANY // 2)


async def test_no_more_calls_are_under_way_than_there_are_senders(store: RedisStore, held: Held) -> None:
    futures = [ask(store, f"user:{number}") for number in range((MAX_SENDERS + 2) * MAX_IN_CALL)]
    await held.come(MAX_SENDERS)
    await turns(20)
    assert len(held) == MAX_SENDERS
    while not all(future.done() for future in futures):
        held.release(len(held))
        await turns(1)
    assert all(future.result().allowed for future in futures)


def test_an_event_loop_that_ends_with_a_request_in_the_queue_ends_quietly(server: RedisServer) -> None:
    failed = list[dict[str, Any]]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
        store = RedisStore(server.url, prefix="ends", timeout=PLENTY)
        await ask(store, "warm")
        await turns(5)  # its sender waits for more
        asyncio.get_running_loop().call_soon(lambda: left.append(ask(store, "warm")))  # in its last iteration

    left = list[asyncio.Future[Decision]]()
    asyncio.run(main())
    assert failed == []


LIMITS = parse_limits("1/hour")
LASTS_US = 10**9
AT_LEAST = 200
ROUNDS = 100


def test_a_reset_of_all_keys_while_other_threads_are_refused() -> None:
    refusals, learned, is_over = Refusals(StoreTime(None)), itertools.count(), list[bool]()

    def refused() -> None:
        while not is_over:
            checks, now_us = ((Bucket(f"rule {next(learned)}", LIMITS), "ann", 1),), monotonic_us()
            state = (1, now_us + LASTS_US, now_us, LASTS_US)
            decision = Decision(False, Reason.LIMITED, now_us, checks, [state])
            refusals.record(decision, monotonic_ns(), ("ann",))

    def reset() -> None:
        try:
            for _ in range(ROUNDS):
                while len(refusals.cache) < AT_LEAST:
                    time.sleep(0)
                refusals.change(((Bucket("rule 0", LIMITS), "ann", 1),))
                refusals.change_all()
        finally:
            is_over.append(True)

    with hurried(collecting=False):
        at_once(lambda thread: refused() if thread else reset(), threads=4)
    assert next(learned) >= AT_LEAST * ROUNDS
