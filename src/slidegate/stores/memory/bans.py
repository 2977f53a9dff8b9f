"""Bans in the memory of a process: dicts, and a lock around the `BanBook`. Strikes are windows of the store.

With 100,000 bans, a full run of Python's garbage collector would visit as many objects and block an event loop for 30
to 130 ms. The collector does not track plain tuples of text and numbers, so bans and levels are stored as tuples, and
converted to objects when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias, TypeVar

from ...core.bans.ban import Ban, BanSubject
from ...core.bans.networks import BannedNetworks
from ...core.bans.strikes import Level
from ...core.buckets import Check
from ...core.decision import Decision, refused_by_bans
from ...core.errors import StoreTimeout
from ...core.logs import Throttle
from ...core.store import COMMAND_DEADLINE_S, Clock, Store
from ..ban_book import LOG_EVERY_US, BanBook, BookBans, StrikeWindows
from ..forks import ThreadLock

T = TypeVar("T")

SWEEP_STEP: Final = 64
TRIM_STEP: Final = 8
"""How many ends are looked at with each new one, when most are outdated."""
PAGE: Final = 100
"""How many bans are listed in one step, which takes an event loop a millisecond or two."""
LEVEL_DICTS: Final = 16
_End: TypeAlias = tuple[int, str, str]
_BAN: Final = ""
"""Replaces the policy in entries of `_ends` that belong to bans."""


class MemoryBanRows:
    """The bans and levels of a memory store; see `BanRows`.

    A child that is forked in the middle of a change finds an end without its ban or level, and never one without its
    end, nor a ban while `has_bans` is false.

    Args:
        unix_us: Returns Unix time in microseconds.

    Attributes:
        bans: The fields of each ban that refuses only its own key, by this key.
        changes: Grows with each new ban. Subjects without a ban have none until then.
        has_bans: Whether there are bans, which may have expired.
        networks: The bans of networks.
    """

    def __init__(self, unix_us: Clock) -> None:
        self.unix_us = unix_us
        self.changes = 0
        self.clear()

    def clear(self) -> None:
        """Delete all bans and levels."""
        self.has_bans = False
        self.bans: dict[BanSubject, tuple[Any, ...]] = {}
        self.networks = BannedNetworks()
        # By policy and hash, because a large dict is copied when it grows, and one would grow with `bans`; then by key.
        self._levels: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
        # A heap of (end, policy, key). Every change adds an entry, and outdated entries are skipped.
        self._ends: list[_End] = []
        self._untrimmed: list[_End] = []
        """The heap of before, most of which is outdated; the rest moves to `_ends`, a few entries with each new one."""

    def bans_of(self, key: str) -> list[Ban]:
        bans = self.networks.of(key)
        row = self.bans.get(key)
        if row is not None:
            bans.append(Ban(*row))
        return bans

    def put_ban(self, ban: Ban) -> None:
        self.has_bans = True
        if ban.until_us is not None:
            self._ends_at(ban.until_us, _BAN, ban.key)
        if ban.network() is None:
            self.bans[ban.key] = tuple(ban)
        else:
            self.networks = self.networks.with_ban(ban, self.unix_us())
        self.changes += 1

    def remove_ban(self, ban: Ban) -> None:
        if ban.network() is None:
            self.bans.pop(ban.key, None)
        else:
            self.networks = self.networks.without(ban.key)
        self.has_bans = self.ban_count() > 0

    def ban_count(self) -> int:
        return len(self.bans) + len(self.networks.bans)

    def level(self, policy: str, key: str) -> Level | None:
        row = self._levels_with(policy, key).get(key)
        if row is None:
            return None
        return Level(*row)

    def _levels_with(self, policy: str, key: str) -> dict[str, tuple[int, ...]]:
        return self._levels.setdefault((policy, hash(key) % LEVEL_DICTS), {})

    def put_level(self, policy: str, key: str, level: Level) -> None:
        self._ends_at(level.over_us, policy, key)
        self._levels_with(policy, key)[key] = tuple(level)

    def remove_levels(self, key: str) -> list[Level]:
        rows = [levels.pop(key, None) for levels in self._levels.values()]
        return [Level(*row) for row in rows if row is not None]

    def level_count(self) -> int:
        return sum(map(len, self._levels.values()))

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        for _ in range(max_count):
            ends = self._ends
            if self._untrimmed and (not ends or self._untrimmed[0] < ends[0]):
                ends = self._untrimmed
            if not ends or ends[0][0] > now_us:
                return False
            end_us, policy, key = heappop(ends)
            if not self._is_in_force(end_us, policy, key):
                continue  # what ends later has another entry
            if policy != _BAN:
                del self._levels_with(policy, key)[key]
                continue
            for ban in self.bans_of(key):
                if ban.is_over(now_us):
                    self.remove_ban(ban)
        return True

    def _ends_at(self, end_us: int, policy: str, key: str) -> None:
        """Add an end. When most are outdated, those in force are moved to another heap, a few with each new one."""
        if not self._untrimmed and len(self._ends) > 2 * (self.ban_count() + self.level_count()) + 64:
            self._ends, self._untrimmed = [], self._ends
        for end in self._untrimmed[-TRIM_STEP:]:
            if self._is_in_force(*end):
                heappush(self._ends, end)
        del self._untrimmed[-TRIM_STEP:]  # what is left is still a heap
        heappush(self._ends, (end_us, policy, key))

    def _is_in_force(self, end_us: int, policy: str, key: str) -> bool:
        """Return whether a ban or level still ends then."""
        if policy == _BAN:
            return end_us in [ban.until_us for ban in self.bans_of(key)]
        level = self.level(policy, key)
        return level is not None and level.over_us == end_us


class MemoryBans(BookBans):
    """Bans in the memory of this process; `MemoryStore` makes one.

    A custom store for one process may use those of a memory store, and call `decide` before it reads its windows.

    Args:
        max_bans: The most bans, and the most levels, to store.
        max_keys: The most windows of the store.
        tidy: Called after a change.

    Attributes:
        rows: The bans and levels; other objects only read them.
    """

    def __init__(
        self,
        store: Store,
        rows: MemoryBanRows,
        strikes: StrikeWindows,
        *,
        max_bans: int,
        max_keys: int,
        tidy: Callable[[], None],
    ) -> None:
        self._lock = ThreadLock()
        self._store = store
        self.rows: Final = rows
        self._open_book = partial(BanBook, rows, strikes, max_bans, max_keys, Throttle(LOG_EVERY_US))
        self._tidy = tidy

    def may_refuse(self) -> bool:
        """Return whether there are bans, which may have expired."""
        return self.rows.has_bans

    def decide(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> Decision | None:
        """Return the refusal of a question by a ban; None if no ban refuses it.

        Args:
            checks: The question; bans of its keys refuse it.
            subjects: Further keys and addresses whose bans refuse it.
        """
        bans, networks = self.rows.bans, self.rows.networks
        all_subjects: dict[BanSubject, None] = dict.fromkeys(subjects)
        for _, key, _ in checks:
            all_subjects[key] = None
        matches: list[Ban] = []
        for subject in all_subjects:
            if networks.bans:
                matches += networks.of(subject)
            row = bans.get(subject)  # an address is the name of none
            if row is not None:
                matches.append(Ban(*row))
        if not matches:
            return None  # most requests end here, and take no lock
        return refused_by_bans(matches, self.rows.unix_us(), checks)

    def find(self, subjects: Sequence[BanSubject], deadline_s: float = COMMAND_DEADLINE_S) -> Ban | None:
        self._store.expect_open()
        refusal = self.decide((), subjects)
        if refusal is None:
            return None
        return refusal.ban

    def clear(self) -> None:
        """Delete all bans and levels, without events."""
        self._locked(self.rows.clear)

    def sweep(self) -> None:
        """Delete some expired bans and levels, unless a change is under way."""
        self._lock.run(0.0, self.rows.remove_expired, self.rows.unix_us(), SWEEP_STEP)

    def pages(self) -> Iterator[list[Ban]]:
        """See `BanStore`; the bans are those of the moment of the first page."""
        self._store.expect_open()
        rows = self._locked(lambda: [*self.rows.networks.bans.values(), *self.rows.bans.values()])
        now_us = self.rows.unix_us()
        for first in range(0, len(rows), PAGE):
            bans = map(Ban._make, rows[first : first + PAGE])
            yield [ban for ban in bans if not ban.is_over(now_us)]

    def count(self) -> int:
        """Return the number of bans, after removing some of the expired ones."""
        self.sweep()
        return self.rows.ban_count()

    def change(self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S) -> T:
        """See `BookBans.change`; some expired windows of strikes are swept, too."""
        self._store.expect_open()
        book = self._open_book()
        answer = self._locked(lambda: do(book, self.rows.unix_us()), deadline_s)
        self._store.observers.tell(*book.events)
        self._tidy()
        return answer

    def _locked(self, do: Callable[[], T], wait_s: float = COMMAND_DEADLINE_S) -> T:
        """Return what a function returns under the lock.

        Raises:
            StoreTimeout: Another thread has it for so long; or this one, in the middle of which a signal handler asks.
        """
        answers = self._lock.run(wait_s, lambda: [do()])
        if answers is None:
            raise StoreTimeout("memory: a change of bans is under way in another thread, or where a signal came")
        return answers[0]
