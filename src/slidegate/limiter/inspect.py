"""Inspection of a limiter: all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ..core.buckets import Bucket
from ..core.readings import LimitState, state_of
from ..core.store import Snapshot, Store
from .aio import let_others_run
from .rows import Command

TOGETHER: Final = 32
"""How many buckets are queried in one step: a few milliseconds of work for the store and for this process."""


def one_of_each(buckets: Iterable[Bucket]) -> list[Bucket]:
    """Return buckets without those whose windows a later one has, too."""
    found: dict[object, Bucket] = {}
    for bucket in buckets:
        windows = tuple([limit.same_window for limit in bucket.limits])
        found[bucket.name, windows] = bucket
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
    by_function = dict.fromkeys([bucket.label for bucket in used if bucket.is_fallback])
    buckets = one_of_each([bucket for bucket in used if not bucket.is_fallback])
    steps = [buckets[first : first + TOGETHER] for first in range(0, len(buckets), TOGETHER)]
    if not steps:
        steps = [[]]  # only the time is queried
    states: list[LimitState] = []
    for number, some in enumerate(steps):
        if number:
            await let_others_run()
        snapshot = await command(partial(store.inspect, key, some))
        states += states_in(snapshot, key, some)
    now_us, unix_us, _ = snapshot
    return KeyView(key, now_us, unix_us, tuple(states), tuple(by_function))


def states_in(snapshot: Snapshot, key: str, buckets: Iterable[Bucket]) -> list[LimitState]:
    """Return the state of each limit of some buckets for one more unit, given what the store says of their windows."""
    now_us, unix_us, windows = snapshot
    limits = [(bucket, at) for bucket in buckets for at in range(len(bucket.limits))]
    states: list[LimitState] = []
    for (bucket, at), window in zip(limits, windows, strict=True):
        counter = bucket.limits[at].counter_by(lambda: unix_us)
        _, reading = counter.spend(window, now_us, 0)
        states.append(state_of(bucket, key, at, reading, now_us))
    return states
