"""What tools read of a limiter: its middlewares and limits, rows for all workers, the store's time and state."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from slidegate import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import Store
from slidegate.core.errors import StoreUnavailable
from slidegate.events import Event, Observer
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

SECOND_US = 1_000_000


async def no_app(*_: Any) -> None:
    """Answer nothing."""


class Away(MemoryStore):
    """A store that is no memory store to a limiter, and does not answer."""

    def hit(self, *_: Any) -> Any:
        raise StoreUnavailable("away")


def away() -> Store:
    """Return a store that fails, behind a class that is no `MemoryStore`."""
    inner = Away()

    class Remote(Store):
        hit = peek = charge = refund = reset = reset_all = inspect = inner.hit
        bans = inner.bans

    return Remote()


# -- middlewares and limits --------------------------------------------------------------------------------------------


async def test_middlewares_are_listed_while_they_live() -> None:
    limiter = Limiter()
    first = RateLimitMiddleware(no_app, limits="5/minute", limiter=limiter)
    second = RateLimitMiddleware(first, limits="9/minute", limiter=limiter)
    RateLimitMiddleware(no_app, limits="5/minute", limiter=Limiter())
    assert limiter.middlewares == (first, second)
    del second
    gc.collect()  # a middleware and its parts refer to each other
    assert limiter.middlewares == (first,)


async def test_limits_are_listed_as_configured_and_in_force() -> None:
    limiter = Limiter()
    rules = [
        Rule("*", "5/minute; 50/hour", name="api"),
        Rule("/new", "2/minute", shadow=True),
        Rule("/ok", exempt=True),
    ]
    middleware = RateLimitMiddleware(no_app, rules=rules, limiter=limiter)
    api = [one for one in limiter.limits() if one.rule == "api"]
    await limiter.override(api[0].name, "7/minute", "1m")
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


# -- the state of the store --------------------------------------------------------------------------------------------


@pytest.mark.interpreted("a compiled class cannot be derived from")
async def test_a_failing_store_is_reported() -> None:
    limiter = Limiter(away(), deadline="20ms", on_error="allow")
    assert (limiter.is_failing, limiter.failures, limiter.deadline_us, limiter.on_error) == (False, 0, 20_000, "allow")
    assert [(await limiter.hit("k", "5/minute")).allowed for _ in range(3)] == [True] * 3
    assert (limiter.is_failing, limiter.failures) == (True, 3)


async def test_a_memory_store_neither_fails_nor_has_a_deadline() -> None:
    limiter = Limiter()
    assert (limiter.is_failing, limiter.failures, limiter.deadline_us, limiter.on_error) == (False, 0, None, None)
    assert limiter.queued == 0


# -- rows --------------------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(["stats", "events"])
WRITES = st.tuples(
    KINDS, st.integers(0, 3), st.integers(0, 1), st.binary(max_size=4), st.sampled_from([0, SECOND_US, 9 * SECOND_US])
)


@given(st.lists(st.one_of(WRITES, st.integers(0, 3).map(lambda seconds: seconds * SECOND_US))))
async def test_rows_are_those_written_last_that_have_not_expired(steps: list[Any]) -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    workers = [Limiter(store), Limiter(store)]
    shared = workers[0].engine.rows._stats  # two workers on the rows of one store
    workers[1].engine.rows._stats = shared
    model: dict[tuple[str, int, int], tuple[bytes, int]] = {}
    for step in steps:
        if isinstance(step, int):
            clock.advance(us=step)
            continue
        kind, number, who, value, kept_us = step
        await workers[who].keep_row(kind, number, value, kept_us)
        model[kind, number, who] = value, clock() + kept_us
    identities = [worker.engine.rows.worker for worker in workers]
    for kind in ("stats", "events"):
        found = {(row.number, row.worker, row.value) for row in await workers[1].rows(kind, 1, 3)}
        assert found == {
            (number, identities[who], value)
            for (of, number, who), (value, until_us) in model.items()
            if of == kind and number >= 1 and until_us > clock()
        }
    assert await workers[0].now_us() == clock()


async def test_rows_of_a_shared_store_reach_every_worker(tmp_path: Path) -> None:
    first, second = Limiter(LmdbStore(tmp_path)), Limiter(LmdbStore(tmp_path))
    await first.keep_row("notes", 7, b"one", 60 * SECOND_US)
    await second.keep_row("notes", 7, b"two", 60 * SECOND_US)
    assert sorted(row.value for row in await first.rows("notes", 0, 9)) == [b"one", b"two"]
    assert len({row.worker for row in await second.rows("notes", 7, 7)}) == 2
    assert abs(await first.now_us() - await second.now_us()) < SECOND_US
    await first.keep_row("notes", 7, b"", 0)
    assert [row.value for row in await second.rows("notes", 7, 7)] == [b"two"]
    await first.close()
    await second.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_is_another_worker() -> None:
    limiter = Limiter()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, limiter.engine.rows.worker)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 8) != limiter.engine.rows.worker
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            ("Stats", 0, b"", 1),
            "row: expected a kind of up to 40 of a-z, 0-9, - and _, for example \"stats\", not 'Stats'",
        ),
        (("s", -1, b"", 1), "row: number: expected a whole number"),
        (("s", 0, "text", 1), "row: expected at most 1,048,576 bytes, for example b'...', not 'text'"),
        (("s", 0, bytes((1 << 20) + 1), 1), "not 1,048,577 bytes"),
        (("s", 0, b"", -1), "row: kept_us: expected a whole number"),
    ],
)
async def test_a_wrong_row_is_refused_where_it_is_written(row: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await Limiter().keep_row(*row)
    assert said in str(refused.value)


# -- the end of an observer --------------------------------------------------------------------------------------------


class Watcher(Observer):
    """Records when the limiter calls `end` and `forget`."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def event(self, event: Event, /) -> None:
        """Receive an event."""

    async def end(self) -> None:
        """Record the end, and fail."""
        self.calls.append("end")
        raise RuntimeError("nothing may depend on an observer")

    def forget(self) -> None:
        """Record it."""
        self.calls.append("forget")


def test_an_observer_ends_with_the_application_and_with_the_limiter(caplog: pytest.LogCaptureFixture) -> None:
    limiter, watcher = Limiter(), Watcher()
    limiter.observe(watcher)
    app = Starlette(middleware=[Middleware(RateLimitMiddleware, limits="5/minute", limiter=limiter)])
    with TestClient(app):
        assert watcher.calls == []
    assert watcher.calls == ["end"]
    limiter.sync.close()
    assert watcher.calls == ["end", "end"]
    assert "nothing may depend on an observer" in caplog.text


async def test_a_reset_reaches_observers_that_derive_from_observer_alone() -> None:
    class Foreign:
        event = Watcher.event

        def forget(self) -> None:
            raise AssertionError("its own method of that name is nothing of ours")

    limiter, watcher = Limiter(observers=[Foreign()]), Watcher()
    limiter.observe(watcher)
    limiter.engine.forget()
    assert watcher.calls == ["forget"]
