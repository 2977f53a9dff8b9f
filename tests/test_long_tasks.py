"""Tasks that live as long as a worker: what ends a turn of theirs is one line in the log, and the next turn comes."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import pytest

from slidegate import Limiter, RateLimitMiddleware, Rule
from slidegate._watcher import FollowedFile
from slidegate.core import Bucket, Concurrency, logs
from slidegate.core.logs import Throttle
from slidegate.limiter import refresh
from slidegate.limiter.aio import answer_of
from slidegate.ops import statistics
from slidegate.ops.statistics import Statistics
from slidegate.stores import leases
from slidegate.stores.lmdb import kept
from slidegate.stores.redis.link import DEPTH

from .asgi import call, hello
from .redis_servers import RedisServer, needs_redis
from .stores.redis.stores import eventually, fresh_prefix

TEXT: Final = "nobody has foreseen this"


class Raising(Coroutine[Any, Any, Any]):
    """A coroutine, of whose awaits one raises."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self.work, self.left, self.does_harm = work, number, work.__qualname__ != "Batcher._send"

    def send(self, value: Any) -> Any:
        if self.left != 0 or not _waits_for_a_lock(self.work):  # where nothing can raise
            self.left -= 1
        if self.left == -1:
            return self.work.throw(KeyError(TEXT))
        return self.work.send(value)

    def throw(self, *raised: Any) -> Any:
        return self.work.throw(*raised)

    def close(self) -> None:
        self.work.close()

    def __await__(self) -> Any:
        return self.work.__await__()


def _waits_for_a_lock(work: Any) -> bool:
    while hasattr(getattr(work, "cr_await", None), "cr_await"):
        work = work.cr_await
    return bool(work.__qualname__ == "Lock.acquire")


@contextmanager
def raising(name: str, number: int) -> Iterator[list[Raising]]:
    """Let one await raise, the one with a number, of the next task that runs a function."""
    loop, made = asyncio.get_running_loop(), list[Raising]()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        runs = work
        while "work" in getattr(getattr(runs, "cr_frame", None), "f_locals", ()):  # of a helper, which waits for it
            runs = runs.cr_frame.f_locals["work"]
        if not made and getattr(runs, "__qualname__", "") == name:
            work = Raising(work, number)
            made.append(work)
        return asyncio.Task(work, loop=loop, **more)

    loop.set_task_factory(make)
    yield made
    loop.set_task_factory(None)


async def send(url: str, made: list[Raising]) -> int:
    async with Limiter.from_url(url, deadline="5s", on_error="deny") as limiter:
        batcher = limiter.store.batcher()  # type: ignore[attr-defined]
        for number in range(3):
            # Which line tells of requests that fail with a call is the breaker's: that of the last failure.
            await asyncio.gather(*(limiter.hit(f"user:{number}-{n}", "1000/hour") for n in range(40)))

        async def all_are_served() -> bool:
            return all(await asyncio.gather(*(limiter.hit(f"user:{n}", "1000/hour") for n in range(200))))

        await eventually(all_are_served)
        await eventually(lambda: len(batcher._idle) == DEPTH)
        return made[0].left


async def renew(url: str, made: list[Raising]) -> int:
    async with Limiter.from_url(url, deadline="5s") as limiter:
        taken = await answer_of(limiter.store.hit([(Bucket("render", [Concurrency(2)]), "ann", 1)]))
        await eventually(lambda: made[0].left < -20)
        assert taken
        return made[0].left


async def write(url: str, made: list[Raising]) -> int:
    async with Limiter.from_url(url, deadline="5s") as limiter, Limiter.from_url(url, deadline="5s") as other:
        app = RateLimitMiddleware(hello, limits="100/minute", limiter=limiter)
        Statistics.of(limiter)
        sent = 0

        async def all_are_written() -> bool:
            nonlocal sent
            await call(app)  # which sets the timer
            sent += 1
            await asyncio.sleep(0.03)
            return sent > 3 and (await Statistics.of(other).read("5m")).total.passed == sent

        await eventually(all_are_written)
        return made[0].left


async def poll(url: str, made: list[Raising]) -> int:
    async with Limiter.from_url(url, deadline="5s") as limiter, Limiter.from_url(url, deadline="5s") as operator:
        for amount in (5, 7):
            await operator.override("everyone", f"{amount}/minute", "1h")

            async def is_known(amount: int = amount) -> bool:
                await limiter.hit("ann", "100/minute", 0)
                return [one.limit for one in limiter.engine.overrides.in_force.values()] == [f"{amount}/1m"]

            await eventually(is_known)
        return made[0].left


SCENES: dict[str, tuple[str, int, Callable[[str, list[Raising]], Any]]] = {
    "sender": ("Batcher._send", 60, send),
    "renewal": ("HeldPermits._keep_renewing", 12, renew),
    "statistics": ("Statistics._publish_or_retry", 60, write),
    "poller": ("Refresher._apply_answer", 60, poll),
}


@pytest.fixture(autouse=True)
def no_line_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_failures", Throttle())


@needs_redis
@pytest.mark.parametrize("name", SCENES)
async def test_a_task_goes_on_whichever_of_its_awaits_raises_and_one_line_says_so(
    name: str, server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEWALS", 500)
    monkeypatch.setattr(statistics, "EVERY_S", 0.02)
    monkeypatch.setattr(refresh, "STALE_NS", 5_000_000)
    monkeypatch.setattr(refresh, "EXPIRED_NS", 10_000_000)
    task, most, scene = SCENES[name]
    for number in range(1, most):
        caplog.clear()
        monkeypatch.setattr(logs, "_failures", Throttle())
        with raising(task, number) as made:
            if await scene(f"{server.url}?prefix={fresh_prefix()}&permit_lease=1s", made) >= 0:
                break  # it has no more awaits until its end
        lines = [record.getMessage() for record in caplog.records]
        told = [line for line in lines if TEXT in line]  # a request that fails by it has one, too
        assert len(told) <= 2, (number, lines)
        assert told or not made[0].does_harm
        assert not any("\n" in line for line in told)
    assert number >= 2


class Body:
    """What the first request has in a context variable."""


@pytest.mark.parametrize("kind", [pytest.param("redis", marks=needs_redis), "lmdb"])
async def test_no_task_keeps_the_context_of_the_request_that_happened_to_start_it(url: str) -> None:
    variable: ContextVar[Body] = ContextVar("body")
    async with Limiter.from_url(url, deadline="1s") as limiter:  # a timer of each request lasts as long
        app = RateLimitMiddleware(hello, rules=[Rule("*", "100/minute", concurrency=5)], limiter=limiter)
        Statistics.of(limiter)
        taken = None

        async def first() -> None:
            nonlocal taken
            variable.set(Body())
            taken = await answer_of(limiter.store.hit([(Bucket("render", [Concurrency(2)]), "ann", 1)]))
            await call(app)

        await asyncio.create_task(first())
        assert taken

        def nobody_has_it() -> bool:
            gc.collect()
            return not any(isinstance(one, Body) for one in gc.get_objects())

        await eventually(nobody_has_it)


class Followed(FollowedFile):
    def __init__(self, path: Path, ends: Iterator[Exception | None]) -> None:
        self.ends, self.loaded = ends, 0
        super().__init__(str(path), "name")

    def _versions(self) -> Any:
        error = next(self.ends, None)
        if error is not None:
            raise error
        return super()._versions()

    def load(self) -> tuple[int, Callable[[], None]]:
        error = next(self.ends, None)
        if error is not None:
            raise error
        self.loaded += 1
        return 1, lambda: None


@pytest.mark.parametrize("number", range(1, 4))
def test_a_file_is_read_again_whichever_step_of_a_check_raises(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "list"
    path.write_text("before")
    file = Followed(path, iter([None] * number + [KeyError(TEXT)]))
    path.write_text("something after")
    for _ in range(4):
        file._check()
    path.write_text("something else, after that")
    for _ in range(3):
        file._check()
    assert file.loaded
    assert len([record for record in caplog.records if TEXT in record.getMessage()]) == 1


def test_what_outlasts_a_reboot_is_copied_after_a_copy_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, copied = [KeyError(TEXT), None], list[bool]()

    def keep(self: kept.Kept, deadline_s: float) -> None:
        error = ends.pop(0)
        copied.append(error is None)
        if error is not None:
            raise error

    monkeypatch.setattr(kept, "KEEP_EVERY_S", 0.01)
    monkeypatch.setattr(kept.Kept, "keep", keep)
    own = kept.Kept(tmp_path, lambda event: None, lambda *_: None, lambda: False)
    while ends:
        own.keep_up()
        time.sleep(0.02)
    assert copied == [False, True]
    (record,) = caplog.records
    assert TEXT in record.getMessage()
