"""The arguments of a rule that can be checked each by itself: paths, methods, a key function, limits for nobody."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ...core.errors import ConfigurationError
from ...core.limits import Limit
from ..keys.key import KeyFunction
from ..paths.patterns import compile_pattern

_NOTHING: Final = re.compile(r"(?:[^:]{0,64}:)?\s*[-+]?0+\s*(?:/|per\b)", re.ASCII | re.IGNORECASE)


def checked_paths(path: object) -> tuple[str, ...]:
    """Return the paths of a rule."""
    if path == "*":
        return ("*",)
    listed = [path] if isinstance(path, (str, bytes)) or not isinstance(path, Iterable) else list(path)
    if not listed:
        raise ConfigurationError('path: expected paths such as ["/login", "/token"], not an empty list')
    for place, found in enumerate(listed):
        if found == "*":
            raise ConfigurationError(f'path: "*" means every path; write it alone, not beside others: {listed!r}')
        compile_pattern(found)
        if found in listed[:place]:
            raise ConfigurationError(f"path: {found!r} stands twice in {listed!r}; write it once")
    return tuple(map(str, listed))


def checked_methods(methods: object) -> frozenset[str] | None:
    if methods is None:
        return None
    example = 'expected a list such as ["GET", "POST"]'
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise ConfigurationError(f"methods: {example}, not {methods!r}")
    found = set()
    for method in methods:
        if not isinstance(method, str) or not (method.isascii() and method.isalpha()):
            raise ConfigurationError(f"methods: {example}, not {method!r} in it")
        found.add(method.upper())
    if not found:
        raise ConfigurationError(f"methods: {example}; leave it out for all methods")
    return frozenset(found | {"HEAD"} if "GET" in found else found)


def checked_function(key: KeyFunction | None) -> KeyFunction | None:
    """Return the user's key function.

    Raises:
        ConfigurationError: It is no function, or it makes a key and was not called.
    """
    if key is not None and not callable(key):
        raise ConfigurationError(f'key: expected client_ip(), header("X-API-Key") or a function, not {key!r}')
    if getattr(key, "__module__", "").startswith("slidegate."):
        raise ConfigurationError(f'key: {key!r} makes a key; call it, for example header("X-API-Key")')
    return key


def says_nobody(limits: object) -> bool:
    """Return whether limits let nobody through: they are the word "nobody", or one of them has the amount 0."""
    if isinstance(limits, str):
        return limits.strip().lower() == "nobody" or any(map(_NOTHING.match, limits.split(";")))
    return not isinstance(limits, Limit) and isinstance(limits, Iterable) and any(map(says_nobody, limits))
