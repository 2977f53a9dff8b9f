"""A limiter that was closed answers no question any more, whatever store it has and whatever `on_error` is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule
from slidegate.core import StoreUnavailable
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import RecordingObserver

from ..asgi import hello, statuses
from ..redis_servers import RedisServer, needs_redis
from ..remote_stores import RemoteStore
from ..stores.redis.stores import fresh_prefix

POLICY = BanPolicy("3/minute", "10m")
KINDS = ("memory", "lmdb", pytest.param("redis", marks=needs_redis), "of one's own")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return MemoryStore()
        case "lmdb":
            return LmdbStore(tmp_path / "lmdb", map_size=1 << 20)
        case "redis":
            server: RedisServer = request.getfixturevalue("server")
            return RedisStore(server.url, prefix=fresh_prefix())
        case _:
            return RemoteStore()  # which goes on answering


async def listed(found: Any) -> list[Any]:
    return [each async for each in found]


QUESTIONS: dict[str, Callable[[Limiter], Awaitable[object]]] = {
    "hit": lambda limiter: limiter.hit("user:ann", "5/minute"),
    "peek": lambda limiter: limiter.peek("user:ann", "5/minute"),
    "charge": lambda limiter: limiter.charge("user:ann", "5/minute", 1),
    "reset": lambda limiter: limiter.reset("user:ann"),
    "reset_all": lambda limiter: limiter.reset_all(),
    "inspect": lambda limiter: limiter.inspect("user:ann", {"hit": "5/minute"}),
    "ban": lambda limiter: limiter.ban("user:ann", "1h"),
    "unban": lambda limiter: limiter.unban("user:ann"),
    "banned": lambda limiter: limiter.banned("user:ann"),
    "strike": lambda limiter: limiter.strike("user:ann", POLICY),
    "bans": lambda limiter: listed(limiter.bans()),
    "export_bans": lambda limiter: listed(limiter.export_bans()),
    "import_bans": lambda limiter: limiter.import_bans(['{"slidegate": "bans", "version": 3, "written_us": 0}']),
}


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
async def test_a_closed_limiter_raises_at_every_question(store: Any, on_error: Any) -> None:
    heard = RecordingObserver()
    limiter = Limiter(store, on_error=on_error, observers=[heard], deadline="60s")
    decision = await limiter.hit("user:ann", "5/minute")
    await limiter.ban("user:eve", "1h")
    await limiter.close()
    heard.events.clear()
    for name, ask in QUESTIONS.items():
        told = "nothing"
        try:
            await ask(limiter)
        except StoreUnavailable as error:
            told = str(error)
        assert told == f"the limiter on {store!r} was closed, and answers nobody any more; make a new one", name
    assert await limiter.refund(decision) is False, "a request may outlive its limiter"
    assert heard.kinds == [], "nothing has failed"


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
async def test_behind_a_closed_limiter_no_request_passes(store: Any, on_error: Any) -> None:
    limiter = Limiter(store, on_error=on_error, deadline="60s")
    app = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter)
    assert await statuses(app, 1) == [200]
    await limiter.close()
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="was closed"):
            await statuses(app, 1)


async def test_a_request_that_outlives_its_limiter_ends_as_it_is(store: Any) -> None:
    limiter = Limiter(store, deadline="60s")

    async def closes(scope: Any, receive: Any, send: Any) -> None:
        await limiter.close()
        await hello(scope, receive, send)

    held = [] if isinstance(store, RemoteStore) else [Rule("*", concurrency=2)]
    failures = Rule("*", "5/minute", count_if=lambda status: status != 200)
    app = RateLimitMiddleware(closes, rules=[failures, *held], limiter=limiter)
    assert await statuses(app, 1) == [200]


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_without_an_event_loop_it_raises_too(kind: str, tmp_path: Path) -> None:
    limiter = Limiter(MemoryStore() if kind == "memory" else LmdbStore(tmp_path / "lmdb", map_size=1 << 20)).sync
    limiter.hit("user:ann", "5/minute")
    limiter.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        limiter.hit("user:ann", "5/minute")
