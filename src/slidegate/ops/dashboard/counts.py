"""Which rules, routes and clients the tables of counts list, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..look import limits_by_rule
from ..statistics import EVERY_S, Ranking
from .snapshots import fullness, requests_of

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Query: TypeAlias = Mapping[str, str]
MAX_FIRST: Final = 6
"""How many clients the first view shows."""
MAX_ROWS: Final = 50
"""How many clients of a rule or a route are shown."""


def rate_s(stats: Mapping[str, Any]) -> float:
    """Return the time that rates are of: how long workers have counted in the window."""
    return max(float(stats["seen_s"]), EVERY_S)


# -- rules and routes --------------------------------------------------------------------------------------------------


def shadow_rules(limits: Iterable[Any]) -> set[str]:
    """Return the labels of the rules that report only."""
    return {one.rule for one in limits if one.shadow}


def rules(stats: Mapping[str, Any], query: Query, limits: Sequence[Any]) -> Rows:
    """Return the rules that have counted, and all shadow rules; with ``only=shadow`` these alone."""
    shadows = shadow_rules(limits)
    texts = limits_by_rule(limits)
    nothing = dict.fromkeys(stats["total"], 0)
    rows = []
    for name in sorted({*stats["rules"], *shadows}):
        counts = stats["rules"].get(name, nothing)
        is_shadow = name in shadows or counts["shadow_refused"] > 0
        if query.get("only") == "shadow" and not is_shadow:
            continue
        if not _is_sought(name, query):
            continue
        requests = requests_of(counts)
        row = {
            **counts,
            "name": name,
            "limits": texts.get(name, ""),
            "is_shadow": is_shadow,
            "requests": requests,
            "share": counts["refused"] / max(requests, 1),
            "per_s": requests / rate_s(stats),
        }
        rows.append(row)
    return ordered(rows, query, "name")


def routes(stats: Mapping[str, Any], query: Query) -> Rows:
    """Return the routes that requests have reached."""
    rows = []
    for name, counts in stats["routes"].items():
        if _is_sought(name, query):
            rows.append({**counts, "name": name, "per_s": counts["passed"] / rate_s(stats)})
    return ordered(rows, query, "name")


def _is_sought(name: str, query: Query) -> bool:
    return query.get("q", "").casefold() in name.casefold()


# -- clients -----------------------------------------------------------------------------------------------------------


def first_clients(clients: Rows) -> Rows:
    """Return the clients that matter first: those that are refused, then those that are nearest to a limit."""
    matter = [one for one in clients if one["refused"] or one["nearest"]]
    return sorted(matter, key=_urgency)[:MAX_FIRST]


def _urgency(client: Mapping[str, Any]) -> tuple[float, float, str]:
    spent = 0.0
    if client["nearest"]:
        spent = fullness(client["nearest"])
    return -client["refused"], -spent, client["key"]


def clients(found: Rows, query: Query) -> Rows:
    """Return the clients that the query asks for, in its order; sorted by refusals, those that were refused alone."""
    rows = []
    for one in found:
        if query.get("sort") == "refused" and not one["refused"]:
            continue
        if _is_sought(one["key"], query):
            rows.append(one)
    return ordered(rows, query, "requests")


def clients_of_rule(ranking: Ranking, rule: str) -> Rows:
    """Return the clients of a rule, those first that it refuses most."""
    rows: list[dict[str, Any]] = []
    for one in ranking.each():
        row = {"key": one.key, "passed": one.counted_by.get(rule, 0), "refused": one.refused_by.get(rule, 0)}
        if row["passed"] or row["refused"]:
            rows.append(row)
    return sorted(rows, key=lambda row: (-row["refused"], -row["passed"], row["key"]))[:MAX_ROWS]


def clients_of_route(ranking: Ranking, route: str) -> Rows:
    """Return the clients of a route, the busiest first; most refusals come before a route is found."""
    rows: list[dict[str, Any]] = []
    for one in ranking.each():
        passed = one.routes.get(route, 0)
        if passed:
            rows.append({"key": one.key, "passed": passed})
    return sorted(rows, key=lambda row: (-row["passed"], row["key"]))[:MAX_ROWS]


# -- order -------------------------------------------------------------------------------------------------------------


def ordered(rows: Rows, query: Query, by: str) -> Rows:
    """Return rows sorted by the column that the query names, if they have it, else by another one."""
    column = query.get("sort", by)
    if rows and column not in rows[0]:
        column = by
    return sorted(rows, key=lambda row: _sort_key(row[column]))


def _sort_key(value: object) -> tuple[int, float, str]:
    """Return by what a value is sorted: numbers come first, downwards, then texts, upwards, then what has no value."""
    if isinstance(value, int | float):
        return 0, -value, ""
    if isinstance(value, str):
        return 1, 0, value.casefold()
    return 2, 0, ""
