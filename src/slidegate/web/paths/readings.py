"""The readings of a path: a closed table of texts that routers may take it for.

Between a gate and the code that serves a request there are routers, file servers and frameworks, and they do not all
take one text for the same path. A rule that limits is compared with every reading, and one that matches is enough. A
rule that exempts, or ends the list, has to match every reading.

| reading | readers |
| --- | --- |
| the path as it is | every router |
| without final newlines | Starlette and other routers that end a regular expression with ``$`` |
| without matrix parameters (``;x=1``) | servers in the tradition of servlets |
| without dot segments | file servers, proxies |
| one slash where there are several | file servers, proxies, Werkzeug |
| several of these | several of them, one behind the other |

A number or a UUID in a path has further spellings, and an endpoint that converts the text itself accepts them.
The case of a path is never changed, and no header names another method.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX

from .patterns import PathPattern
from .segments import segments

LONGEST: Final = 4_096
"""The length up to which the readings of a path are worked out."""
_ODD: Final = re.compile(r"//|/\.\.?(?:[/;\n]|\Z)|[;\n]")
_DOTS_LAST: Final = re.compile(r"/\.\.?\Z")
_MATRIX: Final = re.compile(r";[^/]*")
_SLASHES: Final = re.compile(r"//+")
# What pydantic, int(), float() and UUID() take; "+" after a group of repeated characters keeps them linear.
_SPELLINGS: Final[Mapping[type, str]] = {
    IntegerConvertor: r"\s*+[+-]?(?:0[0_]*+[+-])?[\d_]++(?:\.[0_]*+)?\s*+",
    FloatConvertor: r"(?i:\s*+[+-]?(?:inf|infinity|nan|(?=[^/]*\d)[\d_]*+(?:\.[\d_]*+)?(?:e[+-]?[\d_]++)?)\s*+)",
    UUIDConvertor: r"(?i:(?:urn:)?(?:uuid:)?(?:[{}-]*+[0-9a-f]){32}[{}-]*+)",
}


def is_odd(path: str) -> bool:
    """Return whether a path has other readings than itself."""
    return _ODD.search(path) is not None


def readings(path: str) -> tuple[str, ...]:
    """Return every reading of a path, first the path itself; a very long path has only that one."""
    if len(path) > LONGEST or not is_odd(path):
        return (path,)
    found = {path: None}
    for step in _STEPS:
        found.update(dict.fromkeys([step(text) for text in found]))
    for text in [text for text in found if _DOTS_LAST.search(text)]:
        # "/a/." is "/a/" for some and "/a" for others.
        found.update(dict.fromkeys(other.rstrip("/") or "/" for other in readings(_without_dots(text))))
    return tuple(found)


class Written:
    """A path of a rule, in Starlette's syntax.

    Attributes:
        path: The text of the path.
        generous: The pattern for limits.
        strict: The pattern for exemptions, which matches not an inch more than the path says.
        spelled: The pattern for limits with any spelling of a number; None where the path has no number.
        segments: The segments of the path, to compare it with the templates of routes.
    """

    __slots__ = ("generous", "path", "segments", "spelled", "strict")

    def __init__(self, path: str, pattern: PathPattern) -> None:
        self.path = path
        self.generous, convertors = pattern
        # "." leaves out the newline here, as it does where Starlette mounts an application.
        self.strict = re.compile(self.generous.pattern)
        self.spelled = _spelled(path, convertors)
        self.segments = segments(path)

    def meets(self, texts: Sequence[str], root: str) -> str | None:
        """Return the first reading that a limit applies to, with the root before it if the rule is written so."""
        return self._first(self.generous, texts, root)

    def spells(self, texts: Sequence[str], root: str) -> str | None:
        """Return the first reading that a limit applies to, with numbers in any spelling."""
        return self._first(self.spelled or self.generous, texts, root)

    def covers(self, text: str) -> bool:
        """Return whether an exemption applies to a reading."""
        return self.strict.fullmatch(text) is not None

    def rooted(self, root: str) -> bool:
        """Return whether the path is written with the root."""
        return self.path.startswith(root) and self.path[len(root) :].startswith("/") and root != ""

    def _first(self, pattern: re.Pattern[str], texts: Sequence[str], root: str) -> str | None:
        found = next((text for text in texts if pattern.match(text)), None)
        if found is None and self.rooted(root):
            found = next((root + text for text in texts if pattern.match(root + text)), None)
        return found


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


def _spelled(path: str, convertors: Mapping[str, Convertor[Any]]) -> re.Pattern[str] | None:
    if not any(type(convertor) in _SPELLINGS for convertor in convertors.values()):
        return None
    regex, end = "", 0
    for found in PARAM_REGEX.finditer(path):
        convertor = convertors[found[1]]
        value = _SPELLINGS.get(type(convertor), convertor.regex)
        regex += f"{re.escape(path[end : found.start()])}(?P<{found[1]}>{value})"
        end = found.end()
    return re.compile(f"{regex}{re.escape(path[end:])}$", re.DOTALL)


_STEPS: Final = (
    _without_newlines,
    _without_matrix,
    _without_newlines,
    _without_dots,
    _with_single_slashes,
    _without_dots,
)
"""What readers do, in the orders in which several of them stand one behind the other."""
