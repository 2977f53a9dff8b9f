"""A scene: tasks that hit a limiter without a break while its store has a fault, and what they went through."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from slidegate import Limiter
from slidegate.core import Reason

KEYS: Final = tuple(f"user:{number}" for number in range(16))
"""A task hits each."""
DEADLINE: Final = "50ms"
SECRET: Final = b"s" * 32
BEFORE_S: Final = 0.5
AFTER_S: Final = 3.0
STOPPED_S: Final = 1.5
TICK_S: Final = 0.001
QUIET_S: Final = 0.3
"""A busy machine keeps a hit from its deadline now and then; so long without one, and the worker is back."""

UNBOUND: Final = "1000000/second"
BOUND: Final = 1_000
"""How many hits of `COUNTED` pass in an hour; they are used up within the scene, and asked for until its end."""
COUNTED: Final = "everyone"
BANNED: Final = "user:eve"


@dataclass
class Scene:
    """Where hits go, and what happens meanwhile.

    Attributes:
        url: The address of the store.
        fault: Comes back when the fault is over.
        lives: How often the store counts from 0, where the fault takes its data away.
        keeps_bans: Whether a ban outlives that.
        admitted: How many hits of `COUNTED` other processes have seen admitted.
    """

    url: str
    fault: Callable[[], Awaitable[object]]
    lives: int = 1
    keeps_bans: bool = True
    admitted: int = 0


SceneMaker: TypeAlias = Callable[[], AbstractAsyncContextManager[Scene]]


@dataclass
class Record:
    ended_s: float = 0.0
    hits: int = 0
    undecided_s: list[float] = field(default_factory=list)
    longest_s: float = 0.0
    late_s: float = 0.0
    wrong: int = 0

    @property
    def back_s(self) -> float:
        """How long after the fault hits were undecided, until all of them were decided for a while."""
        back_s = self.ended_s
        for undecided_s in self.undecided_s:
            if undecided_s > back_s + QUIET_S:
                break
            back_s = max(back_s, undecided_s)
        return back_s - self.ended_s


def limiter_of(url: str) -> Limiter:
    return Limiter.from_url(url, secret=SECRET, deadline=DEADLINE, on_error="deny")


async def played(make: SceneMaker) -> Record:
    async with make() as scene, limiter_of(scene.url) as limiter:
        return await Worker(scene, limiter).play()


class Worker:
    def __init__(self, scene: Scene, limiter: Limiter) -> None:
        self._scene = scene
        self._limiter = limiter
        self._record = Record()
        self._is_over = False
        self._counted = self._banned = 0

    async def play(self) -> Record:
        scene, record = self._scene, self._record
        await self._limiter.ban(BANNED, "1h")
        while (await self._limiter.hit(BANNED, UNBOUND)).reason is not Reason.BANNED:
            pass  # a worker of a cluster goes on to refuse whom it has refused, where it cannot ask
        for key in KEYS:
            while (await self._limiter.hit(key, UNBOUND)).reason is Reason.UNAVAILABLE:
                pass
        tasks = [asyncio.create_task(one) for one in (*map(self._hit, KEYS), self._check(), self._watch())]
        await asyncio.sleep(BEFORE_S)
        await scene.fault()
        record.ended_s = time.monotonic()
        await asyncio.sleep(AFTER_S)
        self._is_over = True
        await asyncio.gather(*tasks)
        record.wrong = max(self._counted + scene.admitted - BOUND * scene.lives, 0)
        record.wrong += self._banned if scene.keeps_bans else 0
        return record

    async def _hit(self, key: str) -> None:
        record = self._record
        while not self._is_over:
            started_s = time.monotonic()
            decision = await self._limiter.hit(key, UNBOUND)
            now_s = time.monotonic()
            record.hits += 1
            record.longest_s = max(record.longest_s, now_s - started_s)
            undecided = decision.reason is Reason.UNAVAILABLE
            if undecided:
                record.undecided_s.append(now_s)
            # The pause of the breaker is no work for the machine; a store that answers at once lets nobody else run.
            await asyncio.sleep(TICK_S if undecided else 0)

    async def _check(self) -> None:
        while not self._is_over:
            self._counted += (await self._limiter.hit(COUNTED, f"{BOUND}/hour")).allowed
            self._banned += (await self._limiter.hit(BANNED, UNBOUND)).allowed
            await asyncio.sleep(TICK_S)

    async def _watch(self) -> None:
        while not self._is_over:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._record.late_s = max(self._record.late_s, time.monotonic() - due_s)
