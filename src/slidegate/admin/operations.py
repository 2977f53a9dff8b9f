"""Every operation of the admin API, once: its path, its parameters, its answer, and what it does.

`api` serves this table, and `api_document` writes the OpenAPI document of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..limiter.events import KINDS
from .console import KEY_KINDS, Console
from .parameters import CURSOR, DURATION, KEY, MAX_CURSOR, REASON, TARGET, UNITS, Parameter, Values, page_size, window

Do = Callable[[Console, Values, str], Awaitable[dict[str, Any]]]
"""Answers a request: takes the console, the values of the parameters, and the name of the visitor."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        method: The method.
        path: The path below the mount.
        name: Its name in the document.
        summary: One sentence.
        answer: The name of the schema of its answer.
        do: Answers a request.
        query: The parameters of the query.
        body: The fields of the body; none where there is no body.
        status: The status of an answer.
        reads: Whether it changes nothing, whatever its method is.
        missing: Whether there may be nothing to act on, which is answered with 404.
    """

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    name: str
    summary: str
    answer: str
    do: Do
    query: tuple[Parameter, ...] = ()
    body: tuple[Parameter, ...] = ()
    status: int = 200
    reads: bool = False
    missing: bool = False


def _get(path: str, name: str, summary: str, answer: str, do: Do, *query: Parameter) -> Operation:
    return Operation("GET", path, name, summary, answer, do, query)


OPERATIONS: Final = (
    _get(
        "/stats", "getStats", "Figures of all workers, by rule and by route.", "Stats",
        lambda console, given, _: console.stats(given["window"]),
        window("5m"),
    ),
    _get(
        "/history", "getHistory", "Figures step by step, for charts.", "History",
        lambda console, given, _: console.history(given["window"], given["rule"], given["route"]),
        window("1h"),
        Parameter("rule", "Only the requests of this rule, by its name.", example="api"),
        Parameter("route", "Only the requests of this route, by its name.", example="GET /items/{id}"),
    ),
    _get("/rules", "getRules", "The rules in force, by gate.", "Rules", lambda console, given, _: console.rules()),
    _get(
        "/clients", "getClients", "The busiest clients, and how near they are to their limits.", "Clients",
        lambda console, given, _: console.clients(given["sort"], given["limit"], given["cursor"]),
        Parameter(
            "sort", "What puts a client first.", "choice", default="requests",
            choices=("requests", "refused", "nearness"), example="nearness",
        ),
        page_size(50, 100),
        CURSOR,
    ),
    _get(
        "/client", "getClient", "Everything about one client.", "Client",
        lambda console, given, _: console.client(given["key"]),
        KEY,
    ),
    _get(
        "/refusals", "getRefusals", "The last refusals of all clients, newest first.", "Refusals",
        lambda console, given, _: console.refusals(given["limit"]),
        page_size(100, 500),
    ),
    _get(
        "/shadow", "getShadow", "How many requests shadow rules would have refused.", "Shadow",
        lambda console, given, _: console.shadow(given["window"]),
        window("1h"),
    ),
    _get(
        "/bans", "getBans", "The bans in force, newest first, in pages.", "Bans",
        lambda console, given, _: console.bans(given["cursor"], given["limit"], given["policy"], given["q"]),
        CURSOR,
        page_size(100, 500),
        Parameter("policy", "Only bans that this policy or person made.", example="abuse"),
        Parameter("q", "Only bans with this text in target, reason or maker.", example="203.0.113."),
    ),
    Operation(
        "POST", "/bans", "ban", "Ban an address, a network or a key; a ban that it has is replaced.", "Ban",
        lambda console, given, by: console.ban(given["target"], given["duration"], given["reason"], by),
        body=(TARGET, DURATION, REASON), status=201,
    ),
    Operation(
        "PATCH", "/bans", "extendBan", "Let a ban last so long from now on.", "Ban",
        lambda console, given, by: console.extend(given["target"], given["duration"], by),
        body=(TARGET, DURATION), missing=True,
    ),
    Operation(
        "DELETE", "/bans", "liftBan", "Take a ban back, and forgive strikes.", "Lifted",
        lambda console, given, by: console.lift(given["target"], by),
        query=(TARGET,), missing=True,
    ),
    Operation(
        "POST", "/keys/find", "findKey", "The key that gates make of a value that clients send.", "Key",
        lambda console, given, _: console.find(given["kind"], given["name"], given["value"]),
        body=(
            Parameter("kind", "Where clients send it.", "choice", True, choices=KEY_KINDS, example="header"),
            Parameter("name", "The name of the header, cookie or parameter.", required=True, example="X-API-Key"),
            Parameter("value", "The value; it is not repeated nor kept.", required=True, example="k123", secret=True),
        ),
        reads=True,
    ),
    Operation(
        "POST", "/keys/reset", "resetKey", "Forget the windows of a key under every rule.", "Reset",
        lambda console, given, _: console.reset(given["key"]),
        body=(KEY,),
    ),
    Operation(
        "POST", "/keys/charge", "chargeKey", "Charge units to a key under a rule, even beyond the limit.", "Charged",
        lambda console, given, _: console.charge(given["key"], given["rule"], given["units"]),
        body=(KEY, Parameter("rule", "The name or identity of a rule.", required=True, example="api"), UNITS),
        missing=True,
    ),
    _get("/lists", "getLists", "The block and allow lists.", "Lists", lambda console, given, _: console.lists()),
    _get(
        "/events", "getEvents", "The last events of all workers, newest first.", "Events",
        lambda console, given, _: console.events(given["after"], given["limit"], given["kind"]),
        Parameter("after", "The `next` of an earlier answer: only what came since.", most=MAX_CURSOR),
        page_size(100, 500),
        Parameter("kind", "Only events of this kind.", "choice", choices=tuple(KINDS), example="banned"),
    ),
    _get(
        "/config", "getConfig", "The settings, and which workers there are.", "Config",
        lambda console, given, _: console.config(),
    ),
)  # fmt: skip
"""All operations."""
