"""An index of paths in Starlette's syntax: finds those, among thousands, that a text may belong to.

Paths of one shape, that is with parameters in the same segments, lie in one table by the text of their other segments::

    /shops/{shop}/items        four segments, the second and the fourth are text
    /files/{rest:path}         two segments and whatever comes below, the second is text

The index never misses a path whose pattern matches, and it may name others: the patterns decide, and they are asked
only about the few that are found. Paths that differ only beside a parameter in one segment (`/{name}.css`,
`/{name}.js`), or behind one that may hold a slash, are not told apart here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX

T = TypeVar("T")
_WITHIN_A_SEGMENT: Final = (StringConvertor, IntegerConvertor, FloatConvertor, UUIDConvertor)
_Key: TypeAlias = Callable[[Sequence[str]], object]


class PathIndex(Generic[T]):
    """Finds the owners of paths that a text may belong to."""

    __slots__ = ("_below", "_ending", "_tables")

    def __init__(self) -> None:
        self._tables: dict[object, dict[object, list[T]]] = {}
        self._ending: dict[int, list[tuple[_Key, dict[object, list[T]]]]] = {}
        self._below: list[tuple[int, _Key, dict[object, list[T]]]] = []

    def add(self, path: str, convertors: Mapping[str, Convertor[Any]], owner: T) -> None:
        """Add a path.

        Args:
            path: The path in Starlette's syntax.
            convertors: The convertors of its parameters.
            owner: What `find` returns for it.
        """
        parts = path.split("/")
        end = next((at for at, part in enumerate(parts) if _may_hold_a_slash(part, convertors)), None)
        # Every path begins with a slash, so the text before it tells nothing.
        text_at = tuple(at for at, part in enumerate(parts[:end]) if at and not PARAM_REGEX.search(part))
        key: _Key = itemgetter(*text_at) if text_at else lambda parts: ""
        shape = end, len(parts) if end is None else 0, text_at
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = {}
            if end is None:
                self._ending.setdefault(len(parts), []).append((key, table))
            else:
                self._below.append((end, key, table))
        table.setdefault(key(parts), []).append(owner)

    def find(self, text: str) -> list[T]:
        """Return the owners of all paths that a text may belong to, in no order, some perhaps twice."""
        found: list[T] = []
        # A pattern ends before one final newline too.
        for ending in (text, text[:-1]) if text[-1:] == "\n" else (text,):
            parts = ending.split("/")
            for key, table in self._ending.get(len(parts), ()):
                found += table.get(key(parts), ())
            for end, key, table in self._below:
                if end < len(parts):
                    found += table.get(key(parts), ())
        return found


def _may_hold_a_slash(segment: str, convertors: Mapping[str, Convertor[Any]]) -> bool:
    return any(type(convertors[found[1]]) not in _WITHIN_A_SEGMENT for found in PARAM_REGEX.finditer(segment))
