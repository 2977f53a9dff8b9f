"""Whether a rule matches the path of a request: limits and blocks match any plausible spelling, exemptions only the
exact one.

1. The path of a rule is compared with the path below `root_path` as Starlette reads it, below the `root_path` that the
   application behind gives itself, and with `root_path` in front; each also in its normal form, in which runs of
   slashes are merged and single dots are gone. Behind a mount that makes the application below read another part of the
   path, what the rule says below that mount is compared with what is read there. A final slash counts as written,
   unless files or an unknown application are served there.
2. A limit or a block applies if one text matches. A parameter that is alone in its segment takes any spelling that a
   reader may make such a value of; several in one segment take any text between its literal beginning and end.
3. `exempt` and `final` apply only if all texts match, by Starlette's own pattern.
4. A path with a line break or a ``..`` segment, or one of more than `MAX_ODD` characters that has another normal form,
   meets every limit and block, and no exemption, honeypot or strike.
5. Nothing else is asked.

A generous pattern has at most one repetition in a segment and none behind a parameter that may hold a slash, so
matching takes steps in proportion to the path.
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
from .routes import Application

T = TypeVar("T")
Text: TypeAlias = tuple[str, str]
"""What a rule's path must begin with, the path of mounts or a root, and the text that the rest is compared with."""

MAX_ODD: Final = 2_048
_ODD: Final = re.compile(r"//|/\.(?:/|\Z)")
_SLASHES_AND_DOTS: Final = re.compile(r"/(?:\.?(?:/|\Z))+")
_ASTRAY: Final = re.compile(r"\n|/\.\.(?:/|\Z)")
_FOREIGN: Final = re.compile(r"<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[*+]|\(\?|[$]$|/\^")
"""What regular expressions and other libraries write for a part that varies."""
_SPELLINGS: Final[Mapping[type, str]] = {
    StringConvertor: "[^/]+",
    IntegerConvertor: r"(?=[^/\d]*\d)[^/]+",
    FloatConvertor: r"(?=[^/]*?(?:\d|(?i:i_*n_*f|n_*a_*n)))[^/]+",
    UUIDConvertor: "[^/]{32,}",
}
"""What a parameter takes that is alone in its segment: whatever int(), float(), UUID() or pydantic may read."""


def below(root: str, path: str) -> str:
    """Return a path below a root, as Starlette's routers see it; the path itself if it does not begin with the root."""
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, as the router at this place sees it."""
    return below(scope.get("root_path") or "", scope["path"])


def normal(path: str) -> str:
    """Return the normal form of a path: runs of slashes are merged, and single dots are gone."""
    return _SLASHES_AND_DOTS.sub("/", path) if _ODD.search(path) else path


class RulePath:
    """A path in Starlette's syntax, as a rule or a honeypot has it.

    Args:
        path: The path.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        takes: Matches a text generously, for limits and blocks.

    Raises:
        ConfigurationError: It is no path in Starlette's syntax, or no request can have it.
    """

    __slots__ = ("_exact", "convertors", "path", "takes")

    def __init__(self, path: object) -> None:
        self.path = _reachable(path)
        try:
            self._exact, _, self.convertors = compile_path(self.path)
        except (AssertionError, ValueError) as error:
            raise ConfigurationError(f"{quoted(path)} cannot be used: {error}", "path") from None
        self.takes = re.compile(_generous(self.path, self.convertors), re.DOTALL).match

    # A compiled class is made with its arguments, also for copies and pickles.
    def __reduce__(self) -> tuple[Any, ...]:
        return RulePath, (self.path,)

    def is_exactly(self, text: str) -> bool:
        """Return whether a text is what the path says, by Starlette's own pattern."""
        return self._exact.fullmatch(text) is not None

    def given(self, name: str, text: str) -> str | None:
        """Return what a text that the path takes gives for a parameter; None if its spelling tells nothing."""
        match = self._exact.fullmatch(text) or self.takes(text)
        return match.groupdict().get(name) if match is not None else None


def _reachable(path: object) -> str:
    """Return a path if requests can have it: it is decoded, and holds no query, no fragment and no stray brace."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'expected "*" or a path such as "/items/{{id}}", not {quoted(path)}', "path")
    foreign = _FOREIGN.search(path)
    if foreign is not None:
        raise ConfigurationError(
            f"{quoted(path)} is not in Starlette's syntax, where {foreign[0]!r} means itself; write for example "
            '"/items/{id}", "/items/{id:int}", "/api/{rest:path}" for all below, or several paths, ["/a", "/b"]',
            "path",
        )
    if "*" in path:
        raise ConfigurationError(
            f"{quoted(path)} is not in Starlette's syntax; write "
            f'"{path.partition("*")[0]}{{rest:path}}" for all below',
            "path",
        )
    end = re.search(r"[?#]", path)
    if end is not None:
        what = "query" if end[0] == "?" else "fragment"
        problem, written = f"the {what} is no part of a path", quoted(path[: end.start()])
    elif re.search(r"[{}]", PARAM_REGEX.sub("", path)):
        problem, written = "a brace in it is no parameter", 'for example "/items/{id:int}"'
    elif re.search(r"%[0-9A-Fa-f]{2}", path):
        problem, written = "requests are compared decoded", quoted(unquote(path))
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
        if None in spellings:  # a parameter that may hold a slash: it takes all to the literal end of the path
            rest = path[[*PARAM_REGEX.finditer(path)][-1].end() :]
            value = f"(?P<{name}>.*)" if spellings == [None] else ".*"
            return rf"{pattern}/{re.escape(begin)}{value}{re.escape(rest)}\Z"
        value = f"(?P<{name}>{spellings[0]})" if len(spellings) == 1 else "[^/]*"
        pattern += f"/{re.escape(begin)}{value}{re.escape(end)}"
    return rf"{pattern}\Z"


class RequestTexts(NamedTuple):
    """The texts of a request's path that rules are compared with.

    Attributes:
        any: Whether every limit and block applies, and no exemption; there are no texts then.
        generous: Those of which a limit or a block has to match one.
        slashed: The same with a final slash, for paths that end in one.
        exact: Those that an exemption has to match, all of them.
    """

    any: bool = False
    generous: Sequence[Text] = ()
    slashed: Sequence[Text] = ()
    exact: Sequence[Text] = ()


def texts_of(scope: Scope, app: Application) -> RequestTexts:
    """Return the texts of a request's path.

    Args:
        scope: The scope of the request.
        app: What is known of the application behind the middleware.
    """
    path: str = scope["path"]
    if is_astray(path):
        return RequestTexts(any=True)
    given: str = scope.get("root_path") or ""
    root = app.root or given
    here = below(root, path)
    exact: list[Text] = [("", here)]
    opaque = app.opaque
    for mounts, text, is_opaque, goes_on in _read_below(app, path, root, ""):
        opaque = opaque or is_opaque
        if not goes_on:
            exact.append((mounts, text))
    generous = [*exact, ("", below(given, path))]
    # A rule may be written with the root, but not with the part of a path that a mount has read.
    if root and "app_root_path" not in scope:
        generous.append((root, here))
    if _ODD.search(path) is not None:
        exact += [(mounts, normal(text)) for mounts, text in exact]
        generous += [(mounts, normal(text)) for mounts, text in generous]
    slashed: list[Text] = []
    if opaque:
        slashed = [(mounts, f"{text}/") for mounts, text in generous if text[-1:] != "/"]
        generous += [(mounts, text[:-1]) for mounts, text in generous if text[-1:] == "/"]
    return RequestTexts(False, list(dict.fromkeys(generous)), slashed, list(dict.fromkeys(exact)))


def is_astray(path: str) -> bool:
    """Return whether a path may mean any other, so that every limit and block applies, and nothing else."""
    return _ASTRAY.search(path) is not None or (len(path) > MAX_ODD and _ODD.search(path) is not None)


def _read_below(app: Application, path: str, root: str, mounts: str) -> Iterator[tuple[str, str, bool, bool]]:
    """Yield how each application that mounts lead a path to reads it.

    Yields:
        The path of the mounts on the way; the path as it is read there; whether files or an unknown application are
        served there; and whether the path goes on there where the mount ends.
    """
    read = below(root, path)
    for mount in app.mounts:
        rest = mount.rest(read)
        if rest is None:
            continue
        inner_root = mount.root or root + read[: len(read) - len(rest)]
        inner = mounts + mount.path
        text = below(inner_root, path)
        yield inner, text, mount.opaque, text == rest
        yield from _read_below(mount, path, inner_root, inner)


class PathIndex(Generic[T]):
    """Finds the owners of paths that take a text: those without parameters in a dict, others by their first segment.

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

    def find(self, texts: Iterable[Text], *, slashed: bool = False) -> Iterator[T]:
        """Yield the owners of the paths that take one of some texts, in no order, some perhaps twice.

        Args:
            texts: The texts.
            slashed: Whether only paths with a final slash count.
        """
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
        """Return the index of what the paths say below some mounts."""
        index = self._behind.get(mounts)
        if index is None:
            rests = [(path_below(mounts, path.path), owner) for path, owner in self._paths]
            index = PathIndex([(rest, owner) for rest, owner in rests if rest is not None])
            remember(self._behind, mounts, index)
        return index


@lru_cache(4_096)
def path_below(mounts: str, path: str) -> RulePath | None:
    """Return what a rule's path says below some mounts; None if it does not begin with their path."""
    if not mounts:
        return RulePath(path)
    segments, above = path.split("/"), mounts.split("/")
    for place, (segment, mount) in enumerate(zip(segments, above, strict=False)):
        if ":" in segment and may_hold_a_slash(segment):
            return RulePath("/" + "/".join(segments[place:]))
        if ":" in mount and may_hold_a_slash(mount):
            return RulePath("/{rest:path}")
        if segment != mount and not ("{" in segment and "{" in mount):
            return None
    return RulePath("/" + "/".join(segments[len(above) :])) if len(segments) > len(above) else None


@lru_cache(4_096)
def may_hold_a_slash(segment: str) -> bool:
    """Return whether a segment of a path has a parameter whose values may hold a slash."""
    if "{" not in segment:
        return False
    convertors = compile_path(f"/{segment}")[2]
    return any(type(convertor) not in _SPELLINGS for convertor in convertors.values())
