"""The normal forms of a path, and all the texts that a chain of readers may make of it.

In a normal form there are no runs of slashes and no dot segments. There is one that keeps matrix parameters (``;x=1``)
and one without them. Rules are compared with these. Limits for each route are not compared with any text of their own:
they ask the routes about every text of a path, in `readings`.

The case of a path is never changed, and no header names another path.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 4_096
"""The length up to which other texts of an odd path are worked out."""
_ODD: Final = re.compile(r"//|/\.\.?(?:[/;\n]|\Z)|[;\n]")
_DOTS_LAST: Final = ("/.", "/..")
_MATRIX: Final = re.compile(r";[^/]*")
_SLASHES: Final = re.compile(r"//+")


def is_odd(path: str) -> bool:
    """Return whether some reader may make another text of a path."""
    return _ODD.search(path) is not None


def normal_forms(path: str) -> tuple[str, ...]:
    """Return a path and its normal forms, each once; of a very long path only the path itself."""
    if len(path) > LONGEST or not is_odd(path):
        return (path,)
    found = {path: None}
    for text in {path: None, _without_matrix(path): None}:
        form = _without_dots(_with_single_slashes(text))
        found[form] = None
        if text.endswith(_DOTS_LAST):
            # "/a/." is "/a/" for some and "/a" for others.
            found[form.rstrip("/") or "/"] = None
    return tuple(found)


def readings(path: str) -> tuple[str, ...]:
    """Return every text that several readers, one behind the other, may make of a path, first the path itself."""
    if len(path) > LONGEST or not is_odd(path):
        return (path,)
    found = {path: None}
    for step in _STEPS:
        found.update(dict.fromkeys([step(text) for text in found]))
    for text in [text for text in found if text.endswith(_DOTS_LAST)]:
        found.update(dict.fromkeys(other.rstrip("/") or "/" for other in readings(_without_dots(text))))
    return tuple(found)


def _without_newlines(text: str) -> str:
    return text.rstrip("\n")


def _without_matrix(text: str) -> str:
    return _MATRIX.sub("", text) if ";" in text else text


def _with_single_slashes(text: str) -> str:
    return _SLASHES.sub("/", text)


def _without_dots(text: str) -> str:
    """Remove dot segments as RFC 3986, section 5.2.4, does."""
    if "/." not in text:
        return text
    kept: list[str] = []
    parts = text.split("/")[1:]
    for part in parts:
        if part == "..":
            del kept[-1:]
        elif part != ".":
            kept.append(part)
    if parts[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


_STEPS: Final = (
    _without_newlines,
    _without_matrix,
    _without_newlines,
    _without_dots,
    _with_single_slashes,
    _without_dots,
)
"""What readers do, in the orders in which several of them stand one behind the other."""
