"""Bans as the API shows them."""

from __future__ import annotations

from typing import Any, Final

from ..core.bans.in_force import Ban
from ..limiter import Limiter
from .pages import Page

_S: Final = 1_000_000


def ban_shown(ban: Ban) -> dict[str, Any]:
    """Return a ban as the API shows it."""
    ends_us = None if ban.ends_us is None else ban.wall_us + ban.ends_us - ban.made_us
    return {
        "target": ban.key,
        "reason": ban.reason,
        "policy": ban.by,
        "since_at": ban.wall_us / _S,
        "until_at": None if ends_us is None else ends_us / _S,
        "rung": ban.rung,
    }


async def bans_page(
    limiter: Limiter, cursor: str | None, limit: int, policy: str | None, search: str | None
) -> dict[str, Any]:
    """Return a page of the bans in force, newest first.

    All bans are looked at, in turns between which other tasks run, and no more are held than the page has.

    Args:
        limiter: The limiter.
        cursor: The `next` of the page before, None for the first.
        limit: The most entries of the page.
        policy: Only the bans that this policy or person made.
        search: Only bans with this text in target, reason or maker, in any case.

    Raises:
        Unusable: The cursor is none.
        StoreError: The store does not answer.
    """
    page: Page[Ban] = Page(limit, cursor, [0, ""])
    wanted = None if search is None else search.casefold()
    total = 0
    async for ban in limiter.bans():
        if policy is not None and ban.by != policy:
            continue
        if wanted is not None and not any(wanted in text.casefold() for text in (ban.key, ban.reason, ban.by)):
            continue
        total += 1
        page.add([-ban.wall_us, ban.key], ban)
    return {"bans": [ban_shown(ban) for ban in page.entries()], "next": page.next(), "total": total}


async def ban_of(limiter: Limiter, key: str) -> Ban | None:
    """Return the ban of exactly this key or network, whatever other bans refuse it."""
    return await limiter.engine.find_ban((limiter.key_for(key),))
