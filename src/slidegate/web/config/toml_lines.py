"""Finds the line of each key in a TOML document; the standard library's parser does not tell it.

The document has been parsed before, so it is well-formed, and the scanner needs to know only how far each value
reaches: strings may hold anything, arrays and inline tables hold values again, and everything else ends at a delimiter.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""The way to a value: names of keys, and places in arrays."""

_SPACE: Final = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_BLANK: Final = re.compile(r"[ \t]*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_STRING: Final = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+"""(?:"{1,2}(?!"))?' r"|'''(?:[^']++|'(?!''))*+'''(?:'{1,2}(?!'))?"
    r'|"(?:[^"\\\n]++|\\.)*+"' r"|'[^'\n]*+'",
    re.DOTALL,
)  # fmt: skip
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]+")


MAX_DEPTH: Final = 32
"""The largest number of names in a dotted key: every reader of TOML takes time in proportion to its square."""
_DEEP: Final = re.compile(r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")


def too_deep(text: str) -> int | None:
    """Return the line of a key that has more than `MAX_DEPTH` names, else None; the text need not be TOML."""
    found = _DEEP.search(text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, counted from 1, of every key, array entry and table of a well-formed TOML document."""
    return _Scanner(text).scan()


def path_text(path: Sequence[str | int]) -> str:
    """Write a path as people do: ``rules[2].limits``, ``signals."/.env"``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_written(part)}" for part in path)
    return text.removeprefix(".")


def line_of(lines: Mapping[KeyPath, int], path: Sequence[str | int]) -> int | None:
    """Return the line of a path, or of the nearest table around it that is written down."""
    for length in range(len(path), 0, -1):
        found = lines.get(tuple(path[:length]))
        if found is not None:
            return found
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._lines: dict[KeyPath, int] = {}
        self._arrays: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while True:
            self._skip(_SPACE)
            if self._at >= len(self._text):
                return self._lines
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _note(self, path: KeyPath) -> None:
        # A table that its first dotted key opens gets the line of that key.
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        # If a path is known, so are all tables around it.
        while path and path not in self._lines:
            self._lines[path] = self._line
            path = path[:-1]

    def _header(self) -> KeyPath:
        array = self._text.startswith("[[", self._at)
        self._at += 2 if array else 1
        names = self._key()
        path: KeyPath = ()
        for place, name in enumerate(names):
            path = (*path, name)
            if array and place == len(names) - 1:
                self._arrays[path] = self._arrays.get(path, 0) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path] - 1)
        self._note(path)
        self._at += 2 if array else 1
        return path

    def _key(self) -> list[str]:
        names = []
        while True:
            self._skip(_BLANK)
            bare = self._skip(_BARE)
            names.append(bare or _unquote(self._skip(_STRING)))
            self._skip(_BLANK)
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _pair(self, table: KeyPath) -> None:
        start = self._at
        path = (*table, *self._key())
        end, self._at = self._at, start
        self._note(path)
        self._at = end + 1  # the "="
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACE)
        opening = self._text[self._at]
        if opening in "\"'":
            self._skip(_STRING)
        elif opening == "[":
            self._array(path)
        elif opening == "{":
            self._table(path)
        else:
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        place = 0
        while self._next() != "]":
            self._note((*path, place))
            self._value((*path, place))
            place += 1
        self._at += 1

    def _table(self, path: KeyPath) -> None:
        self._at += 1
        while self._next() != "}":
            self._pair(path)
        self._at += 1

    def _next(self) -> str:
        """Return the character that begins the next entry, or ends the list of them."""
        self._skip(_SPACE)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_SPACE)
        return self._text[self._at]


def _written(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _unquote(name: str) -> str:
    return next(iter(tomllib.loads(f"{name} = 0")))
