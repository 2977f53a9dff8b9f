"""What the views show: one function a view, which returns the variables of its template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from ..kinds import ADDRESS, EVERYONE
from ..published_rules import limit_rows, limits_by_rule, rule_rows, shadow_rules, unread_of
from ..statistics import LoggedEvent, Ranking, Traffic
from ..tasks import together
from .counts import curve_of, marks_of
from .line import ClientRow, kinds_of, row_of
from .service import WINDOW, Bans, Service
from .texts import grouped

MAX_CLIENTS: Final = 24
"""How many of the busiest clients, and of the most refused ones, are listed."""
MAX_ROWS: Final = 50
"""How many rows other tables have."""
MAX_RULES: Final = 200
_UNLISTED: Final = ("refused", "shadow_refused")
"""The events that are not listed: clients cause as many as they like."""
_OF_CLIENTS: Final = ("", ADDRESS, EVERYONE)
"""The kinds of keys of rules whose requests are counted by client; all others are counted by key."""
_COUNTS: Final = ("passed", "limited", "refused", "shadow_refused", "exceptions", "p50_us", "p95_us")
"""The columns of rules and routes that are numbers."""
_TEXTS: Final = ("key", "reason", "by")
"""The columns of clients and bans that are texts; all others are numbers."""

Query: TypeAlias = Mapping[str, str]
Variables: TypeAlias = dict[str, Any]
T = TypeVar("T")


# -- now: who was refused, and what was counted ------------------------------------------------------------------------


async def now(service: Service, query: Query) -> Variables:
    """Return who was refused in the last five minutes, and what was counted by rules and routes."""
    (line, refusals), traffic = await together(service.incident(), _traffic(service, query))
    stats, limits = traffic["counts"].stats, service.limiter.limits()
    # Rules in shadow that only other workers have are known from their counts.
    shadows = shadow_rules(limits) | {name for name, traffic in stats.rules.items() if traffic.shadow_refused}
    rules = {**dict.fromkeys(shadows, Traffic()), **stats.rules}
    if query.get("only") == "shadow":
        rules = {name: rules[name] for name in shadows}
    return {
        **traffic,
        "line": line,
        "refusals": refusals,
        "rules": _ordered_counts(rules, query),
        "limits": limits_by_rule(limits),
        "shadows": shadows,
        "routes": _ordered_counts(stats.routes, query),
    }


async def _traffic(service: Service, query: Query, rule: str = "", route: str = "") -> Variables:
    """Return what was counted in the window that the query names, and the curve of it."""
    window = query.get("window") or WINDOW
    counts, bans, history = await together(service.counts(window, rule, route), service.bans(), service.history())
    return {"counts": counts, "curve": curve_of(counts, marks_of(history, bans.newest))}


def _ordered_counts(counts: Mapping[str, Traffic], query: Query) -> list[tuple[str, Traffic]]:
    """Return the counts of rules or routes whose names contain the query's text, in its order."""
    rows = [(name, counts[name]) for name in sorted(counts) if _matches(name, query)]
    column = query.get("sort", "")
    if column in _COUNTS:
        rows.sort(key=lambda row: getattr(row[1], column) or 0, reverse=True)
    return rows


# -- a rule or a route by itself ---------------------------------------------------------------------------------------


async def part(service: Service, query: Query) -> Variables:
    """Return what was counted of the rule or route that the query names, and its clients."""
    rule, route = query.get("rule", ""), query.get("route", "")
    traffic, ranking, published = await together(
        _traffic(service, query, rule, route), service.clients(), service.published()
    )
    limits = service.limiter.limits()
    who = "Client"
    if kinds_of(published).get(rule, "") not in _OF_CLIENTS:
        who, ranking = "Key", await service.keys()
    shadowed = []
    if rule in shadow_rules(limits):
        shadowed = _shadowed(await service.events(), rule)
    return {
        **traffic,
        "limits": limits_by_rule(limits).get(rule, ""),
        "who": who,
        "members": _members(ranking, rule, route),
        "shadowed": shadowed,
    }


def _members(ranking: Ranking, rule: str, route: str) -> list[tuple[int, int, str]]:
    """Return the refused and the admitted requests of clients of a rule or a route, and the key of each."""
    members = []
    for client in ranking.each():
        refused = client.refused_by.get(rule, 0)
        passed = client.counted_by.get(rule, client.routes.get(route, 0))
        if passed or refused:
            members.append((refused, passed, client.key))
    return sorted(members, reverse=True)[:MAX_ROWS]


def _shadowed(events: Iterable[LoggedEvent], rule: str) -> list[tuple[str, int]]:
    """Return the keys that a rule in shadow would have refused, and how often, among the latest events."""
    keys = [
        event.details["key"] for event in events if event.kind == "shadow_refused" and event.details["rule"] == rule
    ]
    return Counter(keys).most_common(MAX_ROWS)


# -- clients, bans, configuration --------------------------------------------------------------------------------------


async def clients(service: Service, query: Query) -> Variables:
    """Return the clients and the keys of other kinds of the last five minutes, and the one that the query names."""
    ranking, keys, bans = await together(service.clients(), service.keys(), service.bans())
    client = None
    if query.get("key"):
        client = await service.client(query["key"])
    return {
        "client": client,
        "clients": await _ranked(service, ranking, bans, query),
        "others": await _ranked(service, keys, bans, query),
    }


async def _ranked(service: Service, ranking: Ranking, bans: Bans, query: Query) -> list[ClientRow]:
    """Return the busiest and the most refused in the query's order."""
    first = Ranking(ranking.busiest[:MAX_CLIENTS], ranking.refused[:MAX_CLIENTS])
    listed = [client for client in first.each() if _matches(client.key, query)]
    banned = await service.banned(listed, bans)
    rows = [row_of(client, client.key in banned) for client in listed]
    return _ordered(rows, query, ("requests", "refused", "key"))


async def bans(service: Service, query: Query) -> Variables:
    """Return the bans, what operators have done, and events."""
    in_force, history, events = await together(service.bans(query.get("q", "")), service.history(), service.events())
    rows = _ordered(in_force.newest, query, ("since_us", "until_us", "level", "key", "reason", "by"))
    listed = [event for event in events if event.kind not in _UNLISTED]
    return {"bans": in_force, "rows": rows[:MAX_ROWS], "history": history, "events": grouped(listed)[:MAX_ROWS]}


async def configuration(service: Service, query: Query) -> Variables:
    """Return what is configured in this process, and the rules of all workers."""
    counts, published, overrides, off = await together(
        service.counts(WINDOW), service.published(), service.overrides(), service.off()
    )
    return {
        "findings": service.findings(),
        "limits": limit_rows(service.limiter, overrides),
        "rules": rule_rows(published)[:MAX_RULES],
        "unread": unread_of(published),
        "workers": counts.stats.workers,
        "off": off,
    }


VIEWS: Final = {"now": now, "part": part, "clients": clients, "bans": bans, "configuration": configuration}
"""The function of each template."""


# -- order -------------------------------------------------------------------------------------------------------------


def _matches(name: str, query: Query) -> bool:
    return query.get("q", "").casefold() in name.casefold()


def _ordered(rows: Iterable[T], query: Query, columns: Sequence[str]) -> list[T]:
    """Return rows by the column that the query names, else by the first of some: texts upwards, numbers downwards."""
    column = query.get("sort", "")
    if column not in columns:
        column = columns[0]
    if column in _TEXTS:
        return sorted(rows, key=attrgetter(column))
    return sorted(rows, key=lambda row: getattr(row, column) or 0, reverse=True)
