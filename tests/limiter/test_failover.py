"""A sick store never hangs the application: every question has a deadline, and what happens then is chosen."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slidegate import BanPolicy, ConfigurationError, Limit, Limiter, RateLimitMiddleware
from slidegate.core import Reason
from slidegate.core.concurrency import Concurrency
from slidegate.core.decision import Bucket, Check, Decision
from slidegate.core.errors import StoreTimeout, StoreUnavailable
from slidegate.limiter import failover
from slidegate.limiter.aio import MAX_DONE, Deadline
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import call, hello
from ..remote_stores import SickStore
from ..virtual_time import turns


class Preparing(SickStore):
    """A sick store that prepares questions, as the one behind it does, and counts them."""

    prepared = 0

    def prepare(self, checks: Sequence[Check]) -> Any:
        self.prepared += 1
        return self.inner.prepare(checks)


LONG = 10.0
"""Seconds that only a hang takes."""


class Ward:
    def __init__(
        self, on_error: Any = "local", *, inline: bool = False, deadline: str = "60s", make_store: Any = SickStore
    ) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.heard = RecordingObserver(without=["refused"])
        self.store: Any = make_store(self.clock, inline=inline)
        self.limiter = Limiter(self.store, deadline=deadline, on_error=on_error, observers=[self.heard])
        self.limiter.engine.failover._clock = self.clock
        self.safe = self.limiter.engine.failover

    def fall_ill(self) -> None:
        self.store.error = StoreUnavailable("gone")

    async def to_the_probe(self) -> None:
        """Let the store fail until it is left alone, and the time pass until one request asks again."""
        self.fall_ill()
        for _ in range(failover.FAILURES_TO_OPEN):
            await self.hit()
        self.clock.advance(us=failover.OPEN_US)

    def undergo(self, move: str, us: int) -> bool:
        """Let the store fall ill or get well, or time pass; return False for a move that is none of these."""
        if move == "ill":
            self.fall_ill()
        elif move == "well":
            self.store.error = None
        elif move == "wait":
            self.clock.advance(us=us)
        else:
            return False
        return True

    def recover(self) -> None:
        self.store.error, self.store.hangs = None, False
        self.clock.advance("61s")

    async def hit(self, limits: str = "3/hour", cost: int = 1) -> Decision:
        async with asyncio.timeout(LONG):
            return await self.limiter.hit("ann", limits, cost)


@pytest.fixture(params=[False, True], ids=["awaited", "inline"])
def inline(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OSError("no route"), ValueError("a bug")])
async def test_local_counts_in_this_process_while_the_store_is_away(error: Exception, inline: bool) -> None:
    ward = Ward("local", inline=inline)
    await ward.hit()
    ward.store.error = error
    assert [(await ward.hit()).reason for _ in range(5)] == ["ok", "ok", "ok", "limited", "limited"]
    assert ward.heard.kinds == ["store_failed"]
    assert ward.heard.events[0].details["on_error"] == "local"


async def test_after_a_failure_a_request_passes_both_so_recovery_is_no_burst(inline: bool) -> None:
    ward = Ward("local", inline=inline)
    await ward.hit(cost=2)
    ward.fall_ill()
    await ward.hit(cost=3)
    ward.recover()
    refused = await ward.hit()
    assert (refused.reason, refused.remaining) == ("limited", 0)  # by what was counted here
    assert (await ward.limiter.peek("ann", "3/hour")).allowed is False
    assert ward.store.inner.peek(refused.checks).allowed  # and handed back there
    assert ward.heard.kinds == ["store_failed", "store_recovered"]
    ward.clock.advance("1h")
    ward.clock.advance("1m")
    assert [(await ward.hit()).allowed for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("all_keys", [False, True])
async def test_a_reset_forgets_what_was_counted_here_too(inline: bool, all_keys: bool) -> None:
    ward = Ward("local", inline=inline)
    ward.fall_ill()
    await ward.hit(cost=3)
    ward.recover()
    assert not await ward.hit()
    forget = ward.limiter.reset_all if all_keys else functools.partial(ward.limiter.reset, "ann")
    assert await forget()
    assert [(await ward.hit()).allowed for _ in range(4)] == [True, True, True, False]
    assert await forget()
    assert not await forget()


async def test_allow_lets_everything_pass_uncounted(inline: bool) -> None:
    ward = Ward("allow", inline=inline)
    ward.fall_ill()
    decisions = [await ward.hit() for _ in range(9)]
    assert {(d.allowed, d.reason, d.retry_after_us, d.remaining) for d in decisions} == {(True, "unavailable", 0, None)}
    assert await ward.limiter.refund(decisions[0]) is False
    ward.recover()
    assert (await ward.hit()).remaining == 2


async def test_deny_refuses_everything_and_says_when_to_try_again(inline: bool) -> None:
    ward = Ward("deny", inline=inline)
    ward.fall_ill()
    decisions = [await ward.hit() for _ in range(9)]
    assert {(d.allowed, d.reason, d.retry_after) for d in decisions} == {(False, Reason.UNAVAILABLE, 1)}
    assert (await ward.limiter.charge("ann", "3/hour", 1)).allowed  # it was spent all the same


async def test_no_request_waits_longer_than_the_deadline_for_a_store_that_hangs() -> None:
    ward = Ward("local", deadline="20ms")
    ward.store.hangs = True
    for _ in range(5):
        await ward.hit()
    assert (await ward.limiter.peek("ann", "3/hour")).allowed is False
    assert await ward.limiter.engine.find_ban(("ann",)) is None
    assert ward.heard.events[0].message.endswith("no answer within 0.02 s")


def answers_later(ward: Ward) -> list[asyncio.Future[Decision]]:
    """Have hits answered by futures, which are returned as they are made."""
    made: list[asyncio.Future[Decision]] = []

    def later(checks: Sequence[Check], subjects: Sequence[Any] = (), **line: Any) -> asyncio.Future[Decision]:
        made.append(asyncio.get_running_loop().create_future())
        return made[-1]

    ward.store.hit = later
    return made


async def test_a_store_that_answers_by_futures_is_given_up_in_time_as_well() -> None:
    ward = Ward("local", deadline="20ms")
    made = answers_later(ward)
    decisions = await asyncio.gather(*(ward.hit() for _ in range(5)))
    assert [bool(decision) for decision in decisions] == [True] * 3 + [False] * 2
    assert {str(future.exception()) for future in made} == {"no answer within 0.02 s"}
    assert ward.heard.kinds == ["store_failed"]


@pytest.mark.parametrize("at_once", [1, 7, 64])
async def test_a_request_whose_answer_has_come_is_let_go_of_long_before_the_deadline(at_once: int) -> None:
    deadline, loop = Deadline(60.0), asyncio.get_running_loop()

    def watched(count: int) -> list[asyncio.Future[int]]:
        futures = [loop.create_future() for _ in range(count)]
        for future in futures:
            deadline.watch(future)
        return futures

    hung = watched(50)
    seen = list[weakref.ref[asyncio.Future[int]]]()
    for _ in range(5_000 // at_once):
        futures = watched(at_once)
        await asyncio.sleep(0)
        for future in futures:
            future.set_result(1)
        seen += map(weakref.ref, futures)
    del futures, future
    await asyncio.sleep(0)
    assert sum(ref() is not None for ref in seen) <= 2 * len(hung) + MAX_DONE
    assert not any(future.done() for future in hung)


async def test_a_store_that_fails_again_and_again_is_left_alone_but_for_a_probe() -> None:
    ward = Ward("local", inline=True)
    ward.fall_ill()
    for _ in range(20):
        await ward.hit()
    assert ward.store.asked == failover.FAILURES_TO_OPEN
    ward.clock.advance(us=failover.OPEN_US)
    await asyncio.gather(*(ward.hit() for _ in range(20)))
    assert ward.store.asked == failover.FAILURES_TO_OPEN + 1
    ward.store.error = None
    await ward.hit()
    assert ward.store.asked == failover.FAILURES_TO_OPEN + 1
    ward.clock.advance(us=failover.OPEN_US)
    await ward.hit()
    assert not ward.safe.away
    assert ward.heard.kinds == ["store_failed", "store_recovered"]


async def leaves(ward: Ward) -> None:
    """Ask a store that hangs, and cancel the request."""
    ward.store.error, ward.store.hangs = None, True
    task = asyncio.create_task(ward.limiter.hit("ann", "3/hour"))
    await turns(2)
    if ward.safe.away:
        assert not await ward.hit(), "nobody else is the probe meanwhile"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ward.store.hangs = False


async def test_a_request_that_is_cancelled_is_no_failure_and_a_probe_is_followed_by_another() -> None:
    ward = Ward("deny")
    await leaves(ward)
    assert not ward.safe.away
    await ward.to_the_probe()
    await leaves(ward)
    assert await ward.hit()


@pytest.mark.parametrize(("ends", "left"), [("refused", 3), ("failed", 4), ("admitted", 3)])
async def test_the_place_of_a_request_that_is_cancelled_as_its_answer_comes_is_handed_back(
    ends: str, left: int
) -> None:
    ward = Ward("local")
    limits = Bucket("jobs", [Concurrency(1)]), Bucket("units", [Limit(5, "1h")])
    checks = [(bucket, "ann", 1) for bucket in limits]
    made = answers_later(ward)
    if ends == "refused":
        ward.store.inner.hit(checks)
    task = asyncio.create_task(ward.limiter.hit_all(checks))
    await asyncio.sleep(0)
    if ends == "failed":
        made[0].set_exception(StoreUnavailable("gone"))
    else:
        made[0].set_result(ward.store.inner.hit(checks))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ward.store.inner.permits_held() == (ends == "refused")
    assert ward.store.inner.peek(checks[1:]).remaining == left, "units stay charged; this is after one more"


async def test_bans_and_strikes_are_local_as_well_and_commands_say_that_it_failed(inline: bool) -> None:
    ward, other, policy = Ward("local", inline=inline), Ward("allow", inline=inline), BanPolicy("2/1h", "10m")
    await ward.limiter.strike("ann", policy)
    ward.fall_ill()
    assert await ward.limiter.strike("ann", policy) is None
    ban = await ward.limiter.strike("ann", policy)
    assert ban is not None
    assert (await ward.hit()).ban == ban == await ward.limiter.engine.find_ban(("ann",))
    for command in (ward.limiter.ban("ann", "1h"), ward.limiter.unban("bob"), ward.limiter.reset("ann")):
        with pytest.raises(StoreUnavailable):
            await command
    ward.recover()
    assert (await ward.hit()).ban == ban  # it lasts here
    ward.clock.advance("10m")
    assert (await ward.hit()).allowed
    other.fall_ill()
    assert [await other.limiter.strike("ann", policy) for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(("on_error", "status"), [("deny", 503), ("allow", 200), ("local", 403)])
async def test_a_strike_without_an_answer_is_not_the_answer_that_nobody_is_banned(
    on_error: str, status: int, inline: bool
) -> None:
    ward = Ward(on_error, inline=inline)
    ward.store.bans.strike = gone
    trap = BanPolicy("5/10m", "1h", signals={"/trap": "ban"}, name="trap")
    app = RateLimitMiddleware(hello, limiter=ward.limiter, bans=trap)
    for _ in range(2):
        assert (await call(app, "/trap")).status == status
        await ward.hit()  # the store answers other questions
    if on_error == "deny":
        with pytest.raises(StoreUnavailable, match="strike"):
            await ward.limiter.strike("ann", trap)


async def test_denied_is_503_and_no_abuse_of_the_client() -> None:
    ward = Ward("deny")
    ward.fall_ill()
    bans = BanPolicy("1/1h", signals={"refused": 1})
    answer = await call(RateLimitMiddleware(hello, limits="100/hour", limiter=ward.limiter, bans=bans))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert b"#temporary-reduced-capacity" in answer.body
    assert await ward.limiter.engine.find_ban(("203.0.113.9",)) is None


async def test_a_strike_may_be_the_probe_that_finds_the_store_well() -> None:
    ward = Ward("deny")
    await ward.to_the_probe()
    ward.store.error = None
    await ward.limiter.strike("eve", BanPolicy("9/1h"))
    assert (await ward.hit()).allowed


def gone(*arguments: object) -> None:
    raise StoreUnavailable("gone")


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("secret", [None, b"s" * 32])
@pytest.mark.parametrize("kind", ["redis", "own"])
def test_a_store_that_has_to_be_awaited_says_under_trio_that_it_needs_asyncio(
    kind: str, secret: bytes | None, on_error: Any
) -> None:
    store: Any = RedisStore("redis://127.0.0.1:1/0") if kind == "redis" else SickStore(FakeClock())
    limiter = Limiter(store, secret=secret, on_error=on_error)
    app = RateLimitMiddleware(hello, limiter=limiter, limits="5/minute")

    async def main() -> None:
        async with limiter:
            asks = (lambda: call(app), lambda: limiter.hit("ann", "5/minute"), lambda: limiter.ban("ann", "1h"))
            for ask in asks:
                with pytest.raises(ConfigurationError, match="needs asyncio"):
                    await ask()

    anyio.run(main, backend="trio")


class Parts(SickStore):
    """A store of several servers, of which each key has one."""

    def __init__(self, clock: FakeClock, *, inline: bool) -> None:
        super().__init__(clock, inline=inline)
        self.sick: dict[str, BaseException] = {}
        self.parts_asked: list[str] = []

    def part_of(self, checks: Sequence[Check]) -> str:
        return checks[0][1].partition(":")[0] if checks else "bans"

    def hit(self, checks: Sequence[Check], subjects: Sequence[Any] = ()) -> Decision:
        part = self.part_of(checks)
        self.parts_asked.append(part)
        if part in self.sick:
            raise self.sick[part]
        return self.inner.hit(checks, subjects)


PLACES = ("a", "b", "c")


@pytest.mark.interpreted("a method of a compiled class cannot be replaced")
@given(st.lists(st.tuples(st.sampled_from(["hit", "ill", "well", "wait"]), st.sampled_from(PLACES)), max_size=60))
def test_a_part_of_a_store_that_fails_takes_nobody_else_off_it(moves: list[tuple[str, str]]) -> None:
    async def play() -> None:
        ward = Ward("deny", inline=True, make_store=Parts)
        parts = ward.store
        for move, place in moves:
            if move == "ill":
                parts.sick[place] = StoreUnavailable("gone")
            elif move == "well":
                parts.sick.pop(place, None)
                ward.clock.advance("1s")
            elif move == "wait":
                ward.clock.advance("300ms")
            else:
                for name in (*PLACES, place, place):
                    decision = await ward.limiter.hit(f"{name}:ann", "1000/hour")
                    assert decision.allowed is (name not in parts.sick)
        for place in PLACES:
            parts.parts_asked.clear()
            for _ in range(10):
                await ward.limiter.hit(f"{place}:ann", "1000/hour")
            most = failover.FAILURES_TO_OPEN if place in parts.sick else 10
            assert min(most, 10 * (place not in parts.sick)) <= len(parts.parts_asked) <= most

    asyncio.run(play())


@pytest.mark.interpreted("a method of a compiled class cannot be replaced")
@pytest.mark.parametrize("concerns", ["key", "slot"])
async def test_what_concerns_a_key_or_a_slot_alone_is_answered_by_the_policy_and_opens_nothing(concerns: Any) -> None:
    ward = Ward("deny", inline=True, make_store=Parts)
    parts = ward.store
    parts.part_of = lambda checks: "the one server"
    parts.sick["the one server"] = StoreUnavailable("a foreign value", concerns=concerns)
    for _ in range(20):
        assert (await ward.hit()).reason is Reason.UNAVAILABLE
    assert len(parts.parts_asked) == 20
    parts.sick.clear()
    assert (await ward.hit()).allowed
    assert ward.heard.kinds == ["store_failed"]
    assert f"for a {concerns}" in ward.heard.events[0].message


async def test_a_long_outage_is_told_once_a_minute_for_each_cause() -> None:
    ward = Ward("allow", inline=True)
    for second in range(150):
        ward.store.error = StoreUnavailable("gone") if second < 30 else StoreTimeout("late")
        await ward.hit()
        ward.clock.advance("1s")
    shown = [str(event.details["error"]) for event in ward.heard.events]
    assert ["gone" in error for error in shown] == [True, False, False]
    assert ward.heard.kinds == ["store_failed"] * 3


class Lines(logging.Handler):
    """The lines of a log about outages, each as its moment and its kind."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.seen: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.getMessage().removeprefix("slidegate: ").partition(":")[0]
        if kind in ("store_failed", "store_recovered"):
            self.seen.append((self._clock(), kind))


@given(st.lists(st.tuples(st.sampled_from(["ill", "well", "hit", "wait"]), st.integers(1, 1_500)), max_size=60))
@example([("ill", 1), ("hit", 1), ("well", 1), ("hit", 1), ("wait", 1_000), ("ill", 1), ("hit", 1)])
@example([("ill", 1), ("hit", 1), ("wait", 999), ("well", 1), ("hit", 1), ("ill", 1), ("wait", 2), ("hit", 1)])
@example(
    [
        ("ill", 1),
        ("hit", 1),
        ("wait", 999),
        ("well", 1),
        ("hit", 1),
        ("ill", 1),
        ("hit", 1),
        ("wait", 1_500),
        ("hit", 1),
    ]
)
def test_what_is_told_last_is_how_the_store_is_and_the_log_has_a_line_a_second(moves: list[tuple[str, int]]) -> None:
    async def play() -> None:
        ward = Ward("allow", inline=True)
        lines, outages = Lines(ward.clock), 0
        logging.getLogger("slidegate").addHandler(lines)
        try:
            for move, number in moves:
                if not ward.undergo(move, number * 1_000):
                    was_away, asked = ward.safe.away, ward.store.asked
                    await ward.hit()
                    away = ward.safe.away
                    outages += away and not was_away
                    heard = [kind for kind, _ in itertools.groupby(ward.heard.kinds)]
                    assert heard == (["store_failed", "store_recovered"] * outages)[: 2 * outages - away]
                    at_us, last = lines.seen[-1] if lines.seen else (0, "")
                    if ward.store.asked > asked and ward.clock() >= at_us + 1_000_000:
                        assert last in (("store_failed",) if away else ("", "store_recovered"))
        finally:
            logging.getLogger("slidegate").removeHandler(lines)
        for kind in ("store_failed", "store_recovered"):
            moments = [at_us for at_us, seen in lines.seen if seen == kind]
            assert all(later - at_us >= 1_000_000 for at_us, later in itertools.pairwise(moments))

    asyncio.run(play())


@given(st.lists(st.tuples(st.sampled_from(["hit", "ill", "well", "wait"]), st.integers(1, 3)), max_size=40))
@example(
    [("ill", 1), ("hit", 1), ("well", 1), ("wait", 2), ("hit", 2), ("wait", 3), ("hit", 1), ("ill", 1), ("hit", 3)]
)
def test_the_bound_of_one_process_holds_through_failures_and_recoveries(moves: list[tuple[str, int]]) -> None:
    async def play() -> None:
        ward, admitted = Ward("local", inline=True), list[int]()
        for move, number in moves:
            if not ward.undergo(move, number * 7_000_000):
                admits = (await ward.hit("4/30s", cost=number)).allowed
                if ward.safe.local is None:
                    admitted.clear()  # what the shared store alone admitted is not known here when it falls ill
                elif admits:
                    admitted += [ward.clock.now_us] * number
                assert sum(at_us > ward.clock.now_us - 30_000_000 for at_us in admitted) <= 4

    asyncio.run(play())


async def test_a_question_is_charged_here_while_the_store_is_away_and_then_in_both_and_handed_back_where_it_was(
    inline: bool,
) -> None:
    ward = Ward("local", inline=inline, make_store=Preparing)
    checks = (await ward.hit("5/hour")).checks
    assert ward.store.prepared == 1
    ward.fall_ill()
    away = [await ward.hit("5/hour") for _ in range(3)]
    local = ward.safe.local
    assert local is not None

    def spent() -> tuple[int, int]:
        return tuple(4 - (store.peek(checks).remaining or 0) for store in (ward.store.inner, local))  # type: ignore[return-value]

    assert spent() == (1, 3)
    ward.recover()
    both = await ward.hit("5/hour")
    assert spent() == (2, 4)
    assert [await ward.limiter.refund(decision) for decision in (both, both, away[0])] == [True, False, True]
    assert spent() == (1, 2)


async def test_parts_of_a_decision_of_both_can_be_handed_back() -> None:
    ward = Ward("local")
    tight, wide = (ward.limiter._bucket(name, limits) for name, limits in (("tight", "3/hour"), ("wide", "9/hour")))
    checks = ((tight, "ann", 2), (wide, "ann", 2))
    ward.fall_ill()
    await ward.limiter.hit_all(((tight, "bob", 1),))
    ward.recover()
    both = await ward.limiter.hit_all(checks)
    assert await ward.limiter.engine.refund(both.take_back(0)) is True
    assert [own.ended for own in both.reservations] == [True, False, True, False]
    assert [state.remaining for state in both.states] == [3, 7]
    after = await ward.limiter.peek_all(checks)
    assert [state.remaining for state in after.states] == [3 - 2, 7 - 2]
    assert await ward.limiter.refund(both) is True
    assert [state.remaining for state in (await ward.limiter.peek_all(checks)).states] == [3 - 2, 9 - 2]


async def test_strikes_that_only_this_process_could_count_are_kept_while_hits_are_answered() -> None:
    ward = Ward("local", inline=True)
    strike, ward.store.bans.strike = BanPolicy("20/1h", "10m"), gone
    made = None
    for _ in range(20):
        made = await ward.limiter.strike("ann", strike)
        assert (await ward.hit("100/hour")).allowed is (made is None)
        await ward.limiter.engine.find_ban(("ann",))
        ward.clock.advance("1s")
    assert made is not None


@pytest.mark.interpreted("a method of a compiled class cannot be replaced")
async def test_an_error_about_one_key_is_no_sign_that_a_server_that_failed_is_well() -> None:
    ward = Ward("deny", inline=True, make_store=Parts)
    parts = ward.store
    for number in range(10):
        concerns: Any = "key" if number % 2 else "server"
        parts.sick["ann"] = StoreUnavailable("?", concerns=concerns)
        await ward.hit()
    assert len(parts.parts_asked) == 2 * failover.FAILURES_TO_OPEN - 1
