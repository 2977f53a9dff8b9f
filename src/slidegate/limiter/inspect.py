"""Inspection of a limiter: all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..core.buckets import Bucket
from ..core.readings import LimitState, state_of
from ..core.store import Store
from .aio import let_others_run
from .rows import Command

TOGETHER: Final = 32
"""How many buckets are queried in one step: a few milliseconds of work for the store and for this process."""


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


async def inspect_key(command: Command, store: Store, key: str, used: Sequence[Bucket]) -> KeyView:
    """Return the windows of a key.

    Args:
        command: Asks the store.
        store: The store.
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
        now_us, unix_us, windows = await command(partial(store.inspect, key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            views.append(view_of(bucket, key, place, window, now_us, unix_us))
    return KeyView(key, now_us, unix_us, tuple(views), tuple(by_function))


def view_of(bucket: Bucket, key: str, at: int, window: bytes, now_us: int, unix_us: int) -> LimitState:
    """Return the state of a window for one more unit, given the index of its limit in the bucket."""
    _, reading = bucket.limits[at].counter_by(lambda: unix_us).spend(window, now_us, 0)
    return state_of(bucket, key, at, reading, now_us)
