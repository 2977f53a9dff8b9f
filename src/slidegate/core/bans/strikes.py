"""Strikes and levels: when a key is banned, and for how long.

A policy counts *strikes* of a key, in a ring whose limit is the policy's `after`, see `BanPolicy.strikes`. The key is
banned when the ring is full, and the n-th ban in a row lasts ``min(duration * factor ** (n - 1), longest)``::

    strikes   x x x|                 x x x|                          x x x|
    ban            [== duration ==]       [== duration * factor ==].      [= duration * factor =]
    level     0    1                      2                        2   1  2
                                                                       ^ `forgive` after the end: one level down

1. During a ban, strikes are not counted: requests that were in progress when it began change nothing.
2. Banning empties the ring; the next ban needs the same number of strikes again.
3. Each full `forgive` since the end of the last ban reduces the level by one. This is computed with the next ban,
   without a timer.
4. Up to 64 strikes are counted exactly. Beyond, they are counted by slices and leave with the first one of their slice:
   a ban may come one slice late, but never after fewer than `after` strikes in the window.
5. Levels are in Unix time, as bans are; strikes are in the time of their store, as all windows are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..stored import check_numbers, read_json
from .ban import Ban
from .policy import BanPolicy

LATEST_US: Final = 2**53
"""The latest expiry of a level, however high: the largest whole number that JSON and Lua can represent."""


class Level(NamedTuple):
    """What is left of the bans of a key by a policy. Times are microseconds of the store's Unix time.

    Attributes:
        level: The level of the last ban: its number in a series of bans.
        until_us: The end of the last ban.
        over_us: When nothing is left of it.
    """

    level: int
    until_us: int
    over_us: int


def read_level(stored: bytes) -> Level:
    """Return the level of a row of JSON, for `readable`."""
    level = read_json(Level, stored)
    check_numbers(*level)
    return level


def ban_by_hand(key: str, length_us: int | None, reason: str, by: str, now_us: int) -> Ban:
    """Return a ban that an operator makes; a length of None means for ever."""
    until_us = None
    if length_us is not None:
        until_us = now_us + length_us
    return Ban(key, reason, by, 0, now_us, until_us)


def next_ban(policy: BanPolicy, key: str, reason: str, before: Level | None, now_us: int) -> tuple[Ban, Level]:
    """Return the ban of a key whose ring is full, and the level that it leaves.

    Args:
        reason: The reason, for the operator.
        before: The level that the key has under the policy, if any.
        now_us: The store's Unix time, in microseconds.
    """
    level = 1
    if before is not None:
        forgiven = max(now_us - before.until_us, 0) // policy.forgive_us
        level += max(before.level - forgiven, 0)
    until_us = now_us + policy.length_us(level)
    over_us = min(until_us + level * policy.forgive_us, LATEST_US)
    ban = Ban(key, reason, policy.name, level, now_us, until_us)
    return ban, Level(level, until_us, over_us)
