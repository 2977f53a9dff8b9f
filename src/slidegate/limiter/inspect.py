"""Inspection of a limiter: the windows of keys, of many in few questions to the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from ..core.buckets import Bucket, Check
from ..core.readings import LimitState, limits_read, state_of
from ..core.store import Snapshot, Store
from .aio import let_others_run
from .rows import Command

TOGETHER: Final = 100
"""How many checks are queried in one step: a few milliseconds of work for the store and for this process."""


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


async def read_keys(command: Command, store: Store, keys: Sequence[tuple[str, Sequence[Bucket]]]) -> list[KeyView]:
    """Return the windows of some keys.

    Args:
        keys: Each key in its canonical form, with the buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    counting = [_one_of_each(buckets) for _, buckets in keys]
    checks = [(bucket, key, 0) for (key, _), counted_by in zip(keys, counting, strict=True) for bucket in counted_by]
    states: list[LimitState] = []
    for first in range(0, max(len(checks), 1), TOGETHER):  # without checks, only the time is read
        batch = checks[first : first + TOGETHER]
        snapshot: Snapshot = await command(partial(store.inspect, batch))
        states += states_in(snapshot, batch)
        await let_others_run()
    remaining = iter(states)
    views: list[KeyView] = []
    for (key, buckets), counted_by in zip(keys, counting, strict=True):
        windows = tuple(islice(remaining, sum(len(bucket.limits) for bucket in counted_by)))
        by_function = dict.fromkeys([bucket.label for bucket in buckets if bucket.is_fallback])
        views.append(KeyView(key, snapshot.now_us, snapshot.unix_us, windows, tuple(by_function)))
    return views


def _one_of_each(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Return the buckets whose limits are known, without those whose windows a later one has, too."""
    latest: dict[object, Bucket] = {}
    for bucket in buckets:
        if not bucket.is_fallback:
            windows = tuple([limit.same_window for limit in bucket.limits])
            latest[bucket.name, windows] = bucket
    return [*latest.values()]


def states_in(snapshot: Snapshot, checks: Sequence[Check]) -> list[LimitState]:
    """Return the state of each limit of some checks for one more unit, given what the store says of their windows."""
    now_us, unix_us, windows = snapshot
    states: list[LimitState] = []
    for bucket, key, at, cost, window in limits_read(checks, windows):
        counter = bucket.limits[at].counter_by(lambda: unix_us)
        _, reading = counter.spend(window, now_us, 0)
        states.append(state_of((bucket, key, at, cost, reading), now_us))
    return states
