"""Looks at an application from outside: the layers around it, its `root_path`, its routes in one list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from starlette.types import Scope

_KNOWN: Final = frozenset({"starlette", "fastapi", "slidegate"})


def layers(app: object) -> Iterator[object]:
    """Yield an application and each one that it wraps, from the outside in."""
    seen: set[int] = set()
    while app is not None and id(app) not in seen:
        seen.add(id(app))
        yield app
        app = getattr(app, "app", None)


def own_root(app: object) -> str:
    """Return the `root_path` that an application gives itself, as FastAPI does; empty for none."""
    root = getattr(app, "root_path", "") if hasattr(app, "openapi") else ""
    return root if isinstance(root, str) else ""


def scope_to_ask(scope: Scope) -> Scope:
    """Return a copy of a scope that routes may write to."""
    return {key: dict(value) if type(value) is dict else value for key, value in scope.items()}


def flat_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield routes; those of an included router come in its place."""
    for listed in routes:
        if hasattr(listed, "effective_candidates"):
            yield from flat_routes(listed.effective_candidates())
        else:
            yield getattr(listed, "starlette_route", None) or listed


def is_known(thing: object) -> bool:
    return is_known_module(type(thing).__module__)


def is_known_module(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN
