"""The field of a scene: attackers, an honest client, and what is measured of both.

Everything runs on one event loop, as in a worker. Sixteen attackers send their next request as soon as the last one is
answered, or leave it waiting where the scene says so, so the loop never rests. An honest request comes every few
milliseconds by a plan, on a connection of its own, and its time counts from the planned moment: an event loop that is
held up cannot hide it.

The time of the loop is the CPU time of its thread, so other programs do not count, and it goes on at once where nothing
is to be done, so nobody sleeps. A step is one call that the loop makes. Collections of garbage are measured apart: they
walk every task and frame that is open, those of the application too, but not what the process held before the scene.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import selectors
import sys
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio.lowlevel
from starlette.types import ASGIApp, Scope

from ..asgi import ask, scope_of

ATTACKERS: Final = 16
PAUSE_S: Final = 0.004
ALONE_S: Final = 0.5
SAMPLES: Final = 64
"""How often the memory is read."""
STATM: Final = Path("/proc/self/statm")
HONEST: Final = "198.51.100.7"


class CpuLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the CPU time of its thread, and that waits for nothing: it moves its time instead."""

    def __init__(self) -> None:
        self.skipped_s = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return time.thread_time() + self.skipped_s


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: CpuLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        self._loop.skipped_s += max(timeout or 0.0, 0.0)
        return super().select(0)


@dataclass
class Seen:
    """What a scene showed.

    Attributes:
        statuses: How many of the attackers' requests were answered with each status.
        growth_mib: By how much the memory of the process grew at most.
        later_mib: The part of it that came in the second half of the attack.
        longest_ms: The longest step of the event loop, in CPU time, without collections of garbage in it.
        collection_ms: The longest collection of garbage, in CPU time.
        p99_ms: The 99th percentile of the honest client's times: alone, beside the same requests to the bare
            application, and beside the attack.
        refused: How many honest requests were refused.
    """

    statuses: dict[str, int] = field(default_factory=dict)
    growth_mib: float = 0.0
    later_mib: float = 0.0
    longest_ms: float = 0.0
    collection_ms: float = 0.0
    p99_ms: dict[str, float] = field(default_factory=dict)
    refused: int = 0


def held_mib() -> float:
    """Return the memory that this process holds; on other systems than Linux the most that it ever held."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


@contextmanager
def steps_watched(seen: Seen) -> Iterator[None]:
    """Note the longest step that the event loop makes meanwhile, and the longest collection of garbage."""
    run: Callable[[Handle], None] = Handle._run
    began_ns = collected_ns = 0

    def collecting(phase: str, _: object) -> None:
        nonlocal began_ns, collected_ns
        if phase == "start":
            began_ns = time.thread_time_ns()
        else:
            taken_ns = time.thread_time_ns() - began_ns
            collected_ns += taken_ns
            seen.collection_ms = max(seen.collection_ms, taken_ns / 1e6)

    def watched(handle: Handle) -> None:
        before_ns, started_ns = collected_ns, time.thread_time_ns()
        run(handle)
        taken_ns = time.thread_time_ns() - started_ns - (collected_ns - before_ns)
        seen.longest_ms = max(seen.longest_ms, taken_ns / 1e6)

    Handle._run = watched  # type: ignore[method-assign]
    gc.callbacks.append(collecting)
    try:
        yield
    finally:
        Handle._run = run  # type: ignore[method-assign]
        gc.callbacks.remove(collecting)


@asynccontextmanager
async def honest_client(app: ASGIApp, path: str, seen: Seen, name: str) -> AsyncIterator[None]:
    """Let the honest client come and go meanwhile, and note the 99th percentile of its times under a name."""
    taken_s: list[float] = []
    now_s = asyncio.get_running_loop().time
    asking: set[asyncio.Task[None]] = set()

    async def ask_once(planned_s: float) -> None:
        seen.refused += (await ask(app, scope_of(path, HONEST))).status not in (200, 404)
        taken_s.append(now_s() - planned_s)

    async def come() -> None:
        planned_s = now_s() + PAUSE_S
        while True:
            await asyncio.sleep(max(planned_s - now_s(), 0))
            while planned_s <= now_s():
                task = asyncio.create_task(ask_once(planned_s))
                asking.add(task)
                task.add_done_callback(asking.discard)
                planned_s += PAUSE_S

    await ask(app, scope_of(path, HONEST))
    task = asyncio.create_task(come())
    try:
        yield
        await asyncio.sleep(2 * PAUSE_S)
    finally:
        task.cancel()
        await asyncio.gather(task, *asking, return_exceptions=True)
    if not taken_s:
        raise RuntimeError("the honest client never had a turn")
    seen.p99_ms[name] = sorted(taken_s)[len(taken_s) * 99 // 100] * 1_000


async def attack(app: ASGIApp, scopes: Iterator[Scope], count: int, seen: Seen, *, held: bool = False) -> None:
    """Send requests to an application.

    Args:
        app: The application.
        scopes: The requests.
        count: Their number.
        seen: Where statuses and memory are noted.
        held: Whether an attacker goes on while its last request is not answered yet.
    """
    before_mib = peak_mib = halfway_mib = held_mib()
    sent = 0
    waiting: set[asyncio.Task[None]] = set()

    async def send_one(scope: Scope) -> None:
        status = str((await ask(app, scope)).status)
        seen.statuses[status] = seen.statuses.get(status, 0) + 1

    async def attacker() -> None:
        nonlocal sent, peak_mib, halfway_mib
        for scope in scopes:
            sent += 1
            if sent % max(count // SAMPLES, 1) == 0:
                peak_mib = max(peak_mib, held_mib())
            if sent == count // 2:
                halfway_mib = peak_mib
            if held:
                task = asyncio.create_task(send_one(scope))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            else:
                await send_one(scope)
            await asyncio.sleep(0)

    await asyncio.gather(*(attacker() for _ in range(ATTACKERS)))
    while waiting:
        await asyncio.wait(waiting)
    seen.growth_mib, seen.later_mib = peak_mib - before_mib, peak_mib - halfway_mib


def loop_clock(start_us: int = 10**12) -> Callable[[], int]:
    """Return a clock for a store that goes with the event loop."""
    now_s = asyncio.get_running_loop().time
    begin_s = now_s()
    return lambda: start_us + int((now_s() - begin_s) * 1_000_000)


async def nothing() -> None:
    """Do nothing."""


async def play(
    app: ASGIApp,
    bare: ASGIApp,
    scopes: Callable[[int], Iterator[Scope]],
    count: int,
    *,
    held: bool = False,
    begin: Callable[[], object] = lambda: None,
    end: Callable[[], Awaitable[None]] = nothing,
    path: str = "/items/7",
) -> Seen:
    """Play a scene: the honest client alone, beside the requests to the bare application, beside the attack.

    Args:
        app: The application behind a limiter.
        bare: The same application without it.
        scopes: Returns so many requests of the attackers.
        count: The number of requests.
        held: Whether requests are sent while others wait for their answers.
        begin: Called when the attack begins.
        end: Awaited when all requests are answered, as a part of the attack.
        path: What the honest client asks for.
    """
    await anyio.lowlevel.checkpoint()  # imports what is imported once, at the first wait of a process
    seen, unimportant = Seen(), Seen()
    async with honest_client(app, path, seen, "alone"):
        await asyncio.sleep(min(ALONE_S, count / 1_000))
    async with honest_client(bare, path, seen, "bare"):
        few = max(count // 10, ATTACKERS)
        await attack(bare, scopes(few), few, unimportant)
    begin()
    with steps_watched(seen):
        async with honest_client(app, path, seen, "attack"):
            await attack(app, scopes(count), count, seen, held=held)
            await end()
    return seen


def played(scene: Coroutine[Any, Any, Seen]) -> Seen:
    """Play a scene on a loop of its own."""
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=CpuLoop) as runner:
            return runner.run(scene)
    finally:
        gc.unfreeze()
