"""Looks at what the sentence about an incident is made of: statistics, the rules of all workers, bans and changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from .. import Limiter
from ..events import Event
from ..limiter import Publication
from .incident import Outage, Seen
from .rows import span_of
from .statistics import Ranking, Statistics, Stats
from .stats_rows import CLIENTS, STEPS

WINDOW: Final = "5m"
BY_FUNCTION: Final = "by a function"
MOST: Final = 100
"""How many of the busiest and of the most refused clients are looked at."""
MAX_BANNED: Final = 24
"""How many of the most refused clients are looked up among the bans."""
MAX_RULES: Final = 8
"""For how many rules, those first that refuse most, a larger limit is proposed."""


class Recent(NamedTuple):
    """The counts of the last five minutes.

    Attributes:
        stats: The requests.
        clients: The clients.
        keys: The keys of other kinds.
    """

    stats: Stats
    clients: Ranking
    keys: Ranking


class Outages:
    """Notes when the outage of the store began that this process sees: an observer of a limiter."""

    refused_events = False

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._since_us = 0
        limiter.observe(self)

    def event(self, event: Event, /) -> None:
        """Note the begin or the end of an outage."""
        if event.kind == "store_failed":
            self._since_us = event.time_us
        elif event.kind == "store_recovered":
            self._since_us = 0

    def current(self) -> Outage | None:
        """Return the outage that there is now."""
        if not self._limiter.is_failing:
            return None
        return Outage(self._since_us, self._limiter.on_error or "local")


async def read_recent(statistics: Statistics) -> Recent:
    """Return the counts of the last five minutes.

    Raises:
        StoreError: The store does not answer.
    """
    stats = await statistics.read(WINDOW)
    return Recent(stats, await statistics.clients(MOST), await statistics.keys(MOST))


def seen_nothing(limiter: Limiter, outage: Outage | None) -> Seen:
    """Return what is known without an answer of the store."""
    return Seen(outage=outage, is_shared=limiter.store.shared_rows is not None)


async def look(limiter: Limiter, recent: Recent, published: Sequence[Publication], outage: Outage | None) -> Seen:
    """Return what was seen.

    Args:
        limiter: The limiter.
        recent: The counts.
        published: What workers have published of their rules; see `Limiter.published`.
        outage: The outage that there is.

    Raises:
        StoreError: The store does not answer.
    """
    stats, clients, keys = recent
    off_until, off_by = await _switched_off(limiter)
    now_us = int(time.time() * 1_000_000)
    store_us = await limiter.now_us()
    minute_us, kept = STEPS[CLIENTS]
    first_us = (store_us // minute_us - kept + 1) * minute_us  # when the counts of clients begin, by the store's clock
    changeable = [one for one in limiter.limits() if one.changeable]
    return Seen(
        total=stats.total,
        rules=stats.rules,
        clients=clients,
        keys=keys,
        from_us=now_us - (store_us - first_us),
        is_cut=_has_requests_before(stats, first_us + minute_us),
        span=span_of(min(stats.seen_us / 1_000_000, 300)),
        kinds=kinds_of(published),
        larger=await _larger(limiter, recent, changeable),
        limits=limits_by_rule(changeable),
        banned=await _banned(limiter, recent),
        outage=outage,
        off_until=off_until,
        off_by=off_by,
        is_shared=limiter.store.shared_rows is not None,
        workers=sum(one.workers for one in published),
        counted_workers=len(stats.workers),
    )


async def _switched_off(limiter: Limiter) -> tuple[float, str]:
    """Return until when, and by whom, all workers are switched off; 0 and nobody if they are not."""
    for override in await limiter.overrides():
        if override.name == "*":
            return override.until.timestamp(), override.by
    return 0, ""


def _has_requests_before(stats: Stats, end_us: int) -> bool:
    """Return whether requests are in steps that began before a time of the store's clock."""
    for place, step in enumerate(stats.steps):
        if stats.start_us + place * stats.step_us >= end_us:
            return False
        if step.passed or step.refused:
            return True
    return False


def kinds_of(published: Iterable[Publication]) -> dict[str, str]:
    """Return the kind of key that each rule reads; of a name that two rules have, nothing is known."""
    found: dict[str, str] = {}
    for one in published:
        for rule in one.text.rules:
            known = found.setdefault(rule.rule, rule.key)
            if known != rule.key:
                found[rule.rule] = ""
    return found


def limit_text(one: Any) -> str:
    """Return a limit in force; one that a function returns for each request is not known here."""
    if not one.changeable:
        return BY_FUNCTION
    return str(one.limit)


def limits_by_rule(limits: Iterable[Any]) -> dict[str, str]:
    """Return the limits in force, in words, by the label of their rule."""
    texts: dict[str, list[str]] = {}
    for one in limits:
        texts.setdefault(one.rule, []).append(limit_text(one))
    return {rule: "; ".join(of_rule) for rule, of_rule in texts.items()}


async def _banned(limiter: Limiter, recent: Recent) -> frozenset[str]:
    """Return those of the most refused clients and keys that are banned now."""
    found = set()
    for one in [*recent.clients.refused[:MAX_BANNED], *recent.keys.refused[:MAX_BANNED]]:
        if await limiter.banned(one.key) is not None:
            found.add(one.key)
    return frozenset(found)


async def _larger(limiter: Limiter, recent: Recent, changeable: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """Return for each rule that refuses the name of the limit that does, and twice that limit."""
    refusing = [name for name, traffic in recent.stats.rules.items() if traffic.refused]
    refusing.sort(key=lambda name: -recent.stats.rules[name].refused)
    found = {}
    for rule in refusing[:MAX_RULES]:
        limits = {one.name: one for one in changeable if one.rule == rule and not one.shadow}
        if not limits:
            continue
        refusing_limit = _refusing(limits.values(), await _fullness(limiter, recent, rule))
        found[rule] = refusing_limit.name, refusing_limit.with_amount(2 * refusing_limit.limit.amount)
    return found


def _refusing(limits: Iterable[Any], fullness: Mapping[str, float]) -> Any:
    """Return the limit of a rule that refuses: one that is full, else that with the shortest window.

    What is left of a refusal some minutes later is in long windows alone, and these were not full.
    """
    full = [one for one in limits if fullness.get(one.name, 0) >= 1]
    if full:
        return max(full, key=lambda one: fullness[one.name])
    return min(limits, key=lambda one: getattr(one.limit, "window_us", inf))


async def _fullness(limiter: Limiter, recent: Recent, rule: str) -> Mapping[str, float]:
    """Return the share of each limit of a rule that is spent by who is refused most."""
    found: dict[str, float] = {}
    for ranking in (recent.keys, recent.clients):
        most_refused = next((one for one in ranking.refused if one.refused_by.get(rule)), None)
        if most_refused is None:
            continue
        view = await limiter.inspect(most_refused.key)
        for window in view.windows:
            if window.label == rule:
                share = window.used / window.limit.amount
                found[window.name] = max(found.get(window.name, 0), share)
    return found
