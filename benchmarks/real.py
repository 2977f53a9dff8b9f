"""The cost of one request under realistic conditions: many configurations of slidegate, and its peers.

Ten routes, 10,000 paths and 256 clients; the ASGI application is called directly, and other code runs between two
requests. A request costs up to a microsecond more directly after another application, so in as many rounds as there
are candidates, each comes first once and follows every other once. `rounds.py` computes the rows from the rounds.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Final

from . import rounds
from .rounds import Row, more, ratio, share
from .table import Table

PACKAGES = ("starlette", "fastapi", "asgi-ratelimit", "fastapi-limiter", "limits")
BARE: Final = "bare Starlette"
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
FASTAPI: Final = "bare FastAPI"
AT_ENDPOINT: Final = "fastapi-limiter"
AT_ENDPOINT_REFUSED: Final = "fastapi-limiter, refused"
FEW_BARE: Final = "bare Starlette, 10 routes"
MANY_BARE: Final = "bare Starlette, 1,000 routes"
FEW_BY_ROUTE: Final = "10 routes, refused by default_limits"
MANY_BY_ROUTE: Final = "1,000 routes, refused by default_limits"


def to_peer(name: str, asked: str = "", *, peer: str = PEER) -> Row:
    return Row(name, BARE, share, (BARE, peer, BARE), asked)


def to_default(name: str, asked: str = "") -> Row:
    return Row(name, BARE, more, ("default",), asked)


def refused(name: str) -> Row:
    return Row(name, BARE, asked="≤2; <0 us")


def at_endpoint(name: str, asked: str = "", *, peer: str = AT_ENDPOINT) -> Row:
    return Row(name, FASTAPI, share, (FASTAPI, peer, FASTAPI), asked)


TABLES: Final[dict[str, list[Row]]] = {
    "Admitted: to what asgi-ratelimit adds": [
        Row(BARE),
        to_peer("default", "≤1.2; ≤0.65"),
        to_peer("ban policy", "≤1.3; ≤0.75"),
        to_peer("blocklist", "≤1.3; ≤0.75"),
        to_peer("trusted proxies", "≤1.3; ≤0.75"),
        to_peer("everything", "≤1.6; ≤0.85", peer=FIVE),
        to_peer("everything, statistics listening", "≤2.0; ≤1.0", peer=FIVE),
        Row(PEER, BARE),
        to_peer("asgi-ratelimit, once more"),
        to_peer(FIVE),
    ],
    "Admitted: microseconds more than default": [
        to_default("two windows", "≤3; ≤1.0"),
        to_default("an address banned", "≤1; ≤0.5"),
        to_default("a network banned", "≤2; ≤1.0"),
        to_default("default_limits"),
        to_default("1,000 rules"),
    ],
    "Refused: microseconds more than the answer of the bare application": [
        refused("refused by a limit"),
        refused("refused by a ban"),
    ],
    "A path never seen before, refused: to the same with ten routes and one rule": [
        Row("1,000 routes, refused", "", ratio, ("10 routes, refused",), "≤1.5"),
        Row("1,000 rules, refused", "", ratio, ("10 routes, refused",)),
    ],
    "A path never seen before: what 990 further routes add, to what they add to Starlette": [
        Row(MANY_BY_ROUTE, FEW_BY_ROUTE, share, (FEW_BY_ROUTE, MANY_BARE, FEW_BARE), "≤1.0"),
    ],
    "A limit at an endpoint of FastAPI: to what fastapi-limiter adds": [
        Row(FASTAPI),
        at_endpoint("dependency", "≤1.0; ≤0.8"),
        at_endpoint("decorator", "≤0.7; ≤0.5"),
        Row(AT_ENDPOINT, FASTAPI),
        at_endpoint("dependency, refused", "≤1.3; ≤1.0", peer=AT_ENDPOINT_REFUSED),
        at_endpoint("decorator, refused", "≤1.3; ≤1.0", peer=AT_ENDPOINT_REFUSED),
    ],
}
ROWS: Final = [row for rows in TABLES.values() for row in rows]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="of each candidate in each round")
    parser.add_argument("--paths", type=int, default=10_000, help="number of distinct paths")
    rounds.arguments(parser, TABLES)


def tables(options: Namespace) -> Iterator[Table]:
    """Measure all rows, or those of ``--only``."""
    yield from rounds.tables(TABLES, options, [options.requests, options.paths])
