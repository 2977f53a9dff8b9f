"""With limits for each route no mix of spellings gets more requests to a route than one spelling does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from starlette.types import ASGIApp

from slidegate import Limiter, MemoryStore, RateLimit, RateLimitMiddleware, Rule
from slidegate.testing import FakeClock

from .route_trees import Tree
from .test_route_trees import ask, directory

__all__ = ["directory"]

AMOUNT = 3
REQUESTS = 40
"""How many requests fall into one window."""


@dataclass
class MarkedTree(Tree):
    """A tree in which some endpoints are exempt.

    Attributes:
        exempt: Their names.
    """

    exempt: set[str] = field(default_factory=set)

    def _marked(self, name: str, endpoint: Any) -> Any:
        self.exempt.discard(name)
        if self.random.random() < 0.25:
            self.exempt.add(name)
            RateLimit.exempt(endpoint)
        return endpoint

    def _page(self, name: str) -> Any:
        return self._marked(name, super()._page(name))

    def _api(self, name: str) -> Any:
        return self._marked(name, super()._api(name))

    def _class(self, name: str) -> Any:
        return self._marked(name, super()._class(name))


async def found_paths(tree: MarkedTree, random: Random, app: ASGIApp) -> list[str]:
    """Return ordinary paths that reach a route which is not exempt."""
    open_middleware = RateLimitMiddleware(app, rules=[Rule("/nothing/here", "1/minute")], headers=None)
    paths = []
    for _ in range(60):
        path = tree.spelling(0)
        await ask(open_middleware, tree, random, path, "", ["GET"])
        if any(name not in tree.exempt for name, _ in tree.served):
            paths.append(path)
    return paths


async def search(seed: int, directory: Path, windows: int) -> int:
    """Look for a window in which a route served more requests than its limit; say how often routes were full."""
    random = Random(seed)
    tree = MarkedTree(random, directory)
    clock = FakeClock()
    paths = await found_paths(tree, random, tree.app)
    app = RateLimitMiddleware(
        tree.app,
        default_limits=f"{AMOUNT}/minute",
        limiter=Limiter(MemoryStore(clock=clock)),
        headers=None,
    )
    full = 0
    for _ in range(windows if paths else 0):
        served: Counter[str] = Counter()
        # Few paths in a window, or no route would be asked for more often than its limit.
        some = random.choices(paths, k=2)
        for _ in range(REQUESTS):
            path = random.choice(some)
            for _ in range(random.choice([0, 0, 0, 1, 1, 1, 2])):
                path = tree._changed(path)
            root_path = random.choice(["", "", "", "", "", "", "/api", "/v1"])
            if root_path and random.random() < 0.6:
                path = root_path + path
            await ask(app, tree, random, path, root_path, ["GET", "GET", "POST", "HEAD", "post"])
            served.update({name for name, _ in tree.served})
            over = [name for name in served if served[name] > AMOUNT and name not in tree.exempt]
            where = f"seed {seed}, path {path!r}, root {root_path!r}"
            assert not over, f"{where}: {[tree.handlers[name] for name in over]}"
        full += sum(count == AMOUNT for count in served.values())
        clock.advance("61s")
    return full


async def test_no_mix_of_spellings_gets_more_requests_to_a_route(directory: Path) -> None:
    assert sum([await search(seed, directory, 8) for seed in range(10)]) > 12


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1_000, 1_060))
async def test_no_mix_of_spellings_gets_more_requests_to_a_route_in_many_trees(seed: int, directory: Path) -> None:
    await search(seed, directory, 200)
