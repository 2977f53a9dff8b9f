"""When a key is banned, and for how long.

A policy counts *strikes* of a key. The strike that makes `after.amount` of them within `after.window_us` bans the key;
the n-th ban in a row lasts ``min(duration * factor ** (n - 1), longest)``, plus jitter, never past `longest`::

    strikes   x x x|                 x x|                        x x x|
    ban            [== duration ==]     .[== duration * factor ==].    [= duration * factor =]
    level     0    1                1   2                        2   1 2
                                                                     ^ clean for `forgive`: one level down

Rules of the state machine (`Standing`, one for each key and policy):

1. While a ban lasts, strikes are not counted: requests that were on their way when it began change nothing.
2. A ban takes the strikes that led to it; the next one needs as many again.
3. Clean time runs from the later of the last strike and the end of the last ban; each whole `forgive` of it is
   one level less. Nothing has to run for that: it is worked out at the next strike.
4. Up to 64, strikes are exact. Beyond, they are counted by slices, from the start of the slice that they fell in: a ban
   may come a slice late, and never on fewer than `after` in its window.
5. Time here never runs back. A store whose clock can step back goes on from where it was: the step prolongs nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from .policy import BanPolicy


class Strike(NamedTuple):
    """One strike, or the rest of several strikes in one slice."""

    at_us: int
    weight: int
    source: str = ""
    """For a prefix: the address whose ban it is. Each counts once."""


class Standing:
    """How a key stands under a policy.

    Attributes:
        strikes: The strikes that count towards the next ban, oldest first; never more than `MAX_EXACT` + 1.
        level: How many bans in a row there were when the last one was made.
        last_us: The moment of the last strike.
        until_us: The end of the last ban, 0 if there was none.
    """

    __slots__ = ("last_us", "level", "strikes", "until_us")

    def __init__(
        self, level: int = 0, last_us: int = 0, until_us: int = 0, strikes: list[Strike] | None = None
    ) -> None:
        self.level = level
        self.last_us = last_us
        self.until_us = until_us
        self.strikes: list[Strike] = [] if strikes is None else strikes

    def __repr__(self) -> str:
        return f"<Standing level={self.level} strikes={self.strikes} last_us={self.last_us} until_us={self.until_us}>"

    def level_at(self, forgive_us: int, now_us: int) -> int:
        """Return the level that is left where each `forgive_us` of clean time takes one."""
        clean_us = now_us - max(self.last_us, self.until_us)
        return max(self.level - max(clean_us, 0) // forgive_us, 0)

    def weight_at(self, window_us: int, now_us: int) -> int:
        """Return the weight of the strikes in a window that ends now."""
        from_us = now_us - window_us
        return sum(strike.weight for strike in self.strikes if strike.at_us > from_us)

    def copy(self) -> Standing:
        """Return a copy that further strikes leave as it is."""
        return Standing(self.level, self.last_us, self.until_us, list(self.strikes))

    def is_over(self, policy: BanPolicy, now_us: int) -> bool:
        """Tell whether there is nothing left to remember."""
        return (
            now_us >= self.until_us
            and not self.level_at(policy.forgive_us, now_us)
            and not self.weight_at(policy.after.window_us, now_us)
        )

    def strike(self, policy: BanPolicy, now_us: int, weight: int, source: str = "") -> bool:
        """Count a strike; True if a ban is due. It is made by `ban`, or not at all, and then due again."""
        if now_us < self.until_us:
            return False
        self.level = self.level_at(policy.forgive_us, now_us)
        self.last_us = now_us
        amount, from_us = policy.after.amount, now_us - policy.after.window_us
        at_us = now_us - now_us % policy.grain_us
        kept = [s for s in self.strikes if s.at_us > from_us and (not source or s.source != source)]
        weight = min(weight, amount)
        if kept and kept[-1].at_us == at_us and not source:
            kept[-1] = Strike(at_us, min(kept[-1].weight + weight, amount))
        else:
            kept.append(Strike(at_us, weight, source))
        total = sum(strike.weight for strike in kept)
        while total - kept[0].weight >= amount:
            total -= kept.pop(0).weight
        self.strikes = kept
        return total >= amount

    def ban(self, policy: BanPolicy, key: str, now_us: int) -> int:
        """Go one level up, and return how long the ban lasts in microseconds."""
        self.level += 1
        self.strikes = []
        length_us = policy.length_us(self.level, key)
        self.until_us = now_us + length_us
        return length_us
