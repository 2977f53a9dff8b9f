"""For people who look at a limiter: who asks it, and all windows of one key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import WeakSet, ref

from ..core.decision import LimitSet
from ..core.views import WindowView, view_of
from ..stores.forks import hold_over_fork
from .aio import let_others_run

if TYPE_CHECKING:
    from .engine import Engine

TOGETHER: Final = 32
"""How many buckets a store is asked for at a time: a few milliseconds of work for it and for this process."""
MAX_BUCKETS: Final = 4_096
"""How many buckets are looked at. Limits at routes make one for each route."""
MAX_PLANS: Final = 4_096
"""Of how many keys and rules the limits are remembered that a function returned; of as many more until they are."""


class Caller(Protocol):
    """Whoever asks a limiter: a middleware, a function with limits, a transport."""

    def buckets(self) -> Iterable[LimitSet]:
        """Return the buckets that it has counted in, or will, as far as is known by now."""


class BucketCaller:
    """A caller that counts in one bucket. Whoever it stands for keeps it as long as it lives."""

    def __init__(self, bucket: LimitSet) -> None:
        self._bucket = bucket

    def buckets(self) -> tuple[LimitSet]:
        """See `Caller.buckets`."""
        return (self._bucket,)


class Plans:
    """The limits that functions have returned for keys lately, in bounded memory."""

    def __init__(self) -> None:
        self._fresh: dict[tuple[str, str], LimitSet | None] = {}
        self._stale: dict[tuple[str, str], LimitSet | None] = {}

    def note(self, rule: str, key: str, bucket: LimitSet | None) -> None:
        """Remember in which bucket of a rule a key was counted last; None for no limits."""
        if len(self._fresh) >= MAX_PLANS:
            self._stale, self._fresh = self._fresh, {}
        self._fresh[rule, key] = bucket

    def of(self, bucket: LimitSet, key: str) -> LimitSet | None:
        """Return the bucket in whose place a fall-back stands, itself where that is not known; None for no limits."""
        name = bucket.rule, key
        return self._fresh.get(name, self._stale.get(name, bucket)) if bucket.fallback else bucket


class Callers:
    """Those who ask one limiter, in the order in which they came. It keeps none of them alive.

    Attributes:
        plans: The limits that their functions have returned lately.
        replaced: Those in whose place others stand; they are there as long as requests that they began wait.
    """

    def __init__(self) -> None:
        self.plans: Final = Plans()
        self.replaced: WeakSet[Caller] = WeakSet()
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._known: list[ref[Caller]] = []

    def add(self, caller: Caller) -> None:
        """Add a caller; one that is known already is listed once."""
        with self._lock:
            alive = [
                reference for reference in self._known if (other := reference()) is not None and other is not caller
            ]
            self._known = [*alive, ref(caller)]

    def replace(self, before: Caller, after: Caller) -> None:
        """List a caller in the place of another one."""
        with self._lock:
            self._known = [ref(after) if reference() is before else reference for reference in self._known]
            self.replaced.add(before)

    def listed(self) -> list[Caller]:
        """Return the callers that are there."""
        return [caller for reference in self._known if (caller := reference()) is not None]

    def all_buckets(self) -> list[LimitSet]:
        """Return the buckets of all callers."""
        return [bucket for caller in self.listed() for bucket in caller.buckets()]

    def buckets(self, key: str, others: Iterable[LimitSet]) -> list[LimitSet]:
        """Return the buckets of all callers for a key, and others; of those that share all their windows, one alone."""
        of_callers = [self.plans.of(bucket, key) for bucket in self.all_buckets()]
        known = {_windows_of(bucket): bucket for bucket in of_callers if bucket is not None and bucket.limits}
        further = {_windows_of(bucket): bucket for bucket in others if _windows_of(bucket) not in known}
        return [*known.values(), *further.values()]


def _windows_of(bucket: LimitSet) -> tuple[object, ...]:
    return bucket.rule, *(limit.same_window for limit in bucket.limits)


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


async def look_at(engine: Engine, key: str, buckets: Sequence[LimitSet]) -> KeyView:
    """Return the windows of a key.

    Args:
        engine: Asks the store.
        key: The key in its spelling.
        buckets: The buckets that may have counted it.

    Raises:
        StoreError: The store does not answer.
    """
    looked_at = buckets[:MAX_BUCKETS]
    views: list[WindowView] = []
    at = 0
    while True:
        part = looked_at[at : at + TOGETHER]
        now_us, windows = await engine.command(partial(engine.store.inspect, key, part))
        places = [(bucket, place) for bucket in part for place in range(len(bucket.limits))]
        for (bucket, place), window in zip(places, windows, strict=True):
            limit = bucket.limits[place]
            view = view_of(bucket.rule, bucket.label, bucket.names[place], limit, window, now_us)
            views.append(view._replace(fallback=bucket.fallback))
        at += TOGETHER
        if at >= len(looked_at):
            return KeyView(key, now_us, time_ns() // 1_000, tuple(views), len(buckets) - len(looked_at))
        await let_others_run()
