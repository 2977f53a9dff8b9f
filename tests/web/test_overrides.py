"""Limits that are changed while an application runs: what is counted, by whom it is taken, and when it is over."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import anyio
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from slidegate import ConfigurationError, Limiter, MemoryStore, Quota, RateLimit, RateLimitMiddleware, Rule, everyone
from slidegate.core import StoreUnavailable
from slidegate.limiter import refresh
from slidegate.testing import FakeClock
from slidegate.web.plan import BoundRule

from ..asgi import call, hello, page, statuses
from ..hurry import at_once, hurried
from ..ops.shared_rows import SharedRows, limiter_on
from ..redis_servers import needs_redis, until
from ..stores.conftest import Opened
from .middlewares import FollowedFiles, fields

SHARED = ["lmdb", pytest.param("redis", marks=needs_redis)]


@pytest.fixture
def another(kind: str, clock: FakeClock, opened_as: Opened) -> Callable[[], Limiter]:
    """Makes the limiter of another worker on one store."""
    return lambda: Limiter(opened_as(kind, clock=clock), deadline="20s")


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter(MemoryStore(clock=clock))


def guarded(limiter: Limiter, *rules: Rule, app: ASGIApp = hello, **options: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, rules=rules, limiter=limiter, **options)


async def passed(app: ASGIApp, times: int, path: str = "/", **more: Any) -> int:
    """Return how many of some requests are let through."""
    return (await statuses(app, times, path, **more)).count(200)


# -- what is counted -------------------------------------------------------------------------------------------------


NAMES = st.sampled_from(["a b", "a_b", "a-b", "a_b_2", "a_b_60", 'a"b, c', "n" * 64, None])
LIMITS = st.sampled_from(
    ["5/minute", "5/minute; 50/hour", "a-b: 5/minute; a b: 50/400 days", ["5/s", Quota("9/month")]]
)
OPTIONS = st.fixed_dictionaries({"limits": LIMITS, "concurrency": st.sampled_from([None, None, 4]), "name": NAMES})
PATHS = ["*", "/a", "/" + "p" * 99]


@given(st.lists(st.tuples(st.sampled_from(PATHS), OPTIONS), max_size=4, unique_by=lambda one: one[1]["name"] or one[0]))
async def test_an_override_changes_the_limit_of_its_name_in_fields(written: list[tuple[str, dict[str, Any]]]) -> None:
    app = guarded(Limiter(), *[Rule(path, **options) for path, options in written])
    known = {one.name: one for one in app.limiter.limits()}
    assume(len(known) <= 8)  # of more limits an answer has the tightest

    async def shown() -> list[dict[str, int]]:
        answers = [await call(app, path) for path in PATHS]
        read = [fields(answer.headers.get("ratelimit-policy", "")) for answer in answers]
        return [{name: one["q"] for name, one in each} for each in read]

    expected = await shown()
    assert known.keys() == {name for each in expected for name in each}
    for name, one in known.items():
        lower = one.configured.amount - 1
        await app.limiter.override(name, one.with_amount(lower), "1h")
        expected = [{**each, **({name: lower} if name in each else {})} for each in expected]
        assert await shown() == expected
    assert [one.limit.amount for one in app.limiter.limits()] == [one.configured.amount - 1 for one in known.values()]
    assert [await app.limiter.restore(name) for name in known] == [True] * len(known)


@needs_redis
@pytest.mark.parametrize("kind", ["redis"])
async def test_a_short_change_leaves_a_long_one(another: Any, clock: FakeClock, tmp_path: Path, server: Any) -> None:
    """Also by the time of the server, which forgets the hash of all changes."""
    limiter = another()
    guarded(limiter, Rule("*", "6/minute", name="api"), Rule("/a", "6/minute", name="a"))
    await limiter.override("api", "2/minute", "30d")
    await limiter.override("a", "2/minute", "1s")
    clock.advance("29d")
    assert [changed.name for changed in await limiter.overrides()] == ["api"]
    (name,) = server.command("KEYS", f"*{tmp_path.name}*:rows:limits:0")
    assert int(server.command("PTTL", name)) > 29 * 86_400_000


async def test_a_full_file_takes_changes_and_gives_them_back_as_it_takes_bans(opened_as: Opened, observer: Any) -> None:
    limiter = Limiter(opened_as("lmdb", max_map_size=1 << 20), deadline="20s")
    app = guarded(limiter, Rule("*", "9/minute", name="api"))
    await limiter.override("api", "5/minute", "1h")
    number = 0
    while "map_full" not in observer.kinds:
        await limiter.hit(f"user:{(number := number + 1)}", "5/minute")
    await limiter.override("api", "2/minute", "1h")
    assert await passed(app, 3) == 2
    assert await limiter.restore("api")


@pytest.mark.parametrize(("before", "then"), [("5/minute", "2/minute"), ("5/minute", None), (None, "2/minute")])
async def test_a_change_that_comes_while_a_limit_is_bound_is_not_missed(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, before: str | None, then: str | None
) -> None:
    """Another thread makes it at the first request of an endpoint, when its buckets are made and not yet listed."""
    inner = Starlette(routes=[Route("/", RateLimit("9/minute", name="own")(page))])
    app = guarded(limiter, Rule("/elsewhere", "9/minute", name="own"), app=inner)
    if before is not None:
        await limiter.override("own", before, "1h")

    def made_meanwhile(*given: Any) -> Any:
        made = BoundRule(*given)
        changing = limiter.restore("own") if then is None else limiter.override("own", then, "1h")
        thread = Thread(target=asyncio.run, args=(changing,))
        thread.start()
        thread.join()
        return made

    monkeypatch.setattr("slidegate.web.rule_set.BoundRule", made_meanwhile)
    assert (await statuses(app, 12)).count(200) == (9 if then is None else 2)


# -- who takes it, and when ------------------------------------------------------------------------------------------


async def becomes(app: RateLimitMiddleware, amount: int) -> None:
    """Ask until the first limit has an amount."""
    with anyio.fail_after(60):
        while app.buckets()[0].limits[0].amount != amount:
            await app.limiter.hit("nobody", "5/minute")
            await anyio.sleep(0.005)


@pytest.mark.parametrize(
    ("kind", "backend"), [("lmdb", "asyncio"), ("lmdb", "trio"), pytest.param("redis", "asyncio", marks=needs_redis)]
)
def test_the_first_request_of_a_worker_begins_to_look_and_its_end_stops_it(
    backend: str, another: Callable[[], Limiter], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "STALE_NS", 5_000_000)
    one, two = another(), another()

    async def main() -> None:
        apps = [guarded(limiter, Rule("*", "5/minute", key=everyone, name="api")) for limiter in (one, two)]
        assert [await passed(app, 1) for app in apps] == [1, 1]
        await one.override("api", "3/minute", "1h")
        assert await passed(apps[0], 3) == 1
        await becomes(apps[1], 3)
        assert await passed(apps[1], 1) == 0
        clock.advance("1h")
        for app in apps:
            await becomes(app, 5)
        assert [await passed(app, 6) for app in apps] == [5, 0]
        await two.override("api", "9/minute", "1h")
        await becomes(apps[0], 9)
        assert await passed(apps[0], 9) == 4
        assert await one.restore("api")
        await becomes(apps[1], 5)
        assert await two.overrides() == []
        for limiter in (one, two):
            await limiter.close()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("kind", SHARED)
def test_the_start_of_the_server_begins_it_too(another: Callable[[], Limiter]) -> None:
    asyncio.run(another().override("api", "1/minute", "1h"))
    app = guarded(another(), Rule("*", "5/minute", name="api"), app=Starlette(routes=[Route("/", page)]))
    with TestClient(app) as client:
        until(lambda: app.buckets()[0].limits[0].amount == 1, "the change is taken")
        assert [client.get("/").status_code for _ in range(3)] == [200, 429, 429]


@pytest.mark.parametrize("kind", SHARED)
async def test_no_request_of_an_idle_worker_is_decided_as_before_a_change(
    another: Callable[[], Limiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is what it has spent meanwhile charged twice: an answer that was held is handed back."""
    for name in ("STALE_NS", "EXPIRED_NS"):
        monkeypatch.setattr(refresh, name, 0)  # as if a second had passed since every request
    operator, worker = another(), another()
    app = guarded(worker, Rule("/free", exempt=True), Rule("*", "5/minute", key=everyone, name="api"))
    assert await statuses(app, 1) == [200]
    await operator.override("api", "2/minute", "1h")
    assert await statuses(app, 2) == [200, 429]
    await operator.override("*", "off", "1h")
    assert await statuses(app, 3) == [200, 200, 200]
    assert await operator.restore("*")
    assert await statuses(app, 1) == [429]
    await operator.override("api", "4/minute", "1h")
    assert await statuses(app, 3) == [200, 200, 429]
    assert await operator.restore("api")
    assert await statuses(app, 2) == [200, 429]
    await operator.ban("203.0.113.9", "1h")
    assert await statuses(app, 1, "/free", client=("203.0.113.9", 1)) == [403]
    await operator.override("*", "off", "1h")
    assert await statuses(app, 1, "/free", client=("203.0.113.9", 1)) == [200]


@pytest.mark.parametrize("is_late", [False, True])
async def test_news_that_fail_or_are_late_keep_no_answer_back(clock: FakeClock, is_late: bool) -> None:
    class Away(SharedRows):
        async def read(self, *question: Any) -> Any:
            if is_late:
                await anyio.sleep_forever()
            raise StoreUnavailable("away")

    store = MemoryStore(clock=clock)
    store.shared_rows = Away(clock)
    app = guarded(Limiter(store), Rule("*", "5/minute", name="api"))
    began_s = time.monotonic()
    assert await passed(app, 6) == 5
    assert time.monotonic() - began_s < 30


FILES = ["5/second", "10/minute", "100/minute", "1/minute", "10/minute; 500/hour"]
CHANGES = ["50/minute", "3/minute", "7/second", "900/minute"]


@given(st.sampled_from(FILES), st.lists(st.sampled_from([*FILES, *CHANGES]), min_size=1, max_size=8))
async def test_rules_that_are_read_again_count_as_those_of_a_new_worker(first: str, steps: list[str]) -> None:
    """Which changes apply depends on the limits in code, and these may come before or after the changes."""
    rows = SharedRows()

    async def policy(app: ASGIApp, of: Limiter) -> str:
        await of.engine.refresher.refresh()
        rows.clock.advance("1m")
        return (await call(app)).headers["ratelimit-policy"]

    with TemporaryDirectory() as directory:
        files = FollowedFiles(Path(directory))
        text = '[[rules]]\npath = "*"\nlimits = "{}"\nname = "api"\n'
        path = files.write("slidegate.toml", text.format(first))
        of, script = limiter_on(rows), limiter_on(rows)
        app = RateLimitMiddleware.from_file(hello, path, limiter=of)
        for step in steps:
            if step in CHANGES:
                with suppress(ConfigurationError):  # what workers have published has another window
                    await script.override("api", step, "1h")
            else:
                files.write("slidegate.toml", text.format(step))
                await files.visit(app)
            starts = limiter_on(rows)
            again = await policy(app, of)
            assert again == await policy(RateLimitMiddleware.from_file(hello, path, limiter=starts), starts)


def test_limits_are_changed_while_threads_meet_rules_for_the_first_time(limiter: Limiter) -> None:
    def is_met(number: int) -> Callable[[HTTPConnection], bool]:
        return lambda request: bool(int(request.url.path[1:]) >> number & 1)

    rules = [Rule("*", "2000/minute", name=f"rule_{number}", when=is_met(number)) for number in range(10)]
    app = RateLimitMiddleware(hello, rules=rules, limiter=limiter)

    async def work(thread: int) -> None:
        for number in range(thread, 1_024, 3):
            if thread:
                assert await statuses(app, 1, f"/{number}") == [200]
            else:
                await limiter.override("rule_0", f"{number + 1_000}/minute", "1h")

    with hurried(collecting=False):
        at_once(lambda thread: asyncio.run(work(thread)), 3)
