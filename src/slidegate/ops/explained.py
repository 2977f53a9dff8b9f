"""Reads what there is to know of a client: what workers have published, the store, and statistics if there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from .. import Limiter
from ..core import Ban
from ..limiter import Override, Publication, PublishedRule
from .kinds import ADDRESS, kind_of
from .recent_events import WHO
from .standing import Bans, Standing, Verdict, Window, counted_as
from .stats_rows import CLIENTS, KEYS, WORKERS, read_events, read_ranking
from .subjects import Subject
from .traffic import ClientTraffic, LoggedEvent
from .walk import Walk

MOST_REFUSALS: Final = 10
_MOST: Final = 1_000


@dataclass
class Explained:
    """What is known of a client.

    Attributes:
        subject: The client.
        at_us: The Unix time of the store.
        groups: What each group of equal workers does.
        unreadable: How many workers have rules that cannot be read.
        bans: The bans that may refuse it.
        ladders: How long the bans of each policy last.
        changes: The changed limits that concern it.
        off: The change that has switched all workers off; None for none.
        traffic: Its requests of five minutes; None if there are none, or no statistics.
        refusals: Its latest refusals; None if no worker writes statistics.
    """

    subject: Subject
    at_us: int
    groups: list[Standing]
    unreadable: int
    bans: Sequence[Ban]
    ladders: Mapping[str, str]
    changes: Sequence[Override]
    off: Override | None
    traffic: ClientTraffic | None = None
    refusals: list[LoggedEvent] | None = None

    @property
    def verdict(self) -> Verdict:
        """What is known of its next request, whichever worker gets it."""
        if self.off is not None:
            return Verdict.NOT_REFUSED
        verdicts = {one.verdict for one in self.groups}
        if Verdict.REFUSED in verdicts:
            return Verdict.REFUSED
        if not verdicts or Verdict.UNKNOWN in verdicts or self.unreadable:
            return Verdict.UNKNOWN
        return Verdict.NOT_REFUSED


async def explained(limiter: Limiter, key: Any) -> Explained:
    """Return what is known of a client.

    Args:
        limiter: A limiter on the store.
        key: The key of the client.

    Raises:
        StoreError: The store does not answer.
    """
    subject = Subject(limiter, key)
    published = await limiter.published()
    overrides = {one.name: one for one in await limiter.overrides()}
    rules = [rule for one in published for rule in one.text.rules]
    keys = {subject.key, *map(subject.client_key, rules)}  # by which it is counted or banned
    bans = await _bans_of(limiter, subject, keys)
    groups = []
    for one in published:
        if one.is_readable:
            windows = await _windows_of(limiter, one.text.rules, subject, overrides)
            groups.append(_standing_of(one, subject, bans, windows))
    changes = {window.change.name: window.change for group in groups for window in group.windows if window.change}
    view = await limiter.inspect(subject.key, {})
    found = Explained(
        subject=subject,
        at_us=view.unix_us,
        groups=groups,
        unreadable=sum(one.workers for one in published if not one.is_readable),
        bans=bans.near,
        ladders={rule.rule: rule.durations for rule in rules if rule.durations},
        changes=[*changes.values()],
        off=overrides.get("*"),
    )
    if await limiter.rows(WORKERS):
        await _add_statistics(found, limiter, keys)
    return found


def _standing_of(
    published: Publication, subject: Subject, bans: Bans, windows: Mapping[PublishedRule, Window]
) -> Standing:
    """Return what equal workers do with the requests of a client."""
    standing = Standing(published.workers, windows=[*windows.values()])
    by_middleware: dict[str, list[PublishedRule]] = {}
    for rule in published.text.rules:
        if rule.bucket or rule.action != "limit":  # else a function or block of the application's, and no request
            by_middleware.setdefault(rule.middleware, []).append(rule)
    for name, rules in by_middleware.items():
        where = ""
        if len(by_middleware) > 1:
            where = f" of the middleware {name or 'without a name'}"
        Walk(standing, subject, bans, windows, where).over(rules)
    return standing


# -- bans --------------------------------------------------------------------------------------------------------------


async def _bans_of(limiter: Limiter, subject: Subject, keys: set[str]) -> Bans:
    """Return the bans that may refuse a client, and the kinds of the keys of all others."""
    near: list[Ban] = []
    kinds: set[str] = set()
    async for ban in limiter.bans():
        kind = kind_of(ban.key)
        if ban.key in keys or (kind == ADDRESS and subject.part_banned(ban).is_any):
            near.append(ban)
        else:
            kinds.add(kind)
    return Bans(near, frozenset(kinds))


# -- windows -----------------------------------------------------------------------------------------------------------


async def _windows_of(
    limiter: Limiter, rules: Sequence[PublishedRule], subject: Subject, overrides: Mapping[str, Override]
) -> dict[PublishedRule, Window]:
    """Return the windows of a client by the published rule, with the amounts that are in force."""
    counted: dict[str, list[PublishedRule]] = {}
    changes: dict[PublishedRule, Override] = {}
    for rule in rules:
        key = counted_as(rule, subject).key
        if not rule.bucket or not key or rule.by_function:
            continue
        counted.setdefault(key, []).append(rule)
        change = overrides.get(rule.name)
        if change is not None and rule.named().takes(change.limit):
            changes[rule] = change
    found: dict[PublishedRule, Window] = {}
    for key, own in counted.items():
        for together in _rounds(own):
            limits = {rule.bucket: _in_force(rule, changes).named().limit for rule in together}
            view = await limiter.inspect(key, limits)
            for rule, state in zip(together, view.windows, strict=True):
                found[rule] = Window(rule, key, state, changes.get(rule))
    return {rule: found[rule] for rule in rules if rule in found}


def _in_force(rule: PublishedRule, changes: Mapping[PublishedRule, Override]) -> PublishedRule:
    """Return a published rule with the limit that is in force."""
    change = changes.get(rule)
    if change is None:
        return rule
    return replace(rule, limit=change.limit)


def _rounds(rules: Sequence[PublishedRule]) -> list[list[PublishedRule]]:
    """Return rules in parts that have no bucket twice: a bucket has several limits, and is asked for one at a time."""
    rounds: list[dict[str, PublishedRule]] = []
    for rule in rules:
        for one in rounds:
            if rule.bucket not in one:
                one[rule.bucket] = rule
                break
        else:
            rounds.append({rule.bucket: rule})
    return [[*one.values()] for one in rounds]


# -- statistics --------------------------------------------------------------------------------------------------------


async def _add_statistics(found: Explained, limiter: Limiter, keys: set[str]) -> None:
    """Add what statistics have seen of a client."""
    kind = KEYS
    if found.subject.is_address:
        kind = CLIENTS
    ranking = await read_ranking(limiter, kind, _MOST)
    for one in [*ranking.busiest, *ranking.refused]:
        if one.key in keys:
            found.traffic = one
            break
    refusals = []
    for event in await read_events(limiter, _MOST):
        if event.kind == "refused" and not keys.isdisjoint(event.details.get(name, "") for name in WHO):
            refusals.append(event)
    found.refusals = refusals[:MOST_REFUSALS]
