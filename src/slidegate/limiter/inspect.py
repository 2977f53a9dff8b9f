"""Inspection of a limiter: its callers, and all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ..core.buckets import Bucket
from ..core.readings import LimitState, state_of
from .aio import let_others_run
from .overrides import NamedLimit, named

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

    def begin_anew(self) -> None:
        """Treat the next request like the first one: after a switch, or a change of an amount."""


class BucketCaller:
    """A caller with a single bucket. Its owner must keep a reference, because `Engine` keeps a weak one."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._named = named(bucket)

    def buckets(self) -> tuple[Bucket]:
        """See `Caller.buckets`."""
        return (self.bucket,)

    def limits_by_name(self) -> list[NamedLimit]:
        """See `Caller.limits_by_name`."""
        return self._named

    def begin_anew(self) -> None:
        """Do nothing: it remembers nothing of requests."""


def one_of_each(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Return buckets without those whose windows a later one has, too."""
    found = {(bucket.name, *(limit.same_window for limit in bucket.limits)): bucket for bucket in buckets}
    return [*found.values()]


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
    by_function: tuple[str, ...] = ()
    """The labels of rules whose limits a function returns for each request: `windows` has none of theirs."""


async def inspect_key(engine: Engine, key: str, used: Sequence[Bucket]) -> KeyView:
    """Return the windows of a key.

    Args:
        engine: Queries the store.
        key: The key in its canonical form.
        used: The buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    views: list[LimitState] = []
    by_function = dict.fromkeys(bucket.label for bucket in used if bucket.is_fallback)
    buckets = one_of_each(bucket for bucket in used if not bucket.is_fallback)
    for first in range(0, max(len(buckets), 1), TOGETHER):  # without buckets, only the time is queried
        if first:
            await let_others_run()
        part = buckets[first : first + TOGETHER]
        now_us, unix_us, windows = await engine.command(partial(engine.store.inspect, key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            views.append(view_of(bucket, key, place, window, now_us, unix_us))
    return KeyView(key, now_us, unix_us, tuple(views), tuple(by_function))


def view_of(bucket: Bucket, key: str, at: int, window: bytes, now_us: int, unix_us: int) -> LimitState:
    """Return the state of a window for one more unit, given the index of its limit in the bucket."""
    _, reading = bucket.limits[at].counter_by(lambda: unix_us).spend(window, now_us, 0)
    return state_of(bucket, key, at, reading, now_us)
