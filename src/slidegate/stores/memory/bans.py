"""Bans in the memory of a process: dicts, and the lock around `core.bans.rules`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from threading import Lock
from time import monotonic_ns
from typing import Any, Final, TypeVar

from ...core.bans.active import ActiveBans
from ...core.bans.ban import Ban, BanChange, BanSubject
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Bans, Row, from_rows, to_rows
from ...core.bans.rules import MAX_HISTORY, BanRules, Steady
from ...core.bans.strikes import PolicyState, StoredRecords, StrikeRecord, stored_records
from ...core.decision import BanRefusal, Check
from ...core.store import BanStore, Clock, Event, closed
from ..forks import hold_over_fork
from ..system_clock import system_us

T = TypeVar("T")

DEFAULT_MAX_BANS: Final = 100_000
_COUNTED: Final = 1_000
"""How many bans that have ended are forgotten when the others are counted."""
_LET_GO_EVERY: Final = 64
"""Questions while anybody is banned, between two looks for bans that have ended: nobody pays for those for ever."""


class MemoryStrikeQueue:
    """The strike records under one policy.

    A record without strikes, which is that of a banned key, is held as a tuple of its numbers: Python's garbage
    collector leaves tuples of numbers out, however many keys are banned.
    """

    def __init__(self) -> None:
        # Not a plain dict, which looks for its first entry among all that were deleted.
        self._by_key: OrderedDict[str, StrikeRecord | tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def items(self) -> Iterator[tuple[str, StrikeRecord]]:
        """Yield each key and its strike record; the key that was struck longest ago comes first."""
        return ((key, _of_numbers(known)) for key, known in self._by_key.items())

    def get(self, key: str) -> StrikeRecord | None:
        """Return the strike record of a key."""
        known = self._by_key.get(key)
        return None if known is None else _of_numbers(known)

    def put(self, key: str, record: StrikeRecord) -> None:
        """Record a strike record; a new one comes to the end of the queue."""
        self._by_key[key] = record if record.strikes else (record.level, record.last_us, record.until_us)

    def keep(self, key: str, record: StrikeRecord) -> None:
        """Record a change of a strike record; the key stays where it is in the queue."""
        self.put(key, record)

    def take(self, key: str) -> StrikeRecord | None:
        """Take a strike record out."""
        known = self._by_key.pop(key, None)
        return None if known is None else _of_numbers(known)


def _of_numbers(known: StrikeRecord | tuple[int, int, int]) -> StrikeRecord:
    return StrikeRecord(*known) if isinstance(known, tuple) else known


class MemoryBanStorage:
    """What a memory store remembers about bans."""

    def __init__(self) -> None:
        self.active_bans = ActiveBans()
        self._states: dict[str, PolicyState] = {}
        self._history: deque[tuple[Any, ...]] = deque(maxlen=MAX_HISTORY)

    def state(self, policy: str) -> PolicyState | None:
        """Return the state of a policy, None if there is none."""
        return self._states.get(policy)

    def open_state(self, policy: str) -> PolicyState:
        """Return the state of a policy, a new one if there is none."""
        state = self._states.get(policy)
        if state is None:
            state = self._states[policy] = PolicyState(policy, MemoryStrikeQueue())
        return state

    def states(self) -> Collection[PolicyState]:
        """Return the states of all policies."""
        return self._states.values()

    def strike_records(self) -> int:
        """Return how many strike records there are under all policies."""
        return sum(len(state.strikes) for state in self._states.values())

    def forget_all(self) -> None:
        """Forget all bans, strike records and changes."""
        for key in list(self.active_bans.by_key):
            self.active_bans.remove(key)
        self._states.clear()
        self._history.clear()

    def remember(self, change: BanChange) -> None:
        """Add a change to the history, as a tuple: see `core.bans.active`."""
        self._history.append((change.kind, tuple(change.ban), change.wall_us, change.by))

    def history(self) -> list[BanChange]:
        """Return the changes, oldest first."""
        return [BanChange(kind, Ban._make(row), wall_us, by) for kind, row, wall_us, by in self._history]


class MemoryBans(BanStore):
    """Bans in the memory of this process, for `MemoryStore` and for stores that keep none of their own.

    Such a store asks `decide` before it looks at its windows.

    Args:
        clock: The store's clock; by default the monotonic one.
        wall_clock: Returns Unix time in microseconds; by default that of the system.
        tell: Passes events on, as `Store.observers.tell_all` does; called without a lock.
        max_bans: How many bans, and the strikes of how many keys, to hold.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        wall_clock: Clock | None = None,
        tell: Callable[[Sequence[Event]], None] = lambda events: None,
        max_bans: int = DEFAULT_MAX_BANS,
    ) -> None:
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._clock = clock or _monotonic_us
        self._wall = wall_clock or system_us
        self._tell = tell
        self._steady = Steady()
        self._storage = MemoryBanStorage()
        self._rules = BanRules(self._storage, max_bans)
        self.active_bans = self._storage.active_bans
        self._decided = 0
        self._closed = False

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the ban in force that refuses one of `subjects`, the one that lasts longest. Changes nothing."""
        self._guard()
        refusal = self.decide((), subjects, prolong=False)
        return None if refusal is None else refusal.ban

    def close(self) -> None:
        """Answer no question any more, as the store of these bans does."""
        self._closed = True

    def may_refuse(self) -> bool:
        """Return whether there are bans; some may have ended."""
        return bool(self.active_bans.by_key)

    def decide(self, checks: Sequence[Check], subjects: Sequence[BanSubject], prolong: bool) -> BanRefusal | None:
        """Return the refusal of a question by a ban, if there is one.

        Args:
            checks: The question; bans of its keys refuse it.
            subjects: Further keys, and addresses, whose bans refuse it.
            prolong: Whether bans go on by it, where their policy says so; False for a look, which changes nothing.
        """
        if prolong:  # a look changes nothing
            self._decided += 1
            if not self._decided % _LET_GO_EVERY:
                with self._lock:
                    self.active_bans.remove_expired(*self._moments(), max_count=_LET_GO_EVERY)
        keys = self.active_bans.keys_of(subjects, checks)
        if not keys:
            return None  # most requests end here, and take no lock
        with self._lock:
            return self._rules.decide(self.active_bans.of(keys), checks, *self._moments(), prolong=prolong)

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, prefix: str = "") -> Ban | None:
        """Count a strike, and ban the key if that is one too many; return the ban that was made by it."""
        return self._change(
            lambda rules, now_us, wall_us: rules.strike(policy, key, weight, reason, prefix, now_us, wall_us)
        )

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, None for ever; a ban that it has is replaced."""
        return self._change(lambda rules, now_us, wall_us: rules.ban(key, length_us, reason, by, now_us, wall_us))

    def unban(self, key: str, by: str) -> bool:
        """Take the ban of exactly this key back, and forget its strikes and levels; False if there was neither."""
        return self._change(lambda rules, now_us, wall_us: rules.unban(key, by, now_us, wall_us))

    def forget_all(self) -> None:
        """Forget all bans, strikes and levels, and the history, as a new store would. Observers are not told."""
        with self._lock:
            self._storage.forget_all()

    def strike_records(self, keys: Sequence[str]) -> StoredRecords:
        """Return how each of some keys stands under each policy. Changes nothing."""
        with self._guard():
            return self._moments()[0], stored_records(self._storage.states(), keys)

    def active(self) -> Iterator[Ban]:
        """Return the bans in force. They become objects one by one: all at once would hold an event loop up."""
        with self._guard():
            rows, moments = list(self.active_bans.by_key.values()), self._moments()
        return (ban for ban in map(Ban._make, rows) if not ban.is_over(*moments))

    def count(self) -> int:
        """Return how many bans are in force. Of those that have ended, so many are forgotten at each look."""
        with self._lock:
            self.active_bans.remove_expired(*self._moments(), max_count=_COUNTED)
            return len(self.active_bans)

    def history(self) -> list[BanChange]:
        """Return the last 10,000 changes, oldest first."""
        with self._guard():
            return self._storage.history()

    def dump(self) -> list[Row]:
        """Return everything known about bans, strikes and levels, as `core.bans.rows` writes it."""
        with self._guard():
            now_us, wall_us = self._moments()
            strike_records = [
                (state.name, key, record)
                for state in self._storage.states()
                for key, record in state.strikes.items()
                if not state.is_over(record, now_us)
            ]
            bans = [ban for ban in self.active_bans if not ban.is_over(now_us, wall_us)]
            return list(to_rows(Bans(bans, strike_records), now_us, wall_us))

    def load(self, rows: Sequence[Row]) -> int:
        """Take over what `dump` returned; of two bans of a key the one that lasts longer stays."""
        with self._guard():
            moments = self._moments()
        known = from_rows(rows, *moments)  # takes longer than all the rest, and others need the lock
        with self._guard():
            return self._rules.load(known, *self._moments())

    def _moments(self) -> tuple[int, int]:
        """Return the store's time and Unix time; where the first steps back, it goes on from where it was."""
        return self._steady.at(self._clock()), self._wall()

    def _guard(self) -> Lock:
        """Return the lock for a question, which a store that was closed does not answer."""
        if self._closed:
            raise closed("the store of these bans")
        return self._lock

    def _change(self, do: Callable[[BanRules, int, int], T]) -> T:
        """Let the rules change something, and tell the events of it."""
        with self._guard():
            answer = do(self._rules, *self._moments())
            events, self._rules.events = self._rules.events, []
        self._tell(events)
        return answer


def _monotonic_us() -> int:
    return monotonic_ns() // 1000
