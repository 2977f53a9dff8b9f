"""A store of which every other call is answered by another process, on the same environment."""

import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from slidegate.core import BanStore, Bucket, Decision, Reservation, Store
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

SMALL: dict[str, Any] = {"max_map_size": 1 << 24}
ROOT = Path(__file__).resolve().parents[3]


class Remote:
    """A process that opens environments and calls their stores."""

    def __init__(self, place: Path) -> None:
        self._lock = threading.Lock()
        with Listener(str(place / "socket"), "AF_UNIX") as listener:
            command = [sys.executable, "-m", __name__, str(place / "socket")]
            self._process = subprocess.Popen(command, cwd=ROOT)
            self._pipe: Connection[Any, Any] = listener.accept()

    def call(self, *request: Any) -> Any:
        with self._lock:
            self._pipe.send(request)
            answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.wait(timeout=10)


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
    find, active, dump = (turns("bans", name) for name in ("find", "active", "dump"))  # type: ignore[assignment]


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
            target = self.store if place == "store" else self.store.bans
            return getattr(target, name)(*given)
        return self._remote.call(place, self.path, self._clock.now_us, name, *given)

    def close(self) -> None:
        self.store.close()
        self._remote.call("close", self.path)


def serve(address: str) -> None:
    """Answer calls until the other side hangs up."""
    stores: dict[str, tuple[LmdbStore, FakeClock]] = {}
    buckets: dict[tuple[Any, ...], Bucket] = {}

    with Client(address, "AF_UNIX") as pipe:
        while True:
            try:
                place, path, *call = pipe.recv()
            except EOFError:
                return
            answer: Any = None
            if place == "open":
                clock = FakeClock()
                stores[path] = LmdbStore(path, clock=clock, **SMALL), clock
            elif place == "close":
                if path in stores:
                    stores.pop(path)[0].close()
            else:
                (store, clock), (now_us, name, *given) = stores[path], call
                clock.set(now_us)
                try:
                    answer = getattr(store if place == "store" else store.bans, name)(
                        *(_known(buckets, one) for one in given)
                    )
                except Exception as error:
                    answer = error
            # A pickled decision has nothing to hand back.
            pipe.send((answer, list(answer.reservations)) if isinstance(answer, Decision) else answer)


def _known(buckets: dict[tuple[Any, ...], Bucket], given: Any) -> Any:
    """Return checks, or what they charged, with the buckets that were seen before, as an application has them."""
    for reservation in given if isinstance(given, list) else ():
        if isinstance(reservation, Reservation):
            (reservation.check,) = _known(buckets, (reservation.check,))
    if isinstance(given, tuple) and given and isinstance(given[0], tuple) and isinstance(given[0][0], Bucket):
        return tuple((buckets.setdefault(_likeness(bucket), bucket), key, cost) for bucket, key, cost in given)
    return given


def _likeness(bucket: Bucket) -> tuple[Any, ...]:
    return bucket.name, bucket.limits, bucket.count_denied


if __name__ == "__main__":
    serve(sys.argv[1])
