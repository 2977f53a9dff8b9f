"""Stores whose every answer goes through one method, which may come late, fail, or count questions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from anyio.lowlevel import checkpoint

from slidegate import Decision, Limiter, MemoryStore
from slidegate.core import Ban, BanStore, Check, EventListener, Store
from slidegate.limiter.aio import answer_of
from slidegate.testing import FakeClock

from .contract.player import listed, settle


def answers(name: str) -> Callable[..., Any]:
    """Return a method of a store, or of its bans, that answers as the inner one does."""
    return lambda self, *arguments: self.answer(getattr(self.inner, name), *arguments)


class RemoteBans(BanStore):
    def __init__(self, store: "RemoteStore") -> None:
        self.inner_store, self.inner, self.answer = store.inner, store.inner.bans, store.answer

    find, strike, ban, unban, load = map(  # type: ignore[assignment]
        answers, ("find", "strike", "ban", "unban", "load")
    )

    async def pages(self) -> AsyncIterator[list[Ban]]:
        yield await settle(self.answer(self.listed))

    def listed(self) -> Any:
        return listed(self.inner_store)


class RemoteStore(Store):
    """A store behind `answer`, by default one in memory; its limiter treats it as one of other machines."""

    def __init__(self, clock: FakeClock | None = None, inner: Any = None) -> None:
        super().__init__()
        self.inner = MemoryStore(clock=clock) if inner is None else inner
        self.bans: Any = RemoteBans(self)

    hit, peek, charge, refund, reset, reset_all, inspect = map(  # type: ignore[assignment]
        answers, ("hit", "peek", "charge", "refund", "reset", "reset_all", "inspect")
    )

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        return question(*arguments)

    def observe(self, observer: EventListener) -> None:
        self.inner.observe(observer)

    def close(self) -> Any:
        return self.inner.close()

    def permits_held(self) -> int:
        held: int = self.inner.permits_held()
        return held


class SlowStore(RemoteStore):
    """A store whose every answer has to be awaited: late, when it `goes_on`, or an `error`; `inline` comes at once."""

    def __init__(self, clock: FakeClock | None = None, *, inline: bool = False) -> None:
        super().__init__(clock)
        self.error: BaseException | None = None
        self.hangs, self.goes_on = False, asyncio.Event()
        self.inline = inline
        self.calls = self.closed = 0

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        self.calls += 1
        if arguments and isinstance(arguments[-1], float):
            self.deadline_s = arguments[-1]
        if not self.inline:
            return self.later(question, *arguments)
        if self.error is not None:
            raise self.error
        return question(*arguments)

    async def later(self, question: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        if self.hangs:
            await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return await answer_of(question(*arguments))

    async def close(self) -> None:
        await checkpoint()
        self.closed += 1


async def hit_all(limiter: Limiter, checks: Sequence[Check]) -> Decision:
    """Charge several buckets and keys together, as middlewares do: all of them or none."""
    return await answer_of(limiter.engine.hit(checks, ()))
