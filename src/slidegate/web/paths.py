"""Matches the paths of rules: limits and blocks match any plausible spelling of a path, exemptions only the exact one.

A request's path is read as several texts, with which the path of a rule is compared:

1. The texts are the path below `root_path` as Starlette reads it, the path below the `root_path` that the guarded
   application sets itself, and the path with `root_path` in front; each also in its normal form, with runs of slashes
   merged and single dots removed. If a mounted application reads a different part of the path, the rule's path below
   that mount is compared with what the application reads. A final slash counts as written, unless files or an unknown
   application are served there.
2. A limit or a block applies if any text matches. A parameter that is alone in its segment matches every spelling that
   could be parsed as such a value; several in one segment match any text between its literal start and end.
3. `exempt` and `final` apply only if all texts match Starlette's own pattern.
4. A path with a line break or a ``..`` segment, or one of more than `MAX_ODD` characters that is not in normal form,
   matches every limit and block, and no exemption, honeypot or strike.
5. Nothing else is considered.

A generous pattern has at most one repetition per segment and none after a parameter that may contain a slash, so
matching takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path
from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted
from ..core.memo import remember
from .routes import Application, visible_app

T = TypeVar("T")
Text: TypeAlias = tuple[str, str]
"""A prefix that a rule's path must start with (the path of mounts, or a root), and the text to match with the rest."""

MAX_ODD: Final = 2_048
_ODD: Final = re.compile(r"//|/\.(?:/|\Z)")
_SLASHES_AND_DOTS: Final = re.compile(r"/(?:\.?(?:/|\Z))+")
_ASTRAY: Final = re.compile(r"\n|/\.\.(?:/|\Z)")
_FOREIGN: Final = re.compile(r"<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[*+]|\(\?|[$]$|/\^")
"""How regular expressions and other libraries write a variable part."""
_SPELLINGS: Final[Mapping[type, str]] = {
    StringConvertor: "[^/]+",
    IntegerConvertor: r"(?=[^/\d]*\d)[^/]+",
    FloatConvertor: r"(?=[^/]*?(?:\d|(?i:i_*n_*f|n_*a_*n)))[^/]+",
    UUIDConvertor: "[^/]{32,}",
}
"""Generous patterns of parameters that are alone in a segment: all that int(), float(), UUID() or pydantic parse."""


def below(root: str, path: str) -> str:
    """Return a path below a root, as Starlette's routers see it; the path itself if it does not start with the root."""
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def normal(path: str) -> str:
    """Return the normal form of a path, with runs of slashes merged and single dots removed."""
    return _SLASHES_AND_DOTS.sub("/", path) if _ODD.search(path) else path


class RulePath:
    """A path of a rule or a honeypot, in Starlette's syntax.

    Args:
        path: The path.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        takes: Matches a text generously, for limits and blocks.

    Raises:
        ConfigurationError: It is not a path in Starlette's syntax, or no request can have it.
    """

    __slots__ = ("_exact", "convertors", "path", "takes")

    def __init__(self, path: object) -> None:
        self.path = _reachable(path)
        try:
            self._exact, _, self.convertors = compile_path(self.path)
        except (AssertionError, ValueError) as error:
            raise ConfigurationError(f"{quoted(path)} cannot be used: {error}", "path") from None
        self.takes = re.compile(_generous(self.path, self.convertors), re.DOTALL).match

    # Copies and pickles of a compiled class must call its constructor.
    def __reduce__(self) -> tuple[Any, ...]:
        return RulePath, (self.path,)

    def is_exactly(self, text: str) -> bool:
        """Return whether a text matches Starlette's own pattern of the path."""
        return self._exact.fullmatch(text) is not None

    def given(self, name: str, text: str) -> str | None:
        """Return the value of a parameter in a matching text; None if its spelling does not reveal it."""
        match = self._exact.match(text) or self.takes(text)  # like a router, which ignores a line break at the end
        return match.groupdict().get(name) if match is not None else None


def _reachable(path: object) -> str:
    """Return a path if requests can have it: it must be decoded, without query, fragment and stray braces."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'expected "*" or a path such as "/items/{{id}}", not {quoted(path)}', "path")
    foreign = _FOREIGN.search(path)
    if foreign is not None:
        raise ConfigurationError(
            f"{quoted(path)} is not in Starlette's syntax, where {foreign[0]!r} is literal text; write for "
            'example "/items/{id}", "/items/{id:int}", "/api/{rest:path}" for a prefix, or a list such as ["/a", "/b"]',
            "path",
        )
    if "*" in path:
        raise ConfigurationError(
            f"{quoted(path)} is not in Starlette's syntax; write "
            f'"{path.partition("*")[0]}{{rest:path}}" for all paths below',
            "path",
        )
    end = re.search(r"[?#]", path)
    if end is not None:
        what = "query" if end[0] == "?" else "fragment"
        problem, written = f"the {what} is not part of a path", quoted(path[: end.start()])
    elif re.search(r"[{}]", PARAM_REGEX.sub("", path)):
        problem, written = "it has a brace without a parameter", 'for example "/items/{id:int}"'
    elif re.search(r"%[0-9A-Fa-f]{2}", path):
        problem, written = "paths of requests are decoded first", quoted(unquote(path))
    else:
        return path
    raise ConfigurationError(f"{quoted(path)} can never match: {problem}; write {written}", "path")


def _generous(path: str, convertors: Mapping[str, Convertor[Any]]) -> str:
    """Return the generous pattern of a path."""
    pattern = ""
    for segment in path.split("/")[1:]:
        parameters = list(PARAM_REGEX.finditer(segment))
        if not parameters:
            pattern += "/" + re.escape(segment)
            continue
        begin, end = segment[: parameters[0].start()], segment[parameters[-1].end() :]
        spellings = [_SPELLINGS.get(type(convertors[parameter[1]])) for parameter in parameters]
        name = parameters[0][1]
        if None in spellings:  # a parameter that may contain a slash: it matches up to the literal end of the path
            rest = path[[*PARAM_REGEX.finditer(path)][-1].end() :]
            value = f"(?P<{name}>.*)" if spellings == [None] else ".*"
            return rf"{pattern}/{re.escape(begin)}{value}{re.escape(rest)}\Z"
        value = f"(?P<{name}>{spellings[0]})" if len(spellings) == 1 else "[^/]*"
        pattern += f"/{re.escape(begin)}{value}{re.escape(end)}"
    return rf"{pattern}\Z"


class RequestTexts(NamedTuple):
    """The texts of a request's path with which rules are compared.

    Attributes:
        any: Whether every limit and block applies, and no exemption, whatever the texts.
        generous: The texts of which a limit or a block must match at least one.
        slashed: The same texts with a final slash, for rules whose path ends with one.
        exact: The texts that an exemption must match, all of them.
    """

    any: bool = False
    generous: Sequence[Text] = ()
    slashed: Sequence[Text] = ()
    exact: Sequence[Text] = ()


class PathReader:
    """Reads the paths of requests as the guarded application does.

    Args:
        app: The application.
    """

    def __init__(self, app: object) -> None:
        self._app = app
        self._known: Application | None = None

    def application(self, scope: Scope) -> Application:
        """Return what is known about the application; it is collected for the first request."""
        if self._known is None:
            self._known = Application.of(visible_app(self._app, scope))
        return self._known

    def texts(self, scope: Scope) -> RequestTexts:
        """Return the texts of a request's path."""
        return _texts_of(scope, self.application(scope))


def _texts_of(scope: Scope, app: Application) -> RequestTexts:
    """Return the texts of a request's path, as an application reads it."""
    path: str = scope["path"]
    given: str = scope.get("root_path") or ""
    root = app.root or given
    here = below(root, path)
    exact: list[Text] = []
    opaque = app.opaque
    for mounts, text, is_opaque, goes_on in _read_below(app, path, root, ""):
        opaque = opaque or is_opaque
        if not goes_on:
            exact.append((mounts, text))
    exact.append(("", here))
    generous = [*exact, ("", below(given, path))]
    # A rule may include the root, but not the part of a path that a mount has consumed.
    if root and "app_root_path" not in scope:
        generous.append((root, here))
    if len(path) <= MAX_ODD and _ODD.search(path) is not None:
        exact += [(mounts, normal(text)) for mounts, text in exact]
        generous += [(mounts, normal(text)) for mounts, text in generous]
    slashed: list[Text] = []
    if opaque:
        slashed = [(mounts, f"{text}/") for mounts, text in generous if text[-1:] != "/"]
        generous += [(mounts, text[:-1]) for mounts, text in generous if text[-1:] == "/"]
    return RequestTexts(is_astray(path), list(dict.fromkeys(generous)), slashed, list(dict.fromkeys(exact)))


def is_astray(path: str) -> bool:
    """Return whether a path may resolve to any other path, so that every limit and block applies, and nothing else."""
    return _ASTRAY.search(path) is not None or (len(path) > MAX_ODD and _ODD.search(path) is not None)


def _read_below(app: Application, path: str, root: str, mounts: str) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield how each mounted application that a path leads to reads it, the innermost first.

    Yields:
        The combined path of the mounts; the path as the application reads it; whether it serves files or is unknown;
        and whether it continues exactly where the mount ends.
    """
    read = below(root, path)
    for mount in app.mounts:
        rest = mount.rest(read)
        if rest is None:
            continue
        inner_root = mount.root or root + read[: len(read) - len(rest)]
        inner = mounts + mount.path
        text = below(inner_root, path)
        yield from _read_below(mount, path, inner_root, inner)
        yield inner, text, mount.opaque, text == rest


class PathIndex(Generic[T]):
    """Finds the owners of paths that match a text: literal paths in a dict, others by their first segment.

    Args:
        paths: The paths, each with its owner.
    """

    def __init__(self, paths: Iterable[tuple[RulePath, T]]) -> None:
        self._paths = list(paths)
        self._literal: dict[str, list[T]] = {}
        self._patterns: dict[str, list[tuple[RulePath, T]]] = {}
        for path, owner in self._paths:
            if path.convertors:
                first = path.path.split("/", 2)[1]
                self._patterns.setdefault("" if "{" in first else first, []).append((path, owner))
            else:
                self._literal.setdefault(path.path, []).append(owner)
        self._behind: dict[str, PathIndex[T]] = {}

    def find(self, texts: RequestTexts) -> Iterator[T]:
        """Yield the owners of the paths that match any of the texts, unordered and possibly with duplicates."""
        yield from self._find(texts.generous)
        yield from self._find(texts.slashed, slashed=True)

    def _find(self, texts: Iterable[Text], *, slashed: bool = False) -> Iterator[T]:
        """Yield the owners of matching paths; if `slashed`, only of those with a final slash."""
        for mounts, text in texts:
            index = self._below(mounts) if mounts else self
            yield from index._literal.get(text, ())
            first = text.split("/", 2)[1] if text[:1] == "/" else ""
            for candidates in (index._patterns.get(""), index._patterns.get(first) if first else None):
                yield from (
                    owner
                    for path, owner in candidates or ()
                    if path.takes(text) and (not slashed or path.path[-1] == "/")
                )

    def _below(self, mounts: str) -> PathIndex[T]:
        """Return the index of the parts of the paths below mounts."""
        index = self._behind.get(mounts)
        if index is None:
            rests = [(path_below(mounts, path.path), owner) for path, owner in self._paths]
            index = PathIndex([(rest, owner) for rest, owner in rests if rest is not None])
            remember(self._behind, mounts, index)
        return index


@lru_cache(4_096)
def path_below(mounts: str, path: str) -> RulePath | None:
    """Return the part of a rule's path below mounts; None if it does not start with their combined path."""
    if not mounts:
        return RulePath(path)
    segments, above = path.split("/"), mounts.split("/")
    for index, (segment, mount) in enumerate(zip(segments, above, strict=False)):
        if ":" in segment and may_hold_a_slash(segment):
            return RulePath("/" + "/".join(segments[index:]))
        if ":" in mount and may_hold_a_slash(mount):
            return RulePath("/{rest:path}")
        if segment != mount and not ("{" in segment and "{" in mount):
            return None
    return RulePath("/" + "/".join(segments[len(above) :])) if len(segments) > len(above) else None


@lru_cache(4_096)
def may_hold_a_slash(segment: str) -> bool:
    """Return whether a segment of a path has a parameter whose values may contain a slash."""
    if "{" not in segment:
        return False
    convertors = compile_path(f"/{segment}")[2]
    return any(type(convertor) not in _SPELLINGS for convertor in convertors.values())
