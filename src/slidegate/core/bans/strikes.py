"""When a key is banned, and for how long.

A policy counts *strikes* of a key. The strike that makes `after.amount` of them within `after.window_us` bans the key;
the n-th ban in a row lasts ``min(duration * factor ** (n - 1), longest)``::

    strikes   x x x|                 x x|                        x x x|
    ban            [== duration ==]     .[== duration * factor ==].    [= duration * factor =]
    level     0    1                1   2                        2   1 2
                                                                     ^ clean for `forgive`: one level down

Rules of the state machine (`StrikeRecord`, one for each key and policy):

1. During a ban, strikes are not counted: requests that were in progress when it began change nothing.
2. Banning clears the strikes that caused it; the next ban needs as many again.
3. Clean time runs from the later of the last strike and the end of the last ban; each whole `forgive` of it is
   one level less. No timer is needed: it is computed at the next strike.
4. Up to 64, strikes are exact. Beyond, they are counted by slices, from the start of the slice that they fell in: a ban
   may come a slice late, and never on fewer than `after` in its window.
5. Time never runs backwards. If a store's clock steps back, its time continues from where it was, so the step extends
   nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .ban import Ban
from .policy import BanPolicy

LATEST_US: Final = 2**53
"""No record is over later than this, whatever level an import gives it: rows hold no larger number."""


class StrikeRecord(NamedTuple):
    """How a key stands under a policy. Moments are microseconds of the store's time.

    Attributes:
        level: How many bans in a row there were when the last one was made.
        last_us: The moment of the last strike.
        until_us: The end of the last ban, 0 if there was none.
        over_us: When nothing is left to remember, if no strike comes until then.
        strikes: (moment, weight) of the strikes that count towards the next ban, oldest first; never more than
            `MAX_EXACT` + 1. Where they are counted by slices, the moment is the beginning of the slice.
    """

    level: int = 0
    last_us: int = 0
    until_us: int = 0
    over_us: int = 0
    strikes: Sequence[Sequence[int]] = ()

    def struck(self, policy: BanPolicy, now_us: int, weight: int) -> tuple[StrikeRecord, bool]:
        """Return the record with one more strike, and whether a ban is due.

        The ban is made by `banned`, or not at all, and then it is due again with the next strike. A key that is banned
        is not struck; one that a shadow policy would have banned is not counted until that ban would have ended.
        """
        until_us = self.until_us if policy.shadow else min(self.until_us, now_us)
        if now_us < until_us:
            return self, False
        clean_us = max(now_us - max(self.last_us, until_us), 0)
        level = max(self.level - clean_us // policy.forgive_us, 0)
        amount, from_us = policy.after.amount, now_us - policy.after.window_us
        at_us = now_us - now_us % policy.grain_us
        strikes = [(moment_us, count) for moment_us, count in self.strikes if moment_us > from_us]
        if strikes and strikes[-1][0] == at_us:
            weight += strikes.pop()[1]
        strikes.append((at_us, min(weight, amount)))
        total = sum(count for _, count in strikes)
        while total - strikes[0][1] >= amount:
            total -= strikes.pop(0)[1]
        over_us = max(at_us + policy.after.window_us, until_us, max(now_us, until_us) + level * policy.forgive_us)
        return StrikeRecord(level, now_us, until_us, min(over_us, LATEST_US), tuple(strikes)), total >= amount

    def banned(self, policy: BanPolicy, key: str, reason: str, wall_us: int) -> tuple[StrikeRecord, Ban]:
        """Return the record after the ban that the last strike has made due, and the ban."""
        level, now_us = self.level + 1, self.last_us
        until_us = now_us + policy.length_us(level)
        record = StrikeRecord(level, now_us, until_us, min(until_us + level * policy.forgive_us, LATEST_US))
        return record, Ban(key, reason, policy.name, level, now_us, until_us, wall_us)
