"""All windows of one key, for people who look at one customer."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import Final, NamedTuple

from ...core.decision import Bucket
from ...core.store import Store
from ...core.views import WindowView, view_of
from ..deadlines import within
from ..running_loop import let_others_run

TOGETHER: Final = 32
"""How many buckets a store is asked for at a time: a few milliseconds of work for it and for this process."""
MOST_BUCKETS: Final = 4_096
"""How many buckets are looked at. Limits at routes make one for each route."""


class KeyView(NamedTuple):
    """The windows of a key. Moments are microseconds of the store's time.

    ``moment_us - now_us + unix_us`` is a moment in Unix time.
    """

    key: str
    """The key as the store holds it."""
    now_us: int
    """The store's time when it was asked last."""
    unix_us: int
    """Unix time at that moment, by the clock of this process."""
    windows: tuple[WindowView, ...]
    """One for each limit of each rule, those in which nothing counts as well."""
    left_out: int
    """How many further rules were not looked at: 0 unless there are more than 4,096."""


async def look_at(store: Store, key: str, buckets: Sequence[Bucket]) -> KeyView:
    """Return the windows of a key.

    Args:
        store: The store.
        key: The key in its spelling.
        buckets: The buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    asked = buckets[:MOST_BUCKETS]
    views: list[WindowView] = []
    at = 0
    while True:
        part = asked[at : at + TOGETHER]
        now_us, windows = await within(store.inspect(key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            limit = bucket.limits[place]
            views.append(view_of(bucket.rule, bucket.label, bucket.names[place], limit, window, now_us))
        at += TOGETHER
        if at >= len(asked):
            return KeyView(key, now_us, time_ns() // 1_000, tuple(views), len(buckets) - len(asked))
        await let_others_run()
