"""Matches the paths of rules: limits and blocks match any plausible spelling of a path, exemptions only the exact one.

1. A rule's path is compared with two texts: the path below `root_path` as Starlette reads it, or below the `root_path`
   that the application directly behind the middleware gives itself; and the normal form of that, with runs of slashes
   merged and single dots removed.
2. A limit or a block applies if either text matches its generous pattern: a parameter that is alone in its segment
   matches every spelling that could be parsed as such a value; several in one segment match any text between its
   literal start and end; a final slash makes no difference.
3. `exempt` and `final` apply only if both texts match Starlette's own pattern.
4. A path without a slash at its start, with a line break or a ``..`` segment, or one of more than `MAX_ODD` characters
   that is not in normal form, matches every limit and block, and no exemption, honeypot or strike.
5. Nothing else is considered. Below a mount whose application reads another path, because it has a `root_path` of its
   own or is behind a `Host`, a rule by path may miss; a limit at the endpoint never does.

A generous pattern has at most one repetition per segment and none after a parameter that may contain a slash, so
matching takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

from starlette._utils import get_route_path
from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path
from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted
from .routes import root_of, visible_app

T = TypeVar("T")

_WHOLE: Final = re.compile(r"[+]?(?:0++(?=[+-]))?(?P<value>[+-]?[0-9]++)(?:\.0*+)?")
_MAX_DIGITS: Final = 4_300
"""The longest number that Python and pydantic parse, because parsing takes quadratic time."""
MAX_ODD: Final = 2_048
_ODD: Final = re.compile(r"//|/\.(?:/|\Z)")
_SLASHES_AND_DOTS: Final = re.compile(r"/(?:\.?(?:/|\Z))+")
_ASTRAY: Final = re.compile(r"\A[^/]|\n|/\.\.(?:/|\Z)")
_FOREIGN: Final = r"[{}]|<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[*+]|\(\?|[$]$|/\^"
"""How regular expressions and other libraries write a variable part."""
_NO_PATHS: Final = (
    (
        _FOREIGN,
        "is not in Starlette's syntax, where {found!r} is literal text; write for example "
        '"/items/{{id:int}}", "/api/{{rest:path}}" for a prefix, or a list such as ["/a", "/b"]',
    ),
    ("[*]", 'is not in Starlette\'s syntax; write "{before}{{rest:path}}" for all paths below'),
    ("[?#]", "can never match: a path has no query and no fragment; write {before!r}"),
    ("%[0-9A-Fa-f]{2}", "can never match: paths of requests are decoded first; write {decoded!r}"),
)
"""What no path of a rule contains, and why."""
_SPELLINGS: Final[Mapping[type, str]] = {
    IntegerConvertor: r"(?=[^/\d]*\d)[^/]+",
    FloatConvertor: r"(?=[^/]*?(?:\d|(?i:i_*n_*f|n_*a_*n)))[^/]+",
    UUIDConvertor: "[^/]{32,}",
}
"""Generous patterns of parameters that are alone in a segment: all that int(), float(), UUID() or pydantic parse."""


Texts: TypeAlias = Sequence[str]
"""The texts of a request's path with which rules are compared."""
ANY_PATH: Final[Texts] = ()
"""Stands for a path to which every limit and block applies, and no exemption."""


def normal(path: str) -> str:
    """Return the normal form of a path, with runs of slashes merged and single dots removed."""
    return _SLASHES_AND_DOTS.sub("/", path) if _ODD.search(path) else path


class RulePath:
    """A path of a rule or a honeypot, in Starlette's syntax.

    Args:
        path: The path.
        option: The option that it is a value of.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        takes: Matches a text generously, for limits and blocks.

    Raises:
        ConfigurationError: It is not a path in Starlette's syntax, or no request can have it.
    """

    __slots__ = ("_exact", "convertors", "path", "takes")

    def __init__(self, path: object, option: str = "path") -> None:
        self.path = _reachable(path, option)
        try:
            self._exact, _, self.convertors = compile_path(self.path)
        except (AssertionError, ValueError) as error:
            raise ConfigurationError(f"{quoted(path)} cannot be used: {error}", option) from None
        self.takes = re.compile(_generous(self.path, self.convertors), re.DOTALL).match

    # Copies and pickles of compiled classes are created with their arguments.
    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)

    def is_exactly(self, text: str) -> bool:
        """Return whether a text matches Starlette's own pattern of the path."""
        return self._exact.fullmatch(text) is not None

    def parameters(self, text: str, names: Collection[str]) -> dict[str, str]:
        """Return the values of some parameters that a text reveals. No convertor of another one is called."""
        match = self._exact.match(text) or self.takes(text)  # like a router, which ignores a line break at the end
        found = {} if match is None else match.groupdict()
        known = [name for name in names if name in found and name in self.convertors]
        return {name: _meaning(self.convertors[name], found[name]) for name in known}


def _reachable(path: object, option: str) -> str:
    """Return a path if requests can have it: it must be decoded, without query, fragment and stray braces."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'expected "*" or a path such as "/items/{{id}}", not {quoted(path)}', option)
    literal = PARAM_REGEX.sub(lambda found: "x" * len(found[0]), path)
    for pattern, problem in _NO_PATHS:
        found = re.search(pattern, literal)
        if found is not None:
            shown = problem.format(found=found[0], before=path[: found.start()], decoded=unquote(path))
            raise ConfigurationError(f"{quoted(path)} {shown}", option)
    return path


def _generous(path: str, convertors: Mapping[str, Convertor[Any]]) -> str:
    """Return the generous pattern of a path."""
    pattern = ""
    for segment in path.removesuffix("/").split("/")[1:]:
        parameters = list(PARAM_REGEX.finditer(segment))
        if not parameters:
            pattern += "/" + re.escape(segment)
            continue
        begin, end = segment[: parameters[0].start()], segment[parameters[-1].end() :]
        spellings = [_spelling(convertors[parameter[1]]) for parameter in parameters]
        name = parameters[0][1]
        if None in spellings:  # a parameter that may contain a slash: it matches up to the literal end of the path
            rest = re.escape(path[[*PARAM_REGEX.finditer(path)][-1].end() :].removesuffix("/"))
            value = f"(?P<{name}>.*)" if spellings == [None] else ".*"
            return rf"{pattern}/{re.escape(begin)}{value}" + (rf"{rest}/?\Z" if rest else r"\Z")
        value = f"(?P<{name}>{spellings[0]})" if len(spellings) == 1 else "[^/]*"
        pattern += f"/{re.escape(begin)}{value}{re.escape(end)}"
    return rf"{pattern}/?\Z"


def _spelling(convertor: Convertor[Any]) -> str | None:
    """Return the generous pattern of a parameter that is alone in a segment; None if it may contain a slash."""
    # The one of texts is as the routers have it: FastHTML replaces it by one that an empty text matches.
    return convertor.regex if type(convertor) is StringConvertor else _SPELLINGS.get(type(convertor))


class PathReader:
    """Reads the paths of requests as the application directly behind the middleware does.

    Args:
        app: The application.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._root: str | None = None

    def read(self, scope: Scope) -> str:
        """Return the path of a request."""
        if self._root is None:  # read with the first request, because a wrapper may show its routes by then alone
            self._root = root_of(visible_app(self._app, scope))
        path: str = get_route_path({**scope, "root_path": self._root} if self._root else scope)
        return path

    def texts(self, scope: Scope) -> Texts:
        """Return the texts of a request's path: as the application reads it, and its normal form if that differs."""
        path = self.read(scope)
        if is_ambiguous(scope["path"]):
            return ANY_PATH
        other = normal(path)
        return (path,) if other == path else (path, other)


def is_ambiguous(path: str) -> bool:
    """Return whether a path may resolve to any other path, so that every limit and block applies, and nothing else."""
    return _ASTRAY.search(path) is not None or (len(path) > MAX_ODD and _ODD.search(path) is not None)


class PathIndex(Generic[T]):
    """Finds the owners of paths that match a text: literal paths in a dict, others by their first segment.

    Args:
        paths: The paths, each with its owner.
    """

    def __init__(self, paths: Iterable[tuple[RulePath, T]]) -> None:
        self._literal: dict[str, list[T]] = {}
        self._patterns: dict[str, list[tuple[RulePath, T]]] = {}
        for path, owner in paths:
            if path.convertors:
                first = path.path.split("/", 2)[1]
                self._patterns.setdefault("" if "{" in first else first, []).append((path, owner))
            else:
                self._literal.setdefault(path.path.removesuffix("/"), []).append(owner)

    def find(self, texts: Texts) -> Iterator[T]:
        """Yield the owners of the paths that match any of the texts, unordered and possibly with duplicates."""
        for text in texts:
            yield from self._literal.get(text.removesuffix("/"), ())
            first = text.split("/", 2)[1] if text[:1] == "/" else ""
            for candidates in (self._patterns.get(""), self._patterns.get(first) if first else None):
                yield from (owner for path, owner in candidates or () if path.takes(text))


def with_parameters(scope: Scope, paths: Sequence[RulePath], reader: PathReader, names: Collection[str]) -> Scope:
    """Return the scope of a request with some parameters of a rule's own paths, as a router would pass it on.

    Args:
        scope: The scope, which no router has read yet.
        paths: The paths of the rule; odd spellings of a path give the same values.
        reader: Reads the paths of requests.
        names: The names of the parameters.
    """
    values: dict[str, str] = {}
    with suppress(Exception):  # a path of another type; `RuleSet.match` logs it
        read = reader.read(scope)
        for text, path in product((read, normal(read)), paths):
            values = path.parameters(text, names) | values
    return {**scope, "path_params": {**scope.get("path_params", {}), **values}}


def _meaning(convertor: Convertor[Any], text: str) -> str:
    """Return the value of a parameter, independent of its spelling: 1, 01 and 1.0 are one `{id:int}`."""
    with suppress(Exception):  # a custom convertor that raises must fail in the router, not before the count
        return spelled_value(convertor.convert(text))
    # Numbers that pydantic accepts and int() and float() do not: 1.0, 0-5 and _1.
    bare = text.strip().replace("_", "")
    if isinstance(convertor, FloatConvertor):
        with suppress(ValueError):
            return spelled_value(float(bare))
    whole = _WHOLE.fullmatch(bare) if isinstance(convertor, IntegerConvertor) else None
    return text if whole is None or len(bare) > _MAX_DIGITS else str(int(whole["value"]))


def spelled_value(value: object) -> str:
    """Return the canonical text of a value; -0.0 equals 0.0."""
    return str(value + 0.0 if isinstance(value, float) else value)
