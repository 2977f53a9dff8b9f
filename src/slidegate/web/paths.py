"""Matches the paths of rules: limits and blocks match any plausible spelling of a path, exemptions only the exact one.

1. A rule's path is compared with two texts: the path below `root_path` as Starlette reads it, or below the `root_path`
   that the application directly behind the middleware gives itself; and the normal form of that, with runs of slashes
   merged and single dots removed.
2. A limit or a block applies if either text matches its generous pattern: a parameter that is alone in its segment
   matches every spelling that could be parsed as such a value; several in one segment match any text between its
   literal start and end; a final slash makes no difference, and ``/admin/{rest:path}`` takes ``/admin``, too.
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

from starlette._utils import get_route_path
from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path
from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted
from .routes import root_of, visible_app

T = TypeVar("T")

_WHOLE: Final = re.compile(r"[+]?(?:0++(?=[+-]))?(?P<value>[+-]?\d++)(?:\.0*+)?")
"""A whole number as pydantic reads it: int() does not take 1.0 and 0-5."""
MAX_ODD: Final = 2_048
_BELOW: Final = re.compile(r"/\{(\w+):path\}\Z")
_ODD: Final = re.compile(r"//|/\.(?:/|\Z)")
_SLASHES_AND_DOTS: Final = re.compile(r"/(?:\.?(?:/|\Z))+")
_ASTRAY: Final = re.compile(r"\A[^/]|\n|/\.\.(?:/|\Z)")
_FOREIGN: Final = re.compile(r"[{}*?#]|%[0-9A-Fa-f]{2}|<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[+]|[$]$|/\^")
"""How regular expressions and other libraries write a variable part, and what no decoded path has."""
_SPELLINGS: Final[Mapping[type, str]] = {
    IntegerConvertor: r"(?=[^/\d]*\d)[^/]+",
    FloatConvertor: r"(?=[^/]*?(?:\d|(?i:i_*n_*f|n_*a_*n)))[^/]+",
    UUIDConvertor: "[^/]{32,}",
}
"""Generous patterns of parameters that are alone in a segment: all that int(), float(), UUID() or pydantic parse."""
_ANY_TEXT: Final = ".*"
"""The generous pattern of a parameter of any other type, which may contain slashes."""

Texts: TypeAlias = Sequence[str]
"""The texts of a request's path with which rules are compared."""
ANY_PATH: Final[Texts] = ()
"""Stands for a path to which every limit and block applies, and no exemption."""


def normal(path: str) -> str:
    """Return the normal form of a path, with runs of slashes merged and single dots removed."""
    return _SLASHES_AND_DOTS.sub("/", path)


class RulePath:
    """A path of a rule or a honeypot, in Starlette's syntax.

    Args:
        option: The option that it is a value of.
        is_trap: Whether it is a honeypot: one below a path does not take the path itself, which may be a page.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        takes: Matches a text generously, for limits and blocks.

    Raises:
        ConfigurationError: It is not a path in Starlette's syntax, or no request can have it.
    """

    def __init__(self, path: str, option: str = "path", *, is_trap: bool = False) -> None:
        self.path = _reachable(path, option)
        try:
            self._exact, _, self.convertors = compile_path(self.path)
        except (AssertionError, ValueError) as error:
            raise ConfigurationError(f"{quoted(path)} cannot be used: {error}", option) from None
        begin, ending = self.path.removesuffix("/"), r"/?\Z"
        below = _BELOW.search(begin)
        if below is not None and not is_trap:  # whoever limits or blocks what is below a path means the path, too
            begin, ending = begin[: below.start()], rf"(?:/(?P<{below[1]}>.*))?\Z"
        self.takes = re.compile(_generous(begin, self.convertors) + ending, re.DOTALL).match

    def is_exactly(self, text: str) -> bool:
        """Return whether a text matches Starlette's own pattern of the path."""
        return self._exact.fullmatch(text) is not None

    def parameters(self, text: str, names: Collection[str]) -> dict[str, str]:
        """Return the values of some parameters that a text reveals. No convertor of another one is called."""
        values: dict[str, str] = {}
        match = self._exact.match(text) or self.takes(text)  # like a router, which ignores a line break at the end
        if match is not None:
            for name, value in match.groupdict("").items():
                if name in names:
                    values[name] = _meaning(self.convertors[name], value)
        return values


def _reachable(path: str, option: str) -> str:
    """Return a path if requests can have it: it must be decoded, without query, fragment and stray braces."""
    if not path.startswith("/"):
        raise ConfigurationError(
            f'expected a path such as "/items/{{id}}", or "*" alone for all, not {quoted(path)}', option
        )
    literal = PARAM_REGEX.sub(lambda parameter: "x" * len(parameter[0]), path)
    match = _FOREIGN.search(literal)
    if match is not None:
        raise ConfigurationError(
            f"{quoted(path)} is not in Starlette's syntax, where {match[0]!r} is literal text; write it decoded and "
            'without a query, for example "/items/{id:int}", "/api/{rest:path}" for a prefix, or a list of paths',
            option,
        )
    return path


def _generous(path: str, convertors: Mapping[str, Convertor[Any]]) -> str:
    """Return the generous pattern of a path: its segments up to the first one that may match slashes, then the rest."""
    pattern = ""
    for segment in path.split("/")[1:]:
        parameters = [*PARAM_REGEX.finditer(segment)]
        if not parameters:
            pattern += f"/{re.escape(segment)}"
            continue
        values = [_spelling(convertors[parameter[1]]) for parameter in parameters]
        has_slashes = _ANY_TEXT in values
        value = "[^/]*"
        ending = segment
        if has_slashes:  # any text up to the path's literal end
            value = _ANY_TEXT
            ending = path
        if len(values) == 1:
            value = f"(?P<{parameters[0][1]}>{values[0]})"
        begin, end = segment[: parameters[0].start()], PARAM_REGEX.split(ending)[-1]
        pattern += f"/{re.escape(begin)}{value}{re.escape(end)}"
        if has_slashes:
            break
    return pattern


def _spelling(convertor: Convertor[Any]) -> str:
    """Return the generous pattern of a parameter that is alone in a segment."""
    if type(convertor) is StringConvertor:
        return convertor.regex  # as the routers have it: FastHTML replaces it by one that an empty text matches
    return _SPELLINGS.get(type(convertor), _ANY_TEXT)


class PathReader:
    """Reads the paths of requests as the application directly behind the middleware does."""

    def __init__(self, app: object) -> None:
        self._app = app
        self._root: str | None = None

    def read(self, scope: Scope) -> str:
        """Return the path of a request."""
        if self._root is None:  # read with the first request: a wrapper may not show its routes before
            self._root = root_of(visible_app(self._app, scope))
        if self._root:
            scope = {**scope, "root_path": self._root}
        path: str = get_route_path(scope)
        return path

    def texts(self, scope: Scope) -> Texts:
        """Return the texts of a request's path: as the application reads it, and its normal form if that differs."""
        path = self.read(scope)
        if is_ambiguous(scope["path"]):
            return ANY_PATH
        other = normal(path)
        if other == path:
            return (path,)
        return path, other

    def with_parameters(self, scope: Scope, paths: Sequence[RulePath], names: Collection[str]) -> Scope:
        """Return the scope of a request with some parameters of a rule's own paths, as a router would pass it on.

        Args:
            scope: The scope, which no router has read yet.
            paths: The paths of the rule; odd spellings of a path give the same values.
            names: The names of the parameters.
        """
        values: dict[str, str] = {}
        with suppress(Exception):  # a path of another type; `RuleSet.match` logs it
            path = self.read(scope)
            for text, rule_path in product((path, normal(path)), paths):
                values = rule_path.parameters(text, names) | values
        return {**scope, "path_params": {**scope.get("path_params", {}), **values}}


def is_ambiguous(path: str) -> bool:
    """Return whether a path may resolve to any other path, so that every limit and block applies, and nothing else."""
    if _ASTRAY.search(path) is not None:
        return True
    return len(path) > MAX_ODD and _ODD.search(path) is not None


class PathIndex(Generic[T]):
    """Finds the owners of paths that match a text: those of literal paths in a dict.

    Args:
        paths: The paths, each with its owner.
    """

    def __init__(self, paths: Iterable[tuple[RulePath, T]]) -> None:
        self._literal: dict[str, list[T]] = {}
        self._patterns: list[tuple[RulePath, T]] = []
        for path, owner in paths:
            if path.convertors:
                self._patterns.append((path, owner))
            else:
                self._literal.setdefault(path.path.removesuffix("/"), []).append(owner)

    def match(self, texts: Texts) -> Iterator[T]:
        """Yield the owners of the paths that match any of the texts, unordered and possibly with duplicates."""
        for text in texts:
            yield from self._literal.get(text.removesuffix("/"), ())
            for path, owner in self._patterns:
                if path.takes(text):
                    yield owner


def _meaning(convertor: Convertor[Any], text: str) -> str:
    """Return the value of a parameter, independent of its spelling: 1, 01 and 1.0 are one `{id:int}`."""
    number = text.strip().replace("_", "")  # as int() and pydantic read numbers
    with suppress(Exception):  # a custom convertor that raises must fail in the router, not before the count
        if type(convertor) is FloatConvertor:
            return spelled_value(float(number))
        if type(convertor) is not IntegerConvertor:
            return spelled_value(convertor.convert(text))
        whole = _WHOLE.fullmatch(number)
        if whole is not None:
            return str(int(whole["value"]))
    return text


def spelled_value(value: object) -> str:
    """Return the canonical text of a value; -0.0 equals 0.0."""
    if isinstance(value, float):
        value += 0.0  # makes 0.0 of -0.0
    return str(value)
