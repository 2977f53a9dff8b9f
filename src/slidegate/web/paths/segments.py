"""Paths in Starlette's syntax, segment by segment: whether two of them can mean one path."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, TypeAlias

from starlette.convertors import PathConvertor, StringConvertor
from starlette.routing import PARAM_REGEX, compile_path

Segments: TypeAlias = tuple[str | re.Pattern[str], ...]

_ANY: Final = re.compile("[^/]+")
_REST: Final = re.compile(".*")


@lru_cache(4_096)
def segments(path: str) -> Segments:
    """Split a path in Starlette's syntax: text, a pattern for parameters, `_REST` for ``{rest:path}`` at the end."""
    found: list[str | re.Pattern[str]] = []
    for segment in path.split("/"):
        whole = PARAM_REGEX.fullmatch(segment)
        if PARAM_REGEX.search(segment) is None:
            found.append(segment)
            continue
        pattern, _, convertors = compile_path(f"/{segment}")
        if any(isinstance(convertor, PathConvertor) for convertor in convertors.values()):
            return (*found, _REST)
        plain = whole is not None and all(isinstance(convertor, StringConvertor) for convertor in convertors.values())
        found.append(_ANY if plain else re.compile(pattern.pattern.replace("^/", "^", 1)))
    return tuple(found)


def overlap(one: Segments, other: Segments) -> bool:
    """Return whether some path belongs to both."""
    if one[:1] == (_REST,) or other[:1] == (_REST,):
        return True
    if not one or not other:
        return not one and not other
    first, second = one[0], other[0]
    if isinstance(first, str) and isinstance(second, str):
        same = first == second
    elif isinstance(first, str):
        same = isinstance(second, re.Pattern) and second.match(first) is not None
    else:
        same = not isinstance(second, str) or first.match(second) is not None
    return same and overlap(one[1:], other[1:])
