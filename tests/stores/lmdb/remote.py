"""A store of which every other answer comes from another process, on the same environment."""

from collections.abc import Callable
from multiprocessing.managers import BaseManager
from typing import Any

from slidegate import Decision
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

from ...remote_stores import RemoteStore
from .processes import SMALL

HERE_ALONE = ("strike", "ban", "unban", "load")
"""What emits an event, or takes what cannot be sent."""


class Stores:
    """The stores of the other process, by path."""

    def __init__(self) -> None:
        self.stores: dict[str, tuple[LmdbStore, FakeClock]] = {}

    def open(self, path: str) -> None:
        clock = FakeClock()
        self.stores[path] = LmdbStore(path, clock=clock, **SMALL), clock

    def answer(self, path: str, now_us: int, name: str, arguments: Any) -> Any:
        store, clock = self.stores[path]
        clock.set(now_us)
        answer = getattr(store.bans if name in ("find", "active") else store, name)(*arguments)
        # A pickled decision has nothing to hand back.
        return (answer, answer.reservations) if isinstance(answer, Decision) else answer

    def close(self, path: str) -> None:
        self.stores.pop(path)[0].close()


class OtherProcess(BaseManager):
    """A process with an object of each class that is registered here."""


OtherProcess.register("Stores", Stores)


class TwoProcesses(RemoteStore):
    """A store here and one over there, which take turns."""

    def __init__(self, path: str, there: Any, clock: FakeClock) -> None:
        super().__init__(inner=LmdbStore(path, clock=clock, **SMALL))
        self.path, self.there, self.clock, self.calls = path, there, clock, 0
        there.open(path)

    def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
        name = question.__name__
        self.calls += name not in HERE_ALONE
        if name in HERE_ALONE or self.calls % 2:
            return question(*arguments)
        answer = self.there.answer(self.path, self.clock.now_us, name, arguments)
        if name not in ("hit", "peek", "charge"):
            return answer
        decision, decision.reservations = answer
        decision.checks = arguments[0]  # over there the buckets are others
        for reservation in decision.reservations:
            reservation.check = decision.checks[reservation.index]
        return decision

    def permits_held(self) -> None:
        """Return None, as for a store without permits: a worker renews its own, and here two would have them."""

    def close(self) -> None:
        self.inner.close()
        self.there.close(self.path)
