"""The interface of stores.

A custom store derives from `Store`, implements its seven abstract methods and sets `bans`. Its other methods do nothing
unless a store has a use for them. `SharedRows` and `CountsPermits` are interfaces of their own: a store has their
methods or lacks them, and a limiter works without them.

A question has a deadline, `deadline_s`, which a store needs only where it blocks a thread without an event loop: on a
loop the limiter itself gives up what takes too long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from .bans.ban import Ban, BanSubject
from .bans.policy import BanPolicy
from .buckets import Check
from .decision import Decision
from .errors import closed
from .events import EventListener, Observers
from .reservation import Reservation

COMMAND_DEADLINE_S: Final = 30.0
"""The deadline of an operator's command, such as a ban or a list of bans, in seconds."""

Clock: TypeAlias = Callable[[], int]
"""Returns the time in whole microseconds, not below 0. Its epoch matters only where it stands for Unix time."""


class Snapshot(NamedTuple):
    """Some windows at one time."""

    now_us: int
    """The store's time of the snapshot, in microseconds."""
    unix_us: int
    """Its Unix time, in microseconds."""
    windows: Sequence[bytes]
    """One for each limit of each check, in order."""


class BanStore(ABC):
    """The bans of a store, in its Unix time. As in `Store`, methods return their answer or an awaitable of it."""

    def may_refuse(self) -> bool:
        """Return False if this process knows, without I/O, that no ban is in force."""
        return True

    @abstractmethod
    def find(
        self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        """Return the longest ban in force that refuses one of `subjects`, without changing anything."""

    @abstractmethod
    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if it reaches the policy's threshold; return the new ban, if any.

        Nothing is counted while the key is banned. A policy with ``shadow=True`` reports and never bans.

        Args:
            policy: The policy under which the strike counts.
            key: The key that is struck, as returned by `ban_key`.
            weight: The number of strikes to count, 1 or more.
            reason: The reason of a ban, for the operator.
            deadline_s: See the module.
        """

    @abstractmethod
    def ban(
        self, key: str, length_us: int | None, reason: str, by: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever.

        Raises:
            ConfigurationError: The key is a network, and 1,000 other networks are already banned.
        """

    @abstractmethod
    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""

    @abstractmethod
    def pages(self) -> Iterable[Sequence[Ban]] | AsyncIterator[Sequence[Ban]]:
        """Yield the bans in force in pages, each of which takes an event loop a few milliseconds at most."""

    @abstractmethod
    def load(self, bans: Iterable[Ban]) -> int | Awaitable[int]:
        """Import bans, those of networks first; return how many of them are not over.

        Of two bans of a key that refuse the same addresses (`Ban.network`) the longer one is kept. As a ban by hand, an
        import is always recorded. A shared store writes them in steps: after a failure some may be imported.

        Raises:
            ConfigurationError: There are more than 1,000 networks.
        """

    def count(self) -> int | None:
        """Return how many bans are in force, as far as this process knows; recently expired ones may be included.

        By default None: the number is unknown.
        """
        return None


class SharedRow(NamedTuple):
    """A row that a worker keeps for all workers of a store.

    Attributes:
        kind: What it is, 1 to 40 characters of ``a-z``, ``0-9``, ``-`` and ``_``.
        number: Its number among the rows of its kind, 0 or more, for example that of a time slice.
        value: The bytes that all workers can read, at most 1 MiB.
        kept_us: How long it is kept, in microseconds; with 0 or less it is deleted immediately.
    """

    kind: str
    number: int
    value: bytes
    kept_us: int


ReadRow: TypeAlias = tuple[int, bytes, bytes]
"""A row as all workers read it: its number, the worker that wrote it, and its value."""


class SharedRows(ABC):
    """The rows that the workers of a shared store keep for each other.

    A row belongs to the worker that wrote it, and expires even if that worker has ended.
    """

    @abstractmethod
    def time(self) -> int | Awaitable[int]:
        """Return the time of the store in microseconds, the same for all workers."""

    @abstractmethod
    def write(self, worker: bytes, row: SharedRow, deadline_s: float = COMMAND_DEADLINE_S) -> Awaitable[None] | None:
        """Write a row of a worker, replacing its row with the same kind and number.

        Args:
            worker: The identity of the worker, 8 bytes.
            deadline_s: See the module.

        Raises:
            StoreError: The store does not answer, or has no room for rows.
        """

    @abstractmethod
    def read(
        self, kind: str, first: int, last: int, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Sequence[ReadRow] | Awaitable[Sequence[ReadRow]]:
        """Return the rows of a kind with the numbers from `first` to `last`, both included.

        A question for a single number is sent with the others of the same iteration of the event loop.

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
    shared_rows: SharedRows | None = None
    """What workers keep for each other; None if the store keeps nothing of that."""
    answers_threads: bool = False
    """Whether a thread without an event loop gets its answer at once or within `deadline_s`, and never an awaitable.

    If not, `Limiter.sync` calls the store on an event loop of its own.
    """
    is_read_only: bool = False
    """Whether every change raises `StoreReadOnly`."""
    leases_units: bool = False
    """Whether a worker may have units charged that it has not spent yet, and admit requests with them."""

    def __init__(self) -> None:
        # The check of an ABC without its metaclass: a compiled store would share the caches of ABCMeta with all other
        # stores, so that `isinstance` would be true for each of them.
        kind = type(self)
        missing = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
        if missing:
            raise TypeError(f"{kind.__name__}: a store needs the abstract method {' and '.join(map(repr, missing))}")
        self.observers = Observers()
        """The observers of this store."""
        self.closed = False
        """Whether the store is closed, so that its methods raise `StoreUnavailable`."""

    @abstractmethod
    def hit(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        """Charge every check or none, atomically, and return the decision.

        Keys are any texts that UTF-8 can express, also with NULs.

        A ban of a key in `checks`, or of one of `subjects`, refuses the question; nothing is charged then.

        Args:
            checks: The question; no window is in it twice.
            subjects: Further keys and addresses whose bans refuse it.
            deadline_s: See the module.
        """

    @abstractmethod
    def peek(
        self, checks: Sequence[Check], subjects: Sequence[BanSubject] = (), deadline_s: float = COMMAND_DEADLINE_S
    ) -> Decision | Awaitable[Decision]:
        """Return what `hit` would answer now, without changing anything."""

    @abstractmethod
    def charge(self, checks: Sequence[Check], deadline_s: float = COMMAND_DEADLINE_S) -> Decision | Awaitable[Decision]:
        """Charge every cost atomically, even beyond the limits, and return the decision.

        The decision is always allowed, and can be refunded. A window counts at most 2**32 - 1 units, which is enough to
        refuse all requests until they leave.
        """

    @abstractmethod
    def refund(
        self, reservations: Sequence[Reservation], deadline_s: float = COMMAND_DEADLINE_S
    ) -> bool | Awaitable[bool]:
        """Refund the charges of one decision, or a part of them; return False if none of them is left.

        Args:
            reservations: The charges, as returned by `Decision.begin_refund`.
            deadline_s: See the module.
        """

    @abstractmethod
    def reset(self, key: str, names: Collection[str] = ()) -> bool | Awaitable[bool]:
        """Forget the windows of `key`; return whether it had spent units.

        Units count until they leave, even if the amount of their limit has changed since they were spent.

        Args:
            key: The key.
            names: The names of the buckets whose windows are forgotten; by default all.
        """

    @abstractmethod
    def reset_all(self) -> bool | Awaitable[bool]:
        """Forget the windows of all keys under every rule; return whether any had spent units, as for `reset`.

        This includes quotas, and earlier charges can no longer be refunded. Permits stay taken, because their requests
        are still in progress; bans and strikes stay, too. A process that has cached a refusal drops it within about a
        second.
        """

    @abstractmethod
    def inspect(self, checks: Sequence[Check]) -> Snapshot | Awaitable[Snapshot]:
        """Return the windows of some checks, of one key or of several, without changing anything."""

    def observe(self, observer: EventListener) -> None:
        """Call `observer` with this store's events from now on."""
        self.observers.add(observer)

    async def connect(self) -> None:
        """Connect to a server, because an application starts; if that fails, the first question tries it again.

        A store needs it if connecting takes longer than a request may wait.
        """

    def name_keys(self, by: bytes | None) -> None:
        """Store keys under names which do not reveal them, in a store that other clients can read.

        Args:
            by: A key of up to 64 bytes for these names, which all limiters of this data have; None without a secret.

        Raises:
            ConfigurationError: Another limiter has made them in another way.
        """

    def observe_late(self, observer: Callable[[], None]) -> None:
        """Call `observer` for each answer that comes after its deadline: it shows that the server is alive."""

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


@runtime_checkable
class CountsPermits(Protocol):
    """A store that supports concurrency limits: it records which workers have permits, and until when.

    `slidegate.stores.HeldPermits` is what a worker of a shared store has to remember, and when it renews which.
    """

    def permits_held(self) -> int:
        """Return how many permits of concurrency limits the requests of this process hold now, over all keys."""
