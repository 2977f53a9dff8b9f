"""Which requests the paths of rules and routes have in common; the findings about them ask that.

Two paths are compared by a sample: a path that the narrower one takes, with values that nobody writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Final, NamedTuple

from starlette.convertors import FloatConvertor, IntegerConvertor, PathConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path

from .matching import Convertors, PathIndex, may_hold_a_slash
from .route_tree import Frontend, ResolvedRoute
from .rules import Rule

_SAMPLES: Final[Mapping[type, str]] = {
    StringConvertor: "\0",
    PathConvertor: "\0/\0",
    IntegerConvertor: "7081965043211",
    FloatConvertor: "7081965043211.5",
    UUIDConvertor: "7081965f-0432-4d1f-8a3c-5b9e2d7c6a10",
}
"""Values of parameters that nobody writes into a path."""
_WIDTHS: Final = {":uuid": 0, ":int": 1, ":float": 2, ":str": 3, "": 3}
"""The kinds of parameters, by how much they take; other kinds take more."""
KIND: Final = re.compile(":[a-z]+}")
"""The kind of a parameter, in a path."""


class ReadPath(NamedTuple):
    """A path in Starlette's syntax, as it is read."""

    pattern: re.Pattern[str]
    convertors: Convertors
    sample: str
    """A path that it takes, with values that patterns of narrower kinds do not."""
    goes_on: bool
    """Whether something stands behind a parameter that may hold a slash."""


@lru_cache(4_096)
def read_path(path: str) -> ReadPath:
    """Read a path in Starlette's syntax."""
    pattern, _, convertors = compile_path(path)
    sample = PARAM_REGEX.sub(lambda found: _SAMPLES.get(type(convertors[found[1]]), found[0]), path)
    return ReadPath(pattern, convertors, sample, may_hold_a_slash(path.rpartition("/")[0], convertors))


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one matches."""
    ending: PathIndex[int] = PathIndex()
    for place, later in enumerate(rules):
        samples = [read_path(matcher.path).sample for matcher in later.matchers]
        # A rule that covers all paths covers the first one.
        candidates = sorted(ending.find(samples[0] if samples else ""))
        earlier = next((rules[number] for number in candidates if _covers(rules[number], later, samples)), None)
        if earlier is not None:
            yield earlier, later
        if (later.final or later.blocks) and not later.conditional:
            for matcher in later.matchers:
                ending.add((matcher.path, matcher.convertors), place)
            if not later.matchers:
                ending.add(None, place)


def _covers(earlier: Rule, later: Rule, samples: Sequence[str]) -> bool:
    methods = frozenset({"GET"}) if later.connection == "websocket" else later.methods
    if earlier.connection is not None and earlier.connection != later.connection:
        return False
    if earlier.methods is not None and (methods is None or not methods <= earlier.methods):
        return False
    if not earlier.matchers or not samples:
        return not earlier.matchers
    return all(any(matcher.exempts(sample) for matcher in earlier.matchers) for sample in samples)


class RoutesByPath:
    """Finds the routes that a path of a rule is about, however many there are; both may have parameters.

    Args:
        routes: The routes.
    """

    def __init__(self, routes: Iterable[ResolvedRoute]) -> None:
        self._routes = list(routes)
        self._index: PathIndex[tuple[str, ResolvedRoute]] = PathIndex()
        for place in self._routes:
            path = typed_path(place)
            self._index.add((path, read_path(path).convertors), (path, place))

    def met_by(self, rule: Rule, path: str) -> list[ResolvedRoute]:
        """Return the routes by which some request comes that a path of a rule is about."""
        found = self._routes
        if path != "*":
            alike = self._index.find_like((path, read_path(path).convertors))
            found = [place for own, place in alike if _meet(path, own)]
        return [place for place in found if _is_for(rule, place)]


def _is_for(rule: Rule, place: ResolvedRoute) -> bool:
    if rule.connection is not None and rule.connection != place.connection:
        return False
    return rule.methods is None or place.methods is None or not rule.methods.isdisjoint(place.methods)


def _meet(path: str, other: str) -> bool:
    """Return whether two paths, which are alike by their segments, have one in common."""
    if any(read_path(one).goes_on for one in (path, other)):
        return True  # what stands behind a slash that a parameter holds may be anywhere
    pairs = zip_longest(path.split("/"), other.split("/"), fillvalue="{rest:path}")
    sample = "/".join(read_path(min(pair, key=_width)).sample for pair in pairs)
    return all(read_path(one).pattern.match(sample) is not None for one in (path, other))


def _width(segment: str) -> tuple[int, int]:
    """Tell how much a segment takes: text takes least, and of parameters of one kind that with more text beside it."""
    kinds = [kind for _, kind in PARAM_REGEX.findall(segment)]
    return max((_WIDTHS.get(kind, len(_WIDTHS)) for kind in kinds), default=-1), -len(PARAM_REGEX.sub("", segment))


def typed_path(place: ResolvedRoute) -> str:
    """Return the path of a route, the kinds of its parameters told where parts of it tell them: ``/items/{id:int}``."""
    template: str = (
        "".join(mount.path_format.removesuffix("/{path}") for mount in place.paths) + place.route.path_format
    )
    if isinstance(place.route, Frontend):
        return template.replace("{path}", "{path:path}")
    typed = "".join(getattr(part, "path", "") for part in (*place.paths, place.route))
    return typed if KIND.sub("}", typed) == template else template
