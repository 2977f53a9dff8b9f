"""What a store answers, and the events that it tells of.

A store of one's own derives from `Store`. It has to answer seven methods and to have `bans`; the other methods have
defaults, which say what the store cannot do, and a limiter does without that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from .bans.ban import Ban, BanSubject
from .bans.policy import BanPolicy
from .bans.rows import Row
from .decision import Check, Decision, LimitSet
from .errors import StoreUnavailable
from .logs import escaped, logger
from .reservation import Reservation
from .views import Snapshot

Clock: TypeAlias = Callable[[], int]
"""Returns the time in whole microseconds, not below 0. Its start does not matter, its rate does."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something an operator may want to know. docs/guides/metrics.md has all kinds and their details.

    Attributes:
        kind: What kind of event it is, for example ``"banned"``.
        message: One line of printable characters for people.
        details: The subjects of the message by name: the key, the policy, the path.
        time_us: The Unix time in microseconds at which the limiter was told; 0 before that.
    """

    kind: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)
    time_us: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        # Observers write the message to logs of their own; the details are left as they are.
        object.__setattr__(self, "message", escaped(self.message))


EventListener: TypeAlias = Callable[[Event], object]
"""Is called with an event of a store; its exceptions are logged and dropped."""


class Observers:
    """The observers of a store. An exception in one is logged; the others still run."""

    def __init__(self) -> None:
        self._observers: list[EventListener] = []

    def __contains__(self, observer: EventListener) -> bool:
        return observer in self._observers

    def add(self, observer: EventListener) -> None:
        """Tell `observer` about further events."""
        self._observers.append(observer)

    def tell(self, event: Event) -> None:
        """Pass an event on."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                logger.exception("observer %r failed", observer)

    def tell_all(self, events: Iterable[Event]) -> None:
        """Pass events on. The limiters of the store write them to the log."""
        for event in events:
            self.tell(event)


class BanStore(ABC):
    """The bans of a store. Methods return their answer or an awaitable of it, as those of the store do."""

    def may_refuse(self) -> bool:
        """Return False if it is known, without asking anybody, that no ban is in force."""
        return True

    @abstractmethod
    def find(self, subjects: Sequence[BanSubject]) -> Ban | Awaitable[Ban | None] | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. Changes nothing."""

    @abstractmethod
    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | Awaitable[Ban | None] | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it.

        Nothing is counted while the key is banned. A policy with ``shadow=True`` reports and never bans.

        Args:
            policy: The policy under which the strike counts.
            key: The key that is struck, as `ban_key` spells it.
            weight: The number of strikes that this one stands for, 1 or more.
            reason: For the operator, if it bans.
        """

    def strike_later(self, policy: BanPolicy, key: str, weight: int, reason: str) -> bool:
        """Count a strike as soon as the store answers again, if that is within ten seconds; nobody waits for it.

        A `Limiter` calls this instead of `strike` while it leaves a store alone that has failed.

        Returns:
            False, by default, where the strike is lost.
        """
        return False

    @abstractmethod
    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban | Awaitable[Ban]:
        """Ban a key by hand, None for ever; a ban that it has is replaced.

        Raises:
            ConfigurationError: 1,000 networks are banned already, and it is another one.
        """

    @abstractmethod
    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""

    @abstractmethod
    def active(self) -> Iterable[Ban] | Awaitable[Iterable[Ban]]:
        """Return the bans in force."""

    @abstractmethod
    def dump(self) -> Sequence[Row] | Awaitable[Sequence[Row]]:
        """Return everything known about bans, strikes and levels, as rows of `core.bans.rows`."""

    @abstractmethod
    def load(self, rows: Sequence[Row]) -> int | Awaitable[int]:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays. Returns the bans read.

        Raises:
            ConfigurationError: A row cannot be read. Nothing is taken over then.
        """

    def count(self) -> int | None:
        """Return how many bans are in force, as far as this process knows; some that ended lately may be in it.

        None, by default, where nobody can say without asking for each.
        """
        return None


def closed(what: str) -> StoreUnavailable:
    """Return the error for a question to a store that was closed."""
    return StoreUnavailable(f"{what} was closed, and answers nobody any more; make a new one")


CHANGED_LIMITS: Final = "limits"
"""The rollup of what operators have changed: few small rows, which have room also where stats have none."""


class StatsRow(NamedTuple):
    """A row of statistics that a worker publishes.

    Attributes:
        rollup: Which rows it stands with, 1 to 40 characters of ``a-z``, ``0-9``, ``-`` and ``_``.
        number: Its number there, 0 or more, for example that of a slice of time.
        value: The bytes that all workers can read, at most 1 MiB.
        kept_us: How long it is kept; one of 0 or less is gone at once.
    """

    rollup: str
    number: int
    value: bytes
    kept_us: int


class SharedStats(ABC):
    """The rows that the workers of a shared store publish now and then, for all of them to read.

    A row belongs to the worker that wrote it, and goes when its time is over, also if the worker is gone.
    """

    @abstractmethod
    def time(self) -> int | Awaitable[int]:
        """Return the time of the store in microseconds, the same for all workers."""

    @abstractmethod
    def write(self, worker: bytes, rows: Sequence[StatsRow]) -> Awaitable[None] | None:
        """Write rows of a worker; a row that it has under the same rollup and number is replaced.

        Args:
            worker: Tells workers apart: 8 bytes.
            rows: The rows.

        Raises:
            StoreError: The store does not answer, or has no room for statistics.
        """

    @abstractmethod
    def read(
        self, rollup: str, first: int, last: int
    ) -> Sequence[tuple[int, bytes, bytes]] | Awaitable[Sequence[tuple[int, bytes, bytes]]]:
        """Return (number, worker, value) of the rows of a rollup between two numbers, both included.

        Raises:
            StoreError: The store does not answer.
        """


class Store:
    """Remembers windows and bans. Time belongs to the store.

    A method that needs no waiting returns its answer; one that does returns an awaitable of it. All of them
    may be called from several threads and event loops at once.
    """

    bans: BanStore
    """The bans that `hit` and `peek` obey."""
    shared_stats: SharedStats | None = None
    """The statistics of several workers; None if the store keeps none."""

    def __init__(self) -> None:
        # What an ABC does, without its metaclass: a compiled store would share the caches of that with all other
        # stores, so that each of them were an instance of it.
        kind = type(self)
        lacks = [name for name in dir(kind) if getattr(getattr(kind, name, None), "__isabstractmethod__", False)]
        if lacks:
            raise TypeError(f"{kind.__name__}: a store needs the abstract method {' and '.join(map(repr, lacks))}")
        self.observers = Observers()
        """The observers of this store."""
        self.closed = False
        """Whether it is closed; a closed store answers no questions."""

    def prepare(self, checks: Sequence[Check]) -> Sequence[Check]:
        """Return the same checks in a form that this store answers faster, for who asks the same again and again.

        It stands wherever checks stand, in another store as well, at any time and in any thread. By default these are
        the checks themselves.
        """
        return checks

    @abstractmethod
    def hit(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none, in one step, and say everything about it.

        A ban of a key of `checks`, or of one of `subjects`, refuses; nothing is charged then.

        Args:
            checks: The question.
            subjects: Further keys, and addresses, whose bans refuse.
        """

    @abstractmethod
    def peek(self, checks: Sequence[Check], subjects: Sequence[BanSubject] = ()) -> Decision | Awaitable[Decision]:
        """Say what `hit` would answer now. Changes nothing."""

    @abstractmethod
    def charge(self, checks: Sequence[Check]) -> Decision | Awaitable[Decision]:
        """Record every cost in one step, whatever the limits, and say what is left.

        The decision is allowed, and can be refunded. A window counts at most 2**32 - 1 units, which is enough to refuse
        everything until they leave.
        """

    @abstractmethod
    def refund(self, reservations: Sequence[Reservation]) -> bool | Awaitable[bool]:
        """Hand back what one decision has charged, or a part of it; False if none of it is there any more.

        Args:
            reservations: What to hand back, as `Decision.take_back` returns it.
        """

    @abstractmethod
    def reset(self, key: str) -> bool | Awaitable[bool]:
        """Forget the windows of `key` under every rule; False if there were none.

        It is true as long as a unit counts, also where the amount of a limit has changed since it was spent.
        """

    @abstractmethod
    def reset_all(self) -> bool | Awaitable[bool]:
        """Forget the windows of all keys under every rule; False if there were none.

        Quotas are forgotten with them, and no earlier charge is handed back any more. Permits stay taken, because the
        requests are under way; bans and strikes stay. Afterwards every process asks the windows as they are now: a
        refusal that it remembers is given up in about a second.
        """

    @abstractmethod
    def inspect(self, key: str, buckets: Sequence[LimitSet]) -> Snapshot | Awaitable[Snapshot]:
        """Return the windows that count `key` under each limit of some buckets. Changes nothing."""

    def observe(self, observer: EventListener) -> None:
        """Tell `observer` about this store's events from now on."""
        self.observers.add(observer)

    def close(self) -> Awaitable[None] | None:
        """Let go of what the store holds open. A second call does nothing.

        Every question after that raises `StoreUnavailable`, see `expect_open`: nothing is opened again.
        """
        self.closed = True
        return None

    def expect_open(self) -> None:
        """See that the store was not closed, as each question does.

        Raises:
            StoreUnavailable: It was.
        """
        if self.closed:
            raise closed(repr(self))

    def permits_held(self) -> int | None:
        """Return how many permits of concurrency limits requests of this process hold now, of all keys.

        None, by default, where the store cannot hold requests to such limits; rules that have one are refused then.
        """
        return None

    def keep_deadline(self, deadline_s: float) -> bool:
        """Set the deadline of this thread's next calls, in seconds; a call that exceeds it raises `StoreTimeout`.

        A `Limiter` calls this before each question, because several with different deadlines may share a store, and
        commands of operators have more time than requests.

        Returns:
            False, by default, where the store cannot promise it; then the `Limiter` sets a timer for each question.
        """
        return False

    def answers_threads(self) -> bool:
        """Return answers, and no awaitables of them, where no event loop runs, and keep the deadline there.

        Returns:
            False, by default, where the store cannot promise it; then `Limiter.sync` asks it on an event loop.
        """
        return False

    def part_of(self, checks: Sequence[Check]) -> Hashable:
        """Return which of several servers answers a question about checks; about bans, where there are none.

        A `Limiter` counts the failures of each by itself. None, by default, means the whole store. Anything else is
        shown in the events ``store_failed`` and ``store_recovered``.
        """
        return None
