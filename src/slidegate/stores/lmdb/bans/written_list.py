"""A list of the bans in force that writes each change of a job to the rows.

Until it has been read whole, it answers from the rows of the transaction instead, and its own bans do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ....core.addresses import Address, format_network
from ....core.bans.in_force import Ban, BanList, Guarded
from ....core.memo import remember
from .ban_codec import row_of
from .ban_rows import BanRows


class WrittenList(BanList):
    """The bans in force, as this process knows them.

    Attributes:
        writes_to: The rows to write each change to; None while bans are read from there.
        reads_from: The rows to look bans up in until the list is whole; else None.
        is_whole: Whether all bans have been read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes_to: BanRows | None = None
        self.reads_from: BanRows | None = None
        self.is_whole = True
        self._named: dict[Address, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        return super().__len__() if self.reads_from is None else self.reads_from.count()

    def __iter__(self) -> Iterator[Ban]:
        return super().__iter__() if self.reads_from is None else self.reads_from.all()

    def get(self, key: str) -> Ban | None:
        return super().get(key) if self.reads_from is None else self.reads_from.get(key)

    def named(self, guarded: Iterable[Guarded]) -> list[Ban]:
        if self.reads_from is None:
            return super().named(guarded)
        rows = [row for key in guarded for row in ([row_of(key)] if isinstance(key, str) else self._networks_of(key))]
        return [ban for ban in map(self.reads_from.at, rows) if ban is not None]

    def add(self, ban: Ban) -> None:
        if self.writes_to is not None:
            self.writes_to.put(ban)
        super().add(ban)

    def remove(self, key: str) -> Ban | None:
        known = self.get(key)
        super().remove(key)
        if known is not None and self.writes_to is not None:
            self.writes_to.remove(key)
        return known

    def follow(self, key: str, ban: Ban | None) -> None:
        """Take over the ban of a key from the rows, None if it was lifted there; write nothing."""
        super().remove(key)
        if ban is not None:
            super().add(ban)

    def prolong(self, ban: Ban, now_us: int) -> Ban:
        prolonged = super().prolong(ban, now_us)
        if prolonged is not ban and self.writes_to is not None:
            self.writes_to.put(prolonged)
        return prolonged

    def let_go(self, now_us: int, wall_us: int, most: int = 2) -> bool:
        return self.reads_from is None and super().let_go(now_us, wall_us, most)

    def _networks_of(self, address: Address) -> tuple[bytes, ...]:
        """Return the rows of all networks that an address lies in."""
        found = self._named.get(address)
        if found is None:
            version, value = address
            prefixes = range(1, (32 if version == 4 else 128) + 1)
            found = tuple(row_of(format_network(version, value, prefix)) for prefix in prefixes)
            remember(self._named, address, found)
        return found
