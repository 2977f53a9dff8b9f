"""Inspection of a limiter: its callers, and all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from ..core.decision import Bucket, LimitState
from ..core.views import view_of
from .aio import let_others_run
from .named_limits import NamedLimit, named

if TYPE_CHECKING:
    from .engine import Engine

TOGETHER: Final = 32
"""How many buckets are queried in one step: a few milliseconds of work for the store and for this process."""


class Caller(Protocol):
    """A user of a limiter: a middleware, a limited function or block, a transport."""

    def buckets(self) -> Iterable[Bucket]:
        """Return the known buckets in which it counts."""

    def limits_by_name(self) -> Iterable[NamedLimit]:
        """Return their limits."""


@runtime_checkable
class Guard(Protocol):
    """A caller that requests pass through: a middleware."""

    def begin_anew(self) -> None:
        """Treat the next request like the first one: in a child of `fork`, and after a switch."""


class BucketCaller:
    """A caller with a single bucket. Its owner must keep a reference, because `Callers` keeps a weak one."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._named = named(bucket)

    def buckets(self) -> tuple[Bucket]:
        """See `Caller.buckets`."""
        return (self.bucket,)

    def limits_by_name(self) -> list[NamedLimit]:
        """See `Caller.limits_by_name`."""
        return self._named


class Callers:
    """The callers of one limiter, in order of registration, as weak references."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[int, Caller] = WeakValueDictionary()

    def add(self, caller: Caller) -> None:
        """Register a caller, or move a registered one to the end."""
        self.remove(caller)
        self._known[id(caller)] = caller

    def remove(self, caller: Caller) -> None:
        """Forget a caller, which another one replaces."""
        self._known.pop(id(caller), None)

    def listed(self) -> list[Caller]:
        """Return the callers that are still alive."""
        return [caller for reference in self._known.valuerefs() if (caller := reference()) is not None]

    def limits(self) -> list[NamedLimit]:
        """Return their limits."""
        return [one for caller in self.listed() for one in caller.limits_by_name()]

    def buckets_and(self, others: Iterable[Bucket]) -> list[Bucket]:
        """Return the buckets of all callers and `others`, of those that have the same windows one."""
        own = [bucket for caller in self.listed() for bucket in caller.buckets() if bucket.limits]
        found = {_windows_of(bucket): bucket for bucket in own}
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
    windows: tuple[LimitState, ...]
    """One for each limit of each rule, empty windows included."""


async def inspect_key(engine: Engine, key: str, buckets: Sequence[Bucket]) -> KeyView:
    """Return the windows of a key.

    Args:
        engine: Queries the store.
        key: The key in its canonical form.
        buckets: The buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    views: list[LimitState] = []
    for first in range(0, max(len(buckets), 1), TOGETHER):  # without buckets, only the time is queried
        if first:
            await let_others_run()
        part = buckets[first : first + TOGETHER]
        now_us, unix_us, windows = await engine.command(partial(engine.store.inspect, key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            views.append(view_of(bucket, key, place, window, now_us, unix_us))
    return KeyView(key, now_us, unix_us, tuple(views))
