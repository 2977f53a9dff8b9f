"""A sick store never hangs the application: every question has a deadline, and what happens in an outage is chosen."""

import asyncio
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from unittest.mock import Mock

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from slidegate import BanPolicy, Decision, Limit, Limiter, MemoryStore, RateLimitMiddleware, StoreError, parse_limits
from slidegate.core import Bucket, Concurrency, ConfigurationError, Event, Reason, StoreUnavailable
from slidegate.limiter import breaker, failover
from slidegate.limiter.aio import answer_of
from slidegate.stores.redis import RedisStore
from slidegate.stores.shared import DEFAULT_MAX_KEYS
from slidegate.testing import FakeClock, RecordingObserver, limits_clock

from ..asgi import PEER, call, hello, statuses
from ..contract.programs import SECOND_US
from ..hurry import race
from ..ops.shared_rows import SharedRows, limiter_on
from ..remote_stores import SlowStore, hit_all
from ..virtual_time import OnALoop, VirtualTime, turns, use_virtual_time

T = TypeVar("T")
START_US = 10**12
LONG = 10.0
"""Seconds that only a hang takes."""


async def answered(ask: Callable[..., Any], *question: Any) -> Any:
    """Ask, and return the answer, which may have to be awaited."""
    return await answer_of(ask(*question))


class Setup:
    """A limiter, its store, which can be ill, and their clock."""

    def __init__(
        self, on_error: Any = "local", *, inline: bool = False, deadline: str = "60s", kind: Any = SlowStore
    ) -> None:
        self.clock, self.observer = FakeClock(START_US), RecordingObserver(without=["refused"])
        self.store = kind(self.clock, inline=inline)
        self.limiter = Limiter(self.store, deadline=deadline, on_error=on_error, observers=[self.observer])
        self.failover: Any = self.limiter.engine.failover
        self.failover._clock = self.clock

    async def fail(self) -> None:
        """Let the store fail until that is an outage."""
        self.store.error = StoreUnavailable("gone")
        for _ in range(breaker.FAILURES_TO_OPEN):
            await self.hit("1000000/minute")
        assert self.limiter.is_failing

    async def hit(self, limits: str = "3/hour", cost: int = 1) -> Decision:
        async with asyncio.timeout(LONG):
            return await self.limiter.hit("ann", limits, cost)


AMOUNT = 3
CHOICES = (None, "local", "allow", "deny")
BUCKETS = {
    (name, own): Bucket(name, parse_limits(f"{AMOUNT}/day"), on_error=own) for name in ("a", "b") for own in CHOICES
}
RULES = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(CHOICES), min_size=1)
REFUSED = ConnectionRefusedError(111, "Connection refused")
WEATHER: dict[str, Exception | None] = {
    "well": None,
    "late": None,
    "ill": ValueError("a bug"),
    "refused": REFUSED,
    "refused inside": StoreUnavailable("redis: cannot connect"),
    "ill for one key": StoreUnavailable("a foreign value", concerns="request"),
}
WEATHER["refused inside"].__cause__ = REFUSED  # type: ignore[union-attr]


class Model:
    """What the pages promise of questions that come one after the other."""

    def __init__(self, on_error: str) -> None:
        self.on_error, self.open_until_us, self.in_a_row, self.failures = on_error, 0, 0, 0
        self.spent = {where: Counter[str]() for where in ("store", "here", "")}
        self.strikes = Counter[str]()

    def end_call(self, weather: str, now_us: int) -> None:
        was_open, failed = self.open_until_us > 0, weather != "well"
        self.failures += weather not in ("well", "cancelled")
        if weather in ("cancelled", "ill for one key"):  # that says nothing about the server
            self.open_until_us = now_us if was_open else 0
            return
        self.in_a_row = self.in_a_row + 1 if failed else 0
        begins = failed and (was_open or "refused" in weather or self.in_a_row >= 3)
        self.open_until_us = now_us + SECOND_US if begins else 0

    def decide(self, what: str, rules: dict[str, str | None], *, is_answered: bool) -> tuple[bool, str, str]:
        """Return whether a question is allowed, why, and where it is charged."""
        choices = {own or self.on_error for own in rules.values()}
        if not is_answered and ("deny" in choices or "local" not in choices):
            return "deny" not in choices or what == "charge", "unavailable", ""
        where = "store" if is_answered else "here"
        allowed = what == "charge" or all(self.spent[where][name] < AMOUNT for name in rules)
        where = where if allowed and what != "peek" else ""
        self.spent[where].update(rules.keys())
        return allowed, "ok" if allowed else "limited", where


class Outages(OnALoop):
    """A limiter whose store is well, fails, is late or refuses connections, beside the model."""

    @initialize(on_error=st.sampled_from(CHOICES[1:]), inline=st.booleans())
    def begin(self, on_error: str, inline: bool) -> None:
        self.setup = Setup(on_error, inline=inline, deadline="100ms")
        self.run(use_virtual_time(self.setup.clock))
        self.clock, self.store, self.limiter = self.setup.clock, self.setup.store, self.setup.limiter
        engine: Any = self.limiter.engine
        self.questions = {
            "hit": partial(hit_all, self.limiter),
            "peek": lambda checks: answered(engine.peek, checks, ()),
            "charge": partial(answered, engine.charge),
        }
        self.model, self.weather = Model(on_error), "well"
        self.decisions: list[tuple[Decision, str, list[str]]] = []

    def ask(self, question: Awaitable[T], ends: str = "") -> tuple[T, bool]:
        """Return the answer of the limiter, and whether it is that of the store."""
        is_called, calls = self.clock() >= self.model.open_until_us, self.store.calls
        answer = self.run(question)
        assert self.store.calls - calls == is_called, "but for a probe a second, the store is left alone in an outage"
        if is_called:
            assert getattr(self.store, "deadline_s", 0.1) == 0.1, "that of requests"
            self.model.end_call(ends or self.weather, self.clock())
        return answer, is_called and self.weather == "well"

    @rule(weather=st.sampled_from([*WEATHER]))
    def change(self, weather: str) -> None:
        self.weather = "ill" if self.store.inline and weather == "late" else weather
        self.store.error, self.store.hangs = WEATHER[self.weather], self.weather == "late"

    @rule(tenths=st.integers(1, 30))
    def wait(self, tenths: int) -> None:
        self.clock.advance(us=tenths * SECOND_US // 10)

    @rule(what=st.sampled_from(["hit", "hit", "peek", "charge"]), rules=RULES, count=st.integers(1, 9))
    def decide(self, what: str, rules: dict[str, str | None], count: int) -> None:
        checks = [(BUCKETS[name, own], "ann", 1) for name, own in rules.items()]
        for _ in range(count):
            decision, is_answered = self.ask(self.questions[what](checks))
            *expected, where = self.model.decide(what, rules, is_answered=is_answered)
            assert [decision.allowed, str(decision.reason)] == expected
            if decision.reason is Reason.UNAVAILABLE:
                wait_us = max(self.model.open_until_us - self.clock(), SECOND_US)
                assert decision.retry_after_us == (0 if decision.allowed else wait_us)
            self.decisions.append((decision, where, [*rules]))

    @rule(weathers=st.lists(st.sampled_from(["well", "ill"]), min_size=10, max_size=20))
    def waver(self, weathers: list[str]) -> None:
        """Failures with answers between them are no outage."""
        for weather in weathers:
            self.change(weather)
            self.decide("hit", {"a": None}, 1)

    @precondition(lambda self: self.decisions)
    @rule(data=st.data())
    def charge_more(self, data: st.DataObject) -> None:
        """What a request has used is shown in its decision, wherever either was counted."""
        decision, *_ = data.draw(st.sampled_from(self.decisions))
        at = data.draw(st.integers(0, len(decision.checks) - 1))
        bucket = decision.checks[at][0]
        charged, is_answered = self.ask(self.questions["charge"]([decision.checks[at]]))
        *_, where = self.model.decide("charge", {bucket.name: bucket.on_error}, is_answered=is_answered)
        was = decision.readings
        decision.recount(at, charged)
        assert len(decision.states) in (0, len(decision.checks))
        assert (decision.readings == was) >= (not was or not charged.readings)
        self.decisions.append((charged, where, [bucket.name]))

    @precondition(lambda self: self.decisions)
    @rule(data=st.data())
    def refund(self, data: st.DataObject) -> None:
        """Units go back where they were charged, once."""
        decision, where, names = self.decisions.pop(data.draw(st.integers(0, len(self.decisions) - 1)))
        if where == "store":
            is_refunded, is_answered = self.ask(self.limiter.refund(decision))
            assert is_refunded is is_answered
        else:
            is_refunded = self.run(self.limiter.refund(decision))
            assert is_refunded is (where == "here")
        self.model.spent[where].subtract(names if is_refunded else ())
        assert not self.run(self.limiter.refund(decision))

    @rule()
    def strike(self) -> None:
        """A strike that nobody may count is not the answer that nobody is banned."""

        async def strike() -> bool | None:
            try:
                return await self.limiter.strike("eve", BanPolicy("3/1h", "1h")) is not None
            except StoreUnavailable:
                return None

        is_banned, is_answered = self.ask(strike())
        where = "store" if is_answered else "here" if self.model.on_error == "local" else ""
        self.model.strikes[where] += where != ""
        if is_answered:
            assert is_banned is (self.model.strikes["store"] == 3)
        else:
            assert is_banned is (None if self.model.on_error == "deny" else self.model.strikes[where] >= 3)

    @rule()
    def find(self) -> None:
        """A ban that this process has made holds during an outage alone."""
        ban, is_answered = self.ask(answered(self.limiter.engine.find_ban, ("eve",)))
        assert (ban is not None) is (self.model.strikes["store" if is_answered else "here"] >= 3)

    @precondition(lambda self: self.weather != "well")
    @rule(command=st.sampled_from(["ban", "unban", "reset", "inspect", "reset_all"]))
    def command(self, command: str) -> None:
        """An operator gets the error of the store."""
        arguments = {"ban": ("bob", "1h"), "reset_all": ()}.get(command, ("bob",))
        with pytest.raises((StoreError, OSError, ValueError)):
            self.run(getattr(self.limiter, command)(*arguments))

    @precondition(lambda self: self.weather == "late")
    @rule()
    def cancel(self) -> None:
        """A request that is cancelled is no failure, and a probe is followed by another."""

        async def leave() -> None:
            task = asyncio.create_task(self.setup.hit())
            await turns(2)
            if self.limiter.is_failing:
                await self.setup.hit()  # nobody else is the probe meanwhile
            task.cancel()
            await asyncio.wait([task])

        self.ask(leave(), ends="cancelled")

    @invariant()
    def what_is_counted_and_reported_is_what_was(self) -> None:
        for where, store in (("store", self.store.inner), ("here", self.setup.failover.local)):
            left = [store.peek([(BUCKETS[name, None], "ann", 0)]).remaining for name in "ab"]
            assert left == [max(AMOUNT - self.model.spent[where][name], 0) for name in "ab"], where
        is_open = self.model.open_until_us > 0
        assert (self.limiter.is_failing, self.limiter.failures) == (is_open, self.model.failures)
        events = [event for event in self.setup.observer.events if event.kind in ("store_failed", "store_recovered")]
        kinds = [event.kind for event in events]
        assert kinds == ["store_failed", "store_recovered"] * (len(kinds) // 2) + ["store_failed"] * is_open
        assert {event.details["on_error"] for event in events[::2]} <= {self.model.on_error}


TestOutages = pytest.mark.interpreted("a clock of a compiled class cannot be replaced")(Outages.TestCase)


def test_an_outage_that_several_threads_find_at_once_is_reported_once_and_ends_with_a_probe() -> None:
    observer, clock = RecordingObserver(), FakeClock()
    found = breaker.Breaker(50_000, "local", observer, clock)

    def act(number: int, thread: int) -> None:
        clock.set(10**9 + number * breaker.OPEN_US)
        if number % 2 == 0:
            found.failed(found.call(), REFUSED)
            found.answered(None)  # to what was asked before
        elif found.may_ask():
            found.answered(None)

    race(act, rounds=20)
    assert observer.kinds == ["store_failed", "store_recovered"] * 10


class Halved(SlowStore):
    """A store that answers what needs no write, and refuses the rest."""

    def answer(self, question: Any, *arguments: Any) -> Any:
        self.error, name = None, question.__name__
        needs_none = name == "hit" and not (self.inner.peek(*arguments[:2]).allowed and arguments[0][0][2])
        if not needs_none and name not in ("peek", "find"):
            self.error = StoreUnavailable("OOM", concerns="writes")
        return super().answer(question, *arguments)


WRITES: dict[str, Callable[[Limiter], Any]] = {
    "hit": lambda limiter: limiter.hit("ann", "3/hour"),
    "charge": lambda limiter: limiter.charge("ann", "3/hour", 1),
    "strike": lambda limiter: limiter.strike("eve", BanPolicy("9/10m", "1h")),
    "ban": lambda limiter: answered(limiter.engine.ban, "eve", SECOND_US, "", "a service"),
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("write", WRITES)
async def test_an_outage_of_writes_begins_and_ends_with_writes_alone(write: str, inline: bool) -> None:
    setup = Setup("allow", inline=inline)
    setup.store.inner.hit([(Bucket("hit", parse_limits("1/day")), "bob", 1)])
    setup.store.__class__ = Halved
    reads = [
        partial(setup.limiter.hit, "bob", "1/day"),
        partial(setup.limiter.hit, "ann", "3/hour", 0),
        partial(setup.limiter.peek, "ann", "3/hour"),
        partial(answered, setup.limiter.engine.find_ban, ("eve",)),
    ]
    for _ in range(breaker.FAILURES_TO_OPEN):
        for read in reads:
            await read()
        setup.failover.breaker.note_answer()  # as of a read that is late
        assert (await setup.hit()).reason is Reason.UNAVAILABLE
    assert setup.limiter.is_failing, "though reads were answered between the failures"
    for read in reads:
        setup.clock.advance(us=breaker.OPEN_US)
        await read()
        assert setup.limiter.is_failing
        assert (await setup.hit()).reason is Reason.UNAVAILABLE, "the next one is the probe at once"
    setup.store.__class__ = SlowStore
    setup.store.error = None
    setup.clock.advance(us=breaker.OPEN_US)
    await WRITES[write](setup.limiter)
    assert [kind for kind in setup.observer.kinds if kind != "banned"] == ["store_failed", "store_recovered"]
    assert setup.observer.events[-1].details["failures"] == breaker.FAILURES_TO_OPEN + len(reads)


class Shared(SlowStore):
    """A store that keeps the rows of workers, and answers about these."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        super().__init__(clock, **options)
        self.shared_rows = SharedRows(clock)


async def test_a_worker_hears_in_an_outage_that_limits_are_off_and_that_they_are_on_again() -> None:
    """No request asks the store meanwhile: all are refused by a list, or pass."""
    setup = Setup(kind=Shared)
    other = limiter_on(setup.store.shared_rows)
    app = RateLimitMiddleware(hello, limiter=setup.limiter, limits="9/hour", blocklist=[PEER])
    with limits_clock(setup.clock):
        await setup.fail()
        for switch, status in ((partial(other.override, "*", "off", "1h"), 200), (partial(other.restore, "*"), 403)):
            await switch()
            for _ in range(2):
                setup.clock.advance(us=breaker.OPEN_US)
                await call(app, "/")
                await turns()
            assert (await call(app, "/")).status == status
    assert setup.limiter.is_failing


class Server(SlowStore):
    """A store that answers by futures, which it keeps: each `took_s(number)` after its question, or when a test does.

    It reports an answer that nobody awaited any more.
    """

    took_s: Callable[[int], float] | None = None

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        super().__init__(clock, **options)
        self.made, self._late = list[asyncio.Future[Decision]](), list[Callable[[], None]]()

    def observe_late(self, observer: Callable[[], None]) -> None:
        self._late.append(observer)

    def hit(self, checks: Any, subjects: Any = (), deadline_s: float = 0, **line: Any) -> asyncio.Future[Decision]:
        loop = asyncio.get_running_loop()
        self.made.append(future := loop.create_future())
        if self.took_s is not None:
            took_s = self.took_s(len(self.made) - 1)
            loop.call_later(took_s, self._answer, future, checks)
        return future

    def _answer(self, future: asyncio.Future[Decision], checks: Any) -> None:
        if not future.done():
            future.set_result(self.inner.hit(checks))
        else:
            for observer in self._late:
                observer()


async def test_writes_that_are_refused_are_an_outage_though_each_call_has_a_read_that_is_answered() -> None:
    setup = Setup(kind=Server)
    for _ in range(1 + breaker.FAILURES_TO_OPEN):
        hits = [asyncio.create_task(setup.hit()) for _ in range(2)]
        await turns(2)
        setup.store.made[-2].set_result(Decision(False, Reason.LIMITED))
        setup.store.made[-1].set_exception(StoreUnavailable("OOM", concerns="writes"))
        await asyncio.gather(*hits)
    assert setup.limiter.is_failing


@pytest.mark.parametrize("at_once", [1, 7, 64])
async def test_a_request_whose_answer_has_come_is_let_go_of_long_before_the_deadline(at_once: int) -> None:
    setup = Setup(kind=Server)
    made = setup.store.made

    async def begun(count: int) -> list[asyncio.Task[Decision]]:
        tasks = [asyncio.create_task(setup.limiter.hit("ann", "3/hour")) for _ in range(count)]
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


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("ends", "left"), [("refused", 3), ("failed", 4), ("admitted", 4)])
async def test_a_request_cancelled_as_its_answer_comes_has_no_permit(ends: str, left: int, *, waits: bool) -> None:
    setup = Setup("local", kind=Server)
    limits = Bucket("jobs", [Concurrency(1)]), Bucket("units", [Limit(5, "1h")])
    checks = [(bucket, "ann", 1) for bucket in limits]
    made, queues = setup.store.made, setup.limiter.engine.queues
    if ends == "refused":
        setup.store.inner.hit(checks)
    ask = partial(hit_all, setup.limiter, checks)
    waiting = queues.wait(("jobs", "ann"), None, ask, wait_us=10**9, wait_max=1)
    task = asyncio.create_task(waiting if waits else ask())
    if not waits:
        waiting.close()
    await asyncio.sleep(0)
    if ends == "failed":
        made[0].set_exception(StoreUnavailable("gone"))
    else:
        made[0].set_result(setup.store.inner.hit(checks))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert queues.waiting == 0
    assert setup.store.inner.permits_held() == (ends == "refused")
    assert setup.store.inner.peek(checks[1:]).remaining == left, "its units, too, are back; this is after one more"


@pytest.mark.parametrize("inline", [False, True], ids=["awaited", "inline"])
@pytest.mark.parametrize(("on_error", "status"), [("deny", 503), ("allow", 200), ("local", 403)])
async def test_a_strike_without_an_answer_does_not_mean_no_ban(on_error: str, status: int, inline: bool) -> None:
    setup = Setup(on_error, inline=inline)
    setup.store.bans.strike = Mock(side_effect=StoreUnavailable("gone"))
    trap = BanPolicy("5/10m", "1h", signals={"/trap": "ban"}, name="trap")
    app = RateLimitMiddleware(hello, limiter=setup.limiter, bans=trap)
    for _ in range(2):
        assert (await call(app, "/trap")).status == status
        await setup.hit()  # the store answers other questions
    if on_error == "deny":
        with pytest.raises(StoreUnavailable, match="strike"):
            await setup.limiter.strike("ann", trap)
    refusing = RateLimitMiddleware(hello, limits="1/hour", limiter=setup.limiter, bans=BanPolicy("9/10m"))
    assert await statuses(refusing, 2) == [200, 429], "a refusal stays what it is"


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("secret", [None, b"s" * 32])
@pytest.mark.parametrize("make", [partial(RedisStore, "redis://127.0.0.1:1/0"), partial(SlowStore, FakeClock())])
def test_an_awaited_store_says_under_trio_that_it_needs_asyncio(make: Any, secret: bytes | None, on_error: Any) -> None:
    async def main() -> None:
        async with Limiter(make(), secret=secret, on_error=on_error) as limiter:
            app = RateLimitMiddleware(hello, limiter=limiter, limits="5/minute")
            for ask in (partial(call, app), partial(limiter.hit, "ann", "5/minute"), partial(limiter.ban, "ann", "1h")):
                with pytest.raises(ConfigurationError, match="needs asyncio"):
                    await ask()

    anyio.run(main, backend="trio")


def known(*question: Any) -> Decision:
    """Answer as a store that repeats a refusal without a call of its server."""
    return Decision(False, Reason.LIMITED)


MISTAKE = ConfigurationError("needs asyncio")


async def mistaken(*question: Any) -> Decision:
    raise MISTAKE


@pytest.mark.parametrize(
    ("replaced", "by"),
    [("hit", known), ("strike", lambda *strike: None), ("hit", Mock(side_effect=MISTAKE)), ("hit", mistaken)],
    ids=["a refusal that is known", "a strike that need not be asked about", "a mistake", "a mistake that is awaited"],
)
async def test_what_says_nothing_of_the_server_is_no_probe(replaced: str, by: Any) -> None:
    setup = Setup("allow")
    await setup.fail()
    setup.clock.advance(us=breaker.OPEN_US)
    store: Any = setup.store.bans if replaced == "strike" else setup.store
    asked, setup.store.error = getattr(store, replaced), None
    setattr(store, replaced, by)
    with suppress(ConfigurationError):
        if replaced == "strike":
            assert await setup.limiter.strike("ann", BanPolicy("5/10m", "1h")) is None
        else:
            assert (await setup.hit()).reason is Reason.LIMITED
    assert setup.limiter.is_failing
    setattr(store, replaced, asked)
    assert (await setup.hit()).reason == "ok", "the next one is the probe at once"
    assert not setup.limiter.is_failing


async def test_each_outage_counts_its_own_failures() -> None:
    setup = Setup()
    for _ in range(2):
        await setup.fail()
        setup.store.error = None
        setup.clock.advance(us=breaker.OPEN_US)
        await setup.hit()
    events = [event for event in setup.observer.events if event.kind == "store_recovered"]
    assert [event.details["failures"] for event in events] == [breaker.FAILURES_TO_OPEN] * 2


async def test_while_a_probe_may_be_answered_nothing_else_is_asked() -> None:
    setup = Setup()
    await setup.fail()
    setup.store.error, setup.store.hangs, calls = None, True, setup.store.calls
    probes = []
    for _ in range(2):
        setup.clock.advance("1m")  # the deadline
        probes.append(asyncio.create_task(setup.hit()))
        await turns(2)
        await setup.hit()
    assert setup.store.calls == calls + 2
    setup.store.goes_on.set()
    await asyncio.gather(*probes)
    assert setup.store.calls == calls + 2
    assert not setup.limiter.is_failing


async def test_a_probe_whose_request_is_cancelled_is_followed_by_another_at_once() -> None:
    setup = Setup("allow")
    await setup.fail()
    setup.clock.advance(us=breaker.OPEN_US)
    setup.store.error, setup.store.hangs = None, True
    probing = asyncio.create_task(setup.hit())
    await turns(2)
    probing.cancel()
    await asyncio.wait([probing])
    setup.store.hangs = False
    assert (await setup.hit()).reason == "ok"
    assert not setup.limiter.is_failing


@pytest.mark.parametrize("wrap", [asyncio.ensure_future, lambda answer: asyncio.shield(answer)], ids=["task", "shield"])
async def test_a_task_of_a_store_has_its_deadline_too(wrap: Any) -> None:
    setup = Setup("allow", deadline="20ms")
    setup.store.hangs, ask = True, setup.store.hit
    setup.store.hit = lambda *question: wrap(ask(*question))
    decisions = await asyncio.gather(*(setup.hit() for _ in range(3)))
    assert [decision.reason for decision in decisions] == ["unavailable"] * 3


async def test_an_answer_that_others_have_cancelled_is_decided_here_and_cancels_no_request() -> None:
    """As where the event loop ends on which a store was asked."""
    setup = Setup("allow", kind=Server)
    asking = asyncio.create_task(setup.hit())
    await turns(2)
    setup.store.made[0].cancel()
    assert (await asking).reason == "unavailable"
    assert not setup.limiter.is_failing


async def test_what_is_counted_here_is_bounded_and_ends_with_its_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Setup("local").failover.local.max_keys == DEFAULT_MAX_KEYS
    monkeypatch.setattr(failover, "MemoryStore", partial(MemoryStore, max_keys=800))
    setup = Setup("local", inline=True)
    await setup.fail()
    for number in range(1_000):
        await setup.limiter.hit(f"client:{number}", "3/minute")
    assert setup.failover.local.key_count() == 800
    assert setup.observer.kinds == ["store_failed", "keys_shared"], "others are counted in shared cells"
    setup.store.error = None
    for _ in range(100):
        setup.clock.advance("2m")
        await setup.hit("1000000/hour")
    assert setup.failover.local.key_count() == 0


# -- what is an outage, and what is not: traffic at several rates ------------------------------------------------------


OUTAGES = {"store_failed", "store_recovered"}
NAMED = "no answer within the deadline of 50 ms (Limiter(deadline=...))"


class Traffic(Setup):
    """Requests at a steady rate, to a store whose answers take a time that is given for each, in seconds."""

    def __init__(self, took_s: Callable[[int], float] | None) -> None:
        super().__init__("allow", deadline="50ms", kind=Server)
        self.time, self.events = VirtualTime(self.clock), list[tuple[int, Event]]()
        self.store.took_s = took_s
        self.limiter.observe(lambda event: self.events.append((self.clock(), event)))

    def of(self, *kinds: str) -> list[tuple[int, Event]]:
        return [(at_us, event) for at_us, event in self.events if event.kind in kinds]

    async def run(self, rate: int, count: int) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(number / rate)
            assert await self.limiter.hit("ann", "1000000/hour")

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(one(number))


QUICK_S, LATE_S, NEVER_S = 0.002, 0.09, 10**6
RATES = (20, 200, 1_000)


@pytest.mark.parametrize("one_in", [1_000, 100, 20])
@pytest.mark.parametrize("rate", RATES)
@settings(max_examples=3)
@given(data=st.data())
def test_a_share_of_calls_that_are_late_is_no_outage(rate: int, one_in: int, data: st.DataObject) -> None:
    count = 2_000
    late = {first + data.draw(st.integers(0, one_in - 1)) for first in range(0, count, one_in)}

    async def play() -> None:
        traffic = Traffic(lambda number: LATE_S if number in late else QUICK_S)
        await traffic.run(rate, count)
        assert (traffic.of(*OUTAGES), traffic.limiter.failures) == ([], len(late))
        assert 1 <= len(traffic.of("store_late")) <= 1 + count / rate / 60

    asyncio.run(play())


@pytest.mark.parametrize("rate", RATES)
async def test_a_store_that_dies_is_reported_within_200_ms_and_one_that_pauses_for_100_ms_is_not(rate: int) -> None:
    pauses, dies = 3 * rate, 6 * rate

    def took_s(number: int) -> float:
        if number >= dies:
            return NEVER_S
        is_over_s = (pauses - number) / rate + 0.1
        return max(is_over_s, QUICK_S) if number >= pauses else QUICK_S

    traffic = Traffic(took_s)
    await traffic.run(rate, dies)
    assert traffic.of(*OUTAGES) == []
    died_us = traffic.clock()
    await traffic.run(rate, rate // 2)
    ((reported_us, failed),) = traffic.of("store_failed")
    assert failed.message.endswith(f"StoreTimeout('{NAMED}')")
    assert reported_us - died_us <= 200_000


@pytest.mark.parametrize("busy_us", [5_000, 49_000, 51_000, 60_000, 3_000_000])
async def test_an_answer_is_not_late_because_the_event_loop_is_busy(busy_us: int) -> None:
    """A request is sent in one iteration of the loop; in the next ones its answer is read, and delivered."""
    traffic = Traffic(None)
    made = traffic.store.made

    async def asked(iterations: int) -> Decision:
        hit = asyncio.create_task(traffic.limiter.hit("ann", "3/hour"))
        await turns(1)
        for _ in range(iterations):
            traffic.time.loop_us += busy_us
            await turns(1)
        if not made[-1].done():
            made[-1].set_result(Decision(True, Reason.OK))
        return await hit

    assert [(await asked(4)).reason for _ in range(20)] == [Reason.OK] * 20
    assert (await asked(20)).reason is Reason.UNAVAILABLE
    assert traffic.of(*OUTAGES) == []


@pytest.mark.parametrize("busy_us", [53_000, 60_000, 3_000_000])
async def test_an_answer_is_not_late_because_a_busy_event_loop_has_sent_the_question_late(busy_us: int) -> None:
    traffic = Traffic(None)
    hit = asyncio.create_task(traffic.limiter.hit("ann", "3/hour"))
    await turns(1)
    traffic.time.loop_us += busy_us
    asyncio.get_running_loop().call_later(0.008, traffic.store.made[0].set_result, Decision(True, Reason.OK))
    assert (await hit).reason is Reason.OK


async def test_64_questions_that_one_late_answer_leaves_open_are_one_late_call() -> None:
    traffic = Traffic(lambda number: QUICK_S if number < 3 * 64 else LATE_S)
    for _ in range(5):  # the last two are late
        assert all(await asyncio.gather(*(traffic.limiter.hit("ann", "1000000/hour") for _ in range(64))))
    assert (traffic.limiter.failures, traffic.limiter.is_failing) == (2, False)


async def test_a_call_that_fails_is_none_of_those_that_are_late() -> None:
    traffic = Traffic(lambda number: {0: NEVER_S, 2: LATE_S}.get(number, QUICK_S))
    hit = asyncio.create_task(traffic.limiter.hit("ann", "1000000/hour"))
    await turns(1)
    traffic.store.made[0].set_exception(StoreUnavailable("the connection was reset"))
    assert (await hit).reason is Reason.UNAVAILABLE
    await traffic.run(20, 4)
    assert [(event.kind, event.details["late"]) for _, event in traffic.events] == [
        ("store_error", 0),
        ("store_late", 1),
    ]


async def test_a_later_answer_to_a_call_that_another_answer_has_ended_is_no_late_call() -> None:
    traffic = Traffic(lambda number: {1: 0.04}.get(number, QUICK_S))
    await asyncio.gather(*(traffic.limiter.hit("ann", "1000000/hour") for _ in range(2)))
    await traffic.limiter.hit("ann", "1000000/hour")
    assert (traffic.events, traffic.limiter.failures) == ([], 0)


@pytest.mark.parametrize("error", [None, StoreUnavailable("reset"), REFUSED], ids=repr)
async def test_what_gets_no_answer_in_a_call_that_was_answered_in_part_is_told_once_a_minute(
    error: Exception | None,
) -> None:
    traffic = Traffic(lambda number: NEVER_S if number % 4 in (1, 2) else QUICK_S)
    made, reasons = traffic.store.made, list[Reason]()

    async def one_call() -> None:
        hits = [asyncio.create_task(traffic.limiter.hit("ann", "1000000/hour")) for _ in range(3)]
        await asyncio.wait(hits, return_when=asyncio.FIRST_COMPLETED)
        for future in made[-2:] if error else ():
            future.set_exception(error)
        reasons.extend([(await hit).reason for hit in hits])
        await traffic.limiter.hit("ann", "1000000/hour")

    for _ in range(4):
        await one_call()
    traffic.clock.advance("1m")
    await one_call()
    assert reasons == [Reason.OK, Reason.UNAVAILABLE, Reason.UNAVAILABLE] * 5
    assert (traffic.limiter.failures, traffic.limiter.is_failing) == (5, False)
    told = [(event.kind, event.details["late"]) for _, event in traffic.events]
    assert told == ([("store_error", 0)] * 2 if error else [("store_late", 1), ("store_late", 5)])


async def test_a_server_that_always_needs_80_ms_is_late_once_a_minute_and_no_outage() -> None:
    traffic = Traffic(lambda number: 0.08)
    await traffic.run(20, 20 * 150)
    assert (traffic.limiter.is_failing, traffic.limiter.failures) == (False, 3_000)
    told = [((at_us - START_US) // SECOND_US, event.kind, event.details["late"]) for at_us, event in traffic.events]
    assert told == [(0, "store_late", 1), (60, "store_late", 1_201), (120, "store_late", 2_401)]
    assert traffic.events[0][1].message == (
        "the store was late (calls so far: 1), so requests pass uncounted (on_error='allow', but for rules with their "
        f"own): StoreTimeout('{NAMED}')"
    )
