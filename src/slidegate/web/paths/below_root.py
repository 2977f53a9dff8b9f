"""The part of a request's path that a router sees: the one below its `root_path`."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, as the router at this place sees it."""
    return below(scope.get("root_path", ""), scope["path"])


def below(root: str, path: str) -> str:
    """Return a path below a root, as Starlette's routers see it; the path itself if it does not begin with the root."""
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path
