"""What each view shows: one class a view, whose attributes are all that its template may rely on."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from ... import Limiter, __version__
from ...core import Ban, compiled
from ...limiter import Action, Override
from ..kinds import ADDRESS, EVERYONE
from ..published_rules import LimitRow, RuleRow, limit_rows, limits_by_rule, rule_rows, shadow_rules, unread_of
from ..statistics import ClientTraffic, LoggedEvent, Ranking, Traffic, Worker
from .counts import Counts, Curve, curve_of, marks_of
from .line import ClientRow, Line, Refusals, kinds_of, row_of
from .service import WINDOW, Bans, Client, Service, together
from .texts import grouped

MAX_CLIENTS: Final = 24
"""How many of the busiest clients, and of the most refused ones, are listed."""
MAX_ROWS: Final = 50
"""How many rows other tables have."""
MAX_RULES: Final = 200
NO_EVENTS: Final = ("refused", "shadow_refused")
"""The events that are not listed: clients cause as many as they like."""
_OF_CLIENTS: Final = ("", ADDRESS, EVERYONE)
"""The kinds of keys of rules whose requests are counted by client; all others are counted by key."""
_COUNTS: Final = ("passed", "limited", "refused", "shadow_refused", "exceptions", "p50_us", "p95_us")
_BY_COUNTS: Final = tuple(f"traffic.{name}" for name in _COUNTS)
_TEXTS: Final = ("name", "key", "reason", "by")
"""The columns of texts; all others are numbers."""

Query: TypeAlias = Mapping[str, str]
T = TypeVar("T")


class Part(NamedTuple):
    """The counts of one rule or route.

    Attributes:
        name: Its name.
        limits: The limits of the rule in force.
        is_shadow: Whether it reports only.
        traffic: Its counts.
    """

    name: str
    limits: str
    is_shadow: bool
    traffic: Traffic


# -- the views ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Now:
    """The line, who was refused, and what was counted; without the store the line alone."""

    line: Line
    alone: bool = False
    refusals: Refusals | None = None
    counts: Counts | None = None
    curve: Curve | None = None
    rules: Sequence[Part] = ()
    routes: Sequence[Part] = ()


async def now(service: Service, query: Query) -> Now:
    """Return the first view."""
    (line, refusals), counts, bans, history = await together(
        service.incident(), service.counts(_window(query)), service.bans(), service.history()
    )
    rules = _rules(counts.stats.rules, service.limiter.limits(), query)
    routes = []
    if query.get("only") != "shadow":
        parts = [Part(name, "", False, traffic) for name, traffic in counts.stats.routes.items()]
        routes = _ordered([one for one in parts if _is_sought(one.name, query)], query, "name", _BY_COUNTS)
    curve = curve_of(counts, marks_of(history, bans.newest))
    alone = service.limiter.store.shared_rows is None
    return Now(line, alone, refusals, counts, curve, rules, routes)


def _window(query: Query) -> str:
    return query.get("window") or WINDOW


@dataclass(slots=True)
class OnePart:
    """What was counted of one rule or route, and its clients."""

    name: str
    rule: str
    limits: str
    counts: Counts
    curve: Curve
    who: str
    members: Sequence[ClientTraffic]
    shadowed: Sequence[tuple[str, int]]


async def one_part(service: Service, query: Query) -> OnePart:
    """Return the view of the rule or route that the query names."""
    rule, route = query.get("rule", ""), query.get("route", "")
    counts, ranking, published, bans, history = await together(
        service.counts(_window(query), rule, route),
        service.clients(),
        service.published(),
        service.bans(),
        service.history(),
    )
    limits = service.limiter.limits()
    who, events = "Client", []
    if kinds_of(published).get(rule, "") not in _OF_CLIENTS:
        who, ranking = "Key", await service.keys()
    if rule in shadow_rules(limits):
        events = await service.events()
    return OnePart(
        name=rule or route,
        rule=rule,
        limits=limits_by_rule(limits).get(rule, ""),
        counts=counts,
        curve=curve_of(counts, marks_of(history, bans.newest)),
        who=who,
        members=_members(ranking, rule, route),
        shadowed=_shadowed(events, rule),
    )


def _members(ranking: Ranking, rule: str, route: str) -> list[ClientTraffic]:
    """Return the clients of a rule or a route, those first that are refused most, then the busiest."""
    members = []
    for one in ranking.each():
        passed, refused = one.counted_by.get(rule, one.routes.get(route, 0)), one.refused_by.get(rule, 0)
        if passed or refused:
            members.append((-refused, -passed, one.key, one))
    return [one for *_, one in sorted(members)[:MAX_ROWS]]


def _shadowed(events: Iterable[LoggedEvent], rule: str) -> list[tuple[str, int]]:
    """Return whom a rule would have refused in shadow, and how often, among the latest events."""
    keys = [one.details["key"] for one in events if one.kind == "shadow_refused" and one.details["rule"] == rule]
    return Counter(keys).most_common(MAX_ROWS)


@dataclass(slots=True)
class Clients:
    """The clients and the keys of other kinds of the last five minutes, and one of them."""

    client: Client | None = None
    clients: Sequence[ClientRow] | None = None
    keys: Sequence[ClientRow] = ()


async def clients(service: Service, query: Query) -> Clients:
    """Return the view of clients; with `key` in the query, that of one client as well."""
    ranking, keys, bans = await together(service.clients(), service.keys(), service.bans())
    client = None
    if query.get("key"):
        client = await service.client(query["key"])
    return Clients(client, _ranked(ranking, bans, query), _ranked(keys, bans, query))


def _ranked(ranking: Ranking, bans: Bans, query: Query) -> list[ClientRow]:
    """Return the busiest and the most refused in the query's order; by refusals, only those that were refused."""
    first = Ranking(ranking.busiest[:MAX_CLIENTS], ranking.refused[:MAX_CLIENTS])
    rows = []
    for one in first.each():
        if query.get("sort") == "refused" and not one.refused:
            continue
        if _is_sought(one.key, query):
            rows.append(row_of(one, is_banned=bans.refuse(one.key)))
    return _ordered(rows, query, "requests", ("key", "refused"))


@dataclass(slots=True)
class AllBans:
    """The bans, what operators have done, and events."""

    bans: Bans | None = None
    rows: Sequence[Ban] = ()
    history: Sequence[Action] | None = None
    events: Sequence[Sequence[LoggedEvent]] | None = None


async def bans(service: Service, query: Query) -> AllBans:
    """Return the view of bans, changes and events."""
    found, history, events = await together(service.bans(query.get("q", "")), service.history(), service.events())
    rows = _ordered(found.newest, query, "since_us", ("key", "reason", "by", "level", "until_us"))
    listed = [one for one in events if one.kind not in NO_EVENTS]
    return AllBans(found, rows[:MAX_ROWS], history, grouped(listed)[:MAX_ROWS])


@dataclass(slots=True)
class Configuration:
    """What is configured; without the store that of this process."""

    version: str
    limiter: Limiter
    findings: Sequence[Any]
    limits: Sequence[LimitRow]
    rules: Sequence[RuleRow] | None = None
    unread: Sequence[str] = ()
    workers: Sequence[Worker] | None = None
    off: Override | None = None


async def configuration(service: Service, query: Query) -> Configuration:
    """Return the view of what is configured."""
    counts, published, overrides, off = await together(
        service.counts(WINDOW), service.published(), service.overrides(), service.off()
    )
    view = own_configuration(service)
    view.limits = limit_rows(service.limiter, overrides)
    view.rules, view.unread = rule_rows(published)[:MAX_RULES], unread_of(published)
    view.workers, view.off = counts.stats.workers, off
    return view


def own_configuration(service: Service) -> Configuration:
    """Return what is configured in this process."""
    version = f"{__version__}, Python {platform.python_version()}"
    if compiled:
        version = f"{__version__}, compiled, Python {platform.python_version()}"
    findings = [one for middleware in service.limiter.middlewares for one in middleware.findings]
    return Configuration(version, service.limiter, findings, limit_rows(service.limiter, ()))


# -- which view --------------------------------------------------------------------------------------------------------


async def view_of(service: Service, name: str, query: Query) -> Any:
    """Return what a view shows."""
    if name == "" and (query.get("rule") or query.get("route")):
        return await one_part(service, query)
    return await _VIEWS[name](service, query)


async def view_without_store(service: Service, name: str) -> Any:
    """Return what a view shows if the store does not answer."""
    if name == "":
        line, _ = await service.incident()
        return Now(line)
    if name == "clients":
        return Clients()
    if name == "bans":
        return AllBans()
    return own_configuration(service)


_VIEWS: Final = {"": now, "clients": clients, "bans": bans, "configuration": configuration}


# -- order -------------------------------------------------------------------------------------------------------------


def _rules(counts: Mapping[str, Traffic], limits: Iterable[Any], query: Query) -> list[Part]:
    """Return the rules that have counted, and all shadow rules; with ``only=shadow`` these alone."""
    shadows = shadow_rules(limits)
    texts = limits_by_rule(limits)
    parts = []
    for name in {*counts, *shadows}:
        traffic = counts.get(name) or Traffic()
        is_shadow = name in shadows or traffic.shadow_refused > 0
        if _is_sought(name, query) and (is_shadow or query.get("only") != "shadow"):
            parts.append(Part(name, texts.get(name, ""), is_shadow, traffic))
    return _ordered(parts, query, "name", _BY_COUNTS)


def _is_sought(name: str, query: Query) -> bool:
    return query.get("q", "").casefold() in name.casefold()


def _ordered(rows: Iterable[T], query: Query, by: str, columns: Sequence[str] = ()) -> list[T]:
    """Return rows sorted by the column that the query names, if it is one of some: texts upwards, numbers downwards."""
    column = query.get("sort", by)
    if column not in columns:
        column = by
    if column in _TEXTS:
        return sorted(rows, key=attrgetter(column))
    return sorted(rows, key=lambda row: attrgetter(column)(row) or 0, reverse=True)
