"""Clients as the API shows them: the busiest, how near they are to their limits, and one in full."""

from __future__ import annotations

from typing import Any, Final

from ..core.bans.in_force import ban_key
from ..core.decision import Bucket, Decision
from ..limiter import Limiter
from ..limiter.inspect import KeyStanding, KeyView
from .bans_shown import ban_of, ban_shown
from .gates_shown import buckets_of, kind_of
from .onlooker import WINDOW_S, Busy, Onlooker, name_of
from .pages import Page
from .seen_by_all import Seen

_S: Final = 1_000_000
MOST_LOOKED_AT: Final = 100
"""How many clients a request for the nearest may ask the store about, in one question each."""
MOST_REFUSALS: Final = 50
MOST_HISTORY: Final = 50


async def clients_shown(
    limiter: Limiter, onlooker: Onlooker, seen: Seen, sort: str, limit: int, cursor: str | None
) -> dict[str, Any]:
    """Return a page of the busiest clients, and how near each is to the limit that it is nearest to.

    Args:
        limiter: The limiter.
        onlooker: The onlooker of this worker.
        seen: What all workers see.
        sort: ``"requests"``, ``"refused"`` or ``"nearness"``.
        limit: The most entries of the page.
        cursor: The `next` of the page before, None for the first.

    Raises:
        Unusable: The cursor is none.
        StoreError: The store does not answer.
    """
    known = _by_name(limiter)
    if sort == "nearness":
        near: Page[dict[str, Any]] = Page(limit, cursor, [0.0, ""])
        for one in seen.busy[:MOST_LOOKED_AT]:
            shown = await _client(limiter, onlooker, one, known)
            share = 1.0 if shown["nearest"] is None and shown["banned"] else (shown["nearest"] or {}).get("share", 0.0)
            near.add([-share, one["key"]], shown)
        return {"window_s": WINDOW_S, "clients": near.entries(), "next": near.next()}
    page: Page[Busy] = Page(limit, cursor, [0, ""])
    for one in seen.busy:
        times = one["refused"] if sort == "refused" else one["requests"]
        if times:
            page.add([-times, one["key"]], one)
    entries = [await _client(limiter, onlooker, one, known) for one in page.entries()]
    return {"window_s": WINDOW_S, "clients": entries, "next": page.next()}


async def client_shown(limiter: Limiter, onlooker: Onlooker, seen: Seen, key: str) -> dict[str, Any]:
    """Return everything that is known about one client.

    Raises:
        ConfigurationError: The key cannot be one.
        StoreError: The store does not answer.
    """
    ban_key(key)
    known = limiter.key_for(key)
    ban = await ban_of(limiter, known) or await limiter.banned(known)
    lately = {bucket.rule for name in onlooker.rules_of(known) if (bucket := onlooker.bucket(name)) is not None}
    changes = [change async for change in limiter.history(known)][-MOST_HISTORY:]
    return {
        "key": known,
        "ban": None if ban is None else ban_shown(ban),
        "strikes": _strikes(await limiter.standing(key)),
        "history": [
            {"kind": change.kind, "at": change.wall_us / _S, "by": change.by, "reason": change.ban.reason}
            for change in reversed(changes)
        ],
        "windows": _windows(await limiter.inspect(known), lately),
        "refusals": [one for one in seen.refusals if known in (one["key"], one["client"])][:MOST_REFUSALS],
    }


def buckets_called(limiter: Limiter, rule: str) -> list[Bucket]:
    """Return the buckets of a rule, by its name or its identity; those of an identity go before those of a name."""
    named: dict[str, Bucket] = {}
    exact: dict[str, Bucket] = {}
    for _, bucket in buckets_of(limiter):
        if bucket.held or not bucket.limits:
            continue
        if bucket.rule == rule:
            exact[name_of(bucket)] = bucket
        if bucket.label == rule:
            named[name_of(bucket)] = bucket
    return list((exact or named).values())


def windows_of(decision: Decision, asked: int = 0) -> list[dict[str, Any]]:
    """Return each limit's part in a decision as the API shows it.

    Args:
        decision: The decision.
        asked: The units that it was only asked about, and that are not charged.
    """
    unspent = asked if decision.allowed else 0
    labels = {bucket.rule: bucket.label for bucket, _, _ in decision.checks}
    return [
        {
            "rule": labels[state.rule],
            "limit": str(state.limit),
            "kind": kind_of(state.limit),
            "amount": state.limit.amount,
            "used": reading[0] - unspent,
            "remaining": max(state.limit.amount - reading[0] + unspent, 0),
            "retry_after_s": None if state.retry_after_us is None else state.retry_after_us / _S,
            "more_after_s": state.more_after_us / _S,
            "reset_after_s": state.reset_after_us / _S,
        }
        for state, reading in zip(decision.states, decision.readings, strict=True)
    ]


def _strikes(standing: KeyStanding) -> list[dict[str, Any]]:
    """Return how a key stands under each policy, as the API shows it."""
    ahead_us = standing.unix_us - standing.now_us
    return [
        {
            "policy": stands.policy,
            "target": stands.key,
            "strikes": stands.strikes,
            "needed": stands.needed,
            "rung": stands.rung,
            "clean_since_at": (stands.clean_since_us + ahead_us) / _S,
            "clean_until_at": None if stands.clean_until_us is None else (stands.clean_until_us + ahead_us) / _S,
        }
        for stands in standing.policies
    ]


def _windows(view: KeyView, lately: set[str]) -> list[dict[str, Any]]:
    """Return the windows of a key in which something counts, and those of rules that have counted it lately."""
    ahead_us = view.unix_us - view.now_us
    return [
        {
            "rule": window.label,
            "limit": str(window.limit),
            "kind": kind_of(window.limit),
            "amount": window.limit.amount,
            "used": window.used,
            "remaining": window.remaining,
            "retry_after_s": _s(window.retry_after_us),
            "more_after_s": _s(window.more_after_us),
            "reset_after_s": _s(window.reset_after_us),
            "slices": [
                {
                    "start_at": (part.start_us + ahead_us) / _S,
                    "end_at": (part.end_us + ahead_us) / _S,
                    "count": part.units,
                }
                for part in window.slices
            ],
        }
        for window in view.windows
        if window.used or window.rule in lately
    ]


def _s(span_us: int | None) -> float | None:
    return None if span_us is None else span_us / _S


async def _client(limiter: Limiter, onlooker: Onlooker, one: Busy, known: dict[str, Bucket]) -> dict[str, Any]:
    """Return a busy client with the limit that it is nearest to."""
    buckets = [
        bucket
        for name in one["rules"]
        if (bucket := known.get(name) or onlooker.bucket(name)) is not None and bucket.limits
    ]
    nearest: dict[str, Any] | None = None
    banned = False
    if buckets:
        decision = await limiter.engine.peek(tuple((bucket, one["key"], 1) for bucket in buckets), ())
        banned = decision.ban is not None
        for window in windows_of(decision, 1):
            share = window["used"] / window["amount"]
            if nearest is None or share > nearest["share"]:
                nearest = {name: window[name] for name in ("rule", "limit", "used", "amount")} | {"share": share}
    return {
        "key": one["key"],
        "requests": one["requests"],
        "refused": one["refused"],
        "nearest": nearest,
        "banned": banned,
    }


def _by_name(limiter: Limiter) -> dict[str, Bucket]:
    """Return the buckets of all gates that have limits, by the names that onlookers have for them."""
    return {name_of(bucket): bucket for _, bucket in buckets_of(limiter) if bucket.limits}
