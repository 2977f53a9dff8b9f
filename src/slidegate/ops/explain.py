"""Collects the facts about a key: from published rules, the store, and statistics if there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from anyio.lowlevel import checkpoint

from .. import Limiter
from ..core import Ban
from ..limiter import Override, Publication, PublishedRule, inspect_keys, keys_refusing
from .facts import EVERY, Fact, FactsOfRules, Verdict, joined
from .kinds import EVERYONE, Subject, is_operator
from .published_rules import some_workers
from .recent_events import SUBJECTS, LoggedEvent
from .rows import named, row_of_ban, row_of_window, seconds
from .slices import CLIENTS, KEYS
from .stats_rows import WORKERS, read_events, read_ranking
from .traffic import Ranking

MOST_EVENTS: Final = 1_000
"""Among how many events its refusals are sought."""
MOST_CLIENTS: Final = 1_000
BANS_AT_ONCE: Final = 1_000
"""After so many bans other tasks run."""
MOST_REFUSALS: Final = 10
NO_STATISTICS: Final = "refusals, as no worker has written statistics within five minutes"
NOT_LISTED: Final = "limits at endpoints without requests since the start are not listed"


class Facts(NamedTuple):
    """The facts about a key.

    Attributes:
        key: The key in its canonical form.
        now_us: The Unix time of the store.
        workers: How many workers have published their rules.
        off: The change that has switched all workers off; None for none.
        rows: A row for each limit, list and ban.
        refusals: Its last refusals, the newest first; None if no worker writes statistics.
        left_out: What could not be read.
    """

    key: str
    now_us: int
    workers: int
    off: Override | None
    rows: Sequence[Fact]
    refusals: Sequence[LoggedEvent] | None
    left_out: Sequence[str]

    @property
    def refused_by(self) -> Fact | None:
        """The row that refuses the key now, or else a ban or a full window that may; first one for every request."""
        if self.off is not None:
            return None
        refusing = [row for row in self.rows if row.does is Verdict.REFUSES or row.may_refuse]
        return min(refusing, key=lambda row: (row.may_refuse, row.requests != EVERY), default=None)


def answer_of(facts: Facts) -> dict[str, Any]:
    """Return the facts about a key as JSON shows them."""
    off_until_us = refused_by = until_us = None
    if facts.off is not None:
        off_until_us = facts.off.until_us
    fact = facts.refused_by
    if fact is not None:
        refused_by = fact.by
        until_us = fact.until_us(facts.now_us)
    return {
        "key": facts.key,
        "at": seconds(facts.now_us),
        "refused_by": refused_by,
        "until_at": seconds(until_us),
        "off_until_at": seconds(off_until_us),
        "workers": facts.workers,
        "not_read": [*facts.left_out],
        "refusals": [{"at": seconds(event.time_us), **event.details} for event in facts.refusals or ()],
        "rows": [row_of_fact(fact) for fact in facts.rows],
    }


def row_of_fact(fact: Fact) -> dict[str, Any]:
    """Return the row of a rule, a list or a ban."""
    row = {"rule": fact.by, "now": fact.does.value, **named(fact, "what", "requests", "key", "note")}
    if fact.window is not None:
        row = {**row_of_window(fact.window), **row}
    if fact.ban is not None:
        row["ban"] = row_of_ban(fact.ban)
    return row


class Answers(NamedTuple):
    """The store's answers for all keys.

    Attributes:
        overrides: The changes of limits in force.
        events: The latest events, the newest first; None if no worker writes statistics.
        rankings: The clients and the keys of the last five minutes.
    """

    published: Sequence[Publication]
    overrides: Sequence[Override]
    bans: Iterable[Ban]
    events: Sequence[LoggedEvent] | None
    rankings: Sequence[Ranking]


async def facts_of(limiter: Limiter, key: Any) -> Facts:
    """Return the facts about a key.

    Raises:
        StoreError: The store does not answer.
    """
    events: list[LoggedEvent] | None = None
    rankings: list[Ranking] = []
    if await limiter.rows(WORKERS):
        events = await read_events(limiter, MOST_EVENTS)
        now_us = await limiter.now_us()
        rankings = [await read_ranking(limiter, kind, MOST_CLIENTS, now_us) for kind in (CLIENTS, KEYS)]
    bans = [ban async for ban in limiter.bans()]
    answers = Answers(await limiter.published(), await limiter.overrides(), bans, events, rankings)
    return await facts_in(answers, limiter, key)


async def facts_in(answers: Answers, limiter: Limiter, key: Any) -> Facts:
    """Return the facts about a key, given the store's answers for all keys; only windows are read from the store.

    Raises:
        StoreError: The store does not answer.
    """
    maker = FactsOfRules(Subject(limiter, key))
    published = answers.published or [Publication(0, ())]  # without rules its bans are known
    rules = [rule for publication in published for rule in publication.rules]
    keys = {maker.subject.key, *(maker.subject.counted_by(rule)[0] for rule in rules)} - {"", EVERYONE}
    refusals = None
    left_out = [NO_STATISTICS]
    if answers.events is not None:
        refusals = _refusals_in(answers.events, keys)
        left_out = []
        maker.amounts = _amounts_in(answers.rankings, keys)
    overrides = {override.name: override for override in answers.overrides}
    for rule in rules:
        change = overrides.get(rule.name)
        if change is not None and rule.named_limit().takes(change.limit):
            maker.changed[rule] = change.limit
    maker.operators = [*filter(is_operator, keys_refusing(limiter, key))]
    maker.bans = await _bans_among(answers.bans, maker.subject, {*keys, EVERYONE})
    now_us = await _read_windows(limiter, maker, rules)
    rows: dict[Fact, int] = {}  # and how many workers have each
    for publication in published:
        if not publication.is_readable:
            maker.leave_out("rules of another version", f"{publication.workers} workers")
        for row in dict.fromkeys(maker.rows_of(publication.rules)):
            rows[row] = rows.get(row, 0) + publication.workers
    workers = sum(publication.workers for publication in published)
    noted = [row._replace(note=joined(row.note, some_workers(having, workers))) for row, having in rows.items()]
    left_out += maker.left_out()
    return Facts(maker.subject.key, now_us, workers, overrides.get("*"), noted, refusals, left_out)


def _amounts_in(rankings: Iterable[Ranking], keys: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the limits that recent decisions about some keys had in force, by key and rule."""
    amounts: dict[tuple[str, str], str] = {}
    for ranking in rankings:
        for client in ranking.each():
            if client.key in keys:
                amounts |= {(client.key, rule): limits for rule, limits in client.amounts.items()}
    return amounts


async def _bans_among(bans: Iterable[Ban], subject: Subject, keys: Collection[str]) -> list[Ban]:
    """Return the bans that may refuse a key, or one of those by which it is counted."""
    found: list[Ban] = []
    for number, ban in enumerate(bans):
        if ban.key in keys or subject.may_be_banned(ban):
            found.append(ban)
        if not number % BANS_AT_ONCE:
            await checkpoint()
    return found


def _refusals_in(events: Iterable[LoggedEvent], keys: Collection[str]) -> list[LoggedEvent]:
    """Return the newest refusals of requests by some keys, given events in that order."""
    refusals: list[LoggedEvent] = []
    for event in events:
        if event.kind == "refused" and any(event.details.get(field) in keys for field in SUBJECTS):
            refusals.append(event)
    return refusals[:MOST_REFUSALS]


async def _read_windows(limiter: Limiter, maker: FactsOfRules, rules: Sequence[PublishedRule]) -> int:
    """Let a maker have all windows, by one question to the store; return the store's Unix time."""
    places = dict.fromkeys(place for rule in rules for place in maker.places_of(rule))
    keys: list[tuple[str, dict[str, Any]]] = [(maker.subject.key, {})]  # asks for the time, if there is no window
    keys += [(key, {bucket: limit}) for key, bucket, limit in places]
    own, *others = await inspect_keys(limiter, keys)
    maker.windows = {place: view.windows[0] for place, view in zip(places, others, strict=True)}
    return own.unix_us
