"""Stores whose every answer goes through one method, which may come late, fail, or count questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from slidegate import MemoryStore
from slidegate.core import Bucket, Check, Decision, Observer
from slidegate.core.bans.in_force import Guarded
from slidegate.testing import FakeClock


class RemoteBans:
    """The bans of such a store."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._store.answer(getattr(self._store.inner.bans, name), *arguments)


class RemoteStore:
    """A memory store behind `answer`."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.inner = MemoryStore(clock=clock)
        self.bans: Any = RemoteBans(self)

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return or await what the memory store answers."""
        raise NotImplementedError

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Any:
        return self.answer(self.inner.hit, checks, guarded)

    def peek(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Any:
        return self.answer(self.inner.peek, checks, guarded)

    def charge(self, checks: Sequence[Check]) -> Any:
        return self.answer(self.inner.charge, checks)

    def refund(self, decision: Decision) -> Any:
        return self.answer(self.inner.refund, decision)

    def reset(self, key: str) -> Any:
        return self.answer(self.inner.reset, key)

    def reset_all(self) -> Any:
        return self.answer(self.inner.reset_all)

    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Any:
        return self.answer(self.inner.inspect, key, buckets)

    def observe(self, observer: Observer) -> None:
        self.inner.observe(observer)

    def close(self) -> Any:
        self.inner.close()


class SlowStore(RemoteStore):
    """A store whose every answer has to be awaited."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        super().__init__(clock)
        self.closed = 0

    async def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return question(*arguments)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class SickStore(RemoteStore):
    """A store that answers late, or not, or with an error, as it is told; `inline` at once."""

    def __init__(self, clock: FakeClock, *, inline: bool = False) -> None:
        super().__init__(clock)
        self.error: BaseException | None = None
        self.hangs = False
        self.inline = inline
        self.asked = 0

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        self.asked += 1
        if not self.inline:
            return self.later(question, *arguments)
        if self.error is not None:
            raise self.error
        return question(*arguments)

    async def later(self, question: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return question(*arguments)
