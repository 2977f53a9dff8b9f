"""How the list of bans that a worker holds is refreshed, and how commands about bans are sent.

Redis numbers the changes of bans, and every answer says the number of the last one. Where a worker holds less, it sends
the guards of its next requests with them, and asks for the changes, a part at a time, at most every `REFRESH_EVERY_S`.

Every answer also says which life of the data it belongs to. Another life begins after Redis has lost its data or a part
of the bans: then a worker forgets the bans that it holds, and says how many those were.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from ....core.bans.in_force import Ban, BanList
from ....core.errors import StoreError
from ....core.store import Clock, Event
from ..faults import sensible
from ..packing import Script, bans_script
from ..server_clock import BansClock
from .ban_codec import bytes_of, pack_ban, text_of, unpack_ban
from .ban_events import changes
from .ban_replica import NEVER_S, HeldBans

REFRESH_EVERY_S: Final = 0.1
PARTS: Final = (b"", b":list", b":ends", b":changes", b":history", b":standings", b":over", b":prefixes")
CHUNK: Final = 200
"""How many bans to read or write without letting others go on: some 2 ms of an event loop, or of Redis."""
MOST_PARTS: Final = 64
"""How many parts a refresh reads at most; Redis remembers fewer changes."""
LIFE_BYTES: Final = 16

T = TypeVar("T")


class Sender(Protocol):
    """Sends commands from one event loop, as `wire.pipeline.Lane` does."""

    loop: asyncio.AbstractEventLoop

    async def ask(self, *command: bytes | int) -> Any:
        """Send a command and return its answer."""

    async def run(self, script: Script, keys: Sequence[bytes], asked: Sequence[bytes | int]) -> Any:
        """Run a script and return its answer."""

    def attend(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine that nobody waits for."""


async def in_steps(many: Iterable[T], step: int = CHUNK) -> AsyncIterator[list[T]]:
    """Yield parts of a long iterable, and let other tasks go on in between."""
    rest = iter(many)
    while part := list(islice(rest, step)):
        yield part
        await asyncio.sleep(0)


class RefreshedBans(HeldBans):
    """The bans that a worker holds, kept up to date.

    Args:
        lane: Returns the sender of the running event loop.
        meta: The name of the hash with the numbers.
        clock: The clock of a test.
        heard: Hears of the life and the number of hand-backs in an answer, and when its command was sent (monotonic).
        tell: Passes events on.
        read_only: Whether nothing is made where nothing of slidegate stands.
    """

    def __init__(
        self,
        lane: Callable[[], Sender],
        meta: bytes,
        clock: Clock | None,
        heard: Callable[[bytes, float], None],
        tell: Callable[[Sequence[Event]], None],
        *,
        read_only: bool,
    ) -> None:
        super().__init__(clock)
        self._lane = lane
        self._keys = [meta + part for part in PARTS]
        self._heard_state = heard
        self._tell = tell
        self._refreshing: WeakSet[Sender] = WeakSet()
        self._refreshed_s = NEVER_S
        self._read_only = read_only
        self._begins = False

    @property
    def list_name(self) -> bytes:
        """The name of the hash with the bans."""
        return self._keys[1]

    # -- news in every answer ------------------------------------------------------------------------------------

    def heard(self, lane: Sender, number: bytes, sent_s: float) -> None:
        """Record the number of the last change of bans in an answer; `sent_s` is when its call was sent (monotonic)."""
        self.latest = number
        if number == self.number:
            self.known_s = max(self.known_s, sent_s)
        elif lane not in self._refreshing:
            self._refreshing.add(lane)
            lane.attend(self._refresh_in_time(lane))

    def heard_state(self, lane: Sender, state: bytes, sent_s: float) -> None:
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
            lane.attend(self._begin(lane))

    async def _begin(self, lane: Sender) -> None:
        """Give the data a life, where nobody has."""
        try:
            await lane.ask(b"HSETNX", self._keys[0], b"life", os.urandom(LIFE_BYTES // 2).hex().encode())
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
    async def refresh(self, lane: Sender) -> None:
        """Learn which bans have changed, a part at a time.

        Raises:
            StoreError: Redis does not answer.
        """
        life, bans, number = self.life, self.list, self.number
        for _ in range(MOST_PARTS):
            asked_s = monotonic()
            found, _, last = await self._run(lane, "since", [number])
            if life and life != self.life:  # an answer about lost bans is not true
                life, bans, number = self.life, self.list, self.number
                continue
            if found == 0:
                bans, number = BanList(), last
                async for part in self._scan(self._keys[1], lane):
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

    async def _refresh_in_time(self, lane: Sender) -> None:
        try:
            await asyncio.sleep(max(self._refreshed_s + REFRESH_EVERY_S - monotonic(), 0.0))
            if self.number != self.latest:
                with suppress(StoreError):  # the next answer is a reason to try again
                    await self.refresh(lane)
        finally:
            self._refreshed_s = monotonic()
            self._refreshing.discard(lane)

    # -- commands ----------------------------------------------------------------------------------------------------

    async def _command(
        self, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes]]:
        """Run a command of ``lua/ban_rules.lua``; return its answer and its reports."""
        lane, sent_s = self._lane(), monotonic()
        answer, reports, number = await self._run(lane, name, asked, keys)
        self.heard(lane, number, sent_s)
        with self._lock:
            for key, row in changes(reports):
                self._put(text_of(key), unpack_ban(key, row) if row else None)
        return answer, reports

    async def _run(
        self, lane: Sender, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()
    ) -> tuple[Any, list[bytes], bytes]:
        """Run a command; return its answer, its reports, and the number of the last change."""
        sent_s = monotonic()
        times, number, state, answer, reports = await self._ask(lane, name, asked, keys)
        number, state = sendable(number), sendable(state)
        self.heard_state(lane, state, sent_s)
        self._saw(times, sent_s)
        return answer, reports, number

    async def _ask(self, lane: Sender, name: str, asked: Sequence[bytes | int], keys: Sequence[bytes] = ()) -> Any:
        wall_us = -1 if self._clock is None else self._clock()
        return await lane.run(bans_script(), [*self._keys, *keys], [wall_us, name.encode(), *asked])

    async def _scan(self, name: bytes, lane: Sender) -> AsyncIterator[Sequence[bytes]]:
        """Yield the fields and values of a hash, a part at a time."""
        place = b"0"
        while True:
            place, found = await lane.ask(b"HSCAN", name, place, b"COUNT", CHUNK)
            async for part in in_steps(found, 2 * CHUNK):
                yield part
            if place == b"0":
                return

    async def _load(self, bans: Sequence[Ban]) -> None:
        await self._command("load", [len(bans), *(row for ban in bans for row in (bytes_of(ban.key), pack_ban(ban)))])


def sendable(part: object) -> bytes:
    """Return a part of an answer that every later question carries.

    Raises:
        TypeError: It is no text: kept, it would spoil all of them.
    """
    if not isinstance(part, bytes):
        raise TypeError(f"expected text, not {part!r}")
    return part
