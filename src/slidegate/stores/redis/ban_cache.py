"""The bans that a worker holds, so that a client that comes again while it is banned is refused here, without asking.

Redis decides about everybody else, by the bans that stand there; see ``lua/windows.lua``. It numbers the changes of
bans, and every answer says the number of the last one. `RedisBans` asks for the changes that are not held yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from time import monotonic
from typing import Final

from ...core.bans.active import ActiveBans
from ...core.bans.ban import Ban, BanSubject, longest
from ...core.decision import BanRefusal, Check
from ...core.store import Clock
from ..forks import hold_over_fork
from .ban_rows import text_of, unpack_ban
from .clock import BansClock

TRUST_S: Final = 1.0
"""How long what Redis has said holds here: bans and refusals are told from memory meanwhile."""
PROLONG_EVERY_S: Final = 0.1
MAX_ENDED_AT_ONCE: Final = 1_000
"""How many bans that have ended are forgotten when the others are counted."""
SPARE: Final = 64

NEVER_S: Final = float("-inf")


class BanCache:
    """The bans that a worker holds.

    Args:
        clock: The clock of a test.

    Attributes:
        list: The bans.
        number: Of the last change that is in the list.
        latest: Of the last change that Redis has spoken of.
        known_s: When the list was complete for certain, in monotonic time.
        reset_us: When all windows were reset, as far as is known here; -1 for never.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._lock = Lock()
        hold_over_fork(self._lock)
        self._forget()

    def _forget(self) -> None:
        self.active_bans = ActiveBans()
        self.number = self.latest = b""
        self.known_s = NEVER_S
        self.reset_us = -1
        self._time = BansClock(self._clock)
        self._prolonged_s: dict[str, float] = {}

    def forget(self) -> int:
        """Forget everything, because Redis has lost its data; return how many bans were in force."""
        with self._lock:
            self.active_bans.remove_expired(*self._time.now_us(), most=len(self.active_bans))
            known = len(self.active_bans)
            self._forget()
        return known

    def now_us(self) -> tuple[int, int]:
        """Return the bans' time and the server's."""
        with self._lock:
            return self._time.now_us()

    def saw(self, times: Sequence[int], sent_s: float) -> None:
        """Record the times in an answer; `sent_s` is when its command was sent (monotonic)."""
        now_us, wall_us, ahead_us, reset_us = times
        with self._lock:
            self.reset_us = max(self.reset_us, reset_us)
            self._time.saw_bans(now_us, wall_us, ahead_us, int(sent_s * 1_000_000))

    def is_trusted(self) -> bool:
        """Return whether the list was complete lately."""
        return monotonic() - self.known_s < TRUST_S

    def put(self, rows: Iterable[tuple[bytes, bytes]], into: ActiveBans | None = None) -> None:
        """Bring the list up to date, or another one: rows are keys and their bans, empty where a key has none."""
        with self._lock:
            bans = self.active_bans if into is None else into
            for key, row in rows:
                if key:  # under the empty one Redis holds no ban
                    bans.remove(text_of(key))
                    if row:
                        bans.add(unpack_ban(key, row))

    def hold(self, bans: ActiveBans, number: bytes, asked_s: float) -> None:
        """Hold a list that was complete at a moment."""
        self.active_bans, self.number, self.latest = bans, number, number
        self.known_s = max(self.known_s, asked_s)

    def in_force(self) -> Iterator[Ban]:
        """Yield the bans that are in force now."""
        with self._lock:
            rows, times = list(self.active_bans.by_key.values()), self._time.now_us()
        yield from (ban for ban in (Ban(*row) for row in rows) if not ban.is_over(*times))

    def count(self) -> int:
        """Return how many bans are in force."""
        with self._lock:
            self.active_bans.remove_expired(*self._time.now_us(), most=MAX_ENDED_AT_ONCE)
            return len(self.active_bans)

    def judge(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> BanRefusal | None:
        """Return the refusal of a demand by the bans that are held, if there is one."""
        if not self.active_bans.by_key:
            return None
        with self._lock:
            now_us, wall_us = self._time.now_us()
            self.active_bans.remove_expired(now_us, wall_us)
            ban = longest(self.active_bans.active(guards_of(checks, subjects), now_us, wall_us))
            return None if ban is None else BanRefusal(ban.by, ban, now_us, checks)

    def prolonged_by(self, checks: Sequence[Check], subjects: Sequence[BanSubject]) -> list[Ban]:
        """Return the bans that a demand prolongs."""
        with self._lock:
            asked = guards_of(checks, subjects)
            return [ban for ban in self.active_bans.active(asked, *self._time.now_us()) if ban.prolong_us]

    def prolong(self, bans: Iterable[Ban]) -> list[str]:
        """Let bans go on from now; return the keys that Redis has to prolong: each ten times a second at most."""
        now_s, due = monotonic(), []
        with self._lock:
            now_us, _ = self._time.now_us()
            if len(self._prolonged_s) > len(self.active_bans) + SPARE:
                self._prolonged_s.clear()
            for ban in bans:
                if self._clock is not None or now_s >= self._prolonged_s.get(ban.key, 0.0):
                    due.append(ban.key)
                    self._prolonged_s[ban.key] = now_s + PROLONG_EVERY_S
                held = self.active_bans.get(ban.key)
                if held is not None:
                    self.active_bans.prolong(held, now_us)
        return due


def guards_of(checks: Sequence[Check], subjects: Sequence[BanSubject]) -> tuple[BanSubject, ...]:
    """Return the keys and addresses whose bans refuse a demand."""
    return *subjects, *(key for _, key, _ in checks)
