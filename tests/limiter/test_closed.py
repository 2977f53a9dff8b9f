"""A limiter that was closed answers no question any more, whatever store it has and whatever `on_error` is."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule
from slidegate.core import StoreUnavailable
from slidegate.stores.open_store import open_store
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import hello, statuses
from ..redis_servers import AT_REDIS
from ..remote_stores import RemoteStore, SickStore


@pytest.fixture(params=["memory", "lmdb", AT_REDIS, "own"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest) -> Any:
    """A store; one of a user's own goes on answering when it is closed."""
    return RemoteStore() if kind == "own" else open_store(request.getfixturevalue("url"))


async def listed(found: Any) -> list[Any]:
    return [each async for each in found]


QUESTIONS: list[Callable[[Limiter], Awaitable[object]]] = [
    lambda limiter: limiter.hit("user:ann", "5/minute"),
    lambda limiter: limiter.peek("user:ann", "5/minute"),
    lambda limiter: limiter.charge("user:ann", "5/minute", 1),
    lambda limiter: limiter.reset("user:ann"),
    lambda limiter: limiter.reset_all(),
    lambda limiter: limiter.inspect("user:ann", {"hit": "5/minute"}),
    lambda limiter: limiter.ban("user:ann", "1h"),
    lambda limiter: limiter.unban("user:ann"),
    lambda limiter: limiter.banned("user:ann"),
    lambda limiter: limiter.strike("user:ann", BanPolicy("3/minute", "10m")),
    lambda limiter: listed(limiter.bans()),
    lambda limiter: listed(limiter.export_bans()),
    lambda limiter: limiter.import_bans(['{"slidegate": "bans", "version": 4}']),
]


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("is_off", [False, True])
async def test_a_closed_limiter_raises_at_every_question_and_request(
    store: Any, on_error: Any, *, is_off: bool
) -> None:
    observer = RecordingObserver()
    limiter = Limiter(store, on_error=on_error, observers=[observer], deadline="60s")
    trap = BanPolicy("5/minute", "1h", signals={"/trap": 1})
    app = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter, bans=trap)
    assert await statuses(app, 1) == [200]
    decision = await limiter.hit("user:ann", "5/minute")
    waiting = [asyncio.create_task(limiter.limited("1/minute", key="user:bob", wait="2m").__aenter__()) for _ in "12"]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if is_off:
        await limiter.override("*", "off", "10m")
        assert await statuses(app, 1) == [200]
        await asyncio.wait(waiting)
    await limiter.close()
    closed = f"^the limiter on {re.escape(repr(store))} was closed and can no longer be used; create a new one$"
    await asyncio.wait(waiting, timeout=30)
    assert [task.exception() is None for task in waiting] == [True, is_off]
    for ask in QUESTIONS if is_off else (lambda _: waiting[1], *QUESTIONS):
        with pytest.raises(StoreUnavailable, match=closed):
            await ask(limiter)
    for path in ("/", "/trap") * 3:
        with pytest.raises(StoreUnavailable, match=closed):
            await statuses(app, 1, path)
    before = threading.enumerate()
    calls = limiter.sync.hit, limiter.limited("5/minute", key="user:ann", wait="9s").__enter__
    for call, arguments in zip(calls, [("user:ann", "5/minute"), ()], strict=True):
        with pytest.raises(StoreUnavailable, match=closed):
            await asyncio.to_thread(call, *arguments)
    assert "slidegate-loop" not in [thread.name for thread in threading.enumerate() if thread not in before]
    assert await limiter.refund(decision) is False, "a request may outlive its limiter"
    assert observer.kinds == ["switched_off"] * is_off, "nothing has failed"


async def test_a_request_that_outlives_its_limiter_ends_as_it_is(store: Any) -> None:
    limiter = Limiter(store, deadline="60s")

    async def closes(scope: Any, receive: Any, send: Any) -> None:
        await limiter.close()
        await hello(scope, receive, send)

    held = [] if isinstance(store, RemoteStore) else [Rule("*", concurrency=2, name="at once")]
    failures = Rule("*", "5/minute", count_if=lambda status: status != 200)
    app = RateLimitMiddleware(closes, rules=[failures, *held], limiter=limiter)
    assert await statuses(app, 1) == [200]


class Cut(SickStore):
    """A store whose end cuts off what it is asked."""

    def close(self) -> None:
        self.closed, self.error = True, StoreUnavailable("cut off")
        self.goes_on.set()


async def test_nothing_has_failed_where_a_limiter_is_closed_in_the_middle_of_calls(store: Any) -> None:
    cut = Cut(FakeClock())
    cut.hangs = True
    for each in (store, cut):
        limiter = Limiter(each, deadline="60s", observers=[observer := RecordingObserver()])
        tasks = []
        for _ in range(30):  # each is a call of its own
            tasks.append(asyncio.create_task(asks_on(limiter)))
            await asyncio.sleep(0)
        await limiter.close()
        await asyncio.gather(*tasks)
        assert observer.kinds == []


async def asks_on(limiter: Limiter) -> None:
    with suppress(StoreUnavailable):
        while True:
            await limiter.hit("user:ann", "5/minute", 0)
            await asyncio.sleep(0)
