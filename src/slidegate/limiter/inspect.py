"""Inspection of a limiter: its callers, and all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable
from weakref import ref

from ..core.decision import Bucket
from ..core.views import WindowView, view_of
from ..stores.forks import hold_over_fork
from .aio import let_others_run

if TYPE_CHECKING:
    from .engine import Engine
    from .named_limits import NamedLimit

TOGETHER: Final = 32
"""How many buckets are queried in one step: a few milliseconds of work for the store and for this process."""
MAX_BUCKETS: Final = 4_096
"""The most buckets to inspect. Limits at routes have one for each route."""


class Caller(Protocol):
    """A user of a limiter: a middleware, a limited function, a transport."""

    def buckets(self) -> Iterable[Bucket]:
        """Return the known buckets in which it counts."""

    def fallbacks(self) -> Iterable[Bucket]:
        """Return those of them whose limits apply only if a limits function fails."""


@runtime_checkable
class Guard(Protocol):
    """A caller that requests pass through: a middleware."""

    def begin_anew(self) -> None:
        """Treat the next request like the first one: in a child of `fork`, and after a switch."""


class BucketCaller:
    """A caller with a single bucket. Its owner must keep a reference, because `Callers` keeps a weak one.

    Args:
        bucket: The bucket.
        named: Its limits by name, which are changeable as long as this object exists.
    """

    def __init__(self, bucket: Bucket, named: Sequence[NamedLimit] = ()) -> None:
        self.bucket = bucket
        self.named = named

    def buckets(self) -> tuple[Bucket]:
        """See `Caller.buckets`."""
        return (self.bucket,)

    def fallbacks(self) -> tuple[Bucket, ...]:
        """See `Caller.fallbacks`."""
        return ()


class Callers:
    """The callers of one limiter, in order of registration, as weak references."""

    def __init__(self) -> None:
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._known: list[ref[Caller]] = []

    def add(self, caller: Caller) -> None:
        """Register a caller, or move a registered one to the end."""
        with self._lock:
            alive = [
                reference for reference in self._known if (other := reference()) is not None and other is not caller
            ]
            self._known = [*alive, ref(caller)]

    def replace(self, before: Caller, after: Caller) -> None:
        """Replace a registered caller by another one."""
        with self._lock:
            self._known = [ref(after) if reference() is before else reference for reference in self._known]

    def listed(self) -> list[Caller]:
        """Return the callers that are still alive."""
        return [caller for reference in self._known if (caller := reference()) is not None]

    def all_buckets(self) -> list[Bucket]:
        """Return the buckets of all callers."""
        return [bucket for caller in self.listed() for bucket in caller.buckets()]

    def fallbacks(self) -> set[Bucket]:
        """Return the buckets of all callers whose limits apply only if a limits function fails."""
        return {bucket for caller in self.listed() for bucket in caller.fallbacks()}

    def buckets_and(self, others: Iterable[Bucket]) -> list[Bucket]:
        """Return the buckets of all callers and `others`, of those that have the same windows one."""
        found = {_windows_of(bucket): bucket for bucket in self.all_buckets() if bucket.limits}
        for bucket in others:
            found.setdefault(_windows_of(bucket), bucket)
        return [*found.values()]


def _windows_of(bucket: Bucket) -> tuple[object, ...]:
    return bucket.name, *(limit.same_window for limit in bucket.limits)


class KeyView(NamedTuple):
    """The windows of a key. Times are microseconds of the store's time.

    To convert one to Unix time: ``moment_us - now_us + unix_us``.
    """

    key: str
    """The key in its canonical form."""
    now_us: int
    """The store's time of the last query."""
    unix_us: int
    """The store's Unix time at that moment."""
    windows: tuple[WindowView, ...]
    """One for each limit of each rule, empty windows included."""
    left_out: int
    """The number of rules that were not inspected: 0 unless there are more than 4,096."""


async def inspect_key(engine: Engine, key: str, buckets: Sequence[Bucket]) -> KeyView:
    """Return the windows of a key.

    Args:
        engine: Queries the store.
        key: The key in its canonical form.
        buckets: The buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    looked_at, fallbacks = buckets[:MAX_BUCKETS], engine.callers.fallbacks()
    views: list[WindowView] = []
    for first in range(0, max(len(looked_at), 1), TOGETHER):  # without buckets, only the time is queried
        if first:
            await let_others_run()
        part = looked_at[first : first + TOGETHER]
        now_us, unix_us, windows = await engine.command(partial(engine.store.inspect, key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            limit = bucket.limits[place]
            view = view_of(bucket.name, bucket.label, bucket.names[place], limit, window, now_us, unix_us)
            views.append(view._replace(fallback=bucket in fallbacks))
    return KeyView(key, now_us, unix_us, tuple(views), len(buckets) - len(looked_at))
