"""What each view shows: it fills a dictionary step by step, so that without a store a part of it is shown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ... import MemoryStore, __version__
from ...core import Limit, compiled
from ..look import WINDOW, kinds_of
from ..statistics import EVERY_S, Ranking
from . import charts, configuration, tables
from .amounts import demand_of, other_amounts
from .cells import Act, Table
from .marks import marks_of
from .service import Service, text_of
from .snapshots import MAX_PARTS, WINDOWS, fullness, requests_of
from .tables import Query, Rows
from .texts import address, rate

MAX_REFUSED: Final = 6
"""How many clients the first view shows."""
MAX_ROWS: Final = 50
"""How many clients of a rule or a route are shown."""
NO_EVENTS: Final = ("refused", "shadow_refused")
"""The events that are not listed: clients cause as many as they like."""
_EVERYONE: Final = "everyone"
_OF_CLIENTS: Final = ("", "address", _EVERYONE)
"""The kinds of keys of rules whose requests are counted by client; all others are counted by key."""

Shown = dict[str, Any]


class Views:
    """Fills the views.

    Args:
        service: Reads the limiter.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._snapshots = service.snapshots
        self._limiter = service.limiter
        # The charts of a snapshot take a millisecond, which its viewers share.
        self._drawn: dict[tuple[str, str, str], tuple[Any, list[charts.Chart]]] = {}

    # -- now: the sentence, the traffic, its rules and routes; or one of these by itself -------------------------------

    async def now(self, shown: Shown, query: Query) -> None:
        """Fill the first view; with `rule` or `route` in the query, that of one rule or route."""
        window, rule, route = query.get("window", WINDOW), query.get("rule", ""), query.get("route", "")
        shown.update(stats=None, drawn=[], window=window, rule=rule, route=route, statement=None, unknown="")
        shown.update(clients=None, tables=[], limits=self._limits_of_rules().get(rule, ""))
        shown["choices"] = [(one, address("", query, window=one), one == window) for one in WINDOWS]
        if not rule and not route:
            shown["statement"] = await self._snapshots.statement.get()
        stats = await self._snapshots.statistics(window, rule, route)
        shown.update(stats=stats, drawn=await self._charts((window, rule, route), stats))
        if rule or route:
            await self._part(shown, rule, route)
            return
        first = _first((await self._snapshots.clients.get())["clients"])
        shown["clients"] = tables.first_clients(first, self._unseen())
        shown["tables"].append(tables.rules(ordered(self._rules(stats, query), query, "name"), query))
        if query.get("only") != "shadow":
            shown["tables"].append(tables.routes(ordered(_routes(stats, query), query, "name"), query))

    def _unseen(self) -> str:
        """Return what the nearest limits of clients do not include."""
        if all(one.changeable for one in self._limiter.limits()):
            return ""
        return "; limits of functions are not looked at"

    async def _charts(self, name: tuple[str, str, str], stats: dict[str, Any]) -> list[charts.Chart]:
        drawn = self._drawn.get(name)
        if drawn is None or drawn[0] is not stats:
            marks = marks_of(await self._snapshots.events.get(), await self._snapshots.history.get())
            if len(self._drawn) > MAX_PARTS:
                self._drawn.clear()
            drawn = self._drawn[name] = stats, [charts.requests(stats, rate, marks), charts.times(stats, rate, marks)]
        return drawn[1]

    def _rules(self, stats: Mapping[str, Any], query: Query) -> list[dict[str, Any]]:
        """Return the rules that have counted, and all shadow rules; with ``only=shadow`` these alone."""
        shadows, limits = self._shadow_rules(), self._limits_of_rules()
        found = []
        for name in sorted({*stats["rules"], *shadows}):
            one = stats["rules"].get(name) or dict.fromkeys(stats["total"], 0)
            is_shadow = name in shadows or one["shadow_refused"] > 0
            if query.get("only") == "shadow" and not is_shadow:
                continue
            if query.get("q", "").casefold() not in name.casefold():
                continue
            requests = requests_of(one)
            row = {"name": name, "limits": limits.get(name, ""), "is_shadow": is_shadow}
            row |= {"requests": requests, "share": one["refused"] / max(requests, 1)}
            found.append({**one, **row, "per_s": requests / seen_s(stats)})
        return found

    def _shadow_rules(self) -> set[str]:
        return {one.rule for one in self._limiter.limits() if one.shadow}

    def _limits_of_rules(self) -> dict[str, str]:
        """Return the limits in force, in words, by the label of their rule."""
        found: dict[str, list[str]] = {}
        for one in self._limiter.limits():
            found.setdefault(one.rule, []).append(text_of(one))
        return {rule: "; ".join(texts) for rule, texts in found.items()}

    async def _part(self, shown: Shown, rule: str, route: str) -> None:
        """Fill in the clients of a rule or a route; of a rule, also its other amounts, and whom its shadow refuses."""
        recent = await self._snapshots.recent.get()
        ranking, minutes = recent.clients, self._snapshots.client_minutes
        if rule:
            published = await self._snapshots.published.get()
            kind = kinds_of(published).get(rule, "")
            if kind not in _OF_CLIENTS:
                ranking, minutes = recent.keys, self._snapshots.key_minutes
            shown["unknown"] = self._why_unknown(published, kind, rule)
            if not shown["unknown"]:
                shown["tables"] += self._amounts(demand_of(await minutes.get(), rule), rule)
        shown["tables"].append(tables.clients_of(_of_part(ranking, rule, route), of_rule=bool(rule)))
        if rule:
            shown["tables"] += await self._shadowed(rule)

    def _why_unknown(self, published: Iterable[Any], kind: str, rule: str) -> str:
        """Return why it is not known what other amounts of a rule would have refused; empty if it is known."""
        if kind == _EVERYONE:
            return "all clients together are counted"
        if not _cost_one(published, rule):
            return "its requests cost more than one unit"
        if rule in self._shadow_rules():
            return "what a shadow rule counts is not kept by client"
        if not self._limits_with_amount(rule):
            return "no limit of this rule has an amount that this process knows"
        return ""

    def _limits_with_amount(self, rule: str) -> list[Limit]:
        """Return the limits of a rule; no quotas, no permits, and none of functions."""
        found = []
        for one in self._limiter.limits():
            if one.rule == rule and one.changeable and isinstance(one.limit, Limit):
                found.append(one.limit)
        return found

    def _amounts(self, demand: Mapping[str, Sequence[int]], rule: str) -> list[Table]:
        """Return for each limit of a rule what other amounts would have refused."""
        found = []
        for limit in self._limits_with_amount(rule):
            found.append(tables.amounts(str(limit), other_amounts(demand, limit.amount, limit.window_us)))
        return found

    async def _shadowed(self, rule: str) -> list[Table]:
        """Return whom a rule would have refused in shadow, if the latest events have anybody."""
        keys = Counter[str]()
        for event in await self._snapshots.events.get():
            if event["kind"] == "shadow_refused" and event["details"]["rule"] == rule:
                keys[event["details"]["key"]] += 1
        if not keys:
            return []
        return [tables.shadowed(keys.most_common(MAX_ROWS))]

    # -- the other views -----------------------------------------------------------------------------------------------

    async def clients(self, shown: Shown, query: Query) -> None:
        """Fill the view of clients; with `key` in the query, that of one client as well."""
        shown.update(client=None, refusals=None, tables=[])
        if query.get("key"):
            shown["client"] = await self._service.read_client(query["key"])
            shown["refusals"] = tables.refusals(shown["client"]["refusals"])
            if shown["client"]["ban"]:
                shown["unban"] = Act("unban", "Unban", "key", shown["client"]["ban"]["key"])
        found = await self._snapshots.clients.get()
        nobody = "No such client was seen in the last five minutes."
        shown["tables"].append(
            tables.clients("Clients", "Client", _kept(found["clients"], query), nobody, self._unseen())
        )
        if found["keys"]:
            kept = _kept(found["keys"], query)
            shown["tables"].append(tables.clients("Other keys", "Key", kept, "No such key was seen.", self._unseen()))

    async def bans(self, shown: Shown, query: Query) -> None:
        """Fill the view of bans, changes and events."""
        shown.update(tables=[])
        text = query.get("q", "")
        found = await self._service.read_bans(text)
        rows = ordered(found["bans"], query, "since_at")
        shown["tables"].append(tables.bans(rows, text, found["matching"], found["total"]))
        shown["tables"].append(tables.history(await self._snapshots.history.get()))
        events = await self._snapshots.events.get()
        shown["tables"].append(tables.events([one for one in events if one["kind"] not in NO_EVENTS]))

    async def configuration(self, shown: Shown, query: Query) -> None:
        """Fill the view of what is configured."""
        limiter = self._limiter
        shown.update(
            version=__version__,
            python=platform.python_version(),
            store=type(limiter.store).__name__.removesuffix("Store"),
            is_shared=not isinstance(limiter.store, MemoryStore),
            limiter=limiter,
            off=None,
            switch_on=Act("restore", "Switch on", "name", "*"),
            findings=[finding for middleware in limiter.middlewares for finding in middleware.findings],
            tables=[],
        )
        if compiled:
            shown["version"] += ", compiled"
        names = [f"Middleware {number}" for number in range(1, len(limiter.middlewares) + 1)]
        own = configuration.middleware_tables(zip(names, limiter.middlewares, strict=True))
        # What needs no store, in case that it does not answer.
        shown["tables"] = [configuration.limits(self._service.limits([])), *own]
        found = await self._service.read_limits()
        shown["off"] = found["off"]
        published = configuration.published(await self._service.read_rules())
        workers = (await self._service.read_statistics())["workers"]
        shown["tables"] = [configuration.limits(found["limits"]), published, *own, configuration.workers(workers)]


def seen_s(stats: Mapping[str, Any]) -> float:
    """Return the time for rates: that in which workers counted, of the window."""
    return max(float(stats["seen_s"]), EVERY_S)


def _routes(stats: Mapping[str, Any], query: Query) -> list[dict[str, Any]]:
    found = []
    for name, one in stats["routes"].items():
        if query.get("q", "").casefold() in name.casefold():
            found.append({**one, "name": name, "requests": requests_of(one), "per_s": one["passed"] / seen_s(stats)})
    return found


def _cost_one(published: Iterable[Any], rule: str) -> bool:
    """Return whether each request costs one unit of a rule, as workers have published it."""
    for one in published:
        for other in one.text.rules:
            if other.rule == rule and (other.cost_by_function or other.cost != 1):
                return False
    return True


def _of_part(ranking: Ranking, rule: str, route: str) -> list[dict[str, Any]]:
    """Return the clients of a rule or a route, those first that it refuses most."""
    rows: dict[str, dict[str, Any]] = {}
    for one in [*ranking.busiest, *ranking.refused]:
        passed, refused = one.counted_by.get(rule, 0), one.refused_by.get(rule, 0)
        if route:
            passed, refused = one.routes.get(route, 0), 0
        if passed or refused:
            rows[one.key] = {"key": one.key, "passed": passed, "refused": refused}
    return sorted(rows.values(), key=lambda row: (-row["refused"], -row["passed"], row["key"]))[:MAX_ROWS]


def _kept(clients: Rows, query: Query) -> list[Mapping[str, Any]]:
    """Return the clients that the query asks for, in its order; sorted by refusals, those that were refused alone."""
    wanted, found = query.get("q", "").casefold(), []
    for one in clients:
        if wanted in one["key"].casefold() and (one["refused"] or query.get("sort") != "refused"):
            found.append(one)
    return ordered(found, query, "requests")


def _first(clients: Rows) -> list[Mapping[str, Any]]:
    """Return the clients that matter first: those that are refused, then those that are nearest to a limit."""

    def place(one: Mapping[str, Any]) -> tuple[float, float, str]:
        spent = 0.0
        if one["nearest"]:
            spent = fullness(one["nearest"])
        return -one["refused"], -spent, one["key"]

    matter = [one for one in clients if one["refused"] or one["nearest"]]
    return sorted(matter, key=place)[:MAX_REFUSED]


def ordered(rows: Rows, query: Query, by: str) -> list[Mapping[str, Any]]:
    """Return rows sorted by a column of the query, if they have it: texts upwards, numbers downwards."""
    column = query.get("sort", by)
    if not rows or column not in rows[0]:
        column = by
    texts = [row for row in rows if isinstance(row[column], str)]
    numbers = [row for row in rows if isinstance(row[column], int | float)]
    others = [row for row in rows if not isinstance(row[column], str | int | float)]
    numbers.sort(key=lambda row: -row[column])
    texts.sort(key=lambda row: row[column].casefold())
    return [*numbers, *texts, *others]
