"""The bans that a worker holds, and how they are kept up to date.

They are a cache, so that a client that comes again while it is banned is refused here, without asking. Redis decides
about everybody else, by the bans that stand there; see ``lua/windows.lua``.

Redis numbers the changes of bans, and every answer says the number of the last one. Where a worker holds less, it sends
the guards of its next requests with them, and asks for the changes, a part at a time, at most every `REFRESH_EVERY_S`,
however often bans change; no request waits for that.

Every answer also says which life of the data it belongs to. Another life begins after Redis has lost its data or a part
of the bans: then a worker forgets the bans that it holds, and says how many those were.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

from ...core.bans.in_force import Ban, BanList, Guarded, longest
from ...core.barred import Barred
from ...core.decision import Check
from ...core.errors import StoreError
from ...core.store import Clock, Event
from ..forks import hold_over_fork
from .ban_rows import bytes_of, changes, pack_ban, text_of, unpack_ban
from .clock import BansClock
from .faults import sensible
from .script import bans_script

if TYPE_CHECKING:
    from .batch import Batcher

T = TypeVar("T")

TRUST_S: Final = 1.0
PROLONG_EVERY_S: Final = 0.1
LOOK_OVER: Final = 64
UNSEEN: Final = b"?"
"""The number of a request that no list has let pass: the bans in Redis have to be looked at."""

NEVER_S: Final = float("-inf")
_TIMES: Final = Struct("<qqqq")
REFRESH_EVERY_S: Final = 0.1
PARTS: Final = (b"", b":list", b":ends", b":changes", b":history", b":standings", b":over", b":prefixes")
CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
MAX_PARTS: Final = 64
"""How many parts a refresh reads at most; Redis remembers fewer changes."""
LIFE_BYTES: Final = 16


class BanCache:
    """The bans that a worker holds, kept up to date.

    Args:
        batcher: Returns the batcher of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        heard: Hears of the life and the number of hand-backs in an answer, and when its command was sent (monotonic).
        tell: Passes events on.
        read_only: Whether nothing is made where nothing of slidegate stands.

    Attributes:
        list: The bans.
        number: Of the last change that is in the list.
        latest: Of the last change that Redis has spoken of.
        known_s: When the list was complete for certain, in monotonic time.
        life: The life of the data in Redis. It is another one after a loss of data.
        reset_us: When all windows were reset, as far as is known here; -1 for never.
    """

    def __init__(
        self,
        batcher: Callable[[], Batcher],
        meta: bytes,
        clock: Clock | None,
        heard: Callable[[bytes, float], None],
        tell: Callable[[Sequence[Event]], None],
        *,
        read_only: bool,
    ) -> None:
        self._batcher = batcher
        self._keys = [meta + part for part in PARTS]
        self._clock = clock
        self._heard_state = heard
        self._tell = tell
        self._read_only = read_only
        self._time = BansClock(clock)
        self._lock = Lock()
        hold_over_fork(self._lock)
        self.list = BanList()
        self.number = self.latest = b""
        self.known_s = self._refreshed_s = NEVER_S
        self.life = b""
        self.reset_us = -1
        self._prolonged_s: dict[str, float] = {}
        self._refreshing: WeakSet[Batcher] = WeakSet()
        self._begins = False

    @property
    def list_name(self) -> bytes:
        """The name of the hash with the bans."""
        return self._keys[1]

    # -- news in every answer ------------------------------------------------------------------------------------

    def heard(self, batcher: Batcher, number: bytes, sent_s: float) -> None:
        """Record the number of the last change of bans in an answer; `sent_s` is when its call was sent (monotonic)."""
        self.latest = number
        if number == self.number:
            self.known_s = max(self.known_s, sent_s)
        elif batcher not in self._refreshing:
            self._refreshing.add(batcher)
            batcher.attend(self._refresh_in_time(batcher))

    def heard_state(self, batcher: Batcher, state: bytes, sent_s: float) -> None:
        """Record the life of the data in Redis and the number of hand-backs, as an answer says them together."""
        self._heard_state(state, sent_s)
        life = state[:LIFE_BYTES]
        if life and life != self.life:
            with self._lock:
                before, self.life = self.life, life
            if before and before != life:
                self._forget_all()
        elif not life and not (self._begins or self._read_only):
            self._begins = True
            batcher.attend(self._begin(batcher))

    async def _begin(self, batcher: Batcher) -> None:
        """Give the data a life, where nobody has."""
        try:
            await batcher.ask(b"HSETNX", self._keys[0], b"life", os.urandom(LIFE_BYTES // 2).hex().encode())
        finally:
            self._begins = False

    def _forget_all(self) -> None:
        """Forget the bans that are held here, because Redis has lost its data."""
        with self._lock:
            self.list.let_go(*self._time.now_us(), most=len(self.list))
            known = len(self.list)
            self.list, self.number, self.known_s = BanList(), b"", NEVER_S
            self._time, self.reset_us = BansClock(self._clock), -1
        message = f"redis: data was lost, so counts start anew, and of the bans that were known here {known} are gone"
        self._tell((Event("store_reset", message, {"bans": known}),))

    @sensible
    async def refresh(self, batcher: Batcher) -> None:
        """Learn which bans have changed, a part at a time.

        Raises:
            StoreError: Redis does not answer.
        """
        life, bans, number = self.life, self.list, self.number
        for _ in range(MAX_PARTS):
            asked_s = monotonic()
            found, _, last = await self._run(batcher, "since", [number])
            if life and life != self.life:  # an answer about lost bans is not true
                life, bans, number = self.life, self.list, self.number
                continue
            if found == 0:
                bans, number = BanList(), last
                async for part in self._scan(self._keys[1], batcher):
                    self._apply(bans, part)
            else:
                number = sendable(found[0])
            with self._lock:
                if found:
                    self._apply(bans, found[2:])
                if not last or (found and found[1]):
                    self._hold(bans, number, asked_s)
                    return
                if bans is self.list:
                    self.number = number  # the rest is for the next time

    async def _refresh_in_time(self, batcher: Batcher) -> None:
        try:
            await asyncio.sleep(max(self._refreshed_s + REFRESH_EVERY_S - monotonic(), 0.0))
            if self.number != self.latest:
                with suppress(StoreError):  # the next answer is a reason to try again
                    await self.refresh(batcher)
        finally:
            self._refreshed_s = monotonic()
            self._refreshing.discard(batcher)

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _command(
        self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """Run a command of ``lua/ban_rules.lua``; return its answer and its reports."""
        batcher, sent_s = self._batcher(), monotonic()
        answer, reports, number = await self._run(batcher, name, asked, keys)
        self.heard(batcher, number, sent_s)
        with self._lock:
            for key, row in changes(reports):
                self._put(text_of(key), unpack_ban(key, row) if row else None)
        return answer, reports

    async def _run(
        self, batcher: Batcher, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes], bytes]:
        """Run a command; return its answer, its reports, and the number of the last change."""
        sent_s = monotonic()
        times, number, state, answer, reports = await self._ask(batcher, name, asked, keys)
        number, state = sendable(number), sendable(state)
        self.heard_state(batcher, state, sent_s)
        self._saw(times, sent_s)
        return answer, reports, number

    async def _ask(self, batcher: Batcher, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()) -> Any:
        wall_us = -1 if self._clock is None else self._clock()
        return await batcher.run(bans_script(), [*self._keys, *keys], [wall_us, name.encode(), *asked])

    async def _scan(self, name: bytes, batcher: Batcher) -> AsyncIterator[Sequence[bytes]]:
        """Yield the fields and values of a hash, a part at a time."""
        place = b"0"
        while True:
            place, found = await batcher.ask(b"HSCAN", name, place, b"COUNT", CHUNK)
            async for part in in_steps(found, 2 * CHUNK):
                yield part
            if place == b"0":
                return

    async def _load(self, bans: Sequence[Ban]) -> None:
        await self._command("load", [len(bans), *(row for ban in bans for row in (bytes_of(ban.key), pack_ban(ban)))])

    # -- the list ------------------------------------------------------------------------------------------------------

    def judge(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Barred | None:
        """Return the refusal of a demand by the bans that are held, if there is one."""
        if not self.list.by_key:
            return None
        with self._lock:
            now_us, wall_us = self._time.now_us()
            self.list.let_go(now_us, wall_us)
            ban = longest(self.list.in_force(guards_of(checks, guarded), now_us, wall_us))
            return None if ban is None else Barred(ban.by, ban, now_us, checks)

    def _is_trusted(self) -> bool:
        """Return whether the list was complete lately."""
        return monotonic() - self.known_s < TRUST_S

    def _put(self, key: str, ban: Ban | None) -> None:
        self.list.remove(key)
        if ban is not None:
            self.list.add(ban)

    def _prolong_here(self, bans: Iterable[Ban]) -> list[str]:
        """Let bans go on from now in the list; return the keys that Redis has to prolong as well."""
        now_s, due = monotonic(), []
        with self._lock:
            now_us, _ = self._time.now_us()
            if len(self._prolonged_s) > len(self.list) + LOOK_OVER:
                self._prolonged_s.clear()
            for ban in bans:
                if self._clock is not None or now_s >= self._prolonged_s.get(ban.key, 0.0):
                    due.append(ban.key)
                    self._prolonged_s[ban.key] = now_s + PROLONG_EVERY_S
                held = self.list.get(ban.key)
                if held is not None:
                    self.list.prolong(held, now_us)
        return due

    def _prolonged_by(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> list[Ban]:
        """Return the bans that a demand prolongs."""
        with self._lock:
            asked = guards_of(checks, guarded)
            return [ban for ban in self.list.in_force(asked, *self._time.now_us()) if ban.prolong_us]

    def _apply(self, bans: BanList, rows: Sequence[bytes]) -> None:
        """Bring a list up to date; `rows` are keys and their bans, empty where a key has none any more."""
        for key, row in zip(rows[::2], rows[1::2], strict=True):
            if key:  # under the empty one Redis holds no ban
                name = text_of(key)
                bans.remove(name)
                if row:
                    bans.add(unpack_ban(key, row))

    def _hold(self, bans: BanList, number: bytes, asked_s: float) -> None:
        """Hold a list that was complete at a moment."""
        self.list, self.number, self.latest = bans, number, number
        self.known_s = max(self.known_s, asked_s)

    def _saw(self, times: bytes, sent_s: float) -> None:
        """Record the times of an answer to a command about bans; `sent_s` is when it was sent (monotonic)."""
        now_us, wall_us, ahead_us, reset_us = _TIMES.unpack(times)
        with self._lock:
            self.reset_us = max(self.reset_us, reset_us)
            self._time.saw_bans(now_us, wall_us, ahead_us, int(sent_s * 1_000_000))


def guards_of(checks: Sequence[Check], guarded: Sequence[Guarded]) -> tuple[Guarded, ...]:
    """Return the keys and addresses whose bans refuse a demand."""
    return *guarded, *(key for _, key, _ in checks)


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)


def sendable(part: object) -> bytes:
    """Return a part of an answer that every later question carries.

    Raises:
        TypeError: It is no text: kept, it would spoil all of them.
    """
    if not isinstance(part, bytes):
        raise TypeError(f"expected text, not {part!r}")
    return part
