"""The buckets that somebody may have counted in: those of gates, of functions with limits, of a limiter's methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Protocol, runtime_checkable
from weakref import ref

from ...core.decision import Bucket
from ...stores.forks import hold_over_fork


@runtime_checkable
class Counts(Protocol):
    """A gate that counts under rules."""

    def buckets(self) -> Iterable[Bucket]:
        """Return the buckets that it has counted in, or will, as far as is known by now."""


class OneBucket:
    """A function that counts in one bucket; it keeps this as long as it lives."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket


class KnownBuckets:
    """The buckets that somebody may have counted in on a limiter.

    Attributes:
        lately: Those that the methods of the limiter were asked about lately, by rule and limits.
    """

    def __init__(self) -> None:
        self.lately: Mapping[str, Mapping[object, Bucket]] = {}
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._functions: list[ref[OneBucket]] = []

    def add(self, function: OneBucket) -> None:
        """Add a function, which is held weakly, and forget those that are gone."""
        with self._lock:
            self._functions = [held for held in self._functions if held() is not None]
            self._functions.append(ref(function))

    def listed(self, gates: Iterable[object]) -> list[Bucket]:
        """Return the buckets of gates and all others; of those that share all their windows, the newest alone."""
        known = [bucket for gate in gates if isinstance(gate, Counts) for bucket in gate.buckets() if bucket.limits]
        known += [function.bucket for held in self._functions if (function := held()) is not None]
        known += [bucket for named in list(self.lately.values()) for bucket in list(named.values())]
        newest = {(bucket.rule, *(limit.same_window for limit in bucket.limits)): bucket for bucket in known}
        return list(newest.values())
