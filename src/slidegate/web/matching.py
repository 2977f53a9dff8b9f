"""Whether the path of a rule is that of a request: limits match generously, exemptions strictly.

Between the middleware and the code that serves a request there are routers, file servers and frameworks, which do not
all take one text for the same path. A rule is compared with the path below `root_path` and with its normal forms, in
which there are no runs of slashes and no dot segments: one keeps matrix parameters (``;x=1``), one does not. A limit
applies if its path matches one of the texts, an exemption only if it matches all of them. No route is asked, and only
of few paths the mounts. `docs/guides/rules.md#paths` has the rule in seven sentences.

Default limits ask the routes about every text of a path, see `readings`. The case of a path is never changed, and no
header names another path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path
from starlette.types import Scope

from ..core.errors import ConfigurationError, quoted

if TYPE_CHECKING:
    from .routes import Routes

T = TypeVar("T")
Convertors: TypeAlias = Mapping[str, Convertor[Any]]
Written: TypeAlias = tuple[str, Convertors]
"""A path in Starlette's syntax, and the convertors of its parameters."""

MAX_ODD: Final = 4_096
"""The length up to which other texts of an odd path are worked out."""
_ODD: Final = re.compile(r"//|/\.\.?(?:[/;\n]|\Z)|[;\n]")
_DOTS_LAST: Final = ("/.", "/..")
_MATRIX: Final = re.compile(r";[^/]*")
_SLASHES: Final = re.compile(r"//+")
_ANY: Final = "{}"
"""A segment with a parameter, in an index of paths; no segment of a request or of a rule is that."""
_REST: Final = "{:path}"
"""All segments from one on whose parameter may hold a slash."""
_FOREIGN: Final = re.compile(r"<[^/]*>|/:[A-Za-z_]|\\|\(.*[|].*\)|\[[^/]*\]|\.[*+]|\(\?|[$]$|/\^")
"""What regular expressions and other libraries write for a part that varies."""
_WITHIN_A_SEGMENT: Final = (StringConvertor, IntegerConvertor, FloatConvertor, UUIDConvertor)
# What pydantic, int(), float() and UUID() take; "+" after a group of repeated characters keeps them linear.
_SPELLINGS: Final[Mapping[type, str]] = {
    IntegerConvertor: r"\s*+[+-]?(?:0[0_]*+[+-])?[\d_]++(?:\.[0_]*+)?\s*+",
    FloatConvertor: r"(?i:\s*+[+-]?(?:inf|infinity|nan|(?=[^/]*\d)[\d_]*+(?:\.[\d_]*+)?(?:e[+-]?[\d_]++)?)\s*+)",
    UUIDConvertor: r"(?i:(?:urn:)?(?:uuid:)?(?:[{}-]*+[0-9a-f]){32}[{}-]*+)",
}


def below(root: str, path: str) -> str:
    """Return a path below a root, as Starlette's routers see it; the path itself if it does not begin with the root."""
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest[0] == "/" else path


def route_path(scope: Scope) -> str:
    """Return the path below `root_path`, as the router at this place sees it."""
    return below(scope.get("root_path", ""), scope["path"])


def _reachable(path: object) -> str:
    """Return a path if requests can have it: it is decoded, and holds no query, no fragment and no stray brace."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(f'path: expected "*" or a path such as "/items/{{id}}", not {quoted(path)}')
    foreign = _FOREIGN.search(path)
    if foreign is not None:
        raise ConfigurationError(
            f"path: {quoted(path)} is not in Starlette's syntax, where {foreign[0]!r} means itself; write for example "
            '"/items/{id}", "/items/{id:int}", "/api/{rest:path}" for all below, or several paths, ["/a", "/b"]'
        )
    if "*" in path:
        raise ConfigurationError(
            f"path: {quoted(path)} is not in Starlette's syntax; write "
            f'"{path.partition("*")[0]}{{rest:path}}" for all below'
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
    raise ConfigurationError(f"path: {quoted(path)} can never match: {problem}; write {written}")


def regex_of(path: str, convertors: Convertors, spellings: Mapping[type, str] | None = None) -> str:
    """Return the expression that Starlette makes of a path, with other spellings of some kinds of parameters."""
    regex, end = "^", 0
    for parameter in PARAM_REGEX.finditer(path):
        convertor = convertors[parameter[1]]
        value = (spellings or {}).get(type(convertor), convertor.regex)
        regex += f"{re.escape(path[end : parameter.start()])}(?P<{parameter[1]}>{value})"
        end = parameter.end()
    return f"{regex}{re.escape(path[end:])}$"


def is_odd(path: str) -> bool:
    """Return whether some reader may make another text of a path."""
    return _ODD.search(path) is not None


def normal_forms(path: str) -> tuple[str, ...]:
    """Return a path and its normal forms, each once; of a very long path only the path itself."""
    if len(path) > MAX_ODD or _ODD.search(path) is None:
        return (path,)
    forms = {path: None}
    for text in {path: None, _without_matrix(path): None}:
        form = _without_dots(_with_single_slashes(text))
        forms[form] = None
        if text.endswith(_DOTS_LAST):
            # "/a/." is "/a/" for some and "/a" for others.
            forms[form.rstrip("/") or "/"] = None
    return tuple(forms)


def readings(path: str) -> tuple[str, ...]:
    """Return every text that several readers, one behind the other, may make of a path, first the path itself."""
    if len(path) > MAX_ODD or not is_odd(path):
        return (path,)
    texts = {path: None}
    for step in _STEPS:
        texts.update(dict.fromkeys([step(text) for text in texts]))
    for text in [text for text in texts if text.endswith(_DOTS_LAST)]:
        texts.update(dict.fromkeys(other.rstrip("/") or "/" for other in readings(_without_dots(text))))
    return tuple(texts)


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


class PathMatcher:
    """A path of a rule, in Starlette's syntax.

    Args:
        path: The path.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        limits: The pattern for limits, which takes a number in any spelling.

    Raises:
        ConfigurationError: It is no path in Starlette's syntax, or no request can have it.
    """

    __slots__ = ("_strict", "convertors", "limits", "path")

    def __init__(self, path: object) -> None:
        self.path = _reachable(path)
        try:
            self._strict, _, self.convertors = compile_path(self.path)
        except (AssertionError, ValueError) as error:
            raise ConfigurationError(f"path: {quoted(path)} cannot be used: {error}") from None
        # DOTALL: "{rest:path}" must not end at a newline that a narrower route below it takes.
        self.limits = re.compile(regex_of(self.path, self.convertors, _SPELLINGS), re.DOTALL)

    def exempts(self, text: str) -> bool:
        """Return whether an exemption applies to a text; it takes not an inch more than the path says."""
        return self._strict.fullmatch(text) is not None


class RequestPath:
    """The texts of a request's path that rules are compared with.

    Args:
        scope: The ASGI scope of the request.
        routes: The routes below the middleware.
        slashed: Whether the path of a rule ends in a slash.

    Attributes:
        strict: The texts that an exemption has to match, all of them.
        texts: The texts of which a limit has to match one. Each comes with the beginning and the end that the path of a
            rule must have to be compared with it.
        anything: Whether a router may take the path for any other, so that every limit applies and no exemption.
    """

    __slots__ = ("anything", "strict", "texts")

    def __init__(self, scope: Scope, routes: Routes, *, slashed: bool) -> None:
        path: str = scope["path"]
        given: str = scope.get("root_path", "")
        root = routes.root or given
        served = here = below(given, path) if given else path
        if routes.root:
            here = below(root, path)
        self.anything = "\n" in path or (len(path) > MAX_ODD and is_odd(path))
        self.strict = normal_forms(here)
        generous = self.strict
        if given and served != here:
            generous += normal_forms(served)
        if routes.lead_astray(off_root=root != "" and here == path):
            read = [form for text in routes.texts(scope, root) for form in normal_forms(text)]
            self.strict, generous = (*self.strict, *read), (*generous, *read)
        self.texts = [(text, "", "") for text in generous]
        ends = slashed or len(generous) > 1 or (here[-1:] == "/" and here != "/")
        if ends and routes.drop_slash(scope, root):
            self.texts += [(text.rstrip("/"), "", "") for text in generous if text[-1:] == "/" and text.strip("/")]
            self.texts += [(f"{text}/", "", "/") for text in generous if text[-1:] != "/"]
        # A rule may be written with the root, but not with the part of a path that a mount has read.
        if root and "app_root_path" not in scope:
            self.texts += [(root + text, f"{root}/", end) for text, _, end in self.texts]


class PathIndex(Generic[T]):
    """Finds, among thousands of paths in Starlette's syntax, those that a text may belong to.

    The paths lie in a tree by their segments. A segment with a parameter may be any text; one whose parameter may hold
    a slash stands for all segments that follow::

        /shops/{shop}/items        shops, any, items
        /files/{rest:path}         files, and whatever comes below

    The index never misses a path whose pattern matches, and it may name others: the patterns decide, and they are asked
    only about the few that are found. Paths that differ only beside a parameter in one segment (`/{name}.css`,
    `/{name}.js`), or behind one that may hold a slash, are not told apart here.
    """

    __slots__ = ("_always", "_top")

    def __init__(self) -> None:
        self._always: list[T] = []
        self._top: _Segment[T] = _Segment()

    def add(self, written: Written | None, owner: T) -> None:
        """Add a path; `find` returns `owner` for it. None stands for what may take any path."""
        if written is None:
            self._always.append(owner)
            return
        at = self._top
        for part in _segments(*written):
            if part is _REST:
                at.rest.append(owner)
                return
            if part is _ANY:
                at.any = at.any or _Segment()
                at = at.any
            else:
                at = at.below.setdefault(part, _Segment())
        at.here.append(owner)

    def find(self, text: str) -> list[T]:
        """Return the owners of all paths that a text may belong to, in no order, some perhaps twice."""
        owners = [*self._always]
        # A pattern ends before one final newline too.
        for ending in (text, text[:-1]) if text[-1:] == "\n" else (text,):
            places = [self._top]
            for part in ending.split("/")[1:]:
                inner = []
                for at in places:
                    if at.rest:
                        owners += at.rest
                    if part in at.below:
                        inner.append(at.below[part])
                    if at.any is not None:
                        inner.append(at.any)
                places = inner
            for at in places:
                owners += at.here
        return owners

    def find_like(self, written: Written) -> list[T]:
        """Return the owners of all paths that may have a text in common with another path."""
        return [*self._always, *self._top.like([*_segments(*written)])]


class _Segment(Generic[T]):
    """The paths that begin with the same segments.

    Attributes:
        here: The owners of those that end here.
        rest: The owners of those whose next parameter stands for all that follows.
        below: Those that go on with text, by that.
        any: Those that go on with a parameter.
    """

    __slots__ = ("any", "below", "here", "rest")

    def __init__(self) -> None:
        self.here: list[T] = []
        self.rest: list[T] = []
        self.below: dict[str, _Segment[T]] = {}
        self.any: _Segment[T] | None = None

    def inner(self) -> list[_Segment[T]]:
        """Return those that go on."""
        return [*self.below.values(), *([] if self.any is None else [self.any])]

    def all(self) -> Iterator[T]:
        """Yield the owners of all paths."""
        yield from (*self.here, *self.rest)
        for inner in self.inner():
            yield from inner.all()

    def like(self, parts: Sequence[str]) -> Iterator[T]:
        """Yield the owners of the paths that may have a text in common with one that goes on with these segments."""
        if not parts:
            yield from self.here
        elif parts[0] is _REST:
            yield from self.all()
        else:
            yield from self.rest
            for inner in self.inner():
                if parts[0] is _ANY or inner is self.any or inner is self.below.get(parts[0]):
                    yield from inner.like(parts[1:])


def _segments(path: str, convertors: Convertors) -> Iterator[str]:
    """Yield the segments of a path, to the first with a parameter that may hold a slash."""
    for part in path.split("/")[1:]:  # every path begins with a slash, so the text before it tells nothing
        if may_hold_a_slash(part, convertors):
            yield _REST
            return
        yield _ANY if PARAM_REGEX.search(part) else part


def may_hold_a_slash(part: str, convertors: Convertors) -> bool:
    """Return whether a part of a path has a parameter whose values may hold a slash."""
    return any(type(convertors[parameter[1]]) not in _WITHIN_A_SEGMENT for parameter in PARAM_REGEX.finditer(part))
