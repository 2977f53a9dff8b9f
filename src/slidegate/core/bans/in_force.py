"""The bans in force: found by key, and by the address that lies in a banned network.

A hundred thousand bans may be in force, and a full run of Python's garbage collector would walk as many objects, which
holds an event loop up for 30 to 130 ms. Exact tuples of text and numbers are left out of such a run, so bans are held
as tuples, and a `Ban` is made of one when somebody asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

from ..addresses import Address, canonical_key, parse_network, prefix_length
from ..errors import ConfigurationError, InvalidKey, is_utf8, quoted

Guarded: TypeAlias = str | Address
"""A key whose ban refuses a request, or an address that may lie in a banned network."""

MAX_REASON: Final = 256
MAX_KEY_BYTES: Final = 64
"""How long a key in a store may be; longer ones come as digests."""
RECENT: Final = 1_024
"""Of how many bans the objects are kept that were asked for lately: a client that is banned often comes again soon."""
_SLACK: Final = 64
_STEP: Final = 64
_END_DIGITS: Final = 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BITS: Final = {4: 32, 6: 128}
_LONGEST_ADDRESS: Final = 64
_LIKE_AN_ADDRESS: Final = r"\d+|0[xX][0-9a-fA-F.]+|[\da-fA-F%\[\]]*[.:/][\da-fA-F.:/%\[\]]*"


class Ban(NamedTuple):
    """A key that is refused until a moment.

    Attributes:
        key: An address or network in its one spelling, or any other key.
        reason: Why, for the operator: at most 256 printable characters. Clients never see it.
        by: The policy or the person that made it.
        level: Its number in a row of bans, from 1; 0 for one made by hand.
        made_us: When it began, in the store's time.
        ends_us: When it ends, in the store's time; None for never.
        wall_us: When it began, in Unix time.
        prolong_us: How long it goes on after a request while banned; 0 if requests do not prolong it.
    """

    key: str
    reason: str
    by: str
    level: int
    made_us: int
    ends_us: int | None
    wall_us: int
    prolong_us: int = 0

    @property
    def since(self) -> datetime:
        """When it began (UTC)."""
        return _moment(self.wall_us)

    @property
    def until(self) -> datetime | None:
        """When it ends (UTC); None for never."""
        return None if self.ends_us is None else _moment(self.wall_us + self.ends_us - self.made_us)

    def left_us(self, now_us: int) -> int | None:
        """Return how long it still lasts at a moment of the store's time; None for ever."""
        return None if self.ends_us is None else max(self.ends_us - now_us, 0)

    def is_over(self, now_us: int, wall_us: int) -> bool:
        """Tell whether it has ended by either clock: one that stood still while the machine did must not prolong it."""
        if self.ends_us is None:
            return False
        return now_us >= self.ends_us or wall_us >= self.wall_us + self.ends_us - self.made_us


Held: TypeAlias = tuple[str, str, str, int, int, int | None, int, int]
"""A ban as it is held: the fields of `Ban` in their order."""


def held(ban: Ban) -> Held:
    """Return a ban as it is held; `Ban(*row)` is the way back."""
    return ban.key, ban.reason, ban.by, ban.level, ban.made_us, ban.ends_us, ban.wall_us, ban.prolong_us


class BanChange(NamedTuple):
    """An entry of the history of bans.

    Attributes:
        kind: ``"banned"`` or ``"unbanned"``.
        ban: The ban that was made, or taken back.
        wall_us: When, in Unix time.
        by: The policy or the person that did it.
    """

    kind: Literal["banned", "unbanned"]
    ban: Ban
    wall_us: int
    by: str

    @property
    def at(self) -> datetime:
        """When it happened (UTC)."""
        return _moment(self.wall_us)


class BanList:
    """Bans by key, at most one each, with heaps of their ends to let go of those that are over by either clock.

    Attributes:
        by_key: The bans as they are held, those that are over and not let go of yet among them. To look at only.
    """

    __slots__ = ("_ends", "_networks", "_recent", "_tables", "by_key")

    def __init__(self) -> None:
        self.by_key: dict[str, Held] = {}
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
        self._recent.pop(ban.key, None)
        self.by_key[ban.key] = held(ban)
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
        place = network_place(key)
        if place is not None:
            version, prefix, value = place
            table = self._networks[version][prefix]
            del table[value]
            if not table:
                del self._networks[version][prefix]
                self._lay_tables(version)
        return Ban(*row)

    def _lay_tables(self, version: int) -> None:
        bits = _BITS[version]
        self._tables[version] = tuple((bits - prefix, table) for prefix, table in self._networks[version].items())

    def names_any(self, guarded: Iterable[Guarded]) -> bool:
        """Tell whether there is a ban of one of `guarded`, be it over or not. Other threads may change the list."""
        for key in guarded:
            if isinstance(key, str):
                if key in self.by_key:
                    return True
                continue
            version, value = key
            for shift, table in self._tables[version]:
                if (value >> shift).to_bytes(16, "big") in table:
                    return True
        return False

    def find(self, guarded: Iterable[Guarded], now_us: int, wall_us: int) -> Ban | None:
        """Return the ban in force of one of `guarded` that lasts longest. Changes nothing."""
        return longest(self.in_force(guarded, now_us, wall_us))

    def in_force(self, guarded: Iterable[Guarded], now_us: int, wall_us: int) -> list[Ban]:
        """Return the bans in force of `guarded`, one perhaps more than once. Changes nothing."""
        return [ban for ban in self.named(guarded) if not ban.is_over(now_us, wall_us)]

    def named(self, guarded: Iterable[Guarded]) -> list[Ban]:
        """Return the bans of `guarded`, also those that are over, one perhaps more than once. Changes nothing."""
        found: list[Ban] = []
        for key in guarded:
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

    def let_go(self, now_us: int, wall_us: int, most: int = 2) -> bool:
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

    def has_room(self, most: int, now_us: int, wall_us: int) -> bool:
        """Return whether fewer than `most` bans are in force. Those that are over are forgotten as far as need be."""
        while len(self) >= most and self.let_go(now_us, wall_us, _STEP):
            pass
        return len(self) < most

    def _made(self, key: str) -> Ban:
        """Return the ban of a key as an object, and keep it for a while."""
        if len(self._recent) >= RECENT:
            self._recent.clear()
        ban = self._recent[key] = Ban(*self.by_key[key])
        return ban


def ban_key(key: object) -> str:
    """Return the one spelling of the key of a ban: an address or network, or any other key.

    Raises:
        InvalidKey: It is empty or no text, or has half of a character, which JSON cannot hold; it looks like an address
            and is none; or it is every address there is.
    """
    example = 'for example "192.0.2.7", "192.0.2.0/24" or "user:42"'
    expected = f"an address, a network or a key, {example}"
    if not isinstance(key, str) or not key or not is_utf8(key):
        raise InvalidKey(f"ban: expected {expected}, not {quoted(key)}", expected)
    known = canonical_key(key)
    place = network_place(known)
    if place is None and len(key) <= _LONGEST_ADDRESS and re.fullmatch(_LIKE_AN_ADDRESS, key.strip()):
        raise InvalidKey(
            f'ban: {quoted(key)} is no address or network; write {example}, and "key:{key}" if it is a key', expected
        )
    if place is not None and place[1] == 0:
        raise InvalidKey(
            f"ban: {quoted(key)} is every address there is; to close the service, use its front end", expected
        )
    return known


def network_place(key: str) -> tuple[int, int, bytes] | None:
    """Return version, prefix length and the bits of the prefix, packed, of a key that is a network; else None."""
    try:
        version, first, last = parse_network(key)
    except ConfigurationError:
        return None
    prefix = prefix_length(version, first, last)
    return version, prefix, (first >> (_BITS[version] - prefix)).to_bytes(16, "big")


def clean_reason(reason: object) -> str:
    """Return a reason of at most 256 printable characters; others are escaped, as in Python.

    Raises:
        ConfigurationError: It is no text.
    """
    if not isinstance(reason, str):
        raise ConfigurationError(f'reason: expected text, for example "scanner", not {quoted(reason)}')
    return shown(reason)


def shown(text: str) -> str:
    """Return text as messages show it: at most 256 printable characters; others are escaped, as in Python.

    A client may have sent a key: a line break in it would be a line of the log that nobody wrote.
    """
    if len(text) <= MAX_REASON and text.isprintable():
        return text
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:MAX_REASON])
    return clean if len(clean) <= MAX_REASON else clean[: MAX_REASON - 1] + "…"


def lasts_longer(ban: Ban, than: Ban) -> bool:
    """Tell whether one ban ends later than another, in one store's time."""
    if ban.ends_us is None or than.ends_us is None:
        return ban.ends_us is None and than.ends_us is not None
    return ban.ends_us > than.ends_us


def longest(bans: Iterable[Ban]) -> Ban | None:
    """Return the ban that ends last, the first of several; None if there is none."""
    found: Ban | None = None
    for ban in bans:
        if found is None or lasts_longer(ban, found):
            found = ban
    return found


def _end(ban: Ban, clock: int) -> str:
    """Return the end of a ban in the store's time (clock 0) or in Unix time (1), and its key, as one text."""
    assert ban.ends_us is not None, "a ban for ever has no end"
    return _end_text(ban.wall_us + ban.ends_us - ban.made_us if clock else ban.ends_us) + ban.key


def _end_text(moment_us: int) -> str:
    """Return a moment as text: that of an earlier one is smaller, also below 0."""
    return f"{moment_us + 2**63:0{_END_DIGITS}d}"


def _moment(wall_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=wall_us)
