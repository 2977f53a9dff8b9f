"""Remembers the functions that limits were put around, for the finding about those whose routes have taken them before.

A decorator of a route keeps the function that it gets. A limit above it makes another one, which no request reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Final
from weakref import WeakValueDictionary

from ..web.routes import DEPTH, attribute_of, found_at_name

_decorated_by_id: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
"""The functions that a `RateLimit` was put around, by their identities: some have no hash."""
_nameless_by_id: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
"""Those of them that had no name by then where the limit was put around them: ``@`` gives it the name."""


def remember_decorated(endpoint: Any, caller: FrameType) -> None:
    """Remember a function, and those that it wraps, as what a limit is being put around.

    Args:
        endpoint: The function.
        caller: The frame in which the limit is put around it.
    """
    named = {*map(id, caller.f_locals.values()), *map(id, caller.f_globals.values())}
    for inner in (endpoint, *wrapped_by(endpoint)):
        with suppress(TypeError):  # what cannot be referenced weakly
            _decorated_by_id[id(inner)] = inner
            if id(endpoint) not in named:
                _nameless_by_id[id(inner)] = inner


def is_bare(endpoint: Any) -> bool:
    """Return whether an endpoint is a function whose limit was put around it after its route had taken it.

    Its name leads to what has the limit then. A function may well be limited at one route alone: its name leads to
    itself.
    """
    if _decorated_by_id.get(id(endpoint)) is not endpoint:
        return False
    named = found_at_name(endpoint)
    if named is endpoint:
        return False
    if any(inner is endpoint for inner in wrapped_by(named)):
        return True
    return _nameless_by_id.get(id(endpoint)) is endpoint


def wrapped_by(function: Any) -> Iterator[Any]:
    """Yield the functions within a function, as far as its decorators say what they wrap."""
    for _ in range(DEPTH):
        function = attribute_of(function, "__wrapped__")
        if function is None:
            return
        yield function
