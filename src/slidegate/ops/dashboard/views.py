"""What each view shows: it fills a dictionary step by step, so that without a store a part of it is shown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ... import MemoryStore, __version__
from ...core import compiled
from ...limiter import Publication
from ..kinds import ADDRESS, EVERYONE
from ..look import WINDOW, kinds_of, limits_by_rule
from . import amounts, charts, counts
from .counts import MAX_ROWS, Query, shadow_rules
from .marks import marks_of
from .service import Service
from .snapshots import MAX_PARTS, WINDOWS
from .texts import address, grouped, rate

MAX_REFUSALS: Final = 20
NO_EVENTS: Final = ("refused", "shadow_refused")
"""The events that are not listed: clients cause as many as they like."""
_OF_CLIENTS: Final = ("", ADDRESS, EVERYONE)
"""The kinds of keys of rules whose requests are counted by client; all others are counted by key."""

Shown: TypeAlias = dict[str, Any]


class _Drawn(NamedTuple):
    """The charts of a snapshot, which its viewers share: they take a millisecond.

    Attributes:
        stats: The snapshot.
        charts: Its charts.
    """

    stats: Mapping[str, Any]
    charts: list[charts.Chart]


class Views:
    """Fills the views.

    Args:
        service: Reads the limiter.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._snapshots = service.snapshots
        self._limiter = service.limiter
        self._drawn: dict[tuple[str, str, str], _Drawn] = {}

    # -- now: the sentence, the traffic, its rules and routes; or one of these by itself -------------------------------

    async def now(self, shown: Shown, query: Query) -> None:
        """Fill the first view; with `rule` or `route` in the query, that of one rule or route."""
        window, rule, route = query.get("window", WINDOW), query.get("rule", ""), query.get("route", "")
        shown |= {
            "rule": rule,
            "route": route,
            "limits": limits_by_rule(self._limiter.limits()).get(rule, ""),
            "choices": [(one, address("", query, window=one), one == window) for one in WINDOWS],
            "unseen": self._unseen(),
            "drawn": [],
            "amounts": [],
            "unknown": "",
            **dict.fromkeys(("statement", "stats", "clients", "rules", "routes", "who", "members", "shadowed")),
        }
        is_all = not rule and not route
        if is_all:
            shown["statement"] = await self._snapshots.statement.get()
        stats = await self._snapshots.statistics(window, rule, route)
        shown["stats"] = stats
        shown["drawn"] = await self._charts((window, rule, route), stats)
        if is_all:
            found = await self._snapshots.clients.get()
            shown["clients"] = counts.first_clients(found["clients"])
            shown["rules"] = counts.rules(stats, query, self._limiter.limits())
            if query.get("only") != "shadow":
                shown["routes"] = counts.routes(stats, query)
        elif rule:
            await self._fill_rule(shown, rule)
        else:
            recent = await self._snapshots.recent.get()
            shown |= {"who": "Client", "members": counts.clients_of_route(recent.clients, route)}

    async def _charts(self, name: tuple[str, str, str], stats: Mapping[str, Any]) -> list[charts.Chart]:
        drawn = self._drawn.get(name)
        if drawn is not None and drawn.stats is stats:
            return drawn.charts
        marks = marks_of(await self._snapshots.events.get(), await self._snapshots.history.get())
        if len(self._drawn) > MAX_PARTS:
            self._drawn.clear()
        made = [charts.requests(stats, rate, marks), charts.times(stats, rate, marks)]
        self._drawn[name] = _Drawn(stats, made)
        return made

    def _unseen(self) -> str:
        """Return what the nearest limits of clients do not include."""
        if all(one.changeable for one in self._limiter.limits()):
            return ""
        return "; limits of functions are not looked at"

    async def _fill_rule(self, shown: Shown, rule: str) -> None:
        """Fill in what other amounts of a rule would have refused, its clients, and whom its shadow refuses."""
        recent = await self._snapshots.recent.get()
        published = await self._snapshots.published.get()
        kind = kinds_of(published).get(rule, "")
        ranking, minutes, head = recent.clients, self._snapshots.client_minutes, "Client"
        if kind not in _OF_CLIENTS:
            ranking, minutes, head = recent.keys, self._snapshots.key_minutes, "Key"
        shown["unknown"] = self._why_unknown(published, kind, rule)
        if not shown["unknown"]:
            demand = amounts.demand_of(await minutes.get(), rule)
            for limit in amounts.limits_with_amount(self._limiter.limits(), rule):
                other = amounts.other_amounts(demand, limit.amount, limit.window_us)
                shown["amounts"].append((str(limit), other))
        shown |= {"who": head, "members": counts.clients_of_rule(ranking, rule)}
        shown["shadowed"] = await self._shadowed(rule)

    def _why_unknown(self, published: Sequence[Publication], kind: str, rule: str) -> str:
        """Return why it is not known what other amounts of a rule would have refused; empty if it is known."""
        limits = self._limiter.limits()
        if kind == EVERYONE:
            return "all clients together are counted"
        if not amounts.costs_one(published, rule):
            return "its requests cost more than one unit"
        if rule in shadow_rules(limits):
            return "what a shadow rule counts is not kept by client"
        if not amounts.limits_with_amount(limits, rule):
            return "no limit of this rule has an amount that this process knows"
        return ""

    async def _shadowed(self, rule: str) -> list[tuple[str, int]]:
        """Return whom a rule would have refused in shadow, as far as the latest events have anybody."""
        keys = Counter[str]()
        for event in await self._snapshots.events.get():
            if event["kind"] == "shadow_refused" and event["details"]["rule"] == rule:
                keys[event["details"]["key"]] += 1
        return keys.most_common(MAX_ROWS)

    # -- the other views -----------------------------------------------------------------------------------------------

    async def clients(self, shown: Shown, query: Query) -> None:
        """Fill the view of clients; with `key` in the query, that of one client as well."""
        shown |= {"unseen": self._unseen(), **dict.fromkeys(("client", "refusals", "clients", "keys", "has_keys"))}
        if query.get("key"):
            client = await self._service.read_client(query["key"])
            shown |= {"client": client, "refusals": grouped(client["refusals"])[:MAX_REFUSALS]}
        found = await self._snapshots.clients.get()
        shown["clients"], shown["keys"] = [counts.clients(found[kind], query) for kind in ("clients", "keys")]
        shown["has_keys"] = bool(found["keys"])

    async def bans(self, shown: Shown, query: Query) -> None:
        """Fill the view of bans, changes and events."""
        shown |= dict.fromkeys(("bans", "rows", "history", "events"))
        found = shown["bans"] = await self._service.read_bans(query.get("q", ""))
        shown["rows"] = counts.ordered(found["bans"], query, "since_at")[:MAX_ROWS]
        shown["history"] = await self._snapshots.history.get()
        events = await self._snapshots.events.get()
        shown["events"] = grouped([one for one in events if one["kind"] not in NO_EVENTS])[:MAX_ROWS]

    async def configuration(self, shown: Shown, query: Query) -> None:
        """Fill the view of what is configured."""
        limiter = self._limiter
        version = __version__
        if compiled:
            version += ", compiled"
        shown |= {
            "version": version,
            "python": platform.python_version(),
            "store": type(limiter.store).__name__.removesuffix("Store"),
            "is_shared": not isinstance(limiter.store, MemoryStore),
            "limiter": limiter,
            "off": None,
            "findings": [finding for middleware in limiter.middlewares for finding in middleware.findings],
            # What needs no store, in case that it does not answer.
            "limits": self._service.limits([]),
            "published": None,
            "workers": None,
        }
        found = await self._service.read_limits()
        shown |= {"off": found["off"], "limits": found["limits"], "published": await self._service.read_rules()}
        shown["workers"] = (await self._service.read_statistics())["workers"]
