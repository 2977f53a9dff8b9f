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
    if _ODD.search(path) is None:
        return path
    return _SLASHES_AND_DOTS.sub("/", path)


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
        if match is None:
            return {}
        found = match.groupdict()
        values: dict[str, str] = {}
        for name in names:
            if name in found and name in self.convertors:
                values[name] = _meaning(self.convertors[name], found[name])
        return values


def _reachable(path: object, option: str) -> str:
    """Return a path if requests can have it: it must be decoded, without query, fragment and stray braces."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(
            f'expected a path such as "/items/{{id}}", or "*" alone for all, not {quoted(path)}', option
        )
    literal = PARAM_REGEX.sub(lambda found: "x" * len(found[0]), path)
    for pattern, problem in _NO_PATHS:
        found = re.search(pattern, literal)
        if found is not None:
            shown = problem.format(found=found[0], before=path[: found.start()], decoded=unquote(path))
            raise ConfigurationError(f"{quoted(path)} {shown}", option)
    return path


def _generous(path: str, convertors: Mapping[str, Convertor[Any]]) -> str:
    """Return the generous pattern of a path: its segments up to the first one that may match slashes, then the rest."""
    pattern = ""
    rest = r"/?\Z"
    for segment in path.removesuffix("/").split("/")[1:]:
        parameters = [*PARAM_REGEX.finditer(segment)]
        if any(_may_contain_slash(convertors[parameter[1]]) for parameter in parameters):
            rest = _generous_rest(path, segment, parameters)
            break
        pattern += "/" + _generous_segment(segment, parameters, convertors)
    return pattern + rest


def _may_contain_slash(convertor: Convertor[Any]) -> bool:
    """Return whether a value of a parameter may contain a slash, as those of unknown kinds may."""
    return type(convertor) is not StringConvertor and type(convertor) not in _SPELLINGS


def _generous_segment(
    segment: str, parameters: Sequence[re.Match[str]], convertors: Mapping[str, Convertor[Any]]
) -> str:
    """Return the generous pattern of a segment whose parameters contain no slash."""
    if not parameters:
        return re.escape(segment)
    value = "[^/]*"
    if len(parameters) == 1:
        name = parameters[0][1]
        value = f"(?P<{name}>{_spelling(convertors[name])})"
    begin = re.escape(segment[: parameters[0].start()])
    end = re.escape(segment[parameters[-1].end() :])
    return begin + value + end


def _spelling(convertor: Convertor[Any]) -> str:
    """Return the generous pattern of a parameter that is alone in a segment and contains no slash."""
    if type(convertor) is StringConvertor:
        return convertor.regex  # as the routers have it: FastHTML replaces it by one that an empty text matches
    return _SPELLINGS[type(convertor)]


def _generous_rest(path: str, segment: str, parameters: Sequence[re.Match[str]]) -> str:
    """Return the generous pattern from a segment on that may match slashes: any text up to the path's literal end."""
    value = ".*"
    if len(parameters) == 1:
        value = f"(?P<{parameters[0][1]}>.*)"
    begin = re.escape(segment[: parameters[0].start()])
    *_, last = PARAM_REGEX.finditer(path)
    end = re.escape(path[last.end() :].removesuffix("/"))
    if not end:
        return rf"/{begin}{value}\Z"
    return rf"/{begin}{value}{end}/?\Z"


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


def is_ambiguous(path: str) -> bool:
    """Return whether a path may resolve to any other path, so that every limit and block applies, and nothing else."""
    if _ASTRAY.search(path) is not None:
        return True
    return len(path) > MAX_ODD and _ODD.search(path) is not None


_ANY_SEGMENT: Final = ""
"""Stands for a first segment with a parameter."""


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
                if "{" in first:
                    first = _ANY_SEGMENT
                self._patterns.setdefault(first, []).append((path, owner))
            else:
                self._literal.setdefault(path.path.removesuffix("/"), []).append(owner)

    def find(self, texts: Texts) -> Iterator[T]:
        """Yield the owners of the paths that match any of the texts, unordered and possibly with duplicates."""
        for text in texts:
            yield from self._literal.get(text.removesuffix("/"), ())
            for path, owner in self._candidates(text):
                if path.takes(text):
                    yield owner

    def _candidates(self, text: str) -> Iterable[tuple[RulePath, T]]:
        """Return the paths with parameters whose first segment a text may have, each with its owner."""
        always = self._patterns.get(_ANY_SEGMENT, ())
        if not text.startswith("/"):
            return always
        first = text.split("/", 2)[1]
        if first == _ANY_SEGMENT:
            return always
        return [*always, *self._patterns.get(first, ())]


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
    if not isinstance(convertor, IntegerConvertor) or len(bare) > _MAX_DIGITS:
        return text
    whole = _WHOLE.fullmatch(bare)
    if whole is None:
        return text
    return str(int(whole["value"]))


def spelled_value(value: object) -> str:
    """Return the canonical text of a value; -0.0 equals 0.0."""
    if isinstance(value, float):
        value += 0.0  # makes 0.0 of -0.0
    return str(value)
