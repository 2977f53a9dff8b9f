"""The bans in force: found by key, and by the address that lies in a banned network.

A hundred thousand bans may be in force, and a full run of Python's garbage collector would walk as many objects, which
holds an event loop up for 30 to 130 ms. Exact tuples of text and numbers are left out of such a run, so bans are held
as tuples, and a `Ban` is made of one when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from ..addresses import BITS
from .ban import Ban, BanSubject, longest, network_place

RECENT: Final = 1_024
"""Of how many bans the objects are kept that were asked for lately: a client that is banned often comes again soon."""
_SLACK: Final = 64
_END_DIGITS: Final = 20

Held: TypeAlias = tuple[str, str, str, int, int, int | None, int, int]
"""A ban as it is held: the fields of `Ban` in their order."""


def held(ban: Ban) -> Held:
    """Return a ban as it is held; `Ban(*row)` is the way back."""
    return ban.key, ban.reason, ban.by, ban.level, ban.made_us, ban.ends_us, ban.wall_us, ban.prolong_us


class ActiveBans:
    """Bans by key, at most one each, with heaps of their ends to remove those that are over by either clock.

    Attributes:
        by_key: The bans as they are held, those that are over and not removed yet among them. To look at only.
        prefixes: How many of them are of prefixes that policies banned.
    """

    __slots__ = ("_ends", "_networks", "_recent", "_tables", "by_key", "prefixes")

    def __init__(self) -> None:
        self.by_key: dict[str, Held] = {}
        self.prefixes = 0
        # The bits of a prefix are packed, because a client can choose integers of one hash: it is modulo 2**61 - 1.
        self._networks: dict[int, dict[int, dict[bytes, str]]] = {4: {}, 6: {}}
        # The same to look up in while another thread adds a prefix: how far to shift an address, and the networks.
        self._tables: dict[int, tuple[tuple[int, dict[bytes, str]], ...]] = {4: (), 6: ()}
        self._ends: tuple[list[str], list[str]] = [], []  # in the store's time, and in Unix time
        self._recent: dict[str, Ban] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Ban]:
        return (Ban(*row) for row in self.by_key.values())

    def get(self, key: str) -> Ban | None:
        """Return the ban of exactly this key, whether or not it is over."""
        row = self.by_key.get(key)
        return None if row is None else Ban(*row)

    def add(self, ban: Ban) -> None:
        """Put a ban in force, in the place of one of the same key."""
        before = self.get(ban.key)
        self._recent.pop(ban.key, None)
        self.by_key[ban.key] = held(ban)
        self.prefixes += ban.is_prefix - (before is not None and before.is_prefix)
        place = network_place(ban.key)
        if place is not None:
            version, prefix, value = place
            if prefix not in self._networks[version]:
                self._networks[version][prefix] = {}
                self._lay_tables(version)
            self._networks[version][prefix][value] = ban.key
        for clock, heap in enumerate(self._ends if ban.ends_us is not None else ()):
            heappush(heap, _end(ban, clock))
            if len(heap) > 2 * len(self.by_key) + _SLACK:  # keys that were banned again and again
                heap[:] = [_end(other, clock) for other in self if other.ends_us is not None]
                heapify(heap)

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""
        self._recent.pop(key, None)
        row = self.by_key.pop(key, None)
        if row is None:
            return None
        ban = Ban(*row)
        self.prefixes -= ban.is_prefix
        place = network_place(key)
        if place is not None:
            version, prefix, value = place
            table = self._networks[version][prefix]
            del table[value]
            if not table:
                del self._networks[version][prefix]
                self._lay_tables(version)
        return ban

    def _lay_tables(self, version: int) -> None:
        bits = BITS[version]
        self._tables[version] = tuple((bits - prefix, table) for prefix, table in self._networks[version].items())

    def matches_any(self, subjects: Iterable[BanSubject]) -> bool:
        """Tell whether there is a ban of one of `subjects`, be it over or not. Other threads may change the list."""
        for key in subjects:
            if isinstance(key, str):
                if key in self.by_key:
                    return True
                continue
            version, value = key
            for shift, table in self._tables[version]:
                if (value >> shift).to_bytes(16, "big") in table:
                    return True
        return False

    def find(self, subjects: Iterable[BanSubject], now_us: int, wall_us: int) -> Ban | None:
        """Return the ban in force of one of `subjects` that lasts longest. Changes nothing."""
        return longest(self.active(subjects, now_us, wall_us))

    def active(self, subjects: Iterable[BanSubject], now_us: int, wall_us: int) -> list[Ban]:
        """Return the bans in force of `subjects`, one perhaps more than once. Changes nothing."""
        return [ban for ban in self.matching(subjects) if not ban.is_over(now_us, wall_us)]

    def matching(self, subjects: Iterable[BanSubject]) -> list[Ban]:
        """Return the bans of `subjects`, also those that are over, one perhaps more than once. Changes nothing."""
        found: list[Ban] = []
        for key in subjects:
            if isinstance(key, str):
                if key in self.by_key:
                    found.append(self._recent.get(key) or self._made(key))
                continue
            version, value = key
            for shift, table in self._tables[version]:
                network = table.get((value >> shift).to_bytes(16, "big"))
                if network is not None:
                    found.append(self._recent.get(network) or self._made(network))
        return found

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        """Let a ban that requests prolong go on from now, and return it."""
        if ban.ends_us is None or now_us + ban.prolong_us <= ban.ends_us:
            return ban
        # The entry in the heap stays: it is looked at again when the old end has passed.
        prolonged = ban._replace(ends_us=now_us + ban.prolong_us)
        self.by_key[ban.key] = held(prolonged)
        self._recent.pop(ban.key, None)
        return prolonged

    def remove_expired(self, now_us: int, wall_us: int, most: int = 2) -> bool:
        """Forget bans that are over, looking at no more than `most` by each clock; return whether any is left to see.

        Those that should end first are looked at first.
        """
        left = False
        for clock, (heap, moment_us) in enumerate(zip(self._ends, (now_us, wall_us), strict=True)):
            first_later = _end_text(moment_us + 1)
            for _ in range(most):
                if not heap or heap[0] >= first_later:
                    break
                key = heappop(heap)[_END_DIGITS:]
                ban = self.get(key)
                if ban is None or ban.ends_us is None:
                    continue
                if ban.is_over(now_us, wall_us):
                    self.remove(key)
                else:
                    heappush(heap, _end(ban, clock))
            left |= bool(heap) and heap[0] < first_later
        return left

    def _made(self, key: str) -> Ban:
        """Return the ban of a key as an object, and keep it for a while."""
        if len(self._recent) >= RECENT:
            self._recent.clear()
        ban = self._recent[key] = Ban(*self.by_key[key])
        return ban


def _end(ban: Ban, clock: int) -> str:
    """Return the end of a ban in the store's time (clock 0) or in Unix time (1), and its key, as one text."""
    assert ban.ends_us is not None, "a ban for ever has no end"
    return _end_text(ban.wall_us + ban.ends_us - ban.made_us if clock else ban.ends_us) + ban.key


def _end_text(moment_us: int) -> str:
    """Return a moment as text: that of an earlier one is smaller, also below 0."""
    return f"{moment_us + 2**63:0{_END_DIGITS}d}"
