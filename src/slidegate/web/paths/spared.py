"""Operators' tools below a gate, which the rules of the application leave alone.

A tool that looks after itself, such as the dashboard, carries a mark. The gate looks for marks among the routes below
it, at the start and again after the first requests. From then on it spares a request which the routers lead to a marked
application, if nothing on the way is unknown that may have changed its path: then it ends there, however its path may
be read elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from starlette.routing import Host, Mount
from starlette.types import Scope

from .layers import flat_routes, layers
from .tree import Tree

SPARED: Final = "__slidegate_spared__"
"""The attribute of a marked application: the limiter whose bans it looks at itself."""

_DEPTH: Final = 16


class Spared:
    """Finds the requests that lead to a marked application.

    Args:
        app: The application that the gate guards.
        texts: Texts without which no path leads there.
    """

    def __init__(self, app: object, texts: frozenset[str]) -> None:
        self._tree = Tree(app)
        self._texts = tuple(texts)

    def find(self, scope: Scope) -> object:
        """Return the limiter of the marked application to which a request leads; None where it leads elsewhere."""
        path: str = scope["path"]
        for text in self._texts:
            if text in path:
                break
        else:
            return None
        reached = self._tree.reach(scope)
        if reached is None:
            # A person writes the path of a mount without its slash, and the router sends the browser there.
            reached = self._tree.reach({**scope, "path": f"{path}/"})
        return None if reached is None or not reached.sure else getattr(reached.end, SPARED, None)


def find_spared(app: object) -> Spared | None:
    """Look for marked applications below a gate; None if there are none."""
    texts = frozenset(_texts(app, "", 0))
    return Spared(app, texts) if texts else None


def _texts(app: object, above: str, depth: int) -> Iterator[str]:
    """Yield, for each marked application, the text that the path of its mount begins with."""
    for layer in layers(app):
        if hasattr(layer, SPARED):
            yield above
            return
        if hasattr(layer, "routes"):
            for route in flat_routes(layer.routes) if depth < _DEPTH else ():
                own = getattr(route, "path", "").partition("{")[0]
                if isinstance(route, (Mount, Host)):
                    yield from _texts(route.app, own, depth + 1)
                elif hasattr(getattr(route, "endpoint", None), SPARED):
                    yield own
            return
