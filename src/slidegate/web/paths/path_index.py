"""An index of paths in Starlette's syntax: finds those, among thousands, that a text may belong to.

A path without parameters is found by its text. The others are a tree with a level for each segment::

    /shops/{shop}/items        "" -> "shops" -> begins with "" -> "items"    ends here
    /files/v{n:int}.zip        "" -> "files" -> begins with "v"              ends here
    /files/{rest:path}         "" -> "files" -> begins with ""               everything below

A segment with a parameter is known by the text before the parameter, so a look-up tries one beginning for each length
that such a text has in this place. A parameter that may hold a slash ends the tree: whatever comes below belongs to it.

The index never misses a path whose pattern matches, and it may name others: the patterns decide, and they are asked
only about the few that are found. Paths that differ only behind a parameter in one segment (`/{name}.css`,
`/{name}.js`), or behind one that may hold a slash, are not told apart here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX

_WITHIN_A_SEGMENT: Final = (StringConvertor, IntegerConvertor, FloatConvertor, UUIDConvertor)


class PathIndex:
    """Finds the owners of paths that a text may belong to."""

    __slots__ = ("_plain", "_root")

    def __init__(self) -> None:
        self._plain: dict[str, list[int]] = {}
        self._root: _Level | None = None

    def add(self, path: str, convertors: Mapping[str, Convertor[Any]], owner: int) -> None:
        """Add a path.

        Args:
            path: The path in Starlette's syntax.
            convertors: The convertors of its parameters.
            owner: What `find` returns for it.
        """
        if not convertors:
            self._plain.setdefault(path, []).append(owner)
            return
        if self._root is None:
            self._root = _Level()
        level = self._root
        for segment in path.split("/"):
            first = PARAM_REGEX.search(segment)
            if first is None:
                level = level.same.setdefault(segment, _Level())
                continue
            beginning = segment[: first.start()]
            held = [convertors[found[1]] for found in PARAM_REGEX.finditer(segment)]
            if any(type(convertor) not in _WITHIN_A_SEGMENT for convertor in held):
                level.everything_below(beginning, owner)
                return
            level = level.beginning_with(beginning)
        level.ends.append(owner)

    def find(self, text: str) -> list[int]:
        """Return the owners of all paths that a text may belong to, in no order, some perhaps twice."""
        found: list[int] = []
        # A pattern ends before one final newline too.
        for ending in (text, text[:-1]) if text[-1:] == "\n" else (text,):
            found += self._plain.get(ending, ())
            if self._root is not None:
                self._root.collect(ending.split("/"), found)
        return found


class _Level:
    """One place in the tree.

    Attributes:
        ends: The owners of paths that end here.
        same: The next level, by the text of a segment.
        begun: The next level, by the beginning of a segment with a parameter.
        below: The owners of everything below, by the beginning of the next segment.
        lengths: The lengths of the beginnings in `begun` and `below`, the shortest first.
    """

    __slots__ = ("begun", "below", "ends", "lengths", "same")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.same: dict[str, _Level] = {}
        self.begun: dict[str, _Level] = {}
        self.below: dict[str, list[int]] = {}
        self.lengths: tuple[int, ...] = ()

    def beginning_with(self, beginning: str) -> _Level:
        """Return the next level for segments with this beginning."""
        self._note(beginning)
        return self.begun.setdefault(beginning, _Level())

    def everything_below(self, beginning: str, owner: int) -> None:
        """Give everything below to an owner, if the next segment has this beginning."""
        self._note(beginning)
        self.below.setdefault(beginning, []).append(owner)

    def _note(self, beginning: str) -> None:
        self.lengths = tuple(sorted({*self.lengths, len(beginning)}))

    def collect(self, parts: list[str], found: list[int]) -> None:
        """Add the owners of paths below this level, as far as the segments of a text lead there."""
        levels = [self]
        for part in parts:
            following: list[_Level] = []
            for level in levels:
                if (next_level := level.same.get(part)) is not None:
                    following.append(next_level)
                for length in level.lengths:
                    if length > len(part):
                        break
                    beginning = part[:length]
                    if (next_level := level.begun.get(beginning)) is not None:
                        following.append(next_level)
                    found += level.below.get(beginning, ())
            if not following:
                return
            levels = following
        for level in levels:
            found += level.ends
