"""The routes that may take a path, found among thousands without asking each.

A route is found by its path as long as its pattern is the one that Starlette makes of that path. Any other may take
every path: a `Host`, a route of the user's own, one whose pattern was replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from starlette.convertors import Convertor
from starlette.routing import PARAM_REGEX, Host, Mount

from .layers import is_known_module
from .path_index import PathIndex

T = TypeVar("T")
Written: TypeAlias = tuple[str, Mapping[str, Convertor[Any]]]
"""A path in Starlette's syntax, and the convertors of its parameters."""

_FLAGS: Final = re.compile("").flags


class RoutesByPath(Generic[T]):
    """Finds routes by a path.

    Args:
        routes: The routes, or whatever stands for them, in their order.
        written: Returns the path of one; None where it may take any.
    """

    def __init__(self, routes: Iterable[T], written: Callable[[T], Written | None]) -> None:
        self._routes = tuple(routes)
        self._always: list[int] = []
        self._index: PathIndex[int] = PathIndex()
        for place, route in enumerate(self._routes):
            found = written(route)
            if found is None:
                self._always.append(place)
            else:
                self._index.add(*found, place)

    def find(self, path: str) -> Sequence[T]:
        """Return the routes that may take a path, in their order; some of them do not."""
        return [self._routes[place] for place in sorted({*self._always, *self._index.find(path)})]


def written_of(route: Any) -> Written | None:
    """Return the path by which a route can be found."""
    path, convertors = getattr(route, "path", None), getattr(route, "param_convertors", None)
    pattern = getattr(route, "path_regex", None)
    if isinstance(route, Host) or not isinstance(path, str) or convertors is None or pattern is None:
        return None
    if isinstance(route, Mount):
        path += "/{path:path}"
    own = is_known_module(getattr(getattr(type(route), "matches", None), "__module__", ""))
    alike = own and (pattern.pattern, pattern.flags) == (_regex(path, convertors), _FLAGS)
    return (path, convertors) if alike else None


def _regex(path: str, convertors: Mapping[str, Convertor[Any]]) -> str:
    """Return the expression that Starlette makes of a path."""
    regex, end = "^", 0
    for found in PARAM_REGEX.finditer(path):
        regex += f"{re.escape(path[end : found.start()])}(?P<{found[1]}>{convertors[found[1]].regex})"
        end = found.end()
    return f"{regex}{re.escape(path[end:])}$"
