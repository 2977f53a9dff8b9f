"""The faults of LMDB: other workers of the host that die or stand still, a disk without room, a damaged file."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.open_store import open_store

from ..stores.lmdb.scenes import actor, disk_of, end, outcome, overwrite_heads
from .playing import BOUND, COUNTED, STOPPED_S, UNBOUND, Scene, SceneMaker, limiter_of

OTHERS: Final = 20
"""How many other workers come, one after the other."""
HELD_S: Final = 0.005

Fault: TypeAlias = Callable[[Scene], Awaitable[object]]


def scene(fault: Fault, *, lives: int = 1) -> SceneMaker:
    """Return a scene on a file of its own, which is small at first."""

    @asynccontextmanager
    async def made() -> AsyncIterator[Scene]:
        with tempfile.TemporaryDirectory() as directory:
            url = f"lmdb://{directory}/store?map_size=65536"
            one = Scene(url, lambda: fault(one), lives=lives)
            yield one

    return made


def path_of(scene: Scene) -> str:
    return scene.url.removeprefix("lmdb://").partition("?")[0]


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


async def readers_that_are_killed(scene: Scene) -> None:
    for _ in range(OTHERS):
        end(await another(scene, lambda environment: environment.read()))


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


async def a_file_that_grows(scene: Scene) -> None:
    """Another worker counts so many keys that the file doubles six times and more."""

    def count(writing: int) -> None:
        limiter = limiter_of(scene.url).sync
        for number in range(20_000):
            limiter.hit(f"new:{number:>0100}", UNBOUND)

    _, code = await asyncio.to_thread(outcome, *actor(count))
    assert code == 0, "a child failed"


async def a_full_disk(scene: Scene) -> None:
    """The file cannot grow, and new keys come."""
    with disk_of(os.stat(f"{path_of(scene)}/data.mdb").st_size):
        until_s = time.monotonic() + STOPPED_S
        async with limiter_of(scene.url) as limiter:
            while time.monotonic() < until_s:
                await limiter.hit(f"new:{time.monotonic_ns()}", UNBOUND)
                await asyncio.sleep(0)


async def a_damaged_head(scene: Scene) -> None:
    overwrite_heads(path_of(scene))


SCENES: Final[dict[str, SceneMaker]] = {
    "20 writers killed": scene(writers_that_are_killed),
    "20 readers killed": scene(readers_that_are_killed),
    "writer stopped 1.5 s (SIGSTOP)": scene(a_writer_that_stops),
    "20 forks": scene(forks),
    "file grows": scene(a_file_that_grows),
    "disk full 1.5 s": scene(a_full_disk),
    "head damaged": scene(a_damaged_head, lives=2),
}
