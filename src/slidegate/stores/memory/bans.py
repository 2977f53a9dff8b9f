"""Bans in the memory of a process: dicts, and a lock around `core.bans.rules`.

With 100,000 bans, a full run of Python's garbage collector would visit as many objects and block an event loop for 30
to 130 ms. The collector does not track plain tuples of text and numbers, so bans and strike records are stored as
tuples, and converted to objects when they are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from threading import Lock
from typing import Any, Final, TypeVar

from ...core.bans.ban import Ban, BanSubject, longest
from ...core.bans.networks import BannedNetworks
from ...core.bans.policy import BanPolicy
from ...core.bans.rows import Row, from_rows, to_rows
from ...core.bans.rules import LOG_EVERY_US, BanRules
from ...core.bans.strikes import StrikeRecord
from ...core.decision import Check, Decision, refused_by_ban
from ...core.logs import Throttle
from ...core.store import BanStore, Clock, Event, closed
from ..forks import hold_over_fork
from ..shared import DEFAULT_MAX_BANS
from ..system_clock import system_us
from .question import MemoryQuestion

T = TypeVar("T")

SWEEP_STEP: Final = 64
_COUNTED: Final = 1_000
"""How many expired bans are removed before the others are counted."""
_BAN: Final = ""
"""Replaces the policy in entries of `_ends` that belong to bans."""


class MemoryBanStorage:
    """The bans and strike records of a memory store.

    Attributes:
        bans: The fields of each ban by its key.
        changes: Grows after each new ban. A question that no ban refused is not refused until then.
    """

    def __init__(self) -> None:
        self.bans: dict[str, tuple[Any, ...]] = {}
        self.changes = 0
        self._networks = BannedNetworks()
        # Not a plain dict: finding its first entry takes time proportional to the number of deleted ones before it.
        self._records: OrderedDict[tuple[str, str], tuple[Any, ...]] = OrderedDict()
        self._policies: set[str] = set()
        # A heap of (end, policy, key). Every change adds an entry, and outdated entries are skipped.
        self._ends: list[tuple[int, str, str]] = []

    def clear(self) -> None:
        """Delete all bans and strike records."""
        self.bans.clear()
        self._networks = BannedNetworks()
        self._records.clear()
        self._ends.clear()

    def ban(self, key: str) -> Ban | None:
        """Return the ban of exactly this key."""
        row = self.bans.get(key)
        return None if row is None else Ban(*row)

    def put_ban(self, ban: Ban) -> None:
        """Store a ban, replacing one of the same key."""
        if ban.network() is not None or ban.key in self._networks.bans:
            self._networks = self._networks.with_ban(ban)
        self.bans[ban.key] = tuple(ban)
        self.changes += 1
        if ban.until_us is not None:
            self._ends_at(ban.until_us, _BAN, ban.key)

    def remove_ban(self, key: str) -> None:
        """Remove the ban of a key, if it has one."""
        if self.bans.pop(key, None) is not None and key in self._networks.bans:
            self._networks = self._networks.without(key)

    def ban_count(self) -> int:
        """Return how many bans there are."""
        return len(self.bans)

    def networks(self) -> BannedNetworks:
        """Return the bans of networks."""
        return self._networks

    def record(self, policy: str, key: str) -> StrikeRecord | None:
        """Return the strike record of a key under a policy."""
        row = self._records.get((policy, key))
        return None if row is None else StrikeRecord(*row)

    def put_record(self, policy: str, key: str, record: StrikeRecord) -> None:
        """Store a strike record, replacing that of the same policy and key."""
        self._records[policy, key] = tuple(record)
        self._records.move_to_end((policy, key))
        self._policies.add(policy)
        self._ends_at(record.over_us, policy, key)

    def remove_records(self, key: str) -> list[StrikeRecord]:
        """Remove the strike records of a key under all policies, and return them."""
        rows = [self._records.pop((policy, key), None) for policy in self._policies]
        return [StrikeRecord(*row) for row in rows if row is not None]

    def records(self) -> Iterator[tuple[str, str, StrikeRecord]]:
        """Yield the policy, the key and the record of each strike record."""
        return ((policy, key, StrikeRecord(*row)) for (policy, key), row in self._records.items())

    def record_count(self) -> int:
        """Return how many strike records there are."""
        return len(self._records)

    def evict_record(self) -> None:
        """Remove the strike record of the key that was struck longest ago."""
        self._records.popitem(last=False)

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        """Remove at most `max_count` expired bans and records; return whether there may be more."""
        for _ in range(max_count):
            if not self._ends or self._ends[0][0] > now_us:
                return False
            _, policy, key = heappop(self._ends)
            if policy is not _BAN:
                record = self.record(policy, key)
                if record is not None and record.over_us <= now_us:
                    del self._records[policy, key]
            elif (ban := self.ban(key)) is not None and ban.is_over(now_us):
                self.remove_ban(key)
        return True

    def _ends_at(self, end_us: int, policy: str, key: str) -> None:
        heappush(self._ends, (end_us, policy, key))
        if len(self._ends) > 2 * (len(self.bans) + len(self._records)) + 64:  # too many outdated entries
            ends = [(record.over_us, policy, key) for policy, key, record in self.records()]
            ends += [(ban.until_us, _BAN, key) for key, ban in self._lasting()]
            heapify(ends)
            self._ends = ends

    def _lasting(self) -> Iterator[tuple[str, Any]]:
        return ((key, ban) for key, row in self.bans.items() if (ban := Ban(*row)).until_us is not None)


class MemoryBans(BanStore):
    """Bans in the memory of this process, for `MemoryStore` and for custom stores without bans of their own.

    Such a store calls `decide` before it reads its windows.

    Args:
        clock: Returns Unix time in microseconds; by default the system clock.
        emit: Receives events, such as `Store.observers.tell_all`; called without a lock.
        max_bans: The most bans, and the most strike records, to store.

    Attributes:
        storage: The bans and strike records; other objects only read them.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        emit: Callable[[Sequence[Event]], None] = lambda events: None,
        max_bans: int = DEFAULT_MAX_BANS,
    ) -> None:
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._unix_us = clock or system_us
        self._emit = emit
        self.storage: Final = MemoryBanStorage()
        self._rules = BanRules(self.storage, max_bans, Throttle(LOG_EVERY_US))
        self._closed = False

    def close(self) -> None:
        """Close the bans together with their store; later questions raise `StoreUnavailable`."""
        self._closed = True

    def may_refuse(self) -> bool:
        """Return whether there are bans, which may have expired."""
        return bool(self.storage.bans)

    def refuse(self, question: MemoryQuestion) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it."""
        changes = self.storage.changes  # before the bans are read: others may be put meanwhile
        refusal = self.decide(question.checks, question.subjects)
        if refusal is None:
            question.ban_changes = changes
        return refusal

    def decide(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it.

        Args:
            checks: The question; bans of its keys refuse it.
            subjects: Further keys and addresses whose bans refuse it.
        """
        storage, networks, found = self.storage, self.storage.networks(), []
        for subject in subjects:
            if not isinstance(subject, str):
                if networks.bans:
                    found += networks.of(subject)
            elif (row := storage.bans.get(subject)) is not None:
                found.append(Ban(*row))
        for _, key, _ in checks:
            if (row := storage.bans.get(key)) is not None:
                found.append(Ban(*row))
        if not found:
            return None  # most requests end here, and take no lock
        now_us = self._unix_us()
        ban = longest(found, now_us)
        return None if ban is None else refused_by_ban(ban, now_us, checks)

    def find(self, subjects: Sequence[BanSubject]) -> Ban | None:
        """Return the longest ban in force that refuses one of `subjects`, without changing anything."""
        self._expect_open()
        refusal = self.decide((), subjects)
        return None if refusal is None else refusal.ban

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str) -> Ban | None:
        """Count a strike, and ban the key if it reaches the policy's threshold; return the new ban, if any."""
        return self._change(lambda rules, now_us: rules.strike(policy, key, weight, reason, now_us))

    def ban(self, key: str, length_us: int | None, reason: str, by: str) -> Ban:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever."""
        return self._change(lambda rules, now_us: rules.ban(key, length_us, reason, by, now_us))

    def unban(self, key: str, by: str) -> bool:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""
        return self._change(lambda rules, now_us: rules.unban(key, by, now_us))

    def forget_all(self) -> None:
        """Delete all bans, strikes and levels, without events."""
        with self._lock:
            self.storage.clear()

    def sweep(self) -> None:
        """Delete some expired bans and strike records."""
        if self.storage.bans or self.storage.record_count():
            with self._lock:
                self.storage.remove_expired(self._unix_us(), SWEEP_STEP)

    def active(self) -> Iterator[Ban]:
        """Yield the bans in force, creating one object at a time: creating all of them would block an event loop."""
        self._expect_open()
        with self._lock:
            rows, now_us = list(self.storage.bans.values()), self._unix_us()
        return (ban for ban in map(Ban._make, rows) if not ban.is_over(now_us))

    def count(self) -> int:
        """Return the number of active bans, after removing some of the expired ones."""
        with self._lock:
            self.storage.remove_expired(self._unix_us(), _COUNTED)
            return self.storage.ban_count()

    def dump(self) -> list[Row]:
        """Return the bans in force, as rows of `core.bans.rows`."""
        return to_rows(self.active())

    def load(self, rows: Sequence[Row]) -> int:
        """Import the rows of a `dump`; of two bans of a key the longer one is kept."""
        self._expect_open()
        bans = from_rows(rows, self._unix_us())  # the slowest part, which needs no lock

        self._change(lambda rules, _: rules.take_over(bans))
        return len(bans)

    def _expect_open(self) -> None:
        if self._closed:
            raise closed("the store of these bans")

    def _change(self, do: Callable[[BanRules, int], T]) -> T:
        """Apply a change under the lock, then emit its events."""
        self._expect_open()
        with self._lock:
            answer = do(self._rules, self._unix_us())
            events, self._rules.events = self._rules.events, []
        self._emit(events)
        return answer
