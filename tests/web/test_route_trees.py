"""Behind random trees of routes, whatever reaches a limited handler was counted, however its path was spelt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from starlette.routing import compile_path

from slidegate import Rule
from slidegate.web.route_tree import walk

from ..asgi import scope_of
from .middlewares import charged
from .route_trees import PLENTY, Tree, filled, gated

ORDINARY = re.compile(r"(?:/(?!\.\.?(?:/|$))[^/;\s]+)+/?")
"""Paths of which no router makes anything else than they say."""
ODD_NUMBER = re.compile(r"/(?![0-9]+(?:/|$))[0-9_+.-]+(?:/|$)")


def rules_of(tree: Tree, random: Random, exemptions: int) -> list[Rule]:
    """Return a rule on each handler, and among them some that exempt or end the list."""
    rules = [Rule(handler.path, PLENTY, name=name) for name, handler in tree.handlers.items()]
    candidates = ["/static/{rest:path}", "/v1/{rest:path}", "/login", "/a/{x}", "/{x}/{y}", "/{n:int}"]
    for path in random.sample([*candidates, *(handler.path for handler in tree.handlers.values())], exemptions):
        rule = (
            Rule(path, exempt=True) if random.random() < 0.6 else Rule(path, PLENTY, final=True, name=f"f{len(rules)}")
        )
        rules.insert(random.randint(0, len(rules)), rule)
    return rules


def ends(rule: Rule, path: str) -> bool:
    """Tell whether the exemption's own route, of Starlette's, would serve a path."""
    pattern = compile_path(rule.paths[0])[0]
    return pattern.fullmatch(path) is not None


async def ask(
    app: Any, tree: Tree, random: Random, path: str, root_path: str, methods: Sequence[str]
) -> tuple[Any, list[str]]:
    """Send one request; return its scope and the labels of what it was counted on."""
    tree.served.clear()
    kind = "websocket" if random.random() < 0.15 else "http"
    method = random.choice(methods)
    host = random.choice(["api.example.org", "x.example.org"])
    scope = scope_of(path, method, raw_path=b"/", root_path=root_path, type=kind, headers={"host": host})
    if kind == "websocket":
        scope["subprotocols"] = []
    first = [{"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}]

    async def receive() -> Any:
        if not first:
            await anyio.sleep_forever()
        return first.pop()

    async def send(message: Any) -> None: ...

    await app(scope, receive, send)
    return scope, charged(scope)


async def search(seed: int, directory: Path, spellings: int, exemptions: int) -> int:
    """Look for a request that a limited handler served and no rule counted; say how often handlers ran."""
    random = Random(seed)
    tree = Tree(random, directory)
    rules = rules_of(tree, random, exemptions)
    app = gated(tree, rules)
    ran = 0
    for _ in range(spellings):
        path = tree.spelling()
        root_path = random.choice(["", "", "", "/api", "/v1"])
        if root_path and random.random() < 0.6:
            path = root_path + path
        _, counted = await ask(app, tree, random, path, root_path, ["GET", "GET", "POST", "HEAD", "post"])
        for name, values in tree.served:
            ran += 1
            handler = tree.handlers[name]
            where = f"seed {seed}, path {path!r}, root {root_path!r}: {handler} counted on {counted}"
            reached = filled(handler.path, values)
            before = next(place for place, rule in enumerate(rules) if rule.name == name)
            excused = [rule for rule in rules[:before] if rule.final and ends(rule, reached)]
            assert name in counted or excused, f"{where}; nothing exempts {reached!r}"
            assert handler.inner is None or f"inner-{name}" in counted, where
            if name in tree.shared:
                written = re.sub(r":\w+\}", "}", tree.shared[name])
                known = {place.label[:64] for place in walk(tree.app) if place.template.endswith(written)}
                assert any(label in known for label in counted), f"{where}; expected one of {known}"
    return ran


async def compare(seed: int, directory: Path, spellings: int) -> int:
    """Look for an ordinary request that is counted on other rules than written patterns say."""
    random = Random(seed)
    tree = Tree(random, directory, roots=False)
    rules = rules_of(tree, random, seed % 4)
    app = gated(tree, rules)
    patterns = [(rule, re.compile(compile_path(rule.paths[0])[0].pattern, re.DOTALL)) for rule in rules]
    ran = 0
    for _ in range(spellings):
        path = tree.spelling(changes=0 if random.random() < 0.5 else 2)
        if not ORDINARY.fullmatch(path) or ODD_NUMBER.search(path) or "/files/" in path:
            continue
        ran += 1
        root_path = random.choice(["", "/root"])
        _, counted = await ask(app, tree, random, root_path + path, root_path, ["GET", "POST", "HEAD"])
        other = path.removesuffix("/") if path[-1] == "/" else f"{path}/"
        expected, allowed = [], set()
        for rule, pattern in patterns:
            matched = pattern.fullmatch(path) if rule.exempt else pattern.match(path)
            if matched and not rule.exempt:
                expected.append(rule.name)
            if matched or (tree.serves_files and pattern.match(other)):
                allowed.add(rule.name)
            if matched and rule.final:
                break
        outer = [name for name in counted if re.fullmatch(r"[hf]\d+", name)]
        where = f"seed {seed}, path {path!r}, root {root_path!r}"
        assert [name for name in outer if name in expected] == expected, where
        assert allowed.issuperset(outer), where
    return ran


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "a.js").write_text("1")
    return tmp_path


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_reaches_a_handler_was_counted(seed: int, directory: Path) -> None:
    assert await search(seed, directory, 400, seed % 4) > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1_000, 1_120))
async def test_whatever_reaches_a_handler_was_counted_in_many_trees(seed: int, directory: Path) -> None:
    assert await search(seed, directory, 10_000, seed % 4) > 0


@pytest.mark.parametrize("seed", range(12))
async def test_ordinary_requests_are_counted_as_patterns_say(seed: int, directory: Path) -> None:
    assert await compare(seed, directory, 300) > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1_000, 1_100))
async def test_ordinary_requests_are_counted_as_patterns_say_in_many_trees(seed: int, directory: Path) -> None:
    assert await compare(seed, directory, 3_000) > 0
