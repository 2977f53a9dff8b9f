"""The windows of a key as a store returns them, and their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .decision import Bucket, LimitState, state_of


class Snapshot(NamedTuple):
    """The windows of one key at one time."""

    now_us: int
    """The store's time of the snapshot, in microseconds."""
    unix_us: int
    """Its Unix time, in microseconds."""
    windows: Sequence[bytes]
    """One for each limit of each requested bucket, in order."""


def view_of(bucket: Bucket, key: str, at: int, window: bytes, now_us: int, unix_us: int) -> LimitState:
    """Return the state of a window, for one more unit.

    Args:
        bucket: The bucket.
        key: The key.
        at: The index of the limit in the bucket.
        window: The window.
        now_us: The store's time, in microseconds.
        unix_us: The Unix time, read together with `now_us`.
    """
    _, reading = bucket.limits[at].counter_by(lambda: unix_us).spend(window, now_us, 0)
    return state_of(bucket, key, at, reading, now_us)
