"""The bans that a worker holds.

They are a cache, so that a client that comes again while it is banned is refused here, without asking. Redis decides
about everybody else, by the bans that stand there; see ``lua/windows.lua``. The cache is refreshed a part at a
time and at most every `REFRESH_EVERY_S`, however often bans change, and no request waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from threading import Lock
from time import monotonic
from typing import Final

from ....core.bans.in_force import Ban, BanList, Guarded, longest
from ....core.barred import Barred
from ....core.decision import Check
from ....core.store import Clock
from ...forks import hold_over_fork
from ..server_clock import BansClock
from .ban_codec import text_of, unpack_ban

TRUST_S: Final = 1.0
PROLONG_EVERY_S: Final = 0.1
LOOK_OVER: Final = 64
UNSEEN: Final = b"?"
"""The number of a request that no list has let pass: the bans in Redis have to be looked at."""

NEVER_S: Final = float("-inf")
_TIMES: Final = Struct("<qqqq")


class HeldBans:
    """The bans that a worker holds.

    Args:
        clock: The clock of a test.

    Attributes:
        list: The bans.
        number: Of the last change that is in the list.
        latest: Of the last change that Redis has spoken of.
        known_s: When the list was complete for certain, in monotonic time.
        life: The life of the data in Redis. It is another one after a loss of data.
        reset_us: When all windows were reset, as far as is known here; -1 for never.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._time = BansClock(clock)
        self._lock = Lock()
        hold_over_fork(self._lock)
        self.list = BanList()
        self.number = self.latest = b""
        self.known_s = NEVER_S
        self.life = b""
        self.reset_us = -1
        self._prolonged_s: dict[str, float] = {}

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
