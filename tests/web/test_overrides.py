"""Limits that are changed while an application runs: what is counted, by whom it is taken, and when it is over."""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.limiter import overrides
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore
from slidegate.testing import FakeClock
from slidegate.web.rule_set import BoundRule

from ..asgi import call, hello, page, statuses
from ..ops.shared_rows import SharedRows
from ..redis_servers import needs_redis
from .middlewares import FollowedFiles

SHARED = ["lmdb", pytest.param("redis", marks=needs_redis)]


class Workers:
    """Stores of one kind that share their data, and limiters on them, by one clock that stands still."""

    def __init__(self, kind: str, place: Path, request: pytest.FixtureRequest) -> None:
        self.clock = FakeClock(1_800_000_000_000_000)
        self.limiters: list[Limiter] = []
        self._kind, self._place, self._request = kind, place, request

    def _store(self) -> Any:
        if self._kind == "lmdb":
            return LmdbStore(self._place, clock=self.clock)
        server = self._request.getfixturevalue("server")
        return RedisStore(server.url, prefix=f"{self._place.parent.name}", timeout=20, clock=self.clock)

    def limiter(self) -> Limiter:
        self.limiters.append(Limiter(self._store(), deadline="20s"))
        return self.limiters[-1]

    def kept_ms(self) -> int:
        """Return how long a server keeps what is changed; of a file, for ever."""
        if self._kind != "redis":
            return sys.maxsize
        server = self._request.getfixturevalue("server")
        (name,) = server.command("KEYS", f"*{self._place.parent.name}*:rows:limits:0")
        return int(server.command("PTTL", name))


@pytest.fixture
async def workers(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Workers]:
    made = Workers(kind, tmp_path / "store", request)
    yield made
    for limiter in made.limiters:
        await limiter.close()


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(MemoryStore(clock=FakeClock(1_800_000_000_000_000)))


def guarded(limiter: Limiter, *rules: Rule, app: ASGIApp = hello, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, rules=rules, limiter=limiter, **options)


async def passed(app: ASGIApp, times: int, path: str = "/", **more: Any) -> int:
    """Return how many of some requests are let through."""
    return (await statuses(app, times, path, **more)).count(200)


async def change(limiter: Limiter, name: str, limit: str, duration: str = "1h") -> None:
    await limiter.override(name, limit, duration)


# -- what is counted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARED)
async def test_a_short_change_leaves_a_long_one_of_another_limit(workers: Workers) -> None:
    limiter = workers.limiter()
    guarded(limiter, Rule("*", "6/minute", name="api"), Rule("/a", "6/minute", name="a"))
    await change(limiter, "api", "2/minute", "30d")
    await change(limiter, "a", "2/minute", "1s")
    workers.clock.advance("29d")
    assert [changed.name for changed in await limiter.overrides()] == ["api"]
    assert workers.kept_ms() > 29 * 86_400_000, "a server goes by its own time"


async def test_a_full_file_takes_changes_and_gives_them_back_as_it_takes_bans(tmp_path: Path) -> None:
    limiter = Limiter(LmdbStore(tmp_path / "store", max_map_size=1 << 20), deadline="20s")
    app = guarded(limiter, Rule("*", "9/minute", name="api"))
    await change(limiter, "api", "5/minute")
    full: list[str] = []
    limiter.observe(lambda event: full.append(event.kind) if event.kind == "keys_shared" else None)
    number = 0
    while not full:
        await limiter.hit(f"user:{(number := number + 1)}", "5/minute")
    await change(limiter, "api", "2/minute")
    assert await passed(app, 3) == 2
    assert await limiter.restore("api")
    await limiter.close()


@pytest.mark.parametrize(("before", "then"), [("5/minute", "2/minute"), ("5/minute", None), (None, "2/minute")])
async def test_a_change_that_comes_while_a_limit_is_bound_is_not_missed(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, before: str | None, then: str | None
) -> None:
    """Another thread makes it at the first request of an endpoint, when its buckets are made and not yet listed."""
    inner = Starlette(routes=[Route("/", RateLimit("9/minute", name="own")(page))])
    app = guarded(limiter, Rule("/elsewhere", "9/minute", name="own"), app=inner)
    if before is not None:
        await change(limiter, "own", before)

    def made_meanwhile(*given: Any) -> Any:
        made = BoundRule(*given)
        changing = limiter.engine.overrides.unset("own") if then is None else change(limiter, "own", then)
        with pytest.raises(StopIteration):
            changing.send(None)
        return made

    monkeypatch.setattr("slidegate.web.endpoints.BoundRule", made_meanwhile)
    assert (await statuses(app, 12)).count(200) == (9 if then is None else 2)


# -- who takes it, and when ------------------------------------------------------------------------------------------


def run(backend: str, main: Callable[[], Any]) -> None:
    """Run a coroutine function, for a minute at most."""

    async def in_time() -> None:
        with anyio.fail_after(60):
            await main()

    anyio.run(in_time, backend=backend)


async def becomes(app: RateLimitMiddleware, amount: int) -> None:
    """Ask until the first limit has an amount."""
    with anyio.fail_after(60):
        while app.buckets()[0].limits[0].amount != amount:
            await app.limiter.hit("nobody", "5/minute")
            await anyio.sleep(0.005)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("lmdb", "asyncio"), ("lmdb", "trio"), pytest.param("redis", "asyncio", marks=needs_redis)],
)
def test_the_first_request_of_a_worker_begins_to_look_and_its_end_stops_it(
    kind: str, backend: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "INTERVAL_US", 5_000)
    made = Workers(kind, tmp_path / "store", request)

    async def main() -> None:
        apps = [guarded(made.limiter(), Rule("*", "5/minute", key=everyone, name="api")) for _ in range(2)]
        assert [await passed(app, 1) for app in apps] == [1, 1]
        await change(made.limiters[0], "api", "3/minute")
        assert await passed(apps[0], 3) == 1
        await becomes(apps[1], 3)
        assert await passed(apps[1], 1) == 0
        made.clock.advance("1h")
        for app in apps:
            await becomes(app, 5)
        assert [await passed(app, 6) for app in apps] == [5, 0]
        await change(made.limiters[1], "api", "9/minute")
        await becomes(apps[0], 9)
        assert await passed(apps[0], 9) == 4
        assert await made.limiters[0].restore("api")
        await becomes(apps[1], 5)
        assert await made.limiters[1].overrides() == []
        for limiter in made.limiters:
            await limiter.close()

    run(backend, main)


@pytest.mark.parametrize("kind", SHARED)
async def test_the_start_of_the_server_begins_it_too(workers: Workers) -> None:
    await change(workers.limiter(), "api", "1/minute")
    limiter = workers.limiter()
    app = guarded(limiter, Rule("*", "5/minute", name="api"), app=Starlette(routes=[Route("/", page)]))
    told = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Any:
        message = next(told)
        if message == "lifespan.shutdown":
            with anyio.fail_after(60):
                while app.buckets()[0].limits[0].amount == 5:  # noqa: ASYNC110 - a timer tells nobody
                    await anyio.sleep(0.005)
        return {"type": message}

    async def send(message: Any) -> None:
        assert message["type"].endswith(".complete")

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert await passed(app, 3) == 1


FILES = ["5/second", "10/minute", "100/minute", "1/minute", "10/minute; 500/hour"]
CHANGES = ["50/minute", "3/minute", "7/second", "900/minute"]


@given(st.sampled_from(FILES), st.lists(st.sampled_from([*FILES, *CHANGES]), min_size=1, max_size=8))
async def test_rules_that_are_read_again_count_as_those_of_a_worker_that_starts_now(
    first: str, steps: list[str]
) -> None:
    """Which changes apply depends on the limits in code, and these may come before or after the changes."""
    rows = SharedRows()

    def limiter() -> Limiter:
        store = MemoryStore(clock=rows.clock)
        store.shared_stats = rows
        return Limiter(store)

    async def policy(app: ASGIApp, of: Limiter) -> str:
        await of.engine.overrides.refresh()
        rows.clock.advance("1m")
        return (await call(app)).headers["ratelimit-policy"]

    with TemporaryDirectory() as directory:
        files = FollowedFiles(Path(directory))
        text = '[[rules]]\npath = "*"\nlimits = "{}"\nname = "api"\n'
        path = files.write("slidegate.toml", text.format(first))
        of, script = limiter(), limiter()
        app = RateLimitMiddleware.from_file(hello, path, limiter=of)
        for step in steps:
            if step in CHANGES:
                await script.override("api", step, "1h")
            else:
                files.write("slidegate.toml", text.format(step))
                await files.visit(app)
            starts = limiter()
            again = await policy(app, of)
            assert again == await policy(RateLimitMiddleware.from_file(hello, path, limiter=starts), starts)


async def test_a_child_of_fork_looks_at_its_first_request_as_its_parent_did(limiter: Limiter) -> None:
    app = guarded(limiter, Rule("*", "5000/minute", name="api"))
    await passed(app, 1_002)
    assert app._decided
    app.begin_anew()
    assert await passed(app, 1) == 1
    assert app._decided
