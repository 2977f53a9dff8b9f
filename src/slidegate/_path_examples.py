"""Examples of requests: findings and OpenAPI ask the rules of a middleware for them, in place of all requests.

An example stands for all values of a parameter, so it is one that hardly any path of a rule spells out, and that as
few other types of parameters take as possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from starlette.routing import PARAM_REGEX, compile_path

_VALUES: Final[Mapping[str, str]] = {"int": "918273645", "float": "9182.73645", "uuid": "f" * 32}
_TEXT: Final = "~"
"""The example of a text, and of a type that is not known."""
_TEXT_PARAMETER: Final = re.compile(r"\{\w+\}")
_compiled: Final = lru_cache(compile_path)


def filled(path: str, rest: str = f"{_TEXT}/{_TEXT}") -> str:
    """Return a path with an example in the place of each parameter; `rest` is that of a parameter with slashes."""

    def example_of(parameter: re.Match[str]) -> str:
        kind = (parameter[2] or "").removeprefix(":")
        if kind == "path":
            return rest
        return _VALUES.get(kind, _TEXT)

    return PARAM_REGEX.sub(example_of, path)


def filled_for_both(path: str, other: str) -> str | None:
    """Return an example that two paths with parameters may both take, compared by segments; None if there is none."""
    segments, others = path.split("/"), other.split("/")
    narrower: list[str] = []
    for index, (segment, other_segment) in enumerate(zip_longest(segments, others, fillvalue="")):
        # What a parameter with slashes takes, the other path spells out.
        if ":path}" in other_segment:
            return filled("/".join([*narrower, "/".join(segments[index:])]))  # with the slash in front of nothing
        if ":path}" in segment:
            return filled("/".join([*narrower, *others[index:]]))
        if not _meet(segment, other_segment):
            return None
        if "{" not in segment or _TEXT_PARAMETER.fullmatch(other_segment):
            narrower.append(segment)
        else:
            narrower.append(other_segment)
    if len(segments) != len(others):  # one has a final slash
        return None
    return filled("/".join(narrower))


def _meet(segment: str, other: str) -> bool:
    """Return whether a segment of a request may match two segments, of which each may have parameters."""
    return segment == other or _takes(segment, other) or _takes(other, segment)


def _takes(segment: str, other: str) -> bool:
    """Return whether a segment has parameters, and may take another one, which may have some, too."""
    return "{" in segment and ("{" in other or _compiled(f"/{segment}")[0].match(f"/{other}") is not None)
