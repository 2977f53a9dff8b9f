"""A store of which every other call is answered by another process, on the same environment."""

import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from slidegate.core import BanStore, Decision, Store
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

from .processes import SMALL

FORK = get_context("fork")


class Remote:
    """A process that opens environments and calls their stores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()

    def call(self, *request: Any) -> Any:
        with self._lock:
            self._pipe.send(request)
            answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(10)


def decides(name: str) -> Callable[..., Any]:
    """Return a method that asks whose turn it is for a decision."""

    def method(self: "TwoProcesses", checks: Any, *more: Any) -> Any:
        answer = self.turn("store", name, checks, *more)
        if isinstance(answer, tuple):  # from over there, where the buckets are others
            answer, reservations = answer
            for reservation in reservations:
                reservation.check = checks[reservation.index]
            answer.checks, answer.reservations = checks, reservations
        return answer

    return method


def turns(place: str, name: str) -> Callable[..., Any]:
    """Return a method that asks whose turn it is."""
    return lambda self, *given: self.both.turn(place, name, *given)


def stays(name: str) -> Callable[..., Any]:
    """Return a method that is done here: it emits an event, or takes what cannot be sent."""
    return lambda self, *given: getattr(self.both.store.bans, name)(*given)


class _Bans(BanStore):
    """The bans of both."""

    def __init__(self, both: "TwoProcesses") -> None:
        self.both = both

    strike, ban, unban, load = map(stays, ("strike", "ban", "unban", "load"))  # type: ignore[assignment]
    find, active = (turns("bans", name) for name in ("find", "active"))  # type: ignore[assignment]


class TwoProcesses(Store):
    """A store here and one over there, which take turns."""

    def __init__(self, path: str, remote: Remote, clock: FakeClock) -> None:
        super().__init__()
        self.path, self.both = path, self
        self.store = LmdbStore(path, clock=clock, **SMALL)
        self._remote, self._clock, self._calls = remote, clock, 0
        self.bans = _Bans(self)
        self.observers = self.store.observers
        remote.call("open", path)

    hit, peek, charge = map(decides, ("hit", "peek", "charge"))  # type: ignore[assignment]
    refund, reset, reset_all, inspect = (  # type: ignore[assignment]
        turns("store", name) for name in ("refund", "reset", "reset_all", "inspect")
    )

    def turn(self, place: str, name: str, *given: Any) -> Any:
        self._calls += 1
        if self._calls % 2:
            return getattr(self.store if place == "store" else self.store.bans, name)(*given)
        return self._remote.call(place, self.path, self._clock.now_us, name, *given)

    def close(self) -> None:
        self.store.close()
        self._remote.call("close", self.path)


def serve(pipe: "Connection[Any, Any]") -> None:
    """Answer calls until there are no more."""
    stores: dict[str, tuple[LmdbStore, FakeClock]] = {}
    while request := pipe.recv():
        place, path, *call = request
        answer: Any = None
        if place == "open":
            clock = FakeClock()
            stores[path] = LmdbStore(path, clock=clock, **SMALL), clock
        elif place == "close":
            stores.pop(path)[0].close()
        else:
            (store, clock), (now_us, name, *given) = stores[path], call
            clock.set(now_us)
            try:
                answer = getattr(store if place == "store" else store.bans, name)(*given)
            except Exception as error:
                answer = error
        # A pickled decision has nothing to hand back.
        pipe.send((answer, list(answer.reservations)) if isinstance(answer, Decision) else answer)
