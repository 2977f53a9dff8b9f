"""Collects the facts about a key: from published rules, the store, and statistics if there are any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from .. import Limiter
from ..core import Ban
from ..core.addresses import network_of
from ..limiter import Override, Publication, inspect_keys, keys_refusing, yielding_to_others
from .facts import Fact, FactsOfRules, Verdict, joined
from .kinds import EVERYONE, Subject, is_operator
from .published_rules import EVERY, of_workers, rules_of
from .recent_events import SUBJECTS, LoggedEvent
from .rows import as_json, listed, named, seconds, span
from .slices import CLIENTS, KEYS, MINUTE_US, TOP_CLIENTS, WORKERS, read_events, read_ranking
from .traffic import ClientTraffic, Ranking

BANS_AT_ONCE: Final = 1_000
"""After so many bans other tasks run."""
MOST_REFUSALS: Final = 10
NOT_LISTED: Final = "limits at endpoints without requests since the start are not listed"


class Facts(NamedTuple):
    """The facts about a key.

    Attributes:
        key: The key in its canonical form.
        client: The same, or of an address the key of its client: it and others may be counted together.
        now_us: The Unix time of the store.
        workers: How many workers have published their rules, within a minute before the last one did.
        off: The change that has switched all workers off; None for none.
        rows: A row for each limit, list and ban.
        refusals: Its last refusals, the newest first; None if no worker writes statistics.
        seen: What statistics have counted of it in the last five minutes; None if it is not among those listed.
        is_cut: Whether that is a lower bound, as a worker may have listed some clients or keys only, of more.
        left_out: What could not be read.
        is_open: Whether without that it is not known if the key is refused.
    """

    key: str
    client: str
    now_us: int
    workers: int
    off: Override | None
    rows: Sequence[Fact]
    refusals: Sequence[LoggedEvent] | None
    seen: ClientTraffic | None
    is_cut: bool
    left_out: Sequence[str]
    is_open: bool

    @property
    def refused_by(self) -> Fact | None:
        """The row that refuses the key now, or else a ban or a full window that may; first one for every request."""
        if self.off is not None:
            return None
        refusing = [row for row in self.rows if row.does is Verdict.REFUSES or row.likely_refuses]
        return min(refusing, key=lambda row: (row.likely_refuses, row.requests != EVERY), default=None)

    @property
    def refused_lately(self) -> str:
        """How often it was refused in the last five minutes; empty if statistics know of no refusal."""
        if self.seen is None or not self.seen.refused:
            return ""
        least = ""
        if self.is_cut:
            least = "at least "
        text = f"refusals in the last five minutes: {least}{self.seen.refused:,}, most by {self.seen.rule}"
        if self.seen.key != self.key:  # its address is counted together with others
            text += f", of {self.seen.key} as a whole"
        return text

    @property
    def behind(self) -> dict[str, str]:
        """The other keys that its last refusals name, each with its rule; what refuses these is explained by itself."""
        own = {self.key, *(row.key for row in self.rows)}
        behind = {}
        for event in self.refusals or ():
            key = event.details["key"]
            if key not in own and network_of(key) is None:  # a ban of its network is of no other key
                behind[key] = event.details["rule"]
        return behind

    @property
    def perhaps(self) -> str:
        """What may refuse it by a condition, a cost or a list that is not known here, for the end of a sentence."""
        rules = {row.rule: None for row in self.rows if row.does is Verdict.MAY_REFUSE}
        if not rules:
            return ""
        return f", except perhaps {listed(rules)}"


def answer_of(facts: Facts) -> dict[str, Any]:
    """Return the facts about a key as JSON shows them."""
    fact = facts.refused_by
    return {
        **as_json(facts),
        "refused_by": fact and fact.rule,
        "until_at": fact and seconds(fact.until_us(facts.now_us)),
        "behind": facts.behind,
        "seen": facts.seen and named(facts.seen, "requests", "refused", "rule"),
    }


async def facts_of(limiter: Limiter, key: Any) -> Facts:
    """Return the facts about a key.

    Raises:
        StoreError: The store does not answer.
    """
    events: list[LoggedEvent] | None = None
    rankings = list[Ranking]()
    if await limiter.rows(WORKERS):
        events = await read_events(limiter)
        now_us = await limiter.now_us()
        rankings = [await read_ranking(limiter, kind, now_us) for kind in (CLIENTS, KEYS)]
    bans = [ban async for ban in limiter.bans()]
    return await facts_in(limiter, key, await limiter.published(), await limiter.overrides(), bans, events, rankings)


async def facts_in(
    limiter: Limiter,
    key: Any,
    published: Sequence[Publication],
    overrides: Iterable[Override],
    bans: Iterable[Ban],
    events: Iterable[LoggedEvent] | None,
    rankings: Iterable[Ranking],
) -> Facts:
    """Return the facts about a key, given the store's answers for all keys; only windows are read from the store.

    Args:
        overrides: The changes of limits in force.
        events: The latest events, the newest first; None if no worker writes statistics.
        rankings: The clients and the keys of the last five minutes.

    Raises:
        StoreError: The store does not answer.
    """
    subject = Subject(limiter, key)
    published = published or [Publication(0, ())]  # without rules its bans are known
    rules = rules_of(published)
    keys = {subject.key, *map(subject.counted_by, rules)} - {"", EVERYONE}
    traffic = {client.key: client for ranking in rankings for client in ranking.each()}
    clients = [subject.counted_by(rule) for rule in rules if rule.action == "client"]
    client = next(filter(None, clients), subject.key)
    maker = FactsOfRules(
        subject,
        bans=await _bans_among(bans, subject, {*keys, EVERYONE}),
        operators=[*filter(is_operator, keys_refusing(limiter, key))],
        traffic=traffic,
        changes={override.name: override for override in overrides},
    )
    places = dict.fromkeys(place for rule in rules for place in maker.places_of(rule))
    counted = [(counted_by, {bucket: limit}) for counted_by, bucket, limit in places]
    # The first asks for the time, if there is no window.
    own, *views = await inspect_keys(limiter, [(subject.key, {}), *counted])
    maker.windows = {place: view.windows[0] for place, view in zip(places, views, strict=True)}
    workers = sum(publication.workers for publication in published)
    rows = [row._replace(note=joined(row.note, some)) for row, some in of_workers(published, workers, maker.rows_of)]
    if not workers:
        maker.leave_out("rules of workers", "none has had a request within a day")
    left_out = _left_out(maker, published, own.unix_us)
    refusals = None
    if events is None:
        left_out.insert(0, "refusals, as no worker has written statistics within five minutes")
    else:
        refusals = [
            event
            for event in events
            if event.kind == "refused" and not keys.isdisjoint(map(event.details.get, SUBJECTS))
        ][:MOST_REFUSALS]
    seen = traffic.get(subject.key) or traffic.get(client)
    return Facts(
        subject.key,
        client,
        own.unix_us,
        workers,
        maker.changes.get("*"),
        rows,
        refusals,
        seen,
        len(traffic) >= TOP_CLIENTS,
        left_out,
        maker.is_open,
    )


def _left_out(maker: FactsOfRules, published: Iterable[Publication], now_us: int) -> list[str]:
    """Return what was not read, after the rows are made."""
    idle_us = 0
    for publication in published:
        if not publication.is_readable:
            maker.leave_out("rules of another version", f"{publication.workers} workers")
        idle_us = max(idle_us, now_us - (publication.seen_us or now_us))
    left_out = [f"{text} ({listed(whose)})" for text, whose in maker.left_out.items()]
    if idle_us > MINUTE_US:
        left_out.append(f"what workers have changed since their last request, {span(idle_us / 1_000_000)} ago")
    return left_out


async def _bans_among(bans: Iterable[Ban], subject: Subject, keys: Collection[str]) -> list[Ban]:
    """Return the bans that may refuse a key, or one of those by which it is counted."""
    found = list[Ban]()
    async for ban in yielding_to_others(bans, BANS_AT_ONCE):
        if ban.key in keys or is_operator(ban.key) or subject.share_banned(ban) != "none":
            found.append(ban)
    return found
