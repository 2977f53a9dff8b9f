"""The interface of stores.

A custom store derives from `Store`, implements its seven abstract methods and sets `bans`. Other methods have defaults,
which report that the store lacks a feature; a limiter works without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from .bans.ban import Ban, BanSubject
from .bans.policy import BanPolicy
from .bans.rows import Row
from .buckets import Bucket, Check
from .decision import Decision
from .errors import closed
from .events import EventListener, Observers
from .reservation import Reservation

Clock: TypeAlias = Callable[[], int]
"""Returns the time in whole microseconds, not below 0. Its epoch matters only where it stands for Unix time."""


class Snapshot(NamedTuple):
    """The windows of one key at one time."""

    now_us: int
    """The store's time of the snapshot, in microseconds."""
    unix_us: int
    """Its Unix time, in microseconds."""
    windows: Sequence[bytes]
    """One for each limit of each requested bucket, in order."""


class BanStore(ABC):
    """The bans of a store, in its Unix time. As in `Store`, methods return their answer or an awaitable of it."""

    def may_refuse(self) -> bool:
        """Return False if this process knows, without I/O, that no ban is in force."""
        return True

    @abstractmethod
    def find(self, subjects: Sequence[BanSubject]) -> Ban | Awaitable[Ban | None] | None:
        """Return the longest ban in force that refuses one of `subjects`, without changing anything."""

    @abstractmethod
    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if it reaches the policy's threshold; return the new ban, if any.

        Nothing is counted while the key is banned. A policy with ``shadow=True`` reports and never bans.

        Args:
            policy: The policy under which the strike counts.
            key: The key that is struck, as returned by `ban_key`.
            weight: The number of strikes to count, 1 or more.
            reason: The reason of a ban, for the operator.
        """

    @abstractmethod
    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever.

        Raises:
            ConfigurationError: The key is a network, and 1,000 other networks are already banned.
        """

    @abstractmethod
    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""

    @abstractmethod
    def active(self) -> Iterable[Ban] | Awaitable[Iterable[Ban]]:
        """Return the bans in force."""

    @abstractmethod
    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Import rows of `core.bans.rows`; return the number of bans read.

        Of two bans of a key that refuse the same addresses (`Ban.network`) the longer one is kept. As a ban by hand, an
        import is always recorded.

        Raises:
            ConfigurationError: A row is invalid, so that nothing is imported; or there are more than 1,000 networks.
        """

    def count(self) -> int | None:
        """Return how many bans are in force, as far as this process knows; recently expired ones may be included.

        By default None: the number is unknown.
        """
        return None


class StatsRow(NamedTuple):
    """A row of statistics that a worker publishes.

    Attributes:
        rollup: The group of rows it belongs to, 1 to 40 characters of ``a-z``, ``0-9``, ``-`` and ``_``.
        number: Its number in the group, 0 or more, for example that of a time slice.
        value: The bytes that all workers can read, at most 1 MiB.
        kept_us: How long it is kept, in microseconds; with 0 or less it is deleted immediately.
    """

    rollup: str
    number: int
    value: bytes
    kept_us: int


class SharedStats(ABC):
    """The rows that the workers of a shared store publish periodically, readable by all of them.

    A row belongs to the worker that wrote it, and expires even if that worker has ended.
    """

    @abstractmethod
    def time(self) -> int | Awaitable[int]:
        """Return the time of the store in microseconds, the same for all workers."""

    @abstractmethod
    def write(self, worker: bytes, row: StatsRow) -> Awaitable[None] | None:
        """Write a row of a worker, replacing its row with the same rollup and number.

        Args:
            worker: The identity of the worker, 8 bytes.
            row: The row.

        Raises:
            StoreError: The store does not answer, or has no room for statistics.
        """

    @abstractmethod
    def read(
        self, rollup: str, first: int, last: int
    ) -> Sequence[tuple[int, bytes, bytes]] | Awaitable[Sequence[tuple[int, bytes, bytes]]]:
        """Return (number, worker, value) of the rows of a rollup from `first` to `last`, both included.

        Raises:
            StoreError: The store does not answer.
        """


class Store:
    """Stores windows and bans, and provides the time.

    A method returns its answer, or an awaitable of it if it has to wait. All methods may be called from several threads
    and event loops at the same time.
    """

    bans: BanStore
    """The bans that `hit` and `peek` enforce."""
    shared_stats: SharedStats | None = None
    """The statistics of several workers; None if the store does not support them."""
    writes: int | None = None
    """How many calls have stored anything so far; None if the store does not say.

    A store whose errors may concern ``"writes"`` alone says it: with the next write that it accepts, their outage ends.
    """

    def __init__(self) -> None:
        # The check of an ABC without its metaclass: a compiled store would share the caches of ABCMeta with all other
        # stores, so that `isinstance` would be true for each of them.
        kind = type(self)
        lacks = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
        if lacks:
            raise TypeError(f"{kind.__name__}: a store needs the abstract method {' and '.join(map(repr, lacks))}")
        self.observers = Observers()
        """The observers of this store."""
        self.closed = False
        """Whether the store is closed, so that its methods raise `StoreUnavailable`."""

    @abstractmethod
    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none, atomically, and return the decision.

        A ban of a key in `checks`, or of one of `subjects`, refuses the question; nothing is charged then.

        Args:
            checks: The question; no window is in it twice.
            subjects: Further keys and addresses whose bans refuse it.
        """

    @abstractmethod
    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Return what `hit` would answer now, without changing anything."""

    @abstractmethod
    def charge(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Charge every cost atomically, even beyond the limits, and return the decision.

        The decision is always allowed, and can be refunded. A window counts at most 2**32 - 1 units, which is enough to
        refuse all requests until they leave.
        """

    @abstractmethod
    def refund(self, reservations: Sequence[Reservation]) -> bool | Awaitable[bool]:
        """Refund the charges of one decision, or a part of them; return False if none of them is left.

        Args:
            reservations: The charges, as returned by `Decision.begin_refund`.
        """

    def release(self, decision: Decision) -> bool:
        """Return the permits of a decision at once; False if its reservations have to be refunded instead."""
        return False

    @abstractmethod
    def reset(self, key: str) -> bool | Awaitable[bool]:
        """Forget the windows of `key` under every rule; return whether it had spent units.

        Units count until they leave, even if the amount of their limit has changed since they were spent.
        """

    @abstractmethod
    def reset_all(self) -> bool | Awaitable[bool]:
        """Forget the windows of all keys under every rule; return whether any had spent units, as for `reset`.

        This includes quotas, and earlier charges can no longer be refunded. Permits stay taken, because their requests
        are still in progress; bans and strikes stay, too. A process that has cached a refusal drops it within about a
        second.
        """

    @abstractmethod
    def inspect(self, key: str, buckets: Sequence[Bucket]) -> Snapshot | Awaitable[Snapshot]:
        """Return the windows of `key` under each limit of some buckets, without changing anything."""

    def observe(self, observer: EventListener) -> None:
        """Call `observer` with this store's events from now on."""
        self.observers.add(observer)

    def close(self) -> Awaitable[None] | None:
        """Release the resources of the store. A second call does nothing.

        Every later question raises `StoreUnavailable`, see `expect_open`: nothing is opened again.
        """
        self.closed = True
        return None

    def expect_open(self) -> None:
        """Check that the store is open; each question does this.

        Raises:
            StoreUnavailable: The store was closed.
        """
        if self.closed:
            raise closed(repr(self))

    def permits_held(self) -> int | None:
        """Return how many permits of concurrency limits the requests of this process hold now, over all keys.

        By default None: the store does not support concurrency limits, and rules with one are rejected.
        """
        return None

    def keep_deadline(self, deadline_s: float) -> bool:
        """Set the deadline of this thread's next calls without an event loop, in seconds.

        A call that exceeds it raises `StoreTimeout`. A `Limiter` calls this before each question, because limiters with
        different deadlines may share a store, and operators' commands have a longer deadline than requests. On an event
        loop it gives up itself what takes too long.

        Returns:
            Whether the store enforces the deadline; by default False.
        """
        return False

    def answers_threads(self) -> bool:
        """Return whether the store answers without an event loop, within the deadline and never with an awaitable.

        Returns:
            By default False, and `Limiter.sync` calls the store on an event loop.
        """
        return False

    def observe_late(self, took: Callable[[int], None]) -> None:
        """Call `took` with the microseconds of each answer that came when nobody awaited it any more.

        A `Limiter` reports with them which deadline the store needs. By default `took` is never called.
        """
