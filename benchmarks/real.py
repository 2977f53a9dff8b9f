"""The cost of one request under realistic conditions: many configurations of slidegate, and its peers.

An application with ten routes is called directly, and other code runs between two requests. A request costs up to a
microsecond more directly after another application, so in as many rounds as there are candidates, each comes first once
and follows every other once. The ratio of a row is to what its peer adds.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Final

from scripts import make_benchmarks

from . import messages, rounds
from .rounds import Row, Times, over_processes

BARE: Final = "bare Starlette"
PEER: Final = "asgi-ratelimit"
FIVE: Final = "asgi-ratelimit, five patterns"
FASTAPI: Final = "bare FastAPI"


def to_peer(name: str, target: str = "", peer: str = PEER) -> Row:
    return Row(name, BARE, peer, BARE, target)


def with_traffic(name: str, traffic: str) -> Row:
    """Return a row that is compared under its own traffic."""
    return Row(name, f"{BARE}, {traffic}", f"{PEER}, {traffic}", f"{BARE}, {traffic}")


def at_endpoint(name: str, target: str = "", peer: str = "fastapi-limiter") -> Row:
    return Row(name, FASTAPI, peer, FASTAPI, target)


TABLES: Final = {
    "Admitted: microseconds added, and the ratio to what asgi-ratelimit adds": [
        Row(BARE),
        to_peer("default", "≤0.95; ≤0.55"),
        to_peer("ban policy", "≤0.95; ≤0.55"),
        to_peer("blocklist", "≤0.95; ≤0.55"),
        to_peer("trusted proxies", "≤1.15; ≤0.65"),
        to_peer("everything", "≤1.15; ≤0.7", FIVE),
        to_peer("everything, statistics", "≤1.4; ≤0.9", FIVE),
        to_peer("everything, Prometheus", "≤1.7; ≤1.2", FIVE),
        to_peer("header key", "≤1.6; ≤0.9"),
        with_traffic("header key, 100,000 values", "100,000 values"),
        to_peer("count_if", "≤1.7; ≤1.0"),
        to_peer("concurrency", "≤3; ≤1.8"),
        *(to_peer(name) for name in ("key function", "condition", "shadow", "idle wait", "wait beside count_denied")),
        to_peer("Unix socket"),
        to_peer("ten rules"),
        with_traffic("10,000 clients, 1,000 paths", "10,000 clients"),
        Row(PEER, BARE),
        to_peer("asgi-ratelimit, once more"),
        to_peer(FIVE),
    ],
    "Admitted: microseconds more than default": [
        Row("two windows", "default", target="≤3; ≤1.5"),
        Row("an address banned", "default", target="≤0.7; ≤0.4"),
        Row("a network banned", "default", target="≤1; ≤0.6"),
    ],
    "Refused: microseconds more than the answer of the bare application": [
        Row("refused by a limit", BARE, target="≤0.5; <0 us"),
        Row("refused by a ban", BARE, target="≤0.5; <0 us"),
    ],
    "A path never seen before: the ratio to ten routes, or to what further routes add to Starlette": [
        Row("1,000 routes, refused", "", "10 routes, refused", target="≤1.3"),
        Row(
            "1,000 routes, default_limits",
            "10 routes, default_limits",
            "bare Starlette, 1,000 routes",
            "bare Starlette, 10 routes",
            "≤1.0",
        ),
    ],
    "A limit at an endpoint of FastAPI: the ratio to what fastapi-limiter adds": [
        Row(FASTAPI),
        at_endpoint("dependency", "≤1.0; ≤0.8"),
        at_endpoint("decorator", "≤0.7; ≤0.5"),
        Row("fastapi-limiter", FASTAPI),
        at_endpoint("dependency, refused", "≤1.15; ≤1.05", "fastapi-limiter, refused"),
        at_endpoint("decorator, refused", "≤1.15; ≤1.05", "fastapi-limiter, refused"),
    ],
    "A message on a websocket: microseconds more than without a middleware": [
        Row(messages.LIMITED, messages.BARE, target="≤5; ≤2.5"),
    ],
}


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="of each candidate in each round")
    parser.add_argument(
        "--chart", action="store_true", help="write what benchmarks/README.md draws: needs all rows, --other compiled"
    )
    rounds.arguments(parser, TABLES)


def main(options: Namespace) -> None:
    measured = rounds.main(options, TABLES, options.requests)
    if options.chart:
        numbers = make_benchmarks.read()
        make_benchmarks.write({**numbers, "us": added(measured)})
        make_benchmarks.main([])


def added(measured: Mapping[str, list[list[Times]]]) -> dict[str, dict[str, float]]:
    """Return what a limit adds in each version; peers as they are in the processes of the source."""
    rows = {row.name: row for table in TABLES.values() for row in table}
    return {
        name: {
            version: round(over_processes(rows[name].us, processes), 1)
            for version, processes in measured.items()
            if version == "source" or label.startswith("slidegate")
        }
        for name, label in make_benchmarks.BARS.items()
    }
