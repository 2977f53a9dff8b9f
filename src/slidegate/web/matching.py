"""Whether the path of a rule is that of a request: limits match generously, exemptions strictly.

Between the gate and the code that serves a request there are routers, file servers and frameworks, and they do not all
take one text for the same path. A limit applies if its path matches one of the texts, an exemption only if it matches
all of them. No route is asked. `docs/reference/paths.md` has the rule in seven sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from starlette.convertors import Convertor, FloatConvertor, IntegerConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX
from starlette.types import Scope

from .paths.below_root import below
from .paths.mounts import Mounts
from .paths.normal_form import LONGEST, is_odd, normal_forms
from .paths.path_index import PathIndex
from .paths.patterns import PathPattern

# What pydantic, int(), float() and UUID() take; "+" after a group of repeated characters keeps them linear.
_SPELLINGS: Final[Mapping[type, str]] = {
    IntegerConvertor: r"\s*+[+-]?(?:0[0_]*+[+-])?[\d_]++(?:\.[0_]*+)?\s*+",
    FloatConvertor: r"(?i:\s*+[+-]?(?:inf|infinity|nan|(?=[^/]*\d)[\d_]*+(?:\.[\d_]*+)?(?:e[+-]?[\d_]++)?)\s*+)",
    UUIDConvertor: r"(?i:(?:urn:)?(?:uuid:)?(?:[{}-]*+[0-9a-f]){32}[{}-]*+)",
}


class PathMatcher:
    """A path of a rule, in Starlette's syntax.

    Attributes:
        path: The text of the path.
        convertors: The convertors of its parameters.
        limits: The pattern for limits, which takes a number in any spelling.
    """

    __slots__ = ("_strict", "convertors", "limits", "path")

    def __init__(self, path: str, pattern: PathPattern) -> None:
        self.path = path
        written, self.convertors = pattern
        self.limits = _with_spellings(path, self.convertors) or written
        # "." leaves out the newline here, as it does where Starlette mounts an application.
        self._strict = re.compile(written.pattern)

    def exempts(self, text: str) -> bool:
        """Return whether an exemption applies to a text; it takes not an inch more than the path says."""
        return self._strict.fullmatch(text) is not None


class RequestPath:
    """The texts of a request's path that rules are compared with.

    Args:
        scope: The ASGI scope of the request.
        mounts: The mounts below the gate.
        slashed: Whether the path of a rule ends in a slash.

    Attributes:
        path: The path below the root: the one that the application gives itself, else that of the server.
        served: The path below the root of the server, as `route_path` returns it.
        strict: The texts that an exemption has to match, all of them.
        texts: The texts of which a limit has to match one. Each comes with the beginning and the end that the path of a
            rule must have to be compared with it.
        anything: Whether a router may take the path for any other, so that every limit applies and no exemption.
        lasting: Whether every request with this type, method, path and root has these texts.
    """

    __slots__ = ("anything", "lasting", "path", "served", "strict", "texts")

    def __init__(self, scope: Scope, mounts: Mounts, *, slashed: bool) -> None:
        path: str = scope["path"]
        given: str = scope.get("root_path", "")
        root = mounts.root or given
        self.served = here = below(given, path) if given else path
        if mounts.root:
            here = below(root, path)
        self.path = here
        self.anything = "\n" in path or (len(path) > LONGEST and is_odd(path))
        self.strict = normal_forms(here)
        self.lasting = True
        generous = self.strict
        if given and self.served != here:
            generous += normal_forms(self.served)
        if mounts.lead_astray(off_root=root != "" and here == path):
            read = [form for text in mounts.texts(scope, root) for form in normal_forms(text)]
            self.strict, generous = (*self.strict, *read), (*generous, *read)
            self.lasting = mounts.by_path
        self.texts = [(text, "", "") for text in generous]
        if slashed or len(generous) > 1 or (here[-1:] == "/" and here != "/"):
            self.lasting = mounts.by_path
            if mounts.drop_slash(scope, root):
                self.texts += [(text.rstrip("/"), "", "") for text in generous if text[-1:] == "/" and text.strip("/")]
                self.texts += [(f"{text}/", "", "/") for text in generous if text[-1:] != "/"]
        # A rule may be written with the root, but not with the part of a path that a mount has read.
        if root and "app_root_path" not in scope:
            self.texts += [(root + text, f"{root}/", end) for text, _, end in self.texts]


class RuleIndex:
    """Finds the rules that a path meets.

    Args:
        rules: The paths of each rule; none for a rule that applies to all paths.

    Attributes:
        slashed: Whether one of the paths ends in a slash.
    """

    def __init__(self, rules: Iterable[Sequence[PathMatcher]]) -> None:
        self._everywhere: list[int] = []
        self._index: PathIndex[tuple[Any, int, str]] = PathIndex()
        self.slashed = False
        for place, matchers in enumerate(rules):
            if not matchers:
                self._everywhere.append(place)
            for matcher in matchers:
                self._index.add(matcher.path, matcher.convertors, (matcher.limits.match, place, matcher.path))
                self.slashed |= len(matcher.path) > 1 and matcher.path[-1] == "/"

    def find(self, path: RequestPath) -> dict[int, str]:
        """Return the places of the rules whose limits apply, each with the text by which it does."""
        found: dict[int, str] = dict.fromkeys(self._everywhere, path.path)
        for text, begin, end in path.texts:
            # One comprehension first: where no text tells rules apart, most of them do not match.
            for _, place, written in [owner for owner in self._index.find(text) if owner[0](text)]:
                if written.startswith(begin) and written.endswith(end):
                    found.setdefault(place, text)
        return found


def _with_spellings(path: str, convertors: Mapping[str, Convertor[Any]]) -> re.Pattern[str] | None:
    """Return the pattern of a path that takes numbers in any spelling; None where it has no number."""
    if not any(type(convertor) in _SPELLINGS for convertor in convertors.values()):
        return None
    regex, end = "", 0
    for found in PARAM_REGEX.finditer(path):
        convertor = convertors[found[1]]
        value = _SPELLINGS.get(type(convertor), convertor.regex)
        regex += f"{re.escape(path[end : found.start()])}(?P<{found[1]}>{value})"
        end = found.end()
    return re.compile(f"{regex}{re.escape(path[end:])}$", re.DOTALL)
