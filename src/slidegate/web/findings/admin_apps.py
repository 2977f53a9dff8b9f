"""A dashboard or an admin API below a gate: which rules count it, and the rule that would leave it out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from starlette.routing import Host, Mount
from starlette.types import Scope

from ..paths.layers import DEPTH, flat_routes, layers, root_of, router_of
from ..rules.rule import Rule
from ..rules.rule_set import Selection
from .codes import Finding

_PARAMETER: Final = re.compile(r"\{[^}]*\}")
_REQUESTS: Final = (("GET", "/"), ("GET", "/api/session"), ("POST", "/api/session"))
_ALL_BELOW: Final = re.compile(r"/?\{\w+:path\}\Z")
_MOST_NAMED: Final = 3


class AdminApp:
    """An application for operators, such as the dashboard. A gate above it says at the start which rules count it."""


def about_admin_apps(app: object, select: Callable[[Scope], Selection]) -> Iterator[Finding]:
    """Yield a finding for each dashboard and admin API among the routes of an application that rules count.

    Args:
        app: The application that a gate guards.
        select: Returns the rules of the gate that a request meets.
    """
    root = root_of(app)
    for place in dict.fromkeys(_places(app, "", 0)):
        counting = _counting(place, root, select)
        if counting:
            names = ", ".join(map(repr, counting[:_MOST_NAMED])) + (", ..." if len(counting) > _MOST_NAMED else "")
            yield Finding(
                "SG122",
                f"the dashboard or admin API at {place!r} is counted by {names}; a client that has spent its limit "
                f'cannot open it: write Rule("{place}/{{rest:path}}", exempt=True) before other rules',
            )


def _counting(place: str, root: str, select: Callable[[Scope], Selection]) -> list[Rule]:
    """Return the rules that count or block requests to an application at a place."""
    found: dict[int, Rule] = {}
    for method, rest in _REQUESTS:
        path = root + _PARAMETER.sub("1", place) + rest
        selection = select({"type": "http", "method": method, "path": path, "root_path": root, "headers": []})
        rules = [bound.rule for bound in selection.limiting]
        rules += [rule for rule, bound, _ in selection.open if bound is not None and rule.action == "limit"]
        if selection.blocked is not None:
            rules.append(selection.blocked)
        found.update((id(rule), rule) for rule in rules)
    return list(found.values())


def _places(app: object, above: str, depth: int) -> Iterator[str]:
    """Yield the path of each admin application among the routes of an application."""
    router = router_of(app)
    for route in flat_routes(router.routes) if router is not None and depth < DEPTH else ():
        path = above if isinstance(route, Host) else above + getattr(route, "path", "")
        inner = route.app if isinstance(route, (Mount, Host)) else getattr(route, "endpoint", None)
        if any(isinstance(layer, AdminApp) for layer in layers(inner)):
            yield _ALL_BELOW.sub("", path)
        elif isinstance(route, (Mount, Host)):
            yield from _places(inner, path, depth + 1)
