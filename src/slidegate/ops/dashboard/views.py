"""What the views show: one function a view, which returns the variables of its template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from ...limiter import Action
from ..published_rules import limit_rows, rule_rows
from ..slices import CLIENTS, KEYS
from ..statistics import LoggedEvent, Ranking
from ..tasks import together
from .counts import curve_of, marks_of
from .line import ClientRow
from .service import WINDOW, Client, Service
from .texts import grouped

MAX_CLIENTS: Final = 24
"""How many of the busiest clients, and of the most refused ones, are listed."""
MAX_ROWS: Final = 50
"""How many rows other tables have."""
MAX_RULES: Final = 200
MANY: Final = 10
"""From so many of a kind on, what happened is in one row."""
_UNLISTED: Final = (
    "refused",
    "shadow_refused",
    "unbanned",
    "limit_overridden",
    "limit_restored",
    "switched_off",
    "switched_on",
)
"""The events that are not listed: of refusals clients cause as many as they like, and what operators do, as bans of
level 0, the history has with its author."""

Query: TypeAlias = Mapping[str, str]
Variables: TypeAlias = dict[str, Any]


async def now(service: Service, query: Query) -> Variables:
    """Return who was refused in the last five minutes, and what was counted by rules and routes."""
    line, traffic = await together(service.line(), _traffic(service, query))
    return {**traffic, "line": line}


async def _traffic(service: Service, query: Query, rule: str = "", route: str = "") -> Variables:
    """Return what was counted in the window that the query names, and the curve of it."""
    window = query.get("window") or WINDOW
    counts, bans, events = await together(service.counts(window, rule, route), service.bans(), service.events())
    return {"counts": counts, "curve": curve_of(counts, marks_of(bans.newest, counts.with_starts(events)))}


async def part(service: Service, query: Query) -> Variables:
    """Return what was counted of the rule or route that the query names, and its clients."""
    rule = query.get("rule", "")
    route = query.get("route", "")
    traffic, clients, keys = await together(
        _traffic(service, query, rule, route), service.ranking(CLIENTS), service.ranking(KEYS)
    )
    members = {"Client": _members(clients, rule, route), "Key": _members(keys, rule, "")}
    shadowed = []
    if traffic["counts"].stats.total.shadow_refused:
        shadowed = _shadowed(await service.events(), rule)
    return {**traffic, "members": members, "shadowed": shadowed}


def _members(ranking: Ranking, rule: str, route: str) -> list[tuple[int, int, str]]:
    """Return the refused and the admitted requests of clients of a rule or a route, and the key of each."""
    members = []
    for client in ranking.each():
        refused = client.refused_by.get(rule, 0)
        # On the page of a route the rule is empty, and nothing is counted by that.
        passed = client.counted_by.get(rule, client.routes.get(route, 0))
        if passed or refused:
            members.append((refused, passed, client.key))
    return sorted(members, reverse=True)[:MAX_ROWS]


def _shadowed(events: Iterable[LoggedEvent], rule: str) -> list[tuple[str, int]]:
    """Return the keys that a rule in shadow would have refused, and how often, among the latest events."""
    return Counter(
        event.details["key"] for event in events if event.kind == "shadow_refused" and event.details["rule"] == rule
    ).most_common(MAX_ROWS)


async def clients(service: Service, query: Query) -> Variables:
    """Return the clients, other keys and networks of the last five minutes, and the one that the query names."""
    ranking, keys, networks, client = await together(
        service.ranking(CLIENTS), service.ranking(KEYS), service.networks(), _client(service, query)
    )
    return {
        "client": client,
        "clients": await _ranked(service, ranking),
        "others": await _ranked(service, keys),
        "networks": networks,
    }


async def _client(service: Service, query: Query) -> Client | None:
    if query.get("key"):
        return await service.client(query["key"])
    return None


async def _ranked(service: Service, ranking: Ranking) -> list[ClientRow]:
    """Return the rows of the most refused and of the busiest, the most refused first."""
    return await service.rows(Ranking(ranking.busiest[:MAX_CLIENTS], ranking.refused[:MAX_CLIENTS]).each())


async def bans(service: Service, query: Query) -> Variables:
    """Return the bans, and what happened."""
    in_force, history, events, counts = await together(
        service.bans(), service.history(), service.events(), service.counts(WINDOW)
    )
    return {
        "bans": in_force.all,
        "newest": in_force.newest[:MAX_ROWS],
        "happened": _happened(history, counts.with_starts(events)),
    }


def _happened(history: Iterable[Action], events: Iterable[LoggedEvent]) -> list[list[LoggedEvent]]:
    """Return what operators have done and what workers report, in groups, the newest first."""
    logged = []
    for action in history:
        logged.append(LoggedEvent(f"{action.kind} by hand", str(action), action.at_us, action._asdict(), action.by))
    for event in events:
        if event.kind not in _UNLISTED and event.details.get("ban_level") != "0":
            logged.append(event)
    return sorted(grouped(logged, MANY), key=lambda alike: alike[-1].time_us, reverse=True)


async def configuration(service: Service, query: Query) -> Variables:
    """Return what is configured in this process, and the rules of all workers."""
    counts, published, changes = await together(service.counts(WINDOW), service.published(), service.overrides())
    return {
        "findings": [finding for middleware in service.limiter.middlewares for finding in middleware.findings],
        "limits": limit_rows(service.limiter.limits()),
        "changes": changes,
        "rules": rule_rows(published)[:MAX_RULES],
        "published": published,
        "workers": counts.stats.workers,
    }


VIEWS: Final = {"now": now, "part": part, "clients": clients, "bans": bans, "configuration": configuration}
"""The function of each template."""
