"""Finding the rules of a request: a middleware of many rules charges those that each of them alone would charge."""

from __future__ import annotations

import string
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES, Convertor, register_url_convertor
from starlette.routing import Host, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Scope

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule, path_param

from ..asgi import hello, page, scope_of, send_scope, statuses
from .middlewares import checks

PLENTY = "1000000/minute"
WORDS = ["a", "A", "b", "shop", "x1", "5", "", "\u00e9", "a;p", "v2", ".well", "a\n", "s\u017f", "a b", "~"]
PARAMETERS = ["", ":str", ":int", ":float", ":uuid", ":path", ":slashed"]
VALUES = [
    "1", "01", " 7", "+3", "1.0", "1e3", "inf", "", "a", "%2e", "%2F", "x.json", "..", ".", ";", ";p=1", "a;b", "\n",
    "A/b", "12345678-1234-5678-1234-567812345678", "URN:UUID:12345678123456781234567812345678", "\u0661", "\ud800",
]  # fmt: skip
ODD = ["/", "//", "/./", "/../", "/..", "/.", ";x=1", "\n", "\n\n", "a", "%2f", "/a", "/a/../", "///", "?", "\u2028"]
ROOTS = ["", "", "", "/a", "/a/b", "/shop", "/a/", "root", "/\u00e9"]
METHODS = ["GET", "get", "POST", "HEAD", "OPTIONS", "PO\u017fT", ""]


class Slashed(Convertor[str]):
    """A parameter that may hold slashes, of a kind that no library knows."""

    regex = "[a-z0-9/]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


@pytest.fixture(autouse=True)
def slashed() -> Iterator[None]:
    register_url_convertor("slashed", Slashed())
    yield
    del CONVERTOR_TYPES["slashed"]


def random_path(dice: Random) -> str:
    """Return a path of a rule."""
    names = iter(string.ascii_lowercase)
    segments = []
    for _ in range(dice.choice([1, 1, 2, 2, 3, 4])):
        segment = dice.choice(WORDS)
        if dice.random() < 0.4:
            around = dice.choice(["{}", "{}", "{}", f"{segment}{{}}", f"{{}}{segment}", "v{}.{}"])
            holes = around.count("{}")
            segment = around.format(*(f"{{{next(names)}{dice.choice(PARAMETERS)}}}" for _ in range(holes)))
        segments.append(segment)
    return "/" + "/".join(segments)


def random_rule(dice: Random, number: int) -> Rule:
    paths = list(dict.fromkeys(random_path(dice) for _ in range(dice.choice([1, 1, 1, 2, 4]))))
    path: str | list[str] = "*" if dice.random() < 0.05 else paths
    options: dict[str, Any] = {"name": f"n{number}"}
    if dice.random() < 0.3:
        options["methods"] = dice.sample(["GET", "POST", "OPTIONS", "POST"], dice.choice([1, 2]))
    if dice.random() < 0.3:
        options["connection"] = dice.choice(["http", "websocket"])
    if dice.random() < 0.1:
        return Rule(path, exempt=True, **options)
    if path != "*" and all("{a" in each for each in path) and dice.random() < 0.5:
        options["key"] = path_param("a")
    return Rule(path, PLENTY, final=dice.random() < 0.1, **options)


def random_text(dice: Random, rules: list[Rule]) -> str:
    """Return the path of a request: near a rule's path, or as odd as a client may send it."""
    text = dice.choice(dice.choice(rules).paths)
    while "{" in text:
        before, _, rest = text.partition("{")
        text = before + dice.choice(VALUES) + rest.partition("}")[2]
    text = "/".join(dice.choice(WORDS) if dice.random() < 0.1 else part for part in text.split("/"))
    for _ in range(dice.choice([0, 0, 0, 1, 2])):
        place = dice.randrange(len(text) + 1)
        text = text[:place] + dice.choice(ODD) + text[place:]
    if dice.random() < 0.05:
        return "*" if dice.random() < 0.3 else text[1:]
    if dice.random() < 0.05:
        text += dice.choice(["x", "/x", "/", "/../a", "\n"]) * dice.choice([600, 8_192])
    return dice.choice(["", "", "", "", "/a", "/a/b", "/shop", "/\u00e9"]) + text


def random_scope(dice: Random, rules: list[Rule]) -> Scope:
    kind, path = dice.choice(["http", "http", "websocket"]), random_text(dice, rules)
    scope = scope_of(path, dice.choice(METHODS), type=kind, raw_path=b"/", root_path=dice.choice(ROOTS))
    if not scope["root_path"] and dice.random() < 0.5:
        del scope["root_path"]
    if dice.random() < 0.1:
        scope["app_root_path"] = ""
    return scope


def random_app(dice: Random, rules: list[Rule]) -> ASGIApp:
    """Return the application below a middleware: unknown, or one whose routes say where odd paths lead."""
    routes: list[Any] = [
        Route(path, page) for rule in dice.sample(rules, min(4, len(rules))) for path in rule.paths if path != "*"
    ]
    routes += [WebSocketRoute("/a/{name}", page), Mount("/a", Starlette(routes=[Route("/{rest:path}", page)]))]
    kind = dice.randrange(5)
    if kind == 0:
        return hello
    if kind == 1:
        rooted = FastAPI(routes=routes)
        rooted.root_path = "/a"
        return rooted
    if kind == 2:
        routes.append(Host("{host}.test", Starlette(routes=[Route("/shop", page)])))
    if kind == 3:
        routes.insert(0, Mount("/{tenant}", Starlette(routes=routes[:3])))
    return Starlette(routes=routes)


class Asked:
    """A middleware that is asked which rules it charges for a request, and under which keys."""

    def __init__(self, app: ASGIApp, limiter: Limiter, rules: list[Rule]) -> None:
        self.middleware = RateLimitMiddleware(app, rules=rules, limiter=limiter, headers=None)

    async def charges(self, scope: Scope) -> list[tuple[str, str]]:
        scope = dict(scope)
        with suppress(Exception):  # some of these paths are too odd for a router
            await send_scope(self.middleware, scope)
        return [(bucket.label, key) for bucket, key, _ in checks(scope)]


async def walk(alone: list[Asked], rules: list[Rule], scope: Scope) -> list[tuple[str, str]]:
    """Find the rules of a request by asking about each of them in turn: the model."""
    found: list[tuple[str, str]] = []
    for asked, rule in zip(alone, rules, strict=True):
        *own, last = await asked.charges(scope) or [("", "")]
        if last[0] == "rest":
            found += own
        else:
            assert rule.final
            return [*found, *own, *([last] if last[0] else [])]
    return found


async def search(seed: int, requests: int) -> int:
    """Compare both ways with random rules and requests; return how many rules applied. A failure tells the seed."""
    dice = Random(seed)
    rules = [random_rule(dice, number) for number in range(dice.choice([1, 3, 10, 30]))]
    app, limiter = random_app(dice, rules), Limiter()
    together = Asked(app, limiter, rules)
    alone = [Asked(app, limiter, [rule, Rule("*", PLENTY, name="rest")]) for rule in rules]
    applied = 0
    for _ in range(requests):
        scope = random_scope(dice, rules)
        expected = await walk(alone, rules, scope)
        for _ in range(2):
            assert await together.charges(scope) == expected, (seed, scope, rules)
        applied += len(expected)
    return applied


async def test_many_rules_together_charge_what_each_of_them_alone_would() -> None:
    assert sum([await search(seed, 20) for seed in range(24)]) > 150


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1_000, 1_100))
async def test_many_rules_together_charge_what_each_of_them_alone_would_in_many_sets(seed: int) -> None:
    for number in range(30):
        await search(seed * 100 + number, 100)


async def test_a_middleware_without_arguments_counts_at_endpoints_alone() -> None:
    app = Starlette(routes=[Route("/limited", RateLimit("2/minute")(page)), Route("/free", page)])
    app.add_middleware(RateLimitMiddleware)
    assert await statuses(app, 3, "/limited") == [200, 200, 429]
    assert await statuses(app, 50, "/free") == [200] * 50
