"""Stores whose every answer goes through one method, which may come late, fail, or count questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from slidegate import BanPolicy, MemoryStore
from slidegate.core import BanStore, BanSubject, Check, EventListener, LimitSet, Store
from slidegate.core.reservation import Reservation
from slidegate.testing import FakeClock


class RemoteBans(BanStore):
    """The bans of such a store."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    def _answer(self, name: str, *arguments: Any) -> Any:
        return self._store.answer(getattr(self._store.inner.bans, name), *arguments)

    def find(self, subjects: Sequence[BanSubject]) -> Any:
        return self._answer("find", subjects)

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Any:
        return self._answer("strike", policy, key, weight, reason)

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Any:
        return self._answer("ban", key, length_us, reason, by)

    def unban(self, key: str, by: str) -> Any:
        return self._answer("unban", key, by)

    def active(self) -> Any:
        return self._answer("active")

    def dump(self) -> Any:
        return self._answer("dump")

    def load(self, rows: Any) -> Any:
        return self._answer("load", rows)


class RemoteStore(Store):
    """A store behind `answer`, by default one in memory; its limiter treats it as one of other machines."""

    def __init__(self, clock: FakeClock | None = None, inner: Any = None) -> None:
        super().__init__()
        self.inner = MemoryStore(clock=clock) if inner is None else inner
        self.bans: Any = RemoteBans(self)

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return or await what the inner store answers."""
        return question(*arguments)

    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Any:
        return self.answer(self.inner.hit, checks, subjects)

    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Any:
        return self.answer(self.inner.peek, checks, subjects)

    def charge(self, checks: Sequence[Check]) -> Any:
        return self.answer(self.inner.charge, checks)

    def refund(self, reservations: Sequence[Reservation]) -> Any:
        return self.answer(self.inner.refund, reservations)

    def reset(self, key: str) -> Any:
        return self.answer(self.inner.reset, key)

    def reset_all(self) -> Any:
        return self.answer(self.inner.reset_all)

    def inspect(self, key: str, buckets: Sequence[LimitSet]) -> Any:
        return self.answer(self.inner.inspect, key, buckets)

    def observe(self, observer: EventListener) -> None:
        self.inner.observe(observer)

    def close(self) -> Any:
        return self.inner.close()

    def permits_held(self) -> int:
        held: int = self.inner.permits_held()
        return held


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
