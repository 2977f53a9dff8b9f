"""The book of a store's bans and levels: what strikes, bans and unbans change in its rows, and their events.

`BanBook` decides, and changes the `BanRows` of a store: dicts in memory, rows in a file. The store holds a lock or a
transaction during each call. Strikes are counted in windows of their own, never in a shared cell, where strangers could
ban each other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from ..core.bans.ban import Ban, longest
from ..core.bans.events import banned, bans_full, shadow_banned, strikes_dropped, unbanned
from ..core.bans.policy import BanPolicy
from ..core.bans.strikes import Level, ban_by_hand, next_ban
from ..core.buckets import Bucket
from ..core.events import Event
from ..core.logs import Throttle
from ..core.store import COMMAND_DEADLINE_S, BanStore
from .shared import answer_of, in_steps, pause, run_unless_on_loop

T = TypeVar("T")

LOG_EVERY_US: Final = 60_000_000
STEP: Final = 64
"""How many expired rows are removed in one step if there is no room."""


class BanRows(Protocol):
    """At most two bans for each key, and one level for each policy and key; may include expired ones.

    A key that is a network may have a ban of the network, and a ban by a policy of those that are counted by the key.
    """

    def bans_of(self, key: str) -> list[Ban]:
        """Return the bans of exactly this key."""

    def put_ban(self, ban: Ban) -> None:
        """Store a ban, replacing one of the same key and `network()`.

        Raises:
            ConfigurationError: Too many networks are banned.
        """

    def remove_ban(self, ban: Ban) -> None:
        """Remove a ban."""

    def ban_count(self) -> int:
        """Return how many bans there are."""

    def level(self, policy: str, key: str) -> Level | None:
        """Return the level of a key under a policy."""

    def put_level(self, policy: str, key: str, level: Level) -> None:
        """Store a level, replacing that of the same policy and key."""

    def remove_levels(self, key: str) -> list[Level]:
        """Remove the levels of a key under all policies, and return them."""

    def level_count(self) -> int:
        """Return how many levels there are."""

    def remove_expired(self, now_us: int, max_count: int) -> bool:
        """Remove at most `max_count` expired bans and levels; return whether there may be more."""


class StrikeWindows(Protocol):
    """The windows of strikes, one for each bucket of a policy and key."""

    def strike(self, bucket: Bucket, key: str, weight: int) -> int | None:
        """Charge strikes to the window of a key, and return its units; None if there is no room for a window."""

    def remove_strikes(self, key: str, bucket: Bucket | None = None) -> bool:
        """Remove the window of a key in a bucket, or in all of them; return whether there were strikes."""


class BanBook:
    """Applies the rules to the rows of a store.

    Args:
        rows: The bans and levels of the store.
        windows: The windows of the store.
        max_bans: The most bans, and the most levels, to store.
        max_keys: The most windows of the store.
        throttle: Limits the rate of events that could be repeated with every strike.

    Attributes:
        events: The events of its changes, which the store emits.
    """

    def __init__(self, rows: BanRows, windows: StrikeWindows, max_bans: int, max_keys: int, throttle: Throttle) -> None:
        self._rows = rows
        self._windows = windows
        self._max_bans = max_bans
        self._max_keys = max_keys
        self._throttle = throttle
        self.events: list[Event] = []

    def strike(self, policy: BanPolicy, key: str, weight: int, reason: str, now_us: int) -> Ban | None:
        """Count strikes, and ban the key if its window is full; return the new ban, if any."""
        rows = self._rows
        rows.remove_expired(now_us, 2)
        previous = rows.level(policy.name, key)
        # The ban that a shadow policy has reported would be in force.
        would_be_banned = policy.shadow and previous is not None and now_us < previous.until_us
        if would_be_banned or longest(rows.bans_of(key), now_us) is not None:
            return None
        units = self._windows.strike(policy.strikes, key, weight)
        if units is None:
            self._emit(strikes_dropped(self._max_keys), now_us)
            return None
        if units < policy.after.amount:
            return None
        if not policy.shadow:
            self._remove_bans(key)  # they have expired, and the new one replaces them
            if self._is_full(rows.ban_count, now_us):
                self._emit(bans_full(self._max_bans, key), now_us)
                return None
        ban, level = next_ban(policy, key, reason, previous, now_us)
        self._windows.remove_strikes(key, policy.strikes)
        if previous is not None or not self._is_full(rows.level_count, now_us):
            rows.put_level(policy.name, key, level)
        if policy.shadow:
            self.events.append(shadow_banned(ban))
            return None
        rows.put_ban(ban)
        self.events.append(banned(ban))
        return ban

    def ban(self, key: str, length_us: int | None, reason: str, by: str, now_us: int) -> Ban:
        """Ban a key by hand, replacing a ban that it already has; a length of None means for ever.

        Raises:
            ConfigurationError: Too many networks are banned.
        """
        self._rows.remove_expired(now_us, 2)
        ban = ban_by_hand(key, length_us, reason, by, now_us)
        self._rows.put_ban(ban)
        # A ban by hand replaces that of the clients which are counted by its network, too.
        for other in self._rows.bans_of(key):
            if other.network() != ban.network():
                self._rows.remove_ban(other)
        self.events.append(banned(ban))
        return ban

    def unban(self, key: str, by: str, now_us: int) -> bool:
        """Lift the ban of exactly this key, and forget its strikes and levels; return False if there was nothing."""
        ban = longest(self._remove_bans(key), now_us)
        levels = [level for level in self._rows.remove_levels(key) if level.over_us > now_us]
        had_strikes = self._windows.remove_strikes(key)
        if ban is None:
            return had_strikes or bool(levels)
        self.events.append(unbanned(ban, by))
        return True

    def import_bans(self, bans: Iterable[Ban], now_us: int) -> int:
        """Import bans, and return how many are not over; of two that replace each other, the longer one is kept."""
        count = 0
        for ban in bans:
            if ban.is_over(now_us):
                continue
            count += 1
            replaced = [other for other in self._rows.bans_of(ban.key) if other.network() == ban.network()]
            if longest([*replaced, ban]) is ban:
                self._rows.put_ban(ban)
        return count

    def _remove_bans(self, key: str) -> list[Ban]:
        """Remove the bans of a key, and return them."""
        bans = self._rows.bans_of(key)
        for ban in bans:
            self._rows.remove_ban(ban)
        return bans

    def _is_full(self, count: Callable[[], int], now_us: int) -> bool:
        """Return whether no more bans, or levels, can be recorded, after the removal of some that have expired."""
        while count() >= self._max_bans:
            may_be_more = self._rows.remove_expired(now_us, STEP)
            if not may_be_more:
                return count() >= self._max_bans
        return False

    def _emit(self, event: Event, now_us: int) -> None:
        """Emit an event that could be repeated with every strike, at most once a minute."""
        if self._throttle.left_out(event.kind, now_us) is not None:
            self.events.append(event)


class BookBans(BanStore):
    """Bans that are kept by a `BanBook`; a store derives from it, and implements `change`, `find` and `pages`.

    Attributes:
        load_step: How many bans of an import are stored in one step.
        load_pause_s: The pause after such a step.
    """

    load_step: int = 100
    load_pause_s: float = 0.0

    @abstractmethod
    def change(self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S) -> T | Awaitable[T]:
        """Call a function with a book and Unix time in one step, and emit the events of the book when that has ended.

        A step is what no other change of bans comes between, of whichever process: a lock or a transaction.
        """

    def command(
        self, do: Callable[[BanBook, int], T], deadline_s: float = COMMAND_DEADLINE_S, *, needs_room: bool = True
    ) -> T | Awaitable[T]:
        """Do a command of an operator as `change` does; `needs_room` is false for one that only deletes."""
        return self.change(do, deadline_s)

    def strike(
        self, policy: BanPolicy, key: str, weight: int, reason: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban | None] | None:
        return self.change(lambda book, now_us: book.strike(policy, key, weight, reason, now_us), deadline_s)

    def ban(
        self, key: str, length_us: int | None, reason: str, by: str, deadline_s: float = COMMAND_DEADLINE_S
    ) -> Ban | Awaitable[Ban]:
        return self.command(lambda book, now_us: book.ban(key, length_us, reason, by, now_us), deadline_s)

    def unban(self, key: str, by: str) -> bool | Awaitable[bool]:
        return self.command(lambda book, now_us: book.unban(key, by, now_us), needs_room=False)

    def load(self, bans: Iterable[Ban]) -> int | Awaitable[int]:
        return run_unless_on_loop(self._load(bans))

    async def _load(self, bans: Iterable[Ban]) -> int:
        count = 0
        async for batch in in_steps(bans, self.load_step):
            count += await answer_of(self._import_batch(batch))
            await pause(self.load_pause_s)
        return count

    def _import_batch(self, bans: Sequence[Ban]) -> int | Awaitable[int]:
        return self.change(lambda book, now_us: book.import_bans(bans, now_us))
