"""Behind random trees of routes, whatever reaches a limited handler was charged, however its path was spelt."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import anyio
import pytest
from starlette._utils import get_route_path
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from slidegate import Limiter, RateLimitMiddleware, Rule, path_param

from ..asgi import scope_of
from .route_trees import PLENTY, Handler, Tree, filled, parameters

ORDINARY = re.compile(r"(?:/(?!\.\.?(?:/|$))[^/;\s]+)+/?")
"""Paths of which no router makes anything else than they say."""
ODD: Final = re.compile(r"\n|/\.\.(?:/|\Z)")
"""Paths that meet no exemption."""
GENEROUS: Final[Mapping[str, str]] = {
    "int": r"[^/]*\d[^/]*",
    "float": r"(?i:[^/]*(?:\d|inf|nan)[^/]*)",
    "uuid": "[^/]{32,}",
    "path": ".*",
    "": "[^/]+",
}
"""What a limit takes for a parameter that has a segment for itself."""
METHODS: Final = ("GET", "GET", "POST", "HEAD", "post")
CONNECTIONS: Final = (None, None, None, None, "http", "websocket")
ROOTS: Final = ("", "", "", "/api", "/v1")
NAME: Final = re.compile(r'"([^"]*)";q=')


def rules_of(tree: Tree, random: Random, exemptions: int) -> list[Rule]:
    """Return a rule on each handler, and among them some that exempt or end the list."""
    rules = []
    for name, handler in tree.handlers.items():
        methods = random.choice([None, None, None, ["GET"], ["POST"]])
        connection = random.choice(CONNECTIONS)
        rules.append(Rule(handler.path, PLENTY, name=name, methods=methods, connection=connection))
    candidates = ["/static/{rest:path}", "/v1/{rest:path}", "/login", "/a/{x}", "/{x}/{y}", "/{n:int}"]
    for path in random.sample([*candidates, *(handler.path for handler in tree.handlers.values())], exemptions):
        about: Any = {
            "methods": random.choice([None, None, ["GET"], ["POST"]]),
            "connection": random.choice(CONNECTIONS),
        }
        ends: Any = {"exempt": True} if random.random() < 0.6 else {"limits": PLENTY, "final": True}
        rule = Rule(path, **ends, **about, name=f"f{len(rules)}")
        rules.insert(random.randint(0, len(rules)), rule)
    return rules


def exactly(rule: Rule, *texts: str) -> bool:
    """Tell whether a rule's own route, of Starlette's, would serve one of some paths."""
    pattern = compile_path(rule.paths[0])[0]
    return any(pattern.fullmatch(text) for text in texts)


def is_about(rule: Rule, kind: str, method: str) -> bool:
    """Tell whether a rule names the type and the method of a request, as they are written."""
    asked = method if kind == "http" else "GET"
    return rule.connection in (None, kind) and (rule.methods is None or asked in rule.methods)


def excuses(rule: Rule, tree: Tree, path: str, root: str, kind: str, method: str, reached: str) -> bool:
    """Tell whether a rule that ends the list may do so before this request: as it stands, not as it could be read."""
    text = get_route_path({"path": path, "root_path": getattr(tree.app, "root_path", "") or root})
    named = is_about(rule, kind, method)
    return named and rule.final and exactly(rule, reached) and exactly(rule, text) and not ODD.search(path)


async def ask(
    app: Any, tree: Tree, random: Random, path: str, root_path: str, methods: Sequence[str]
) -> tuple[str, str, list[str]]:
    """Send one request; return its type, its method, and the names of the limits that the answer tells."""
    tree.served.clear()
    kind = "websocket" if random.random() < 0.15 else "http"
    method = random.choice(methods)
    host = random.choice(["api.example.org", "x.example.org"])
    scope = scope_of(path, method, raw_path=b"/", root_path=root_path, type=kind, headers={"host": host})
    if kind == "websocket":
        scope["subprotocols"] = []
    first = [{"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}]
    told: list[str] = []

    async def receive() -> Any:
        if not first:
            await anyio.sleep_forever()
        return first.pop()

    async def send(message: Any) -> None:
        for name, value in message.get("headers", ()):
            if name == b"ratelimit-policy":
                told.extend(NAME.findall(value.decode()))

    await app(scope, receive, send)
    return kind, method, told


def owed(name: str, rules: Collection[Rule], kind: str, method: str) -> list[str]:
    """Return the rules on a handler that a request which reached it has to be counted on."""
    names = []
    for rule in rules:
        named = rule.methods is None or (kind == "http" and method.upper() in rule.methods)
        if rule.name == name and named and rule.connection in (None, kind):
            names.append(rule.name)
    return names


def reads_apart(handler: Handler, tree: Tree, path: str, root: str) -> bool:
    """Return whether the application of a handler reads another path than the one directly behind the middleware.

    It does if it is mounted, and has a root path of its own, or the path does not begin with that of the server.
    """
    own = getattr(tree.app, "root_path", "") or root
    return handler.reads_apart or (handler.is_mounted and own != "" and not f"{path}/".startswith(f"{own}/"))


async def missed(seed: int, tree: Tree, spellings: int, exemptions: int) -> tuple[int, list[str], int]:
    """Look for requests that a limited handler served and a rule did not count.

    Returns:
        How often handlers ran; what was not counted; and how many requests were not because an application reads
        another path, which a limit at its endpoint counts.
    """
    random = tree.random
    rules = rules_of(tree, random, exemptions)
    app = RateLimitMiddleware(tree.app, rules=rules)
    ran, apart = 0, 0
    wrong: list[str] = []
    for _ in range(spellings):
        path = tree.spelling(random.choice([0, 1, None]) if tree.mixed or tree.dots else None)
        root = random.choice(ROOTS)
        if root and random.random() < 0.6:
            path = root + path
        kind, method, counted = await ask(app, tree, random, path, root, METHODS)
        for name, values in tree.served:
            ran += 1
            handler = tree.handlers[name]
            reached = filled(handler.path, values)
            lacking = []
            for one in owed(name, rules, kind, method):
                before = next(place for place, rule in enumerate(rules) if rule.name == one)
                excused = [excuses(rule, tree, path, root, kind, method, reached) for rule in rules[:before]]
                lacking += [one] * (one not in counted and not any(excused))
            if lacking and reads_apart(handler, tree, path, root):
                apart, lacking = apart + 1, []
            lacking += [f"inner_{name}"] * (handler.inner is not None and f"inner_{name}" not in counted)
            if name in tree.shared:
                lacking += ["the limit at the endpoint"] * (not any(one.endswith("shared") for one in counted))
            if lacking:
                wrong.append(f"seed {seed}, {method} {path!r}, root {root!r}: {handler} not counted on {lacking}")
    return ran, wrong, apart


async def search(seed: int, directory: Path, spellings: int, **features: Any) -> int:
    """Look for a request that got past a limit in one tree; say how often handlers ran."""
    tree = Tree(Random(seed), directory, **features)
    ran, wrong, _ = await missed(seed, tree, spellings, seed % 4)
    assert wrong == []
    return ran


def generous(path: str) -> re.Pattern[str]:
    """Return what a limit may take for its path at most."""
    segments = []
    for segment in path.split("/"):
        kinds = re.findall(r"\{\w+:?(\w*)\}", segment)
        literals = [re.escape(literal) for literal in re.split(r"\{.*\}", segment)]
        middle = GENEROUS[kinds[0]] if len(kinds) == 1 else "[^/]*" if kinds else ""
        segments.append(middle.join(literals))
    return re.compile("/".join(segments), re.DOTALL)


async def compare(seed: int, directory: Path, spellings: int) -> int:
    """Look for an ordinary request that is counted on other rules than written patterns say."""
    random = Random(seed)
    tree = Tree(random, directory, roots=False)
    rules = rules_of(tree, random, seed % 4)
    app = RateLimitMiddleware(tree.app, rules=rules)
    patterns = [(rule, compile_path(rule.paths[0])[0], generous(rule.paths[0])) for rule in rules]
    ran = 0
    for _ in range(spellings):
        path = tree.spelling(changes=0 if random.random() < 0.5 else 2)
        if not ORDINARY.fullmatch(path) or "/files/" in path or "/other/" in path:
            continue
        ran += 1
        root = random.choice(["", "/api"])
        kind, method, counted = await ask(app, tree, random, root + path, root, ["GET", "POST", "HEAD"])
        if kind == "websocket" and not tree.served:
            continue  # a close has no fields
        may = [path, path.removesuffix("/") if path[-1] == "/" else f"{path}/"]
        expected, allowed = [], set()
        for rule, pattern, most in patterns:
            named = is_about(rule, kind, method)
            matched = named and pattern.fullmatch(path) is not None
            expected += [rule.name] * (matched and not rule.exempt)
            allowed |= {rule.name} if named and any(map(most.fullmatch, may)) else set()
            if matched and rule.final:
                break
        outer = [name for name in counted if re.fullmatch(r"[hf]\d+", name)]
        where = f"seed {seed}, {method} {path!r}, root {root!r}"
        assert [name for name in outer if name in expected] == expected, where
        assert allowed.issuperset(outer), where
    return ran


async def misread(seed: int, directory: Path, spellings: int) -> int:
    """Look for a request that was counted under another value of a path parameter than the routers found."""
    random = Random(seed)
    tree = Tree(random, directory, roots=False)
    limiter, parameter, rules, scopes = Limiter(), {}, [], []
    for name, handler in tree.handlers.items():
        if names := sorted(parameters(handler.path)):
            parameter[name] = random.choice(names)
            rules.append(Rule(handler.path, PLENTY, key=path_param(parameter[name]), name=name))
    middleware = RateLimitMiddleware(tree.app, rules=rules, limiter=limiter)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes[:] = [scope]
        await middleware(scope, receive, send)

    ran = 0
    for _ in range(spellings):
        root = random.choice(ROOTS)
        path = root + tree.spelling()
        if ODD.search(path) or not path.startswith(f"{root}/"):
            continue
        await ask(app, tree, random, path, root, ["GET", "POST"])
        checks = [check for _, decision in scopes[0]["slidegate"] for check in decision.checks]
        for name, values in tree.served:
            value = values.get(parameter.get(name, ""), "")
            numbered = isinstance(value, str) and re.search(rf"{parameter.get(name)}:[fiu]", tree.handlers[name].path)
            if value == "" or numbered:  # a handler of FastAPI's makes a number of a text itself
                continue
            ran += 1
            own = [key for bucket, key, _ in checks if bucket.label == name]
            expected = limiter.key_for(path_param(parameter[name]).of(value))
            assert own == [expected], f"seed {seed}, {path!r}, root {root!r}, {tree.handlers[name].path} with {values}"
    return ran


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    files = tmp_path / "downloads"
    files.mkdir()
    (files / "a.js").write_text("1")
    return files


def seeds(many: int) -> Any:
    """Return the seeds of a dozen trees, and of many with ``deep``."""
    deep = [pytest.param(seed, marks=pytest.mark.deep) for seed in range(1_000, 1_000 + many)]
    return pytest.mark.parametrize("seed", [*range(12), *deep])


@seeds(many=120)
async def test_whatever_reaches_a_handler_was_counted(seed: int, directory: Path) -> None:
    assert await search(seed, directory, 400 if seed < 1_000 else 10_000, roots=seed % 3 > 0) > 0


@pytest.mark.parametrize("feature", ["mixed", "dots"])
async def test_whatever_reaches_a_handler_was_counted_beside_text_and_behind_dots(
    feature: str, directory: Path
) -> None:
    found: list[str] = []
    for seed in range(40):
        tree = Tree(Random(seed), directory, **{feature: True})
        found += (await missed(seed, tree, 60, seed % 4))[1]
    assert found == []


async def test_few_trees_have_an_application_that_reads_another_path(
    directory: Path, record_property: Callable[[str, object], None]
) -> None:
    many = 200
    trees = [Tree(Random(seed), directory) for seed in range(2_000, 2_000 + many)]
    apart = [(await missed(2_000 + number, tree, 20, number % 4))[2] > 0 for number, tree in enumerate(trees)]
    share = sum(apart) / many
    record_property("share of trees that a rule by path misses", share)
    print(f"{share:.1%} of the route trees have a request that a rule by path misses")  # noqa: T201
    assert share <= 0.05


@seeds(many=100)
async def test_ordinary_requests_are_counted_as_patterns_say(seed: int, directory: Path) -> None:
    assert await compare(seed, directory, 300 if seed < 1_000 else 3_000) > 0


@seeds(many=100)
async def test_requests_are_counted_under_the_value_that_the_routers_find(seed: int, directory: Path) -> None:
    assert await misread(seed, directory, 200 if seed < 1_000 else 3_000) > 0
