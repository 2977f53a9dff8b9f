"""The bans in force: found by key, and by the address that lies in a banned network.

A hundred thousand bans may be in force, and a full run of Python's garbage collector would walk as many objects, which
holds an event loop up for 30 to 130 ms. Exact tuples of text and numbers are left out of such a run, so bans are held
as tuples, and a `Ban` is made of one when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from ..addresses import BITS
from .ban import Ban, BanSubject, network_place

if TYPE_CHECKING:
    from ..decision import Check


class ActiveBans:
    """Bans by key, at most one each, with heaps of their ends to remove those that are over by either clock.

    Attributes:
        by_key: The fields of the bans, those that are over and not removed yet among them. To look at only.
        prefixes: How many of them are of prefixes that policies banned.
    """

    __slots__ = ("_ends", "_networks", "by_key", "prefixes")

    def __init__(self) -> None:
        self.by_key: dict[str, tuple[Any, ...]] = {}
        self.prefixes = 0
        # By version: how many bits of an address to drop, and the networks by the bits that are left. These are packed,
        # because a client can choose integers of one hash: it is modulo 2**61 - 1. Others look while a thread adds, so
        # another length of prefix comes with another table.
        self._networks: dict[int, dict[int, dict[bytes, str]]] = {4: {}, 6: {}}
        self._ends: tuple[list[tuple[int, str]], list[tuple[int, str]]] = [], []  # in the store's time, in Unix time

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
        self.by_key[ban.key] = tuple(ban)
        self.prefixes += ban.is_prefix - (before is not None and before.is_prefix)
        if (place := network_place(ban.key)) is not None:
            version, prefix, value = place
            networks, shift = self._networks[version], BITS[version] - prefix
            if shift not in networks:
                self._networks[version] = networks = {**networks, shift: {}}
            networks[shift][value] = ban.key
        for heap, end_us in zip(self._ends, ban.ends(), strict=False):
            heappush(heap, (end_us, ban.key))
        if len(self._ends[0]) > 2 * len(self.by_key) + 64:  # keys that were banned again and again
            self._make_heaps()

    def remove(self, key: str) -> Ban | None:
        """Take a ban out, and return it."""
        row = self.by_key.pop(key, None)
        if row is None:
            return None
        ban = Ban(*row)
        self.prefixes -= ban.is_prefix
        if (place := network_place(key)) is not None:
            version, prefix, value = place
            networks, shift = self._networks[version], BITS[version] - prefix
            del networks[shift][value]
            if not networks[shift]:
                self._networks[version] = {other: table for other, table in networks.items() if other != shift}
        return ban

    def keys_of(self, subjects: Iterable[BanSubject], checks: Iterable[Check] = ()) -> list[str]:
        """Return the keys of the bans that refuse a question, also of those that are over. It needs no lock."""
        by_key = self.by_key
        found: list[str] = []
        for subject in subjects:
            if isinstance(subject, str):
                if subject in by_key:
                    found.append(subject)
            else:
                version, value = subject
                for shift, table in self._networks[version].items():
                    if (network := table.get((value >> shift).to_bytes(16, "big"))) is not None:
                        found.append(network)
        for _, key, _ in checks:
            if key in by_key:
                found.append(key)
        return found

    def of(self, keys: Iterable[str]) -> list[Ban]:
        """Return the bans of exactly these keys, also those that are over, each once."""
        return [Ban(*self.by_key[key]) for key in dict.fromkeys(keys) if key in self.by_key]

    def remove_expired(self, now_us: int, wall_us: int, max_count: int = 2) -> bool:
        """Forget bans that are over, looking at `max_count` at most by each clock; return whether any is left to see.

        Those that should end first are looked at first.
        """
        left = False
        for clock, (heap, moment_us) in enumerate(zip(self._ends, (now_us, wall_us), strict=True)):
            for _ in range(max_count):
                if not heap or heap[0][0] > moment_us:
                    break
                _, key = heappop(heap)
                ban = self.get(key)
                if ban is None or ban.ends_us is None:
                    continue
                if ban.is_over(now_us, wall_us):
                    self.remove(key)
                else:
                    heappush(heap, (ban.ends()[clock], key))
            left |= bool(heap) and heap[0][0] <= moment_us
        return left

    def _make_heaps(self) -> None:
        """Make the heaps anew, of the bans that there are."""
        lasting = [ban for ban in self if ban.ends_us is not None]
        for clock, heap in enumerate(self._ends):
            heap[:] = [(ban.ends()[clock], ban.key) for ban in lasting]
            heapify(heap)
