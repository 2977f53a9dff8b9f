"""The ban ladder: how long each ban lasts, and on which rung a client stands as days go by."""

from __future__ import annotations

from math import log10
from typing import Final, NamedTuple

from slidegate.core.bans.policy import BanPolicy
from slidegate.core.bans.standing import Standing

from .paper import Paper, Picture, Scale, steps

HOUR_US: Final = 3_600_000_000
POLICY: Final = BanPolicy(after="20/10m", duration="1h", factor=4, longest="7d", jitter=0)
BANNED_AFTER_H: Final = (10, 12, 18, 96)
"""Hours at which the client has earned a ban."""
DAYS: Final = 6


class Told(NamedTuple):
    """One ban: when it begins and ends, in hours, and its rung."""

    from_h: float
    until_h: float
    rung: int


def length(span_us: int) -> str:
    """Write a span in hours or days."""
    hours = span_us // HOUR_US
    days, rest = divmod(hours, 24)
    return " ".join(f"{number} {unit}" for number, unit in ((days, "d"), (rest, "h")) if number)


def course() -> tuple[list[Told], list[tuple[float, float]]]:
    """Return the bans of the client, and its rung by the hour."""
    standing = Standing()
    bans: list[Told] = []
    rungs: list[tuple[float, float]] = [(0.0, 0.0)]
    for hour in range(DAYS * 24):
        now_us = hour * HOUR_US
        if hour in BANNED_AFTER_H:
            assert standing.strike(POLICY, now_us, POLICY.after.amount)
            lasts_us = standing.ban(POLICY, "client", now_us)
            bans.append(Told(hour, hour + lasts_us / HOUR_US, standing.rung))
        rung = standing.rung_at(POLICY.forgive_us, now_us)
        if rung != rungs[-1][1]:
            rungs.append((float(hour), float(rung)))
    return bans, rungs


def _draw_ladder(paper: Paper) -> None:
    rungs = POLICY.ladder_us
    across = Scale(0, log10(rungs[-1] / rungs[0]), 120, 270)
    for place, span_us in enumerate(rungs):
        y = 44 + 30 * place
        last = place + 1 == len(rungs)
        paper.text(12, y + 14, f"ban {place + 1}" + (" and on" if last else ""))
        paper.box((112, y), (across(log10(span_us / rungs[0])) - 104, 20), "over" if last else "ours", round=3)
        paper.text(across(log10(span_us / rungs[0])) + 16, y + 14, length(span_us))


def _draw_standing(paper: Paper) -> None:
    bans, rungs = course()
    across, up = Scale(0, 24 * DAYS, 30, 348), Scale(0, 3, 158, 52)
    for rung in range(4):
        paper.line((30, up(rung)), (348, up(rung)), "line")
        paper.text(22, up(rung) + 4, str(rung), "faint", anchor="end")
    paper.path([(across(hour), up(rung)) for hour, rung in steps(rungs, 24.0 * DAYS)], "ours", width=3)
    for ban in bans:
        width = max(across(ban.until_h) - across(ban.from_h), 3)
        paper.box((across(ban.from_h), 172), (width, 14), "over")
    for day in range(DAYS):
        paper.line((across(24 * day), 168), (across(24 * day), 192), "faint")
        paper.text(across(24 * day + 12), 208, f"day {day + 1}", "faint", anchor="middle")
    paper.text(12, 232, "above: the rung; below: the bans")


def pictures() -> list[Picture]:
    """Return the pictures of the page about the ban ladder."""
    bans, rungs = course()
    return [
        Picture(
            "ladder",
            f"The ladder of {POLICY.after}, factor {POLICY.factor:g}",
            "How long each ban in a row lasts: "
            + ", ".join(f"ban {place + 1} {length(span_us)}" for place, span_us in enumerate(POLICY.ladder_us))
            + ", and no longer.",
            44 + 30 * len(POLICY.ladder_us) + 8,
            _draw_ladder,
        ),
        Picture(
            "standing",
            "The rung of one client, day by day",
            f"Bans at hours {', '.join(f'{ban.from_h:g} (rung {ban.rung}, until {ban.until_h:g})' for ban in bans)}. "
            f"The rung changes at hours {', '.join(f'{hour:g} to {rung:g}' for hour, rung in rungs[1:])}.",
            246,
            _draw_standing,
        ),
    ]
