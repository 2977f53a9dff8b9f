"""Strike records: when a key is banned, and for how long.

A policy counts *strikes* of a key. The key is banned when it reaches `after.amount` strikes within `after.window_us`,
and the n-th ban in a series lasts ``min(duration * factor ** (n - 1), longest)``::

    strikes   x x x|                 x x|                        x x x|
    ban            [== duration ==]     .[== duration * factor ==].    [= duration * factor =]
    level     0    1                1   2                        2   1 2
                                                                     ^ clean for `forgive`: one level down

Rules of the state machine (`StrikeRecord`, one for each key and policy):

1. During a ban, strikes are not counted: requests that were in progress when it began change nothing.
2. Banning clears the strikes that caused it; the next ban needs the same number again.
3. Clean time starts at the later of the last strike and the end of the last ban; each full `forgive` of it reduces the
   level by one. This is computed at the next strike, without a timer.
4. Up to 64 strikes are counted exactly. Beyond, they are counted by slices and dated to the start of their slice: a ban
   may come one slice late, but never after fewer than `after` strikes in the window.
5. Times are Unix time. Strikes whose time is ahead, because the clock was set back, count as strikes of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .ban import Ban
from .policy import BanPolicy

LATEST_US: Final = 2**53
"""The latest expiry of a record, whatever its level: the largest whole number that JSON and Lua can represent."""


class StrikeRecord(NamedTuple):
    """The state of a key under a policy. Times are microseconds of the store's Unix time.

    Attributes:
        level: The level of the last ban: its number in a series of bans.
        last_us: The time of the last strike.
        until_us: The end of the last ban, 0 if there was none.
        over_us: When the record expires, if no further strike comes.
        strikes: (time, weight) of the strikes that count towards the next ban, oldest first; never more than
            `MAX_EXACT` + 1. If they are counted by slices, the time is the start of the slice.
    """

    level: int = 0
    last_us: int = 0
    until_us: int = 0
    over_us: int = 0
    strikes: Sequence[Sequence[int]] = ()

    def struck(self, policy: BanPolicy, now_us: int, weight: int) -> tuple[StrikeRecord, bool]:
        """Return the record with one more strike, and whether a ban is due.

        The caller may then make the ban with `banned`; otherwise it is due again at the next strike. Callers skip keys
        that are banned. Under a shadow policy, nothing is counted until the ban that it reported would have ended.
        """
        until_us = self.until_us if policy.shadow else min(self.until_us, now_us)
        if now_us < until_us:
            return self, False
        clean_us = max(now_us - max(self.last_us, until_us), 0)
        level = max(self.level - clean_us // policy.forgive_us, 0)
        amount, from_us = policy.after.amount, now_us - policy.after.window_us
        at_us = now_us - now_us % policy.grain_us
        counts: dict[int, int] = {}
        for moment_us, count in (*self.strikes, (at_us, weight)):
            if moment_us > from_us:
                counts[min(moment_us, at_us)] = min(counts.get(min(moment_us, at_us), 0) + count, amount)
        strikes = [*counts.items()]
        total = sum(counts.values())
        while total - strikes[0][1] >= amount:
            total -= strikes.pop(0)[1]
        over_us = max(at_us + policy.after.window_us, until_us, max(now_us, until_us) + level * policy.forgive_us)
        return StrikeRecord(level, now_us, until_us, min(over_us, LATEST_US), tuple(strikes)), total >= amount

    def banned(self, policy: BanPolicy, key: str, reason: str) -> tuple[StrikeRecord, Ban]:
        """Return the ban that is due after the last strike, as (record after the ban, ban)."""
        level, now_us = self.level + 1, self.last_us
        until_us = now_us + policy.length_us(level)
        record = StrikeRecord(level, now_us, until_us, min(until_us + level * policy.forgive_us, LATEST_US))
        return record, Ban(key, reason, policy.name, level, now_us, until_us)
