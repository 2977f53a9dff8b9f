"""The faults of LMDB: other workers of the host that die or stand still, a disk without room, a damaged file."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.open_store import open_store

from ..stores.lmdb.processes import actor, counts_file, end, outcome, overwrite_heads
from .playing import BOUND, COUNTED, STOPPED_S, Scene, SceneMaker, limiter_of

OTHERS: Final = 20
"""How many other workers come, one after the other."""
HELD_S: Final = 0.005

Fault: TypeAlias = Callable[[Scene], Awaitable[object]]


def scene(fault: Fault, *, lives: int = 1) -> SceneMaker:
    """Return a scene on a file of its own, which is small at first."""

    @asynccontextmanager
    async def made() -> AsyncIterator[Scene]:
        with tempfile.TemporaryDirectory() as directory:
            url = f"lmdb://{directory}/store"
            one = Scene(url, lambda: fault(one), lives=lives)
            yield one

    return made


async def another(scene: Scene, act: Callable[[Any], object]) -> int:
    """Fork a worker that begins something and stands still; return its id when it has begun."""

    def begin(writing: int) -> None:
        begun = None
        store = open_store(scene.url)
        assert isinstance(store, LmdbStore)
        while begun is None:
            begun = act(store._env)
        os.write(writing, b"x")
        signal.pause()

    pid, reading = actor(begin)
    await asyncio.to_thread(os.read, reading, 1)
    os.close(reading)
    return pid


async def writers_that_are_killed(scene: Scene) -> None:
    for _ in range(OTHERS):
        pid = await another(scene, lambda environment: environment.begin())
        await asyncio.sleep(HELD_S)
        end(pid)


async def a_writer_that_stops(scene: Scene) -> None:
    pid = await another(scene, lambda environment: environment.begin())
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)
    end(pid)


async def forks(scene: Scene) -> None:
    """Forked workers ask for what is counted, with the store that their parent has open."""

    def ask(writing: int) -> None:
        limiter = limiter_of(scene.url).sync
        os.write(writing, b"x" * sum(limiter.hit(COUNTED, f"{BOUND}/hour").allowed for _ in range(BOUND // 10)))

    for _ in range(OTHERS):
        written, code = await asyncio.to_thread(outcome, *actor(ask))
        assert code == 0, "a child failed"
        scene.admitted += len(written)


async def a_damaged_head(scene: Scene) -> None:
    overwrite_heads(counts_file(scene.url.removeprefix("lmdb://")))


SCENES: Final[dict[str, SceneMaker]] = {
    "20 writers killed": scene(writers_that_are_killed),
    "writer stopped 1.5 s (SIGSTOP)": scene(a_writer_that_stops),
    "20 forks": scene(forks),
    "head damaged": scene(a_damaged_head, lives=2),
}
