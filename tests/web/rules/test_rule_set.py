"""Finding the rules of a request by an index: it finds the rules that a walk over all of them finds."""

from __future__ import annotations

import string
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES, Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, WebSocketRoute
from starlette.types import Scope

from slidegate import Rule, path_param
from slidegate.web.findings.hidden_rules import _covers, hidden_rules
from slidegate.web.paths.below_root import route_path
from slidegate.web.rules.matching import Sight
from slidegate.web.rules.rule_set import BoundRule, RuleSet, Selection

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


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hi")


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
    return Rule(path, "5/minute", final=dice.random() < 0.1, **options)


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
    scope: Scope = {"type": dice.choice(["http", "http", "websocket"]), "path": random_text(dice, rules), "headers": []}
    if scope["type"] == "http":
        scope["method"] = dice.choice(METHODS)
    if (root := dice.choice(ROOTS)) or dice.random() < 0.5:
        scope["root_path"] = root
    if dice.random() < 0.1:
        scope["app_root_path"] = ""
    return scope


def random_app(dice: Random, rules: list[Rule]) -> object:
    """Return the application below a gate: unknown, or one whose routes say where odd paths lead."""
    routes: list[Any] = [
        Route(path, page) for rule in dice.sample(rules, min(4, len(rules))) for path in rule.paths if path != "*"
    ]
    routes += [WebSocketRoute("/a/{name}", page), Mount("/a", Starlette(routes=[Route("/{rest:path}", page)]))]
    kind = dice.randrange(5)
    if kind == 0:
        return None
    if kind == 1:
        rooted = FastAPI(routes=routes)
        rooted.root_path = "/a"
        return rooted
    if kind == 2:
        routes.append(Host("{host}.test", Starlette(routes=[Route("/shop", page)])))
    if kind == 3:
        routes.insert(0, Mount("/{tenant}", Starlette(routes=routes[:3])))
    return Starlette(routes=routes)


def walk(rules: RuleSet, scope: Scope) -> tuple[Selection, bool]:
    """Find the rules of a request by asking each of them in turn: the model."""
    sight = Sight(scope, rules._tree)
    found: list[BoundRule] = []
    exempt = False
    for rule, bound in rules._bound:
        if bound is not None and (read := sight.limited(rule)) is not None:
            found.append(bound if read == route_path(scope) else bound.at(read))
        if rule.final and sight.ended(rule):
            exempt = rule.exempt
            break
    limiting = tuple(bound for bound in found if bound.rule.action == "limit")
    onlookers = tuple(bound for bound in found if bound.rule.action != "limit")
    return Selection(limiting, all(bound.plain for bound in limiting), onlookers, exempt), sight.lasting


def shown(selection: Selection, scope: Scope) -> object:
    """Return a selection in values that can be compared: rules by their names, keys by what they find."""

    def each(rules: tuple[BoundRule, ...]) -> object:
        return [(bound.bucket.rule, bound.key and bound.key.value(scope)) for bound in rules]  # type: ignore[attr-defined]

    return each(selection.limiting), selection.plain, each(selection.onlookers), selection.exempt


def search(seed: int, requests: int) -> int:
    """Compare both ways with random rules and requests; return how many rules applied. A failure tells the seed."""
    dice = Random(seed)
    rules = [random_rule(dice, number) for number in range(dice.choice([1, 3, 20, 60]))]
    rule_set = RuleSet(rules, str, random_app(dice, rules))
    applied = 0
    for _ in range(requests):
        scope = random_scope(dice, rules)
        expected, lasting = walk(rule_set, scope)
        found, found_lasting = rule_set._select(scope)
        assert shown(found, scope) == shown(expected, scope), (seed, scope, rules)
        assert found_lasting == lasting, (seed, scope)
        for _ in range(2):
            assert shown(rule_set.select(scope), scope) == shown(expected, scope), (seed, scope)
        applied += len(found.limiting)
    return applied


def test_the_index_finds_the_rules_that_a_walk_over_all_of_them_finds() -> None:
    assert sum(search(seed, 60) for seed in range(120)) > 4_000


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_the_index_finds_the_rules_that_a_walk_finds_in_many_sets(seed: int) -> None:
    for number in range(30):
        search(seed * 100 + number, 150)


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        ("/pages/{}", "/pages/500"),
        ("/pages/{}", "/pages/none"),
        ("/pages/{}", "/./pages/500;v=1"),
        ("/files{}/{{rest:path}}", "/files500/a/b"),
        ("/files/v{}-{{name}}", "/files/v500-a"),
        ("/{{tenant}}/{}/{{id:int}}", "/a/500/7"),
    ],
)
def test_few_of_a_thousand_rules_are_asked_about_a_request(
    shape: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RuleSet([Rule(shape.format(number), "5/minute") for number in range(1_000)], str)
    scope = {"type": "http", "method": "GET", "path": path}
    asked: list[Rule] = []
    limited = Sight.limited

    def counted(self: Sight, rule: Rule) -> str | None:
        asked.append(rule)
        return limited(self, rule)

    monkeypatch.setattr(Sight, "limited", counted)
    selection = rules.select(scope)
    assert [bound.rule for bound in selection.limiting] == asked[:1]
    assert len(asked) <= 4
    assert asked or path == "/pages/none"


def test_hidden_rules_are_those_that_a_look_at_every_pair_finds() -> None:
    hidden = 0
    for seed in range(60):
        dice = Random(seed)
        rules = [random_rule(dice, number) for number in range(30)]
        pairs = [
            (next((rule for rule in rules[:place] if rule.final and _covers(rule, later)), None), later)
            for place, later in enumerate(rules)
        ]
        expected = [pair for pair in pairs if pair[0] is not None]
        assert list(hidden_rules(rules)) == expected, seed
        hidden += len(expected)
    assert hidden > 30
