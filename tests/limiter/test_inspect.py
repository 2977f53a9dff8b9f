"""What is read of a limiter: a customer's windows, middlewares and limits, rows for all workers, its store's state."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.testclient import TestClient

from slidegate import Limiter, MemoryStore, MessageLimits, Quota, RateLimit, RateLimitMiddleware, Rule
from slidegate.core import Concurrency
from slidegate.events import Event, Observer
from slidegate.limiter.inspect import TOGETHER
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

from ..asgi import PEER, call, hello, page
from ..contract.ability_contract import StatsContract
from ..remote_stores import RemoteStore, SickStore

SECOND_US = 1_000_000


def labels(view: Any) -> list[tuple[str, int]]:
    """Return the name and the units used of every window that holds anything."""
    return [(shown.name, shown.used) for shown in view.windows if shown.used]


async def test_the_rules_of_all_gates_endpoints_and_routes_are_asked(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    limited = RateLimit("7/minute", name="at_the_endpoint")(page)
    routes = Starlette(routes=[Route("/limited", limited)])
    inner = RateLimitMiddleware(routes, default_limits="40/minute", limiter=limiter)
    rules = [
        Rule("/limited", "5/minute; 50/hour", name="short"),
        Rule("*", Quota("1000/day"), name="plan"),
        Rule("*", "30/minute", concurrency=3, name="both"),
        Rule("/never", "9/minute", name="elsewhere"),
        Rule("*", "9/minute", shadow=True, name="shadow"),
    ]
    outer = RateLimitMiddleware(inner, rules=rules, limiter=limiter, messages=MessageLimits("9/minute"), name="outer")
    for _ in range(2):
        assert (await call(outer, "/limited")).status == 200
    view = await limiter.inspect(PEER)
    expected = ("at_the_endpoint", "both", "per_route_GET__limited", "plan", "shadow", "short_3600", "short_60")
    assert sorted(labels(view)) == [(name, 2) for name in expected]
    assert "elsewhere" in {shown.label for shown in view.windows if not shown.used}
    assert [shown.label for shown in view.windows if isinstance(shown.limit, Concurrency)] == ["both"]
    assert (view.key, view.now_us) == (PEER, clock.now_us)
    windows = [shown for shown in view.windows if not isinstance(shown.limit, Concurrency)]
    by_rule = {rule: [shown.limit for shown in windows if shown.rule == rule] for rule in {one.rule for one in windows}}
    asked = await limiter.inspect(PEER, by_rule)
    assert sorted((one.rule, one.used) for one in asked.windows) == sorted((one.rule, one.used) for one in windows)


async def test_given_rules_are_asked_in_the_place_of_those_of_middlewares(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    await limiter.hit("ann", "5/minute", cost=2, rule="api")
    assert labels(await Limiter(limiter.store).inspect("ann")) == [], "another limiter has not heard of the rule"
    shown = await Limiter(limiter.store).inspect("ann", {"api": "5/minute", "other": ["9/hour", Quota("7/day")]})
    assert [(window.rule, window.used) for window in shown.windows] == [("api", 2), ("other", 0), ("other", 0)]


async def test_callers_are_asked_in_their_order_as_long_as_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(hello, limits="1/s", limiter=limiter)
    second = RateLimitMiddleware(first, rules=[Rule("/a", "1/s", name="a")], limiter=limiter)
    RateLimitMiddleware(hello, limits="1/s")  # on a limiter of its own
    limited = limiter.limited("2/s", key="b", rule="function")(hello)
    assert limiter.engine.callers()[:2] == [first, second] == [*limiter.middlewares]
    assert [bound.rule.label for bound in second.rule_set.bound()] == ["a"]
    buckets = [bucket for caller in limiter.engine.callers() for bucket in caller.buckets()]
    assert buckets[-1].name == "function"
    assert [window.rule for window in (await limiter.inspect(PEER)).windows] == [bucket.name for bucket in buckets]
    del first, second, limited, buckets
    gc.collect()
    assert (limiter.engine.callers(), limiter.middlewares) == ([], ())
    assert (await limiter.inspect(PEER)).windows == ()


async def test_a_changed_amount_is_shown_once_with_the_newest(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    for amount in (5, 9):
        app = RateLimitMiddleware(hello, rules=[Rule("*", f"{amount}/minute", name="api")], limiter=limiter)
        await call(app)
    assert [(window.used, window.limit.amount) for window in (await limiter.inspect(PEER)).windows] == [(2, 9)]


@pytest.mark.interpreted("a compiled class cannot be derived from")
async def test_a_thousand_rules_are_asked_a_part_at_a_time_and_the_rest_is_counted(clock: FakeClock) -> None:
    sizes: list[int] = []

    class Watched(RemoteStore):
        def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
            if question == self.inner.inspect:
                sizes.append(len(arguments[1]))
            return question(*arguments)

    limiter = Limiter(Watched(clock))
    await limiter.hit("ann", "5/minute", rule="rule-0")
    rules = {f"rule-{number}": "5/minute" for number in range(5 * TOGETHER + 5)}
    view = await limiter.inspect("ann", rules)
    assert (len(view.windows), max(sizes)) == (5 * TOGETHER + 5, TOGETHER)
    assert labels(view) == [("rule_0", 1)]


async def test_limits_are_listed_as_configured_and_in_force() -> None:
    limiter = Limiter()
    rules = [
        Rule("*", "5/minute; 50/hour", name="api"),
        Rule("/new", "2/minute", shadow=True),
        Rule("/ok", exempt=True),
    ]
    middleware = RateLimitMiddleware(hello, rules=rules, limiter=limiter)
    api = [one for one in limiter.limits() if one.rule == "api"]
    assert not limiter.engine.overrides.may_change, "nothing is looked at where nothing is changed"
    assert (await limiter.override(api[0].name, "7/minute", "1m")).workers == 1
    assert await limiter.workers() == [], "it is the only one"
    found = {(one.rule, str(one.limit), str(one.configured), one.changeable, one.shadow) for one in limiter.limits()}
    assert found == {
        ("api", "7/1m", "5/1m", True, False),
        ("api", "50/1h", "50/1h", True, False),
        ("/new", "2/1m", "2/1m", True, True),
    }
    assert len({one.name for one in limiter.limits()}) == 3
    await limiter.restore(api[0].name)
    assert {str(one.limit) for one in limiter.limits() if one.name == api[0].name} == {"5/1m"}
    assert middleware.limiter is limiter


def test_a_limiter_says_how_its_store_is_asked() -> None:
    """Whether it fails, and how often it has, is shown in the model of outages."""
    made = Limiter(SickStore(FakeClock()), deadline="20ms", on_error="allow"), Limiter()
    shown = [(one.is_failing, one.failures, one.deadline_us, one.on_error, one.queued) for one in made]
    assert shown == [(False, 0, 20_000, "allow", 0), (False, 0, None, None, 0)]


class TestRowsOfAStoreWithoutSharedOnes(StatsContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        store = MemoryStore(clock=clock)
        store.shared_stats = Limiter(store).engine.rows._stats
        return store


async def test_a_worker_writes_its_own_rows_and_reads_those_of_all(tmp_path: Path) -> None:
    workers = [Limiter(LmdbStore(tmp_path)), Limiter(LmdbStore(tmp_path)), Limiter()]
    for worker, value in zip(workers, (b"one", b"two", b"three"), strict=True):
        await worker.keep_row("notes", 7, value, 60 * SECOND_US)
    found = [{(row.number, row.worker, row.value) for row in await worker.rows("notes", 0, 9)} for worker in workers]
    names = [worker.engine.rows.worker for worker in workers]
    shared = {(7, names[0], b"one"), (7, names[1], b"two")}
    assert found == [shared, shared, {(7, names[2], b"three")}]
    for worker in workers:
        await worker.close()


async def test_rows_of_a_memory_store_that_have_ended_take_no_room(clock: FakeClock) -> None:
    limiter = Limiter(MemoryStore(clock=clock))
    for number in range(9):
        await limiter.keep_row("notes", number, b"", SECOND_US)
        clock.advance("1s")
    rows: Any = limiter.engine.rows._stats
    assert len(rows.rows) == 1


def test_observers_that_derive_from_observer_hear_of_a_reset_and_of_the_end_of_application_and_limiter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = list[str]()

    class Foreign:
        """Has methods of these names for a purpose of its own."""

        def event(self, event: Event) -> None: ...

        async def end(self) -> None:
            calls.append("end")
            raise RuntimeError("nothing may depend on an observer")

        def forget(self) -> None:
            calls.append("forget")

    class Derived(Foreign, Observer):
        pass

    limiter = Limiter(observers=[Foreign(), Derived()])
    with TestClient(Starlette(middleware=[Middleware(RateLimitMiddleware, limits="5/minute", limiter=limiter)])):
        assert calls == []
    assert calls == ["end"]
    limiter.engine.forget()
    limiter.sync.close()
    assert calls == ["end", "forget", "end"]
    assert "nothing may depend on an observer" in caplog.text
