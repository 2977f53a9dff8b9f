"""Behind random trees of routes, whatever reaches a limited handler was charged, however its path was spelt."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette._utils import get_route_path
from starlette.convertors import StringConvertor
from starlette.routing import compile_path

from slidegate import Limiter, RateLimit, RateLimitMiddleware, Rule, path_param

from ..asgi import scope_of, send_scope
from .middlewares import checks
from .route_trees import PLENTY, Location, Tree, filled, parameters

ODD: Final = re.compile(r"\n|/\.\.(?:/|\Z)")
"""Paths that meet no exemption."""
METHODS: Final = ("GET", "GET", "POST", "HEAD", "post")
CONNECTIONS: Final = (None, None, None, None, "http", "websocket")
ROOTS: Final = ("", "", "", "/api", "/v1")


def rules_of(tree: Tree, random: Random, exemptions: int) -> tuple[list[Rule], dict[str, str]]:
    """Return a rule on each handler, and among them some that exempt or end the list; and the parameters they count by.

    The parameters are by the names of handlers.
    """
    rules, by = [], dict[str, str]()
    for name, handler in tree.handlers.items():
        methods = random.choice([None, None, None, ["GET"], ["POST"]])
        connection = random.choice(CONNECTIONS)
        key = None
        if names := sorted(parameters(handler.path)):
            by[name] = random.choice(names)
            key = path_param(by[name])
        rules.append(Rule(handler.path, PLENTY, name=name, methods=methods, connection=connection, key=key))
    candidates = ["/static/{rest:path}", "/v1/{rest:path}", "/login", "/a/{x}", "/{x}/{y}", "/{n:int}"]
    for path in random.sample([*candidates, *(handler.path for handler in tree.handlers.values())], exemptions):
        about: Any = {
            "methods": random.choice([None, None, ["GET"], ["POST"]]),
            "connection": random.choice(CONNECTIONS),
        }
        ends: Any = {"exempt": True} if random.random() < 0.6 else {"limits": PLENTY, "final": True}
        rule = Rule(path, **ends, **about, name=f"f{len(rules)}")
        rules.insert(random.randint(0, len(rules)), rule)
    return rules, by


def exactly(written: str, text: str) -> bool:
    """Tell whether a route of Starlette's would serve a path."""
    return compile_path(written)[0].fullmatch(text) is not None


class Sent(NamedTuple):
    """A request, and the labels and keys by which limits counted it."""

    kind: str
    method: str
    path: str
    root: str
    keys: list[tuple[str, str]]

    @property
    def counted(self) -> list[str]:
        return [label for label, _ in self.keys]

    def text(self, app: Any) -> str:
        """Return the path that the application directly behind the middleware reads."""
        return get_route_path({"path": self.path, "root_path": getattr(app, "root_path", "") or self.root})

    def names(self, rule: Rule, method: str) -> bool:
        """Tell whether a rule names its type and a method, as they are written."""
        method = method if self.kind == "http" else "GET"
        return rule.connection in (None, self.kind) and (rule.methods is None or method in rule.methods)

    def is_free(self, rule: Rule, text: str, reached: str) -> bool:
        """Tell whether a rule may end the list before it: as it stands, not as it could be read."""
        named = self.names(rule, self.method) and rule.final and not ODD.search(text)
        return named and exactly(rule.paths[0], text) and exactly(rule.paths[0], reached)


def reads_apart(handler: Location, tree: Tree, sent: Sent) -> bool:
    """Return whether the application of a handler reads another path than the one directly behind the middleware.

    It does if it is mounted, and has a root path of its own, or the path does not begin with that of the server.
    """
    own = getattr(tree.app, "root_path", "") or sent.root
    return handler.reads_apart or (handler.is_mounted and own != "" and not f"{sent.path}/".startswith(f"{own}/"))


@dataclass
class Judge:
    """Looks for requests to a tree of routes that are counted otherwise than its routers say.

    Attributes:
        ran: How often handlers ran.
        apart: How many requests a rule by path missed because an application reads another path, which a limit at its
            endpoint and the default limits count.
        wrong: What else was not counted, or not as it should be.
        routes: What the default limits count as the route of each handler.
    """

    tree: Tree
    exemptions: int
    ran: int = 0
    apart: int = 0
    wrong: list[str] = field(default_factory=list)
    routes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tree, random = self.tree, self.tree.random
        self.rules, self.parameters = rules_of(tree, random, self.exemptions)
        self.exempt = {name for name in tree.endpoints if random.random() < 0.25}
        for name in self.exempt:
            RateLimit.exempt(tree.endpoints[name])
        self.limiter = Limiter()
        self.app = RateLimitMiddleware(tree.app, rules=self.rules, default_limits=PLENTY, limiter=self.limiter)

    async def judge(self, spellings: int) -> "Judge":
        for _ in range(spellings):
            sent = await self.ask()
            found = [(name, one) for name, values in self.tree.served for one in self.lacking(name, values, sent)]
            if not self.tree.roots and sent.path.startswith(f"{sent.root}/") and not ODD.search(sent.path):
                found += self.misread(sent.keys)
            self.ran += len(self.tree.served)
            self.wrong += [f"{sent}: {self.tree.handlers.get(name)} {problem}" for name, problem in found]
        return self

    async def ask(self) -> Sent:
        tree, random = self.tree, self.tree.random
        tree.served.clear()
        path, root = tree.spelling(random.choice([0, 1, None])), random.choice(ROOTS)
        path = root + path if random.random() < 0.6 else path
        kind, method = "websocket" if random.random() < 0.15 else "http", random.choice(METHODS)
        headers = {"host": random.choice(["api.example.org", "x.example.org"])}
        scope = scope_of(path, method, raw_path=b"/", root_path=root, type=kind, headers=headers, subprotocols=[])
        await send_scope(self.app, scope)
        return Sent(kind, method, path, root, [(bucket.label, key) for bucket, key, _ in checks(scope)])

    def lacking(self, name: str, values: dict[str, str], sent: Sent) -> list[str]:
        """Return the limits that a request which reached a handler was not counted on."""
        tree, handler, counted, lacking = self.tree, self.tree.handlers[name], sent.counted, list[str]()
        text = sent.text(tree.app)
        # A router reads 5 from 05: what it has read is written as it was spelled, if the spelling reveals it.
        reached = text if exactly(handler.path, text) else filled(handler.path, values)
        at = next(index for index, rule in enumerate(self.rules) if rule.name == name)
        ends = [sent.is_free(rule, text, reached) for rule in self.rules]
        if sent.names(self.rules[at], sent.method.upper()) and name not in counted and not any(ends[:at]):
            lacking.append("its rule")
        if handler.inner is not None and f"inner_{name}" not in counted:
            lacking.append("the rule of a middleware within")
        if lacking and reads_apart(handler, tree, sent):
            self.apart, lacking = self.apart + 1, []
        if name in tree.shared and not any(one.endswith("shared") for one in counted):
            lacking.append("the limit at the endpoint")
        # What a mounted application makes of the path is its own: a rule ends the list for the path that it is given.
        is_free = handler.is_mounted and any(sent.is_free(rule, text, text) for rule in self.rules)
        if not self.is_routed(name, sent, is_free or any(ends)):
            lacking.append("the limit of its route")
        return [f"is not counted on {one}" for one in lacking]

    def is_routed(self, name: str, sent: Sent, is_ended: bool) -> bool:
        """Tell whether the default limits count a request once, as one to the route of a handler."""
        routes = [label for label in sent.counted if label.startswith("per-route ")]
        if name in self.exempt:  # what readers make several texts of is no request to it
            return routes == ["per-route *"] * bool(ODD.search(sent.path)) or (is_ended and routes == [])
        if routes == []:
            return is_ended
        return routes == [self.routes.setdefault(name, routes[0])] != ["per-route *"]

    def misread(self, keys: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the handlers whose rule counted by another value of a parameter than the routers found."""
        found = []
        for name, values in self.tree.served:
            value = values.get(self.parameters.get(name, ""), "")
            numbered = re.search(rf"{self.parameters.get(name)}:[fiu]", self.tree.handlers[name].path)
            if value == "" or (numbered and isinstance(value, str)):  # FastAPI makes a number of a text itself
                continue
            own = [key for label, key in keys if label == name]
            expected = self.limiter.key_for(path_param(self.parameters[name]).of(value))
            found += [(name, f"with {values} is counted by {own}")] * (own not in ([], [expected]))
        return found


FEATURES: Final[list[dict[str, bool]]] = [{}, {"roots": False}, {"mixed": True}, {"dots": True}]


@pytest.mark.parametrize("text", ["[^/]+", "[^/]*"], ids=["Starlette", "FastHTML"])
@pytest.mark.parametrize("trees", [80, pytest.param(4_000, marks=pytest.mark.deep)])
def test_requests_are_counted_as_the_routers_read_them(
    trees: int, text: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever reaches a handler is counted, and under the values that routers find."""
    monkeypatch.setattr(StringConvertor, "regex", text)
    ran = 0

    @settings(max_examples=trees, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.integers(0, 2**32 - 1), st.sampled_from(FEATURES), st.integers(0, 3))
    @example(449, {"mixed": True}, 1)
    @example(13035, {}, 2)
    @example(3108030150, {"mixed": True}, 3)
    def search(seed: int, features: dict[str, bool], exemptions: int) -> None:
        nonlocal ran
        found = asyncio.run(Judge(Tree(Random(seed), directory, **features), exemptions).judge(150))
        assert found.wrong == []
        ran += found.ran

    search()
    assert ran > 10 * trees


async def test_few_trees_have_an_application_that_reads_another_path(
    directory: Path, record_property: Callable[[str, object], None]
) -> None:
    many = 100
    judges = [Judge(Tree(Random(2_000 + number), directory), number % 4) for number in range(many)]
    share = sum([(await judge.judge(20)).apart > 0 for judge in judges]) / many
    record_property("share of trees that a rule by path misses", share)
    print(f"{share:.1%} of the route trees have a request that a rule by path misses")  # noqa: T201
    assert share <= 0.05
