"""What a gate adds to a request with one rule and with a thousand.

A client asks for one path again and again, or walks over 100,000 different paths. Exact paths are walked over by way of
paths that meet no rule, and by way of odd spellings of one that does; elsewhere all paths of a walk meet one rule. Both
gates get the same requests, and the rule that they meet stands in the middle of the thousand.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from slidegate import RateLimitMiddleware, Rule

from .measure import asgi, rounds
from .report.tables import Cell, Table

PACKAGES = ("starlette",)

PLENTY = "2000000000/hour"
PATHS = 100_000


class Walk(NamedTuple):
    """Rules of one shape, and the paths that a client asks for."""

    rule: Callable[[int], str]
    path: Callable[[int], str]


WALKS = {
    "exact paths; others": Walk(lambda rule: f"/pages/{rule}", lambda number: f"/pages/none/{number}"),
    "exact paths; odd spellings": Walk(lambda rule: f"/pages/{rule}", lambda number: f"/pages/0;v={number}"),
    "beginnings": Walk(lambda rule: f"/files{rule}/{{rest:path}}", lambda number: f"/files0/reports/{number}.pdf"),
    "patterns": Walk(
        lambda rule: f"/shops/{{shop}}/{rule}/{{id:int}}", lambda number: f"/shops/s{number % 9}/0/{number}"
    ),
}


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


def starlette() -> Starlette:
    return Starlette(routes=[Route("/{rest:path}", page)])


def gate(rule: Callable[[int], str], count: int) -> ASGIApp:
    """Return the application behind a gate with so many rules; the one that requests meet stands in the middle."""
    app = starlette()
    first = -(count // 2)
    rules = [Rule(rule(number).replace("-", "m"), PLENTY) for number in range(first, first + count)]
    app.add_middleware(RateLimitMiddleware, rules=rules)
    return app


async def compare(walk: Walk, paths: Sequence[str], count: int, requests: int, turns: int) -> list[float]:
    """Return the medians over rounds: the bare answer, what one rule adds, what so many add, in us, and the ratio."""
    apps = {"bare": starlette(), "one": gate(walk.rule, 1), "many": gate(walk.rule, count)}
    taken = await rounds({name: asgi(app, requests, 200, paths) for name, app in apps.items()}, turns)
    one, many = ([own - bare for own, bare in zip(taken[name], taken["bare"], strict=True)] for name in ("one", "many"))
    ratio = median(of_many / of_one for of_many, of_one in zip(many, one, strict=True))
    return [median(taken["bare"]), median(one), median(many), ratio]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--rules", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2_000, help="in each round of each candidate")


def tables(options: Namespace) -> Iterator[Table]:
    """Measure each walk, over one path and over many."""
    rows: list[list[Cell]] = []
    for name, walk in WALKS.items():
        for paths in (1, PATHS):
            asked = [walk.path(number) for number in range(paths)]
            measured = asyncio.run(compare(walk, asked, options.rules, options.requests, options.rounds))
            rows.append([name, paths, *measured])
    columns = {"rules": "", "paths": ",d", "bare Starlette us": ".2f", "1 rule adds us": "+.2f"}
    yield Table("", {**columns, f"{options.rules:,} rules add us": "+.2f", "ratio": ".2f"}, rows)
