"""The tables of the page: each is made of dictionaries that the service returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from markupsafe import Markup

from ..rows import EVERYWHERE
from . import cells
from .amounts import Amount
from .cells import Act, Head, Row, Table, text_or_nothing
from .charts import NOTHING
from .texts import count, grouped, moment, ms, plain, rate, share, timed

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Query: TypeAlias = Mapping[str, str]
FIVE_MINUTES: Final = "last five minutes"
MOST: Final = 50
MAX_RULES: Final = 200
MAX_REFUSALS: Final = 20
_LIFTED: Final = "it is lifted"


# -- clients -----------------------------------------------------------------------------------------------------------


def first_clients(found: Rows, unseen: str) -> Table:
    """Return the clients that matter first."""
    table = clients("Refused most, or nearest to a limit", "Client", found, "", unseen)
    return table._replace(heads=[head._replace(by="") for head in table.heads])  # they have an order


def clients(caption: str, who: str, found: Rows, empty: str, unseen: str) -> Table:
    """Return the clients, or keys of other kinds, with their nearest limits."""
    heads = [
        Head(who, by="key"),
        Head("Limit", "long"),
        Head("Spent", "wide"),
        Head("Requests", "n wide", "requests"),
        Head("Refused", "n", "refused"),
    ]
    rows = []
    for one in found:
        name = cells.client(one["key"])
        if one["is_banned"]:
            name = cells.badge(name, "Banned", is_hot=True)
        limit, spent = _nearest(one)
        rows.append(Row([name, limit, spent, count(one["requests"]), cells.refused(one["refused"])], one["key"]))
    return Table(caption, heads, rows, empty, FIVE_MINUTES + unseen)


def _nearest(client: Mapping[str, Any]) -> tuple[cells.Value, cells.Value]:
    """Return the limit that is nearest to a client, and what is spent of it; else what has refused the client."""
    nearest = client["nearest"]
    if nearest is not None:
        limit = cells.small(plain(nearest["rule"], 40), nearest["limit"])
        return limit, cells.gauge(nearest["used"], nearest["amount"])
    if client["rule"]:
        return cells.small(plain(client["rule"], 40), client["limits"], 40), NOTHING
    if client["blocked"]:  # by networks that are written in code, which have no name
        return "a list", NOTHING
    return NOTHING, NOTHING


def refusals(events: Sequence[dict[str, Any]]) -> Table:
    """Return the latest refusals of one client."""
    heads = [Head("When"), Head("Reason", "word"), Head("By", "long"), Head("Status", "n wide"), Head("Times", "n")]
    rows = []
    for one in grouped(events)[:MAX_REFUSALS]:
        details = one["details"]
        by = text_or_nothing(details["rule"] or details["by"], 64)
        if details["reason"] == "banned":
            by = f"ban of {by}"
        reason, status = plain(details["reason"], 40), plain(details["status"], 6)
        rows.append(Row([moment(one["at"]), reason, by, status, count(one["times"])]))
    return Table("Latest refusals", heads, rows, "No recent refusal of this client is recorded.")


# -- traffic -----------------------------------------------------------------------------------------------------------


def rules(found: Rows, query: Query) -> Table:
    """Return the counts of rules."""
    of_limits, of_shadow = "n", "n wide"
    if query.get("only") == "shadow":  # these refuse nobody
        of_limits, of_shadow = "n wide", "n"
    heads = [
        Head("Rule", by="name"),
        Head("Passed", of_limits, "passed"),
        Head("Limited", of_limits, "limited"),
        Head("Refused", of_limits, "share"),
        Head("In shadow", of_shadow, "shadow_refused"),
        Head("Per second", "n wide", "per_s"),
        Head("p95", "n wide", "p95_ms"),
    ]
    rows = []
    for one in found:
        name = cells.small(cells.part("rule", one["name"], query), one["limits"], 60)
        if one["is_shadow"]:
            name = cells.badge(name, "Shadow")
        rows.append(Row([name, *_counts_of_rule(one)], one["name"]))
    empty = "No rule has counted a request in this window."
    if query.get("only"):
        empty = "There is no such rule. Write shadow=True at a Rule to try its limits: it refuses nobody."
    return Table("Rules", heads, rows, empty)


def _counts_of_rule(rule: Mapping[str, Any]) -> list[cells.Value]:
    """Return the counts of a rule; one in shadow alone has no requests, which others have counted."""
    shadow: cells.Value = NOTHING
    if rule["is_shadow"]:
        shadow = cells.refused(rule["shadow_refused"])
    if not rule["requests"]:
        return [NOTHING, NOTHING, NOTHING, shadow, NOTHING, NOTHING]
    return [
        count(rule["passed"]),
        cells.refused(rule["limited"]),
        share(rule["refused"], rule["requests"]),
        shadow,
        rate(rule["per_s"]),
        ms(rule["p95_ms"]),
    ]


def routes(found: Rows, query: Query) -> Table:
    """Return the counts of routes."""
    heads = [
        Head("Route", by="name"),
        Head("Passed", "n", "passed"),
        Head("Refused", "n wide", "refused"),
        Head("Exceptions", "n wide", "exceptions"),
        Head("Per second", "n wide", "per_s"),
        Head("Median", "n wide", "p50_ms"),
        Head("p95", "n", "p95_ms"),
    ]
    rows = []
    for one in found:
        counts = [count(one["passed"]), cells.refused(one["refused"]), cells.refused(one["exceptions"])]
        times = [rate(one["per_s"]), ms(one["p50_ms"]), ms(one["p95_ms"])]
        rows.append(Row([cells.part("route", one["name"], query), *counts, *times], one["name"]))
    note = "most refusals come before a route is found: see the rules"
    return Table("Routes", heads, rows, "No request has reached a route in this window.", note)


_NO_CLIENTS: Final = f"No client of it is among the busiest or the most refused of the {FIVE_MINUTES}."
_OF_RANKING: Final = f"the busiest and the most refused of the {FIVE_MINUTES}"


def clients_of_rule(head: str, found: Rows) -> Table:
    """Return the clients of a rule, or its keys of another kind."""
    heads = [Head(head), Head("Passed", "n"), Head("Refused", "n")]
    rows = []
    for one in found:
        texts = [cells.client(one["key"]), count(one["passed"]), cells.refused(one["refused"])]
        rows.append(Row(texts, one["key"]))
    return Table(f"{head}s", heads, rows, _NO_CLIENTS, _OF_RANKING)


def clients_of_route(found: Rows) -> Table:
    """Return the clients of a route."""
    heads = [Head("Client"), Head("Passed", "n")]
    rows = [Row([cells.client(one["key"]), count(one["passed"])], one["key"]) for one in found]
    return Table("Clients", heads, rows, _NO_CLIENTS, _OF_RANKING)


def amounts(head: str, limit: str, found: Iterable[Amount]) -> Table:
    """Return what other amounts of a limit would have refused."""
    heads = [Head("Amount"), Head(f"{head}s", "n"), Head("Requests", "n")]
    rows = []
    for one in found:
        name: cells.Value = count(one.amount)
        if one.in_force:
            name = cells.badge(name, "In force")
        rows.append(Row([name, count(one.clients), cells.refused(one.requests)], str(one.amount)))
    note = f"at least, of the requests of the {FIVE_MINUTES}"
    return Table(f"What other amounts of {limit} would have refused", heads, rows, note=note)


def shadowed(head: str, found: Iterable[tuple[str, int]]) -> Table:
    """Return whom a shadow rule would have refused."""
    rows = [Row([cells.client(key), count(number)], key) for key, number in found]
    heads = [Head(head), Head("Recent refusals", "n")]
    return Table("Whom its shadow would have refused", heads, rows, note="among the latest events of all workers")


# -- bans, changes, events ---------------------------------------------------------------------------------------------


def bans(found: Rows, text: str, matching: int, total: int) -> Table:
    """Return the newest bans."""
    heads = [
        Head("Client", by="key"),
        Head("Reason", "long", "reason"),
        Head("By", "", "by"),
        Head("Level", "n", "level"),
        Head("Since", "", "since_at"),
        Head("Until", "", "until_at"),
    ]
    rows = []
    for one in found[:MOST]:
        name = cells.client(one["key"])
        if one["holds"] != EVERYWHERE.holds:
            name = cells.small(name, f"holds {one['holds']}")
        until: cells.Value = _LIFTED
        if one["until_at"]:
            until = moment(one["until_at"])
        values: list[cells.Value] = [
            name,
            text_or_nothing(one["reason"], 256),
            plain(one["by"], 64),
            text_or_nothing(one["level"]),
            moment(one["since_at"]),
            until,
        ]
        rows.append(Row(values, f"{one['key']} {one['level']}", [Act("unban", "Unban", "key", one["key"])]))
    note, empty = count(total), "Nobody is banned."
    if text:
        note, empty = f"{count(matching)} of {count(total)}", "No ban matches."
    if matching > MOST:
        note += f", {MOST} of them"
    return Table("Active bans", heads, rows, empty, note, "stack", acts=True)


def events(found: Sequence[dict[str, Any]]) -> Table:
    """Return the latest events."""
    heads = [Head("When"), Head("Event", "long word"), Head("Message", "long"), Head("Worker", "soft long")]
    rows = []
    for one in grouped(found)[:MOST]:
        worker = plain(one["worker"], 64)
        if one["times"] > 1:
            worker = f"{one['times']} times"
        kind = plain(one["kind"].replace("_", " "), 40)
        rows.append(Row([moment(one["at"]), kind, timed(one["message"]), worker]))
    empty, note = "No event has been recorded yet.", "of all workers, newest first"
    return Table("Events", heads, rows, empty, note, "stack")


def history(actions: Rows) -> Table:
    """Return what operators and commands have done."""
    heads = [Head("When"), Head("What", "long"), Head("Change", "long"), Head("By"), Head("Reason", "long")]
    rows = []
    for one in actions:
        target: cells.Value = plain(one["target"], 64)
        if one["kind"] in ("ban", "unban"):
            target = cells.client(one["target"])
        reason = text_or_nothing(one["reason"], 256)
        rows.append(Row([moment(one["at"]), target, _done(one), plain(one["by"], 64), reason]))
    note = f"the latest {len(actions)}, by pages, commands and code of all workers"
    empty = "Nobody has banned or changed anything in 90 days."
    return Table("By operators", heads, rows, empty, note, "stack")


def _done(action: Mapping[str, Any]) -> cells.Value:
    """Return an action in words."""
    until: cells.Value = f"until {_LIFTED}"
    if action["until_at"] is not None:
        until = Markup("until {}").format(moment(action["until_at"]))
    kind = action["kind"]
    if kind == "ban":
        return Markup("banned {}").format(until)
    if kind == "unban":
        return "unbanned"
    if kind == "override":
        return _changed(action, until)
    if action["target"] == "*":
        return "switched on"
    return "restored"


def _changed(action: Mapping[str, Any], until: cells.Value) -> Markup:
    """Return in words to what a limit was changed, or that all workers were switched off."""
    if action["target"] == "*":
        return Markup("switched off {}").format(until)
    limit = plain(action["limit"], 40)
    return Markup("changed to {} {}").format(limit, until)
