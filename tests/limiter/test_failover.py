"""A sick store never hangs the application: every question has a deadline, and what happens then is chosen."""

import asyncio
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from slidegate import BanPolicy, ConfigurationError, Limit, Limiter, MemoryStore, RateLimitMiddleware
from slidegate.core import Reason
from slidegate.core.concurrency import Concurrency
from slidegate.core.decision import Bucket, Check, Decision
from slidegate.core.errors import StoreUnavailable
from slidegate.limiter import breaker, failover
from slidegate.stores.redis import RedisStore
from slidegate.stores.shared import DEFAULT_MAX_KEYS
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import call, hello
from ..questions import hit_all
from ..remote_stores import SickStore
from ..virtual_time import turns

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
        await self.fail()
        self.clock.advance(us=breaker.OPEN_US)

    async def fail(self) -> None:
        """Let the store fail until that is an outage."""
        self.fall_ill()
        for _ in range(breaker.FAILURES_TO_OPEN):
            await self.hit("1000000/minute")
        assert self.limiter.is_failing

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
@pytest.mark.parametrize(
    ("on_error", "reasons"),
    [("local", ["ok"] * 3 + ["limited"] * 2), ("allow", ["unavailable"] * 5), ("deny", ["unavailable"] * 5)],
)
async def test_on_error_decides_whatever_the_error_is(
    on_error: str, reasons: list[str], error: Exception, inline: bool
) -> None:
    ward = Ward(on_error, inline=inline)
    await ward.hit()
    ward.store.error = error
    decisions = [await ward.hit() for _ in range(5)]
    assert [decision.reason for decision in decisions] == reasons
    assert {bool(decision) for decision in decisions} == {on_error != "deny", on_error == "allow"}
    waits = {"local": {0, 3_600}, "allow": {0}, "deny": {1}}
    assert {decision.retry_after for decision in decisions} == waits[on_error]
    assert (await ward.limiter.charge("ann", "3/hour", 1)).allowed, "it was spent all the same"
    assert await ward.limiter.refund(decisions[0]) is (on_error == "local")
    assert [(event.kind, event.details["on_error"]) for event in ward.heard.events] == [("store_failed", on_error)]
    ward.recover()
    assert (await ward.hit()).remaining == 1


async def test_no_request_waits_longer_than_the_deadline_for_a_store_that_hangs() -> None:
    ward = Ward("local", deadline="20ms")
    ward.store.hangs = True
    for _ in range(5):
        await ward.hit()
    assert (await ward.limiter.peek("ann", "3/hour")).allowed is False
    assert await ward.limiter.engine.find_ban(("ann",)) is None
    assert ward.heard.events[0].message.endswith("no answer within the deadline of 20 ms (Limiter(deadline=...))")


def answers_later(ward: Ward) -> list[asyncio.Future[Decision]]:
    """Have hits answered by futures, which are returned as they are made."""
    made: list[asyncio.Future[Decision]] = []

    def later(checks: Sequence[Check], subjects: Sequence[Any] = (), **line: Any) -> asyncio.Future[Decision]:
        made.append(asyncio.get_running_loop().create_future())
        return made[-1]

    ward.store.hit = later
    return made


@pytest.mark.parametrize("at_once", [1, 7, 64])
async def test_a_request_whose_answer_has_come_is_let_go_of_long_before_the_deadline(at_once: int) -> None:
    ward = Ward()
    made = answers_later(ward)

    async def begun(count: int) -> list[asyncio.Task[Decision]]:
        tasks = [asyncio.create_task(ward.limiter.hit("ann", "3/hour")) for _ in range(count)]
        await turns(2)
        return tasks

    hung, waiting = await begun(50), [*made]
    seen = list[weakref.ref[asyncio.Future[Decision]]]()
    for _ in range(2_000 // at_once):
        made.clear()
        tasks = await begun(at_once)
        for future in made:
            future.set_result(Decision(True, Reason.OK))
        seen += map(weakref.ref, made)
        await asyncio.gather(*tasks)
    del future
    made.clear()
    assert not any(ref() for ref in seen)
    assert not any(future.done() for future in waiting)
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)


async def leaves(ward: Ward) -> None:
    """Ask a store that hangs, and cancel the request."""
    ward.store.error, ward.store.hangs = None, True
    task = asyncio.create_task(ward.limiter.hit("ann", "3/hour"))
    await turns(2)
    if ward.limiter.is_failing:
        assert not await ward.hit(), "nobody else is the probe meanwhile"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ward.store.hangs = False


async def test_a_request_that_is_cancelled_is_no_failure_and_a_probe_is_followed_by_another() -> None:
    ward = Ward("deny")
    await leaves(ward)
    assert not ward.limiter.is_failing
    await ward.to_the_probe()
    await leaves(ward)
    assert await ward.hit()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("ends", "left"), [("refused", 3), ("failed", 4), ("admitted", 4)])
async def test_the_place_of_a_request_that_is_cancelled_as_its_answer_comes_is_handed_back(
    ends: str, left: int, *, waits: bool
) -> None:
    ward = Ward("local")
    limits = Bucket("jobs", [Concurrency(1)]), Bucket("units", [Limit(5, "1h")])
    checks = [(bucket, "ann", 1) for bucket in limits]
    made, queues = answers_later(ward), ward.limiter.engine.queues
    if ends == "refused":
        ward.store.inner.hit(checks)
    ask = partial(hit_all, ward.limiter, checks)
    waiting = queues.wait(("jobs", "ann"), None, ask, wait_us=10**9, wait_max=1)
    task = asyncio.create_task(waiting if waits else ask())
    if not waits:
        waiting.close()
    await asyncio.sleep(0)
    if ends == "failed":
        made[0].set_exception(StoreUnavailable("gone"))
    else:
        made[0].set_result(ward.store.inner.hit(checks))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert queues.waiting == 0
    assert ward.store.inner.permits_held() == (ends == "refused")
    assert ward.store.inner.peek(checks[1:]).remaining == left, "its units are handed back, too; this is after one more"


async def test_bans_and_strikes_are_local_as_well_and_commands_say_that_it_failed(inline: bool) -> None:
    ward, other, policy = Ward("local", inline=inline), Ward("allow", inline=inline), BanPolicy("2/1h", "10m")
    await ward.limiter.strike("ann", policy)
    ward.fall_ill()
    assert await ward.limiter.strike("ann", policy) is None
    ban = await ward.limiter.strike("ann", policy)
    assert ban is not None
    assert (await ward.hit()).ban == ban == await ward.limiter.engine.find_ban(("ann",))
    limiter = ward.limiter
    for command in (limiter.ban("ann", "1h"), limiter.unban("bob"), limiter.reset("ann"), limiter.reset_all()):
        with pytest.raises(StoreUnavailable):
            await command
    with pytest.raises(StoreUnavailable):
        await limiter.inspect("ann")
    ward.recover()
    assert (await ward.hit()).allowed, "the store decides alone, and knows of no ban"
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


async def test_an_answer_to_what_was_asked_before_an_outage_does_not_end_it() -> None:
    ward = Ward("allow")
    (made, asked) = answers_later(ward), asyncio.create_task(ward.limiter.hit("ann", "3/hour"))
    await turns(2)
    del ward.store.hit
    await ward.fail()
    made[0].set_result(Decision(True, Reason.OK))
    assert (await asked).allowed
    assert ward.limiter.is_failing


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


async def test_what_concerns_a_key_alone_is_answered_by_the_policy_and_opens_nothing(inline: bool) -> None:
    ward = Ward("deny", inline=inline)
    ward.store.error = StoreUnavailable("a foreign value", concerns="key")
    for _ in range(20):
        assert (await ward.hit()).reason is Reason.UNAVAILABLE
    assert (ward.store.asked, ward.limiter.failures, ward.limiter.is_failing) == (20, 20, False)
    ward.store.error = None
    assert (await ward.hit()).allowed
    assert ward.heard.kinds == ["store_error"]
    assert "for a key" in ward.heard.events[0].message


async def test_an_error_about_one_key_is_no_sign_that_a_server_that_failed_is_well() -> None:
    ward = Ward("deny", inline=True)
    for number in range(10):
        ward.store.error = StoreUnavailable("?", concerns="key" if number % 2 else "server")
        await ward.hit()
    assert ward.store.asked == 2 * breaker.FAILURES_TO_OPEN - 1


async def test_an_answer_that_a_store_remembers_is_no_sign_that_its_server_is_well() -> None:
    """A refusal that is known is repeated without a call."""
    ward = Ward("allow")
    await ward.to_the_probe()
    remembered = ward.store.inner.hit(((Bucket("known", [Limit(1, "1h")]), "ann", 2),))
    hit, ward.store.hit = ward.store.hit, lambda *question: remembered
    assert await ward.hit() is remembered
    assert ward.limiter.is_failing
    ward.store.hit, ward.store.error = hit, None
    assert (await ward.hit()).reason == "ok", "the next one is the probe at once"
    assert not ward.limiter.is_failing


@pytest.mark.parametrize("around", [None, StoreUnavailable("redis: cannot connect")])
async def test_a_connection_that_is_refused_is_an_outage_at_once(around: Any, inline: bool) -> None:
    ward, refused = Ward("allow", inline=inline), ConnectionRefusedError(111, "Connection refused")
    ward.store.error = around or refused
    ward.store.error.__cause__ = None if around is None else refused
    await ward.hit()
    assert (ward.limiter.is_failing, ward.heard.kinds) == (True, ["store_failed"])


async def test_one_failure_between_answers_is_told_as_what_it_is(inline: bool) -> None:
    ward = Ward("allow", inline=inline)
    for error in (None, StoreUnavailable("reset"), None, StoreUnavailable("reset"), None):
        ward.store.error = error
        assert (await ward.hit()).allowed
    assert (ward.heard.kinds, ward.limiter.failures) == (["store_error"], 2)
    assert "reset" in str(ward.heard.events[0].details["error"])


async def test_after_an_outage_the_store_decides_alone_and_units_go_back_where_they_were_taken(inline: bool) -> None:
    ward = Ward("local", inline=inline)
    checks = (await ward.hit("5/hour")).checks
    await ward.fail()
    away = [await ward.hit("5/hour") for _ in range(3)]

    def spent() -> list[int]:
        return [4 - (store.peek(checks).remaining or 0) for store in (ward.store.inner, ward.safe.local)]

    assert spent() == [1, 3]
    ward.recover()
    after = await ward.hit("5/hour")
    assert spent() == [2, 3]
    assert [await ward.limiter.refund(decision) for decision in (after, after, away[0])] == [True, False, True]
    assert spent() == [1, 2]


async def test_the_memory_of_what_is_counted_here_is_bounded_and_let_go_of_when_its_windows_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Ward("local").safe.local.max_keys == DEFAULT_MAX_KEYS
    monkeypatch.setattr(failover, "MemoryStore", partial(MemoryStore, max_keys=800))
    ward = Ward("local", inline=True)
    await ward.fail()
    for number in range(1_000):
        await ward.limiter.hit(f"client:{number}", "3/minute")
    assert ward.safe.local.stats().keys == 800
    assert ward.heard.kinds == ["store_failed", "keys_shared"], "others are counted in shared cells"
    ward.store.error = None
    for _ in range(100):
        ward.clock.advance("2m")
        await ward.hit("1000000/hour")
    assert ward.safe.local.stats().keys == 0


async def test_strikes_that_only_this_process_could_count_are_kept_while_hits_are_answered() -> None:
    ward = Ward("local", inline=True)
    strike, ward.store.bans.strike = BanPolicy("20/1h", "10m"), gone
    made = None
    for _ in range(20):
        assert made is None
        made = await ward.limiter.strike("ann", strike)
        assert await ward.hit("100/hour")
        await ward.limiter.engine.find_ban(("ann",))
        ward.clock.advance("1s")
    assert made is not None
    assert await ward.limiter.strike("ann", strike) == made, "it goes on to refuse who is struck"
